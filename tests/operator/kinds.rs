//! Objects that the API server accepts and rejects, and kubectl's output.

use std::path::{Path, PathBuf};

use kube::api::{Patch, PatchParams};
use lockkeeper_api::{PressureQueue, PressureQueueSpec, Semaphore, SemaphoreSpec};
use lockkeeper_testkit::pressure_text::TextClient;
use lockkeeper_testkit::world::{Kind, PATIENCE, World, in_a_world, kubectl};
use serde_json::json;

use crate::operator::holders::client::Client;
use crate::operator::queues::text;

mod names;
mod rules;

/// Returns the API server's message of a rejection.
fn refusal<T: std::fmt::Debug>(result: kube::Result<T>) -> String {
    match result {
        Err(kube::Error::Api(answer)) => {
            assert_eq!(answer.code, 422, "{answer:?}");
            answer.message.clone()
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn numbers_out_of_range_are_rejected_with_the_allowed_range() {
    in_a_world("kinds", async |world| {
        for (spec, allowed) in [
            ("{slots: -1}", "spec.slots in body should be greater than or equal to 0"),
            ("{slots: 1000000}", "spec.slots in body should be less than or equal to 10000"),
            ("{slots: 10001}", "less than or equal to 10000"),
            ("{resize: {overshoot: -1}}", "greater than or equal to 0"),
            ("{resize: {overshoot: 1001}}", "less than or equal to 1000"),
        ] {
            let refused = refusal(world.apply::<Semaphore>("deploy", spec).await);
            assert!(refused.contains(allowed), "{spec}: {refused}");
        }
        for (spec, allowed) in [
            ("{bound: -1}", "spec.bound in body should be greater than or equal to 0"),
            ("{bound: 2147483648}", "less than or equal to 2147483647"),
            ("{redisReference: {database: -1}}", "greater than or equal to 0"),
            ("{state: Shut}", "\"Open\", \"Closed\""),
            ("{deletionPolicy: Keep}", "\"Delete\", \"Retain\""),
        ] {
            let refused = refusal(world.apply::<PressureQueue>("frames", spec).await);
            assert!(refused.contains(allowed), "{spec}: {refused}");
        }
        for spec in ["{slots: 0}", "{slots: 10000}"] {
            world.apply::<Semaphore>("deploy", spec).await.unwrap();
        }
        world.apply::<PressureQueue>("frames", "{bound: 2147483647}").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn scaling_sets_the_slots_within_the_allowed_range() {
    in_a_world("kinds", async |world| {
        world.semaphore("deploy", "slots: 3").await;
        let scale = async |replicas: &str| {
            let replicas = format!("--replicas={replicas}");
            kubectl(&world, &["scale", "sem/deploy", &replicas]).await
        };
        assert!(scale("-1").await.is_err());
        let refused = scale("1000000").await.unwrap_err();
        assert!(refused.contains("less than or equal to 10000"), "{refused}");
        // kubectl itself refuses a negative number; so does the API server.
        let api = world.api::<Semaphore>();
        let patch = Patch::Merge(json!({"spec": {"replicas": -1}}));
        let refused = refusal(api.patch_scale("deploy", &PatchParams::default(), &patch).await);
        assert!(refused.contains("greater than or equal to 0"), "{refused}");
        assert_eq!(api.get("deploy").await.unwrap().spec.slots, 3, "nothing was changed");

        scale("7").await.unwrap();
        assert_eq!(api.get("deploy").await.unwrap().spec.slots, 7);
    })
    .await;
}

/// For each immutable field: a valid value, and another one.
const IMMUTABLE: &[(&str, &str, &str)] = &[
    ("lockName", "lockName: ci.a", "lockName: ci.b"),
    ("vhost", "vhost: a", "vhost: b"),
    (
        "rabbitmqClusterReference",
        "rabbitmqClusterReference: {connectionSecret: {name: a}}",
        "rabbitmqClusterReference: {connectionSecret: {name: b}}",
    ),
];
const IMMUTABLE_QUEUE: &[(&str, &str, &str)] = &[
    ("queueName", "queueName: a", "queueName: b"),
    ("redisReference", "redisReference: {prefix: a}", "redisReference: {prefix: b}"),
    ("redisReference", "redisReference: {database: 1}", "redisReference: {database: 2}"),
    ("redisReference", "redisReference: {prefix: a}", "redisReference: {prefix: a, database: 0}"),
    (
        "redisReference",
        "redisReference: {connectionSecret: {name: a}}",
        "redisReference: {connectionSecret: {name: b}}",
    ),
];

#[tokio::test]
async fn an_immutable_field_can_be_neither_changed_nor_added_nor_removed() {
    async fn check<K: Kind>(world: &World, cases: &[(&str, &str, &str)]) {
        for (number, (field, one, other)) in cases.iter().enumerate() {
            let (with, without) = (format!("with-{number}"), format!("without-{number}"));
            world.apply::<K>(&with, &format!("{{{one}}}")).await.unwrap();
            world.apply::<K>(&without, "{}").await.unwrap();
            for (what, name, spec) in
                [("changed", &with, *other), ("removed", &with, ""), ("added", &without, *one)]
            {
                let refused = refusal(world.apply::<K>(name, &format!("{{{spec}}}")).await);
                assert!(
                    refused.contains(&format!("{field} can't be changed, added or removed"))
                        && refused.contains("create another"),
                    "{field} {what}: {refused}"
                );
            }
            // Unchanged values are accepted.
            world.apply::<K>(&with, &format!("{{{one}, suspend: true}}")).await.unwrap();
            world.apply::<K>(&without, "{suspend: true}").await.unwrap();
        }
    }
    in_a_world("kinds", async |world| {
        check::<Semaphore>(&world, IMMUTABLE).await;
        check::<PressureQueue>(&world, IMMUTABLE_QUEUE).await;
    })
    .await;
}

#[tokio::test]
async fn a_closed_queue_can_not_be_opened_again() {
    in_a_world("kinds", async |world| {
        let apply = async |spec| world.apply::<PressureQueue>("frames", spec).await;
        apply("{state: Open}").await.unwrap();
        apply("{state: Closed}").await.unwrap();
        // If left out, it would default to Open.
        for spec in ["{state: Open}", "{bound: 3}"] {
            let refused = refusal(apply(spec).await);
            assert!(refused.contains("state can't go from Closed back to Open"), "{refused}");
            assert!(refused.contains("delete this PressureQueue and create another"), "{refused}");
        }
        apply("{state: Closed, bound: 3}").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn omitted_fields_get_their_defaults() {
    in_a_world("kinds", async |world| {
        let semaphore: Semaphore = world.apply("deploy", "{}").await.unwrap();
        assert_eq!(
            serde_json::to_value::<SemaphoreSpec>(semaphore.spec).unwrap(),
            json!({
                "slots": 1, "protocol": "ExclusiveQueue", "profile": "Guideline", "fencing": false, "lockDelay": "0s",
                "resize": {"overshoot": 16, "order": "Descending"},
                "deletionPolicy": "Delete", "deletionGuard": "None", "suspend": false
            })
        );
        let queue: PressureQueue = world.apply("frames", "{redisReference: {}}").await.unwrap();
        assert_eq!(
            serde_json::to_value::<PressureQueueSpec>(queue.spec).unwrap(),
            json!({
                "bound": 0, "state": "Open", "deletionPolicy": "Retain",
                "deletionGuard": "None", "repairPolicy": "Report", "suspend": false,
                "redisReference": {"prefix": "__pressure__"}
            })
        );
        // Applied by the API server, not by parsing into our types. Also in partial
        // objects.
        world.apply::<Semaphore>("begun", "{resize: {}}").await.unwrap();
        for name in ["sem/deploy", "sem/begun"] {
            let get = ["get", name, "-o", "jsonpath={.spec.slots} {.spec.resize.overshoot}"];
            assert_eq!(kubectl(&world, &get).await.unwrap(), "1 16", "{name}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_field_that_does_not_exist_is_refused_by_its_name() {
    in_a_world("kinds", async |world| {
        let file = format!("{}/{}.yaml", env!("CARGO_TARGET_TMPDIR"), world.namespace);
        for (kind, spec, unknown) in [
            ("Semaphore", "{slots: 1, slotz: 2}", "spec.slotz"),
            ("Semaphore", "{resize: {overshot: 2}}", "spec.resize.overshot"),
            ("PressureQueue", "{bounds: 2}", "spec.bounds"),
        ] {
            let object = format!(
                "apiVersion: lockkeeper.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: typo}}\nspec: {spec}\n"
            );
            std::fs::write(&file, object).unwrap();
            for arguments in [
                &["apply", "--validate=strict", "-f", &file][..],
                &["apply", "-f", &file],
                &["apply", "--server-side", "-f", &file],
                &["create", "--validate=strict", "-f", &file],
            ] {
                let refused = kubectl(&world, arguments).await.unwrap_err();
                assert!(refused.contains(unknown), "{arguments:?} {spec}: {refused}");
            }
        }
        std::fs::remove_file(&file).unwrap();
    })
    .await;
}

#[tokio::test]
async fn kubectl_shows_the_columns_of_both_kinds() {
    in_a_world("kinds", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 3").await;
        world.queue("frames", "bound: 5").await;
        world.semaphore_ready("deploy").await;
        world.queue_ready("frames").await;
        let get = async |arguments: &str| {
            let all: Vec<&str> = ["get"].into_iter().chain(arguments.split(' ')).collect();
            kubectl(&world, &all).await.unwrap()
        };
        let words = |line: &str| line.split_whitespace().map(ToOwned::to_owned).collect::<Vec<_>>();
        let table = |text: &str| text.lines().map(words).collect::<Vec<_>>();

        let holder = Client::connect(&world).await;
        let slot = format!("{}.deploy-1-B", world.namespace);
        holder.take(&slot, &[("x-lockkeeper-identity", "build-41")]).await.unwrap();
        world
            .until("deploy", "held", PATIENCE, |s: &Semaphore| {
                s.status
                    .as_ref()
                    .is_some_and(|status| status.holders_summary.as_deref() == Some("build-41"))
            })
            .await;
        let mut camera = TextClient::connect(&text(&world, "frames"), "camera-7").await.unwrap();
        camera.put("first").await.unwrap();
        world
            .until("frames", "produced", PATIENCE, |q: &PressureQueue| {
                q.status.as_ref().is_some_and(|status| status.length == Some(1))
            })
            .await;

        // Holders and the number of waiters are visible to all users, without -o wide.
        let sem = table(&get("sem").await);
        assert_eq!(sem[0].join(" "), "NAME SLOTS HELD FREE WAITING READY AGE HOLDERS");
        assert_eq!(sem[1][..6].join(" "), "deploy 3 1 2 0 True");
        assert_eq!(sem[1][7], "build-41");
        let wide = table(&get("semaphores -o wide").await);
        assert_eq!(
            wide[0].join(" "),
            "NAME SLOTS HELD FREE WAITING READY AGE HOLDERS DRAINING LOCK STATUS"
        );
        let lock = format!("{}.deploy", world.namespace);
        assert!(wide[1].contains(&lock), "{wide:?}");

        let pq = table(&get("pq").await);
        assert_eq!(pq[0].join(" "), "NAME LENGTH BOUND CLOSED READY AGE PRODUCER CONSUMER");
        assert_eq!(pq[1][..5].join(" "), "frames 1 5 false True");
        assert_eq!(pq[1][6], "camera-7");
        let wide = table(&get("pressurequeues -o wide").await);
        assert_eq!(
            wide[0].join(" "),
            "NAME LENGTH BOUND CLOSED READY AGE PRODUCER CONSUMER PRODUCED CONSUMED STATUS"
        );

        for (category, present, absent) in [
            ("locks", vec!["deploy", "frames"], None),
            ("rabbitmq", vec!["deploy"], Some("frames")),
            ("redis", vec!["frames"], Some("deploy")),
        ] {
            let text = get(category).await;
            for name in present {
                assert!(text.contains(name), "{category}: {text}");
            }
            assert!(absent.is_none_or(|name| !text.contains(name)), "{category}: {text}");
        }
    })
    .await;
}

#[tokio::test]
async fn kubectl_explains_a_field_with_unit_default_and_example() {
    in_a_world("kinds", async |world| {
        let explain = async |field: &str| {
            let text = kubectl(&world, &["explain", field]).await.unwrap();
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let slots = explain("semaphore.spec.slots").await;
        for part in ["Maximum number of clients", "0 to 10000", "Defaults to 1.", "Example: 5."] {
            assert!(slots.contains(part), "{slots}");
        }
        let prefix = explain("pq.spec.redisReference.prefix").await;
        assert!(prefix.contains("Defaults to `__pressure__`"), "{prefix}");
        let reason = explain("sem.status.holders.reason").await;
        assert!(reason.contains("Reason that the holder declares"), "{reason}");
    })
    .await;
}

#[tokio::test]
async fn every_example_is_accepted() {
    in_a_world("kinds", async |world| {
        let mut files = Vec::new();
        collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples"), &mut files);
        let mut accepted = String::new();
        for file in files {
            let file = file.to_str().unwrap();
            let apply = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "-f"];
            let arguments: Vec<&str> = apply.into_iter().chain([file]).collect();
            match kubectl(&world, &arguments).await {
                Ok(said) => accepted += &said,
                Err(refused) => panic!("{file}: {refused}"),
            }
        }
        for kind in ["semaphore.lockkeeper.dev/", "pressurequeue.lockkeeper.dev/", "secret/"] {
            assert!(accepted.matches(kind).count() >= 2, "{kind}: {accepted}");
        }
    })
    .await;
}

/// Collects every YAML file below a directory.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // Those tools' own types or rules read these in tests/gitops.
        let foreign = ["argocd", "ci", "flux", "keda"].iter().any(|folder| path.ends_with(folder));
        if foreign {
            continue;
        }
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            files.push(path);
        }
    }
}
