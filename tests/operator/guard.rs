//! `deletionGuard`: a deleted object stays while it is in use, changes nothing until
//! then, and blocks no namespace.

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use lockkeeper_api::{FORCE_FINALIZE, PressureQueue, Semaphore};
use lockkeeper_testkit::pressure_text::TextClient;
use lockkeeper_testkit::world::{Kind, PATIENCE, World, eventually, has_reason, in_a_world};

use crate::operator::holders::client::Client;
use crate::operator::queues::{keys, text};

/// Deletes an object. The policy rejects deletion of objects that are in use according to
/// their status, so the operator is suspended before, as if its last observation were
/// older.
async fn delete<K: Kind>(world: &World, name: &str) {
    world.api::<K>().delete(name, &DeleteParams::default()).await.unwrap();
}

async fn until_gone<K: Kind>(world: &World, name: &str) {
    eventually(&format!("the {} {name} is gone", K::kind(&())), PATIENCE, async || {
        world.api::<K>().get_opt(name).await.unwrap().is_none()
    })
    .await;
}

async fn patch<K: Kind>(world: &World, name: &str, patch: serde_json::Value) {
    let params = PatchParams::default();
    world.api::<K>().patch(name, &params, &Patch::Merge(patch)).await.unwrap();
}

fn holder(world: &World, name: &str, slot: u32) -> String {
    format!("{}.{name}-{slot}-B", world.namespace)
}

/// Waits until a deleted semaphore reports this number of held slots.
async fn until_in_use(world: &World, name: &str, says: &str) -> Semaphore {
    world
        .until(name, says, PATIENCE, |s: &Semaphore| {
            s.metadata.deletion_timestamp.is_some()
                && has_reason(s, "Ready", "InUse")
                && s.condition("Ready").is_some_and(|(.., said)| said.contains(says))
        })
        .await
}

#[tokio::test]
async fn a_guarded_semaphore_stays_untouched_until_the_last_holder_released() {
    in_a_world("guarded", async |world| {
        let operator = world.operator().await;
        world.semaphore("deploy", "slots: 3, deletionGuard: Unused").await;
        world.semaphore("kept", "slots: 1, deletionGuard: Unused, deletionPolicy: Retain").await;
        world.semaphore("idle", "slots: 1, deletionGuard: Unused").await;
        for name in ["deploy", "kept", "idle"] {
            world.semaphore_ready(name).await;
        }
        operator.signal("STOP");
        let client = Client::connect(&world).await;
        let held = [(1, "deploy"), (3, "deploy"), (1, "kept")];
        for (slot, name) in held {
            let queue = holder(&world, name, slot);
            client.take(&queue, &[("x-lockkeeper-id", queue.as_str())]).await.unwrap();
        }
        // One within the count, one above it.
        world.semaphore("deploy", "slots: 2, deletionGuard: Unused").await;
        for name in ["deploy", "kept", "idle"] {
            delete::<Semaphore>(&world, name).await;
        }
        operator.signal("CONT");
        until_gone::<Semaphore>(&world, "idle").await;
        let stays = until_in_use(&world, "deploy", "2 slots are held").await;
        let status = stays.status.unwrap();
        assert_eq!((status.held, status.draining), (Some(1), Some(1)));
        assert_eq!(status.holders.len(), 2, "the awaited holders are reported: {status:#?}");
        until_in_use(&world, "kept", "1 slot is held").await;
        assert!(world.queues().await.is_superset(&world.lock_queues("deploy", 2)), "untouched");

        // The one above the count alone delays the deletion too.
        client.delete(&holder(&world, "deploy", 1)).await;
        until_in_use(&world, "deploy", "1 slot is held").await;
        assert!(world.queues().await.is_superset(&world.lock_queues("deploy", 2)), "untouched");
        client.delete(&holder(&world, "deploy", 3)).await;
        until_gone::<Semaphore>(&world, "deploy").await;
        client.delete(&holder(&world, "kept", 1)).await;
        until_gone::<Semaphore>(&world, "kept").await;
        assert_eq!(world.queues().await, world.lock_queues("kept", 1), "Retain is Retain");
    })
    .await;
}

#[tokio::test]
async fn a_guard_can_be_taken_away_or_forced_while_it_waits() {
    in_a_world("unguarded", async |world| {
        let operator = world.operator().await;
        for name in ["forced", "mended"] {
            world.semaphore(name, "slots: 1, deletionGuard: Unused").await;
        }
        let client = Client::connect(&world).await;
        for name in ["forced", "mended"] {
            world.semaphore_ready(name).await;
            operator.signal("STOP");
            client.take(&holder(&world, name, 1), &[]).await.unwrap();
            delete::<Semaphore>(&world, name).await;
            operator.signal("CONT");
            until_in_use(&world, name, FORCE_FINALIZE).await;
        }
        let force = serde_json::json!({"metadata": {"annotations": {FORCE_FINALIZE: "true"}}});
        patch::<Semaphore>(&world, "forced", force).await;
        until_gone::<Semaphore>(&world, "forced").await;
        let none = serde_json::json!({"spec": {"deletionGuard": "None"}});
        patch::<Semaphore>(&world, "mended", none).await;
        until_gone::<Semaphore>(&world, "mended").await;
        let mut left = world.lock_queues("forced", 1);
        left.extend(["forced", "mended"].map(|name| holder(&world, name, 1)));
        assert_eq!(world.queues().await, left);
    })
    .await;
}

