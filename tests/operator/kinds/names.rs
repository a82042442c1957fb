//! Names that would conflict with other locks or queues: the API server rejects exactly
//! those that the operator would reject.

use kube::api::PostParams;
use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_plan::naming::{DEFAULT_PREFIX, KEY_SUFFIXES, LockName, QueueName};
use lockkeeper_testkit::world::{Kind, PATIENCE, World, has_reason, in_a_world};
use serde_json::json;

/// Returns whether the API server accepts an object with this spec, or the reason if not.
/// Creates nothing.
async fn verdict<K: Kind>(world: &World, spec: serde_json::Value) -> Result<(), String> {
    let object: K = serde_json::from_value(json!({
        "apiVersion": K::api_version(&()), "kind": K::kind(&()),
        "metadata": {"name": "deploy"}, "spec": spec,
    }))
    .unwrap();
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    match world.api::<K>().create(&dry_run, &object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(answer)) if answer.code == 422 => Err(answer.message.clone()),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn the_api_server_and_the_operator_refuse_the_same_lock_names() {
    in_a_world("kinds", async |world| {
        let mut names: Vec<String> =
            ["amq.x", "tab\there", "x\u{7f}", "x\u{85}", "x\ny", "x\n-1-A", "sl/ash", "ümlaut"]
                .map(Into::into)
                .into();
        for length in [200, 201] {
            names.push("x".repeat(length));
            // Two bytes each.
            names.push("ü".repeat(length / 2 + length % 2));
        }
        // Every short sequence of the parts that the rules mention.
        let tokens = ["", "a", "-", "1", "A", "-W", "-23-", "-B-", ".semaphore"];
        for one in tokens {
            for two in tokens {
                for three in ["", "-", "12", "C", "W", "-F"] {
                    names.push(format!("{one}{two}{three}"));
                }
            }
        }
        let (mut taken, mut refused) = (0, 0);
        for name in names {
            let ours = LockName::new(name.as_str());
            let theirs = verdict::<Semaphore>(&world, json!({"lockName": name})).await;
            assert_eq!(
                ours.is_ok(),
                theirs.is_ok(),
                "{name:?}: LockName says {ours:?}, the API server {theirs:?}"
            );
            match theirs {
                Ok(()) => taken += 1,
                Err(message) => {
                    assert!(message.contains("lockName"), "{name:?}: {message}");
                    refused += 1;
                }
            }
        }
        assert!(taken > 50 && refused > 50, "{taken} taken, {refused} refused");
    })
    .await;
}

#[tokio::test]
async fn the_api_server_and_the_operator_refuse_the_same_queue_names() {
    in_a_world("kinds", async |world| {
        let plain = [
            "jobs",
            "jobs:",
            ":jobs",
            "jobs:closed:x",
            "jobs:stats",
            "a:b",
            "tab\there",
            "x\u{85}",
            "",
        ];
        let mut names: Vec<String> = plain.map(Into::into).into();
        for suffix in KEY_SUFFIXES {
            names.extend([format!("jobs{suffix}"), suffix.to_owned(), suffix[1..].to_owned()]);
            names.push(format!("jobs{suffix}x"));
        }
        for length in [200, 201] {
            names.push("x".repeat(length));
            names.push("ü".repeat(length / 2 + length % 2));
        }
        let (mut taken, mut refused) = (0, 0);
        for prefix in [None, Some("p"), Some("p:jobs"), Some("p:jobs:stats"), Some("ü\u{90}")] {
            for name in &names {
                let ours = QueueName::new(prefix.unwrap_or(DEFAULT_PREFIX), name.as_str());
                let mut spec = json!({"queueName": name});
                if let Some(prefix) = prefix {
                    spec["redisReference"] = json!({"prefix": prefix});
                }
                let theirs = verdict::<PressureQueue>(&world, spec).await;
                assert_eq!(
                    ours.is_ok(),
                    theirs.is_ok(),
                    "{prefix:?} {name:?}: QueueName says {ours:?}, the API server {theirs:?}"
                );
                if theirs.is_ok() { taken += 1 } else { refused += 1 }
            }
        }
        assert!(taken > 50 && refused > 50, "{taken} taken, {refused} refused");
        let long = "ü".repeat(101);
        let spec = json!({"redisReference": {"prefix": long}});
        let message = verdict::<PressureQueue>(&world, spec).await.unwrap_err();
        assert!(message.contains("prefix must be at most 200 bytes long"), "{message}");
    })
    .await;
}

#[tokio::test]
async fn a_refused_name_comes_with_its_rule_and_a_huge_one_without_itself() {
    in_a_world("kinds", async |world| {
        let lock = async |name: String| {
            verdict::<Semaphore>(&world, json!({"lockName": name})).await.unwrap_err()
        };
        for (name, rule) in [
            ("amq.x", "must not start with amq."),
            ("jobs-3-A", "must not end in -<n>-A"),
            ("jobs.semaphore", ".semaphore"),
        ] {
            let message = lock(name.to_owned()).await;
            assert!(message.contains(rule), "{name}: {message}");
        }
        let message = lock("x".repeat(300_000)).await;
        assert!(message.contains("may not be more than 200 bytes"), "{message}");
        assert!(message.len() < 2000, "{} bytes", message.len());
        let spec = json!({"queueName": "jobs:closed"});
        let message = verdict::<PressureQueue>(&world, spec).await.unwrap_err();
        assert!(message.contains("must not end in a key suffix of the protocol"), "{message}");
    })
    .await;
}

#[tokio::test]
async fn a_default_name_that_is_too_long_is_reported_in_the_status() {
    in_a_world("kinds", async |world| {
        let _operator = world.operator().await;
        let name = "x".repeat(220);
        world.semaphore(&name, "slots: 1").await;
        world.queue(&name, "bound: 1").await;
        let semaphore = world
            .until(&name, "refused", PATIENCE, |s: &Semaphore| {
                has_reason(s, "Stalled", "InvalidName")
            })
            .await;
        let (_, _, message) = semaphore.condition("Ready").unwrap();
        assert!(message.contains("at most 200 are allowed"), "{message}");
        world
            .until(&name, "refused", PATIENCE, |q: &PressureQueue| {
                has_reason(q, "Stalled", "InvalidName")
            })
            .await;
    })
    .await;
}
