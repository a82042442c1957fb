//! The condition Unsafe: policies that locks do not survive. See `clusters::partitions` for
//! a partitioned cluster.

use lockkeeper_api::Semaphore;
use lockkeeper_api::conditions::find;
use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::world::{PATIENCE, has_reason, in_a_world};
use serde_json::json;

/// Returns the message of the condition.
fn message(object: &Semaphore) -> String {
    let conditions = &object.status.as_ref().unwrap().conditions;
    find(conditions, "Unsafe").unwrap().message.clone()
}

#[tokio::test]
async fn a_policy_that_locks_do_not_survive_is_reported_until_it_is_removed() {
    in_a_world("risks", async |world| {
        let _operator = world.operator().await;
        world.semaphore("plain", "slots: 1").await;
        world.semaphore("deploy", "slots: 1, fencing: true").await;
        world.semaphore_ready("plain").await;
        let is = |reason: &'static str| move |s: &Semaphore| has_reason(s, "Unsafe", reason);
        world.until::<Semaphore>("deploy", "no risk is found", PATIENCE, is("NoRisk")).await;

        let start = format!("^{}\\.", world.namespace);
        let api = variable("RABBITMQ_MANAGEMENT_URL");
        let url = format!("{api}/api/policies/{}/harmful", world.vhost);
        let set = async |pattern: &str, definition: serde_json::Value| {
            let policy =
                json!({"pattern": pattern, "definition": definition, "apply-to": "queues"});
            let request = reqwest::Client::new().put(&url).json(&policy);
            assert!(request.send().await.unwrap().status().is_success());
        };
        set(&start, json!({"message-ttl": 86_400_000})).await;
        let object = world
            .until::<Semaphore>(
                "deploy",
                "its records expire",
                PATIENCE,
                is("PolicyExpiresMessages"),
            )
            .await;
        let record = format!("{}.deploy-1-F", world.namespace);
        assert!(message(&object).contains(&record), "{}", message(&object));
        assert!(has_reason(&object, "Ready", "InSync"), "it stays Ready");

        set(&start, json!({"expires": 86_400_000, "dead-letter-exchange": "amq.fanout"})).await;
        let object = world
            .until::<Semaphore>("plain", "its queues expire", PATIENCE, is("PolicyExpiresQueues"))
            .await;
        let message = self::message(&object);
        assert!(message.contains("dead-letter-exchange applies to the queue"), "{message}");
        assert!(!message.contains("message-ttl"), "it has no messages to lose: {message}");

        // A limit harms only a lock with more tokens.
        world.semaphore("few", "slots: 2, protocol: Token").await;
        world.semaphore("many", "slots: 3, protocol: Token").await;
        set(&start, json!({"expires": 86_400_000, "max-length": 2})).await;
        let object = world
            .until::<Semaphore>("few", "its queue expires", PATIENCE, is("PolicyExpiresQueues"))
            .await;
        assert!(!self::message(&object).contains("max-length"), "{}", self::message(&object));
        let is_limited = |s: &Semaphore| {
            find(&s.status.as_ref().unwrap().conditions, "Unsafe")
                .is_some_and(|c| c.message.contains("at most 2 free tokens"))
        };
        world.until::<Semaphore>("many", "its tokens are limited", PATIENCE, is_limited).await;

        // Another lock's queues, and a key that harms none.
        set(&format!("{start}other-"), json!({"expires": 86_400_000})).await;
        world.until::<Semaphore>("plain", "its queues do not expire", PATIENCE, is("NoRisk")).await;
        world.until::<Semaphore>("deploy", "nor do these", PATIENCE, is("NoRisk")).await;
    })
    .await;
}