#[tokio::test]
async fn a_semaphore_of_tokens_and_one_of_consumers_are_guarded_too() {
    use lockkeeper_plan::connection::RabbitmqSettings;
    use lockkeeper_plan::naming::{LockName, Protocol, QueueType};
    use lockkeeper_semaphore::{AcquireOptions, Client, ClientOptions};

    in_a_world("guarded-kinds", async |world| {
        let operator = world.operator().await;
        let management = lockkeeper_testkit::environment::variable("RABBITMQ_MANAGEMENT_URL");
        let settings = RabbitmqSettings::from_urls(&world.amqp_url(), Some(&management)).unwrap();
        let client = Client::new(settings, ClientOptions::default());
        let rows = [
            ("token", "Token", Protocol::Token(QueueType::Classic), "1 token is held"),
            ("consumer", "ExclusiveConsumer", Protocol::ExclusiveConsumer, "1 slot is held"),
        ];
        for (name, protocol, how, says) in rows {
            let spec = format!("slots: 2, protocol: {protocol}, deletionGuard: Unused");
            world.semaphore(name, &spec).await;
            world.semaphore_ready(name).await;
            let lock = LockName::new(format!("{}.{name}", world.namespace)).unwrap();
            let lock = client.semaphore(lock.with_protocol(how));
            operator.signal("STOP");
            let permit = lock.try_acquire(&AcquireOptions::default()).await.unwrap();
            delete::<Semaphore>(&world, name).await;
            operator.signal("CONT");
            until_in_use(&world, name, says).await;
            // Unchanged: another client can still acquire.
            let other = lock.try_acquire(&AcquireOptions::default()).await.unwrap();
            other.release().await.unwrap();
            permit.release().await.unwrap();
            until_gone::<Semaphore>(&world, name).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_guarded_queue_stays_until_it_is_empty() {
    in_a_world("guarded-queue", async |world| {
        let operator = world.operator().await;
        world.queue("goes", "bound: 3, deletionPolicy: Delete, deletionGuard: Empty").await;
        world.queue("stays", "bound: 3, deletionGuard: Empty").await;
        for name in ["goes", "stays"] {
            world.queue_ready(name).await;
            let mut client = TextClient::connect(&text(&world, name), "camera").await.unwrap();
            operator.signal("STOP");
            client.put("frame").await.unwrap();
            delete::<PressureQueue>(&world, name).await;
            operator.signal("CONT");
            world
                .until(name, "not empty", PATIENCE, |q: &PressureQueue| {
                    has_reason(q, "Ready", "NotEmpty")
                        && q.condition("Ready").unwrap().2.contains("1 element:")
                        && q.status.as_ref().unwrap().length == Some(1)
                })
                .await;
            assert_eq!(client.get().await.unwrap(), "frame", "it works as before");
            until_gone::<PressureQueue>(&world, name).await;
        }
        let left = keys(&world).await;
        assert!(left.iter().any(|key| key.contains(".stays:")), "{left:?}");
        assert!(!left.iter().any(|key| key.contains(".goes:")), "{left:?}");
    })
    .await;
}

#[tokio::test]
async fn no_guard_holds_up_a_namespace() {
    in_a_world("guarded-namespace", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 2, deletionGuard: Unused").await;
        world.queue("frames", "deletionPolicy: Delete, deletionGuard: Empty").await;
        world.semaphore_ready("deploy").await;
        world.queue_ready("frames").await;
        let client = Client::connect(&world).await;
        client.take(&holder(&world, "deploy", 1), &[]).await.unwrap();
        TextClient::connect(&text(&world, "frames"), "camera")
            .await
            .unwrap()
            .put("x")
            .await
            .unwrap();
        let api: Api<Namespace> = Api::all(world.client.clone());
        api.delete(&world.namespace, &DeleteParams::default()).await.unwrap();
        eventually("the namespace is gone", PATIENCE, async || {
            api.get_opt(&world.namespace).await.unwrap().is_none()
        })
        .await;
        assert_eq!(world.queues().await, [holder(&world, "deploy", 1)].into());
        assert_eq!(keys(&world).await, [""; 0]);
    })
    .await;
}
