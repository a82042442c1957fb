//! Metrics of an operator: their values are right, Prometheus' own tool accepts them, and
//! the dashboard, the alerts and the documentation use the same names. See
//! `tests/observability.rs` for when the alerts fire.

use std::collections::BTreeSet;
use std::process::Stdio;

use kube::api::DeleteParams;
use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_testkit::world::{Operator, PATIENCE, World, eventually, has, in_a_world};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::observability::{helps, meanings};
use crate::operator::holders::client::Client;
use crate::operator::leader::{candidate, comes_to_lead, let_in, stands_by};

/// Reads a file of the project.
fn file(path: &str) -> String {
    std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Waits until the operator's metrics contain each of these lines. A `*` at the end
/// matches a value above 0.
async fn until_exported(operator: &Operator, lines: &[String]) {
    for line in lines {
        let so = async || {
            let text = operator.metrics().await;
            text.lines().any(|actual| match line.strip_suffix('*') {
                Some(start) => {
                    actual.strip_prefix(start).is_some_and(|n| n.parse::<f64>().unwrap() > 0.0)
                }
                None => actual == line,
            })
        };
        eventually(line, PATIENCE, so).await;
    }
}

/// Returns lines about an object. Each consists of a metric, further labels, and the rest
/// of the line.
fn lines(world: &World, name: &str, expected: &[(&str, &str, &str)]) -> Vec<String> {
    let one = |(metric, more, value): &(&str, &str, &str)| {
        let more = if more.is_empty() { String::new() } else { format!(",{more}") };
        let place = format!("namespace=\"{}\",name=\"{name}\"", world.namespace);
        format!("lockkeeper_{metric}{{{place}{more}}} {value}")
    };
    expected.iter().map(one).collect()
}

/// Metrics that only occur for a queue damaged by a client, for leftovers of a forced
/// deletion, and for objects that cannot be read or watched. Tested in `doctor`,
/// `protocols` and `namespaces`.
const SEEN_ELSEWHERE: [&str; 5] = [
    "lockkeeper_queue_damaged",
    "lockkeeper_queue_repairs_total",
    "lockkeeper_left_behind_total",
    "lockkeeper_unreadable_objects",
    "lockkeeper_watch_failures_total",
];

/// Returns the names of the metrics in the text, as queries use them.
fn names(text: &str) -> BTreeSet<String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types
        .flat_map(|line| {
            let (name, kind) = line.split_once(' ').unwrap();
            let endings: &[&str] = match kind {
                "counter" => &["_total"],
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            endings.iter().map(|ending| format!("{name}{ending}")).collect::<Vec<_>>()
        })
        .collect()
}

/// Returns the words of a text that look like names of our metrics.
fn names_in(text: &str) -> BTreeSet<String> {
    const STARTS: [&str; 6] = [
        "lockkeeper_",
        "controller_runtime_",
        "workqueue_",
        "rest_client_",
        "leader_election_",
        "process_",
    ];
    let words = text.split(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'));
    let named = words.filter(|w| STARTS.iter().any(|s| w.starts_with(s) && w.len() > s.len()));
    named.map(ToOwned::to_owned).collect()
}

/// Runs promtool with this input. Returns its messages if it found a fault.
async fn promtool(arguments: &[&str], input: &str) -> Result<(), String> {
    let mut process = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is on the PATH: dev/promtool fetches it");
    process.stdin.take().unwrap().write_all(input.as_bytes()).await.unwrap();
    let output = process.wait_with_output().await.unwrap();
    let said = [output.stdout, output.stderr].concat();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8(said).unwrap()) }
}

