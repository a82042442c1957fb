//! What an operator tells Prometheus: that it is true, that Prometheus' own tool reads
//! it, and that the dashboard, the alerts and the documentation speak of the same
//! metrics. When the alerts fire is `tests/observability.rs`'s.

use std::collections::BTreeSet;
use std::process::Stdio;

use kube::api::DeleteParams;
use lockkeeper::api::{PressureQueue, Semaphore};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::holders::client::Client;
use crate::leader::{candidate, comes_to_lead, let_in, stands_by};
use crate::world::{Operator, PATIENCE, World, eventually, has, in_a_world};

/// A text of the project.
fn file(path: &str) -> String {
    std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Waits until the operator tells each of these lines; a `*` at the end stands for a
/// value above 0.
async fn until_told(operator: &Operator, lines: &[String]) {
    for line in lines {
        let so = async || {
            let text = operator.metrics().await;
            text.lines().any(|told| match line.strip_suffix('*') {
                Some(start) => {
                    told.strip_prefix(start).is_some_and(|n| n.parse::<f64>().unwrap() > 0.0)
                }
                None => told == line,
            })
        };
        eventually(line, PATIENCE, so).await;
    }
}

/// Lines about an object: each is a metric, further labels, and the rest of the line.
fn lines(world: &World, name: &str, told: &[(&str, &str, &str)]) -> Vec<String> {
    let one = |(metric, more, value): &(&str, &str, &str)| {
        let more = if more.is_empty() { String::new() } else { format!(",{more}") };
        let place = format!("namespace=\"{}\",name=\"{name}\"", world.namespace);
        format!("lockkeeper_{metric}{{{place}{more}}} {value}")
    };
    told.iter().map(one).collect()
}

/// What only a queue that a client has damaged has, and what is left of an object that
/// went by force: seen in `doctor` and in `protocols`.
const SEEN_ELSEWHERE: [&str; 3] =
    ["lockkeeper_queue_damaged", "lockkeeper_queue_repairs_total", "lockkeeper_left_behind_total"];

/// The metrics that the text has, by the names that queries use.
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

/// The words of a text that are names of metrics such as ours.
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

/// Runs promtool with this input; returns what it said where it found a fault.
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

/// The text as the older format has it: counters are named as their samples are.
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
async fn each_object_is_told_of_by_its_status_until_it_is_gone() {
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
        let told = [
            ("semaphore_slots", "state=\"desired\"", "3"),
            ("semaphore_slots", "state=\"present\"", "3"),
            ("semaphore_held", "", "2"),
            ("semaphore_free", "", "1"),
            ("semaphore_draining", "", "0"),
            ("semaphore_waiting", "", "0"),
        ];
        until_told(&operator, &lines(&world, "deploy", &told)).await;
        assert!(!operator.metrics().await.contains("draining_since_seconds{"), "nobody drains");
        world.semaphore("deploy", "slots: 1").await;
        let told = [
            ("semaphore_slots", "state=\"desired\"", "1"),
            ("semaphore_held", "", "1"),
            ("semaphore_free", "", "0"),
            ("semaphore_draining", "", "1"),
            ("semaphore_draining_since_seconds", "", "*"),
        ];
        until_told(&operator, &lines(&world, "deploy", &told)).await;
        let told = [
            ("queue_length", "", "0"),
            ("queue_bound", "", "7"),
            ("queue_producer_busy", "", "0"),
            ("queue_consumer_busy", "", "0"),
            ("queue_closed", "", "0"),
            ("queue_produced_messages_total", "", "0"),
            ("queue_consumed_bytes_total", "", "0"),
        ];
        until_told(&operator, &lines(&world, "frames", &told)).await;

        // What somebody else deletes is put right, and counted.
        holders[0].delete(&format!("{}.deploy-1-A", world.namespace)).await;
        let of = format!("kind=\"Semaphore\",namespace=\"{}\",name=\"deploy\"", world.namespace);
        let condition = |status: &str| {
            format!(
                "lockkeeper_status_condition{{{of},condition=\"Drained\",status=\"{status}\"}} 1"
            )
        };
        let drift = format!("lockkeeper_drift_corrections_total{{{of}}} 1");
        until_told(&operator, &[drift, condition("False")]).await;
        assert!(!operator.metrics().await.contains(&condition("True")), "it has one status");

        // An operator that has just come tells the same: it is read, not remembered.
        operator.kill().await;
        let operator = world.operator().await;
        let told = [("semaphore_held", "", "1"), ("semaphore_draining", "", "1")];
        let text = operator.metrics().await;
        for line in lines(&world, "deploy", &told) {
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
            eventually(&format!("nothing is told of {name}"), PATIENCE, gone).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_known_is_absent_and_a_server_that_does_not_answer_is_down() {
    in_a_world("metrics-down", async |world| {
        let operator = world.operator_with(&["--metrics-per-object=true"]).await;
        world.secret("rabbit", &[("amqpUri", "amqp://u:canary-down@127.0.0.1:1/v".into())]).await;
        world.semaphore("deploy", "slots: 3").await;
        world
            .until("deploy", "not reached", PATIENCE, |s: &Semaphore| {
                has(s, "BackendReachable", "False")
            })
            .await;
        let mut told = lines(&world, "deploy", &[("semaphore_slots", "state=\"desired\"", "3")]);
        told.extend([
            "lockkeeper_backend_up{backend=\"127.0.0.1:1/v\"} 0".to_owned(),
            "controller_runtime_reconcile_errors_total{controller=\"semaphore\"} *".to_owned(),
            "controller_runtime_reconcile_total{controller=\"semaphore\",result=\"error\"} *"
                .into(),
            "workqueue_retries_total{controller=\"semaphore\",name=\"semaphore\"} *".to_owned(),
        ]);
        until_told(&operator, &told).await;
        let text = operator.metrics().await;
        for absent in ["semaphore_held{", "semaphore_free{", "state=\"present\"", "canary"] {
            assert!(!text.contains(absent), "{absent} in\n{text}");
        }
        world.secret("rabbit", &[("amqpUri", world.amqp_url())]).await;
        let up = format!("/{}\"}} 1", world.vhost);
        eventually("its server is up", PATIENCE, async || operator.metrics().await.contains(&up))
            .await;
        let text = operator.metrics().await;
        assert!(!text.contains("backend=\"127.0.0.1:1/v\""), "nobody names it any more\n{text}");
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
        let somebody = Client::connect(&world).await;
        somebody.delete(&format!("{}.deploy-1-A", world.namespace)).await;
        let all = "kind=\"Semaphore\",namespace=\"\",name=\"\"";
        let told = format!("lockkeeper_drift_corrections_total{{{all}}} 1");
        until_told(&operator, &[told]).await;
        let text = operator.metrics().await;
        assert!(!text.contains("deploy") && !text.contains("frames"), "{text}");
        assert!(
            text.contains(&format!("/{}\"}} 1", world.vhost)),
            "the servers are told of: {text}"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_reads_it_and_dashboard_alerts_and_documentation_name_what_is_there() {
    in_a_world("promtool", async |world| {
        let_in(&world).await;
        let mut operator = candidate(&world).await;
        comes_to_lead(&operator).await;
        world.semaphore("deploy", "slots: 1").await;
        world.queue("frames", "bound: 1").await;
        world.semaphore_ready("deploy").await;
        world.queue_ready("frames").await;
        let told = [
            "controller_runtime_reconcile_total{controller=\"semaphore\",result=\"requeue_after\"} *",
            "controller_runtime_reconcile_time_seconds_count{controller=\"pressurequeue\"} *",
            "rest_client_requests_total{code=\"200\",method=\"PATCH\"} *",
            "lockkeeper_backend_request_duration_seconds_count{type=\"rabbitmq\",operation=\"converge\"} *",
            "lockkeeper_backend_request_duration_seconds_count{type=\"redis\",operation=\"observe\"} *",
            "lockkeeper_admin_mutex_wait_seconds_count *",
            "process_resident_memory_bytes *",
            "process_cpu_seconds_total *",
        ];
        until_told(&operator, &told.map(ToOwned::to_owned)).await;
        let somebody = Client::connect(&world).await;
        somebody.delete(&format!("{}.deploy-1-A", world.namespace)).await;
        let drift = format!(
            "lockkeeper_drift_corrections_total{{kind=\"Semaphore\",namespace=\"{}\",name=\"deploy\"}} 1",
            world.namespace
        );
        until_told(&operator, &[drift]).await;
        let leads = "leader_election_master_status{name=\"lockkeeper\"}";
        until_told(&operator, &[format!("{leads} 1")]).await;
        let mut second = candidate(&world).await;
        stands_by(&second).await;
        until_told(&second, &[format!("{leads} 0")]).await;
        let text = operator.metrics().await;
        let build = concat!("lockkeeper_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"");
        assert!(text.contains(build), "{text}");
        second.kill().await;
        operator.kill().await;
        // Which takes away what is left.
        world.operator().await;

        // The linter knows the older format, the reader of backfills the newer one, in
        // which it wants to know when.
        let linted = promtool(&["check", "metrics"], &in_the_older_format(&text)).await;
        // Of the clients' counters, which is no type of a metric.
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
            assert!(missing.is_empty(), "{path} names what no operator tells: {missing:?}");
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
        assert!(gone.is_empty(), "docs/observability.md tells of {gone:?}");
    })
    .await;
}