/// Converts the text to the older format, in which counters have the names of their
/// samples.
fn in_the_older_format(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let is_counter = |name: &str| lines.contains(&&*format!("# TYPE {name} counter"));
    let one = |line: &&str| {
        for kind in ["# HELP ", "# TYPE "] {
            if let Some((name, rest)) = line.strip_prefix(kind).and_then(|l| l.split_once(' '))
                && is_counter(name)
            {
                return format!("{kind}{name}_total {rest}\n");
            }
        }
        format!("{line}\n")
    };
    lines.iter().map(one).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_object_has_metrics_from_its_status_until_it_is_gone() {
    in_a_world("metrics", async |world| {
        let mut operator = world.operator().await;
        world.semaphore("deploy", "slots: 3").await;
        world.queue("frames", "bound: 7").await;
        world.semaphore_ready("deploy").await;
        world.queue_ready("frames").await;
        let holders = [Client::connect(&world).await, Client::connect(&world).await];
        for (slot, holder) in [(1, &holders[0]), (3, &holders[1])] {
            holder.take(&format!("{}.deploy-{slot}-B", world.namespace), &[]).await.unwrap();
        }
        let expected = [
            ("semaphore_slots", "state=\"desired\"", "3"),
            ("semaphore_slots", "state=\"present\"", "3"),
            ("semaphore_held", "", "2"),
            ("semaphore_free", "", "1"),
            ("semaphore_draining", "", "0"),
            ("semaphore_waiting", "", "0"),
        ];
        until_exported(&operator, &lines(&world, "deploy", &expected)).await;
        assert!(!operator.metrics().await.contains("draining_since_seconds{"), "no holder drains");
        world.semaphore("deploy", "slots: 1").await;
        let expected = [
            ("semaphore_slots", "state=\"desired\"", "1"),
            ("semaphore_held", "", "1"),
            ("semaphore_free", "", "0"),
            ("semaphore_draining", "", "1"),
            ("semaphore_draining_since_seconds", "", "*"),
        ];
        until_exported(&operator, &lines(&world, "deploy", &expected)).await;
        let expected = [
            ("queue_length", "", "0"),
            ("queue_in_flight", "", "0"),
            ("queue_bound", "", "7"),
            ("queue_producer_busy", "", "0"),
            ("queue_consumer_busy", "", "0"),
            ("queue_closed", "", "0"),
            ("queue_produced_messages_total", "", "0"),
            ("queue_consumed_bytes_total", "", "0"),
        ];
        until_exported(&operator, &lines(&world, "frames", &expected)).await;

        // Slots deleted by another client are restored and counted.
        holders[0].delete(&format!("{}.deploy-1-A", world.namespace)).await;
        let of = format!("kind=\"Semaphore\",namespace=\"{}\",name=\"deploy\"", world.namespace);
        let condition = |status: &str, reason: &str| {
            format!(
                "lockkeeper_status_condition{{{of},condition=\"Drained\",status=\"{status}\",reason=\"{reason}\"}} 1"
            )
        };
        let drained = condition("True", "NoneDraining");
        let drift = format!("lockkeeper_drift_corrections_total{{{of}}} 1");
        until_exported(&operator, &[drift, condition("False", "HoldersDraining")]).await;
        assert!(!operator.metrics().await.contains(&drained), "it has one status");

        // A new operator reports the same values: they are read, not remembered.
        operator.kill().await;
        let operator = world.operator().await;
        let expected = [("semaphore_held", "", "1"), ("semaphore_draining", "", "1")];
        let text = operator.metrics().await;
        for line in lines(&world, "deploy", &expected) {
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }

        drop(holders);
        for name in ["deploy", "frames"] {
            let about = format!("name=\"{name}\"");
            let (semaphores, queues) = (world.api::<Semaphore>(), world.api::<PressureQueue>());
            let now = DeleteParams::default();
            match name {
                "deploy" => drop(semaphores.delete(name, &now).await.unwrap()),
                _ => drop(queues.delete(name, &now).await.unwrap()),
            }
            let gone = async || !operator.metrics().await.contains(&about);
            eventually(&format!("no series names {name}"), PATIENCE, gone).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_values_are_absent_and_a_server_that_does_not_answer_is_down() {
    in_a_world("metrics-down", async |world| {
        let operator = world.operator_with(&["--metrics-per-object=true"]).await;
        world.secret("rabbit", &[("amqpUri", "amqp://u:canary-down@127.0.0.1:1/v".into())]).await;
        world.semaphore("deploy", "slots: 3").await;
        world
            .until("deploy", "not reached", PATIENCE, |s: &Semaphore| {
                has(s, "BackendReachable", "False")
            })
            .await;
        let mut expected =
            lines(&world, "deploy", &[("semaphore_slots", "state=\"desired\"", "3")]);
        expected.extend([
            "lockkeeper_backend_up{backend=\"127.0.0.1:1/v\"} 0".to_owned(),
            "controller_runtime_reconcile_errors_total{controller=\"semaphore\"} *".to_owned(),
            "controller_runtime_reconcile_total{controller=\"semaphore\",result=\"error\"} *"
                .into(),
            "workqueue_depth{controller=\"semaphore\",name=\"semaphore\"} 0".to_owned(),
            "workqueue_retries_total{controller=\"semaphore\",name=\"semaphore\"} *".to_owned(),
        ]);
        until_exported(&operator, &expected).await;
        let text = operator.metrics().await;
        for absent in ["semaphore_held{", "semaphore_free{", "state=\"present\"", "canary"] {
            assert!(!text.contains(absent), "{absent} in\n{text}");
        }
        world.secret("rabbit", &[("amqpUri", world.amqp_url())]).await;
        let up = format!("/{}\"}} 1", world.vhost);
        eventually("its server is up", PATIENCE, async || operator.metrics().await.contains(&up))
            .await;
        let text = operator.metrics().await;
        assert!(!text.contains("backend=\"127.0.0.1:1/v\""), "no object names it any more\n{text}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_per_object_metrics_off_no_series_has_the_name_of_an_object() {
    in_a_world("metrics-few", async |world| {
        let few = ["--metrics-per-object=false", "--observe-interval=1s", "--drift-interval=1s"];
        let operator = world.operator_with(&few).await;
        world.semaphore("deploy", "slots: 1").await;
        world.queue("frames", "bound: 1").await;
        world.semaphore_ready("deploy").await;
        world.queue_ready("frames").await;
        let other = Client::connect(&world).await;
        other.delete(&format!("{}.deploy-1-A", world.namespace)).await;
        let all = "kind=\"Semaphore\",namespace=\"\",name=\"\"";
        let expected = format!("lockkeeper_drift_corrections_total{{{all}}} 1");
        until_exported(&operator, &[expected]).await;
        let text = operator.metrics().await;
        assert!(!text.contains("deploy") && !text.contains("frames"), "{text}");
        assert!(
            text.contains(&format!("/{}\"}} 1", world.vhost)),
            "the servers are included: {text}"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_parses_the_metrics_and_dashboard_alerts_and_docs_match_them() {
    in_a_world("promtool", async |world| {
        let_in(&world).await;
        let mut operator = candidate(&world).await;
        comes_to_lead(&operator).await;
        world.semaphore("deploy", "slots: 1").await;
        world.queue("frames", "bound: 1").await;
        world.semaphore_ready("deploy").await;
        world.queue_ready("frames").await;
        let expected = [
            "controller_runtime_reconcile_total{controller=\"semaphore\",result=\"requeue_after\"} *",
            "controller_runtime_reconcile_time_seconds_count{controller=\"pressurequeue\"} *",
            "rest_client_requests_total{code=\"200\",method=\"PATCH\"} *",
            "lockkeeper_backend_request_duration_seconds_count{type=\"rabbitmq\",operation=\"converge\"} *",
            "lockkeeper_backend_request_duration_seconds_count{type=\"redis\",operation=\"observe\"} *",
            "lockkeeper_admin_mutex_wait_seconds_count *",
            "process_resident_memory_bytes *",
            "process_cpu_seconds_total *",
        ];
        until_exported(&operator, &expected.map(ToOwned::to_owned)).await;
        let other = Client::connect(&world).await;
        other.delete(&format!("{}.deploy-1-A", world.namespace)).await;
        let drift = format!(
            "lockkeeper_drift_corrections_total{{kind=\"Semaphore\",namespace=\"{}\",name=\"deploy\"}} 1",
            world.namespace
        );
        until_exported(&operator, &[drift]).await;
        let leads = "leader_election_master_status{name=\"lockkeeper\"}";
        until_exported(&operator, &[format!("{leads} 1")]).await;
        let mut second = candidate(&world).await;
        stands_by(&second).await;
        until_exported(&second, &[format!("{leads} 0")]).await;
        let text = operator.metrics().await;
        let build = concat!("lockkeeper_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"");
        assert!(text.contains(build), "{text}");
        second.kill().await;
        operator.kill().await;
        // It removes the remaining objects.
        world.operator().await;

        // The linter supports the older format. The reader of backfills supports the
        // newer one, which requires timestamps.
        let linted = promtool(&["check", "metrics"], &in_the_older_format(&text)).await;
        // The name refers to the clients' counters, not to the type of a metric.
        let known = "lockkeeper_queue_counter_drift metric name should not include type 'counter'\n";
        assert_eq!(linted, Err(known.to_owned()));
        let place = std::env::temp_dir().join(&world.namespace);
        std::fs::create_dir_all(&place).unwrap();
        let (input, output) = (place.join("text"), place.join("blocks"));
        let with_time = |line: &str| {
            let time = if line.starts_with('#') { "" } else { " 1000" };
            format!("{line}{time}
")
        };
        std::fs::write(&input, text.lines().map(with_time).collect::<String>()).unwrap();
        let paths = [input.to_str().unwrap(), output.to_str().unwrap()];
        let read = ["tsdb", "create-blocks-from", "openmetrics", paths[0], paths[1]];
        let outcome = promtool(&read, "").await;
        std::fs::remove_dir_all(&place).unwrap();
        outcome.unwrap();

        let mut there = names(&text);
        there.extend(SEEN_ELSEWHERE.map(ToOwned::to_owned));
        for path in ["dashboard.json", "rules.yaml"] {
            let named = names_in(&file(&format!("charts/lockkeeper/files/{path}")));
            assert!(named.len() > 10, "{path} names metrics: {named:?}");
            let missing: Vec<_> = named.difference(&there).collect();
            assert!(missing.is_empty(), "{path} names metrics that are not exported: {missing:?}");
        }
        let documented = names_in(&file("docs/observability.md"));
        let ours = |name: &&String| name.starts_with("lockkeeper_");
        let known = |name: &String| {
            let ends = ["", "_bucket", "_sum", "_count"];
            let bare = ends.iter().filter_map(|end| name.strip_suffix(end));
            bare.into_iter().any(|bare| documented.contains(bare))
        };
        let missing: Vec<_> = there.iter().filter(ours).filter(|name| !known(name)).collect();
        assert!(missing.is_empty(), "docs/observability.md does not say of {missing:?}");
        let gone: Vec<_> = documented
            .iter()
            .filter(ours)
            .filter(|name| !there.contains(*name) && !there.contains(&format!("{name}_count")))
            .collect();
        assert!(gone.is_empty(), "docs/observability.md still describes {gone:?}");
        let meanings = meanings(&file("docs/observability.md"));
        for (name, help) in helps(&text) {
            if let Some(meaning) = meanings.get(&name) {
                let start = meaning.to_lowercase().starts_with(&help.to_lowercase());
                assert!(start, "{name}: {help:?} is documented as {meaning:?}");
            }
        }
    })
    .await;
}
