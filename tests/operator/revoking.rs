//! Slots that are revoked: by the annotation and by `drain.revokeAfter`. Also tests who
//! must not revoke.

mod commands;
mod draining;

use kube::api::{Patch, PatchParams};
use lockkeeper_api::{REVOKE, Semaphore};
use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_plan::naming::{LockName, Protocol, QueueType};
use lockkeeper_semaphore::{AcquireOptions, Client, ClientOptions, LostReason, Permit, Start};
use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::world::{PATIENCE, World, eventually, in_a_world};
use serde_json::json;

use crate::operator::holders::client::Client as Foreign;

/// Adds the broker's administrator to the connection, in a Secret of its own.
async fn with_administrator(world: &World) {
    let management = variable("RABBITMQ_MANAGEMENT_URL");
    world.secret("administrator", &[("adminUri", management.clone())]).await;
    let keys = [
        ("amqpUri", world.amqp_url()),
        ("managementUri", management),
        ("adminSecretName", "administrator".to_owned()),
    ];
    world.secret("rabbit", &keys).await;
}

/// Acquires the semaphore `deploy` as our client does.
async fn acquire(world: &World, protocol: Protocol, slot: u32) -> Permit {
    let management = variable("RABBITMQ_MANAGEMENT_URL");
    let settings = RabbitmqSettings::from_urls(&world.amqp_url(), Some(&management)).unwrap();
    let name = LockName::new(format!("{}.deploy", world.namespace)).unwrap();
    let lock =
        Client::new(settings, ClientOptions::default()).semaphore(name.with_protocol(protocol));
    let options = AcquireOptions::default().with_start(Start::At(slot));
    lock.try_acquire(&options).await.unwrap()
}

const QUEUE: Protocol = Protocol::ExclusiveQueue(lockkeeper_plan::naming::Profile::Guideline);

/// Waits until the status lists this number of holders, each with a unique id. Returns
/// the ids.
async fn ids(world: &World, count: usize) -> Vec<String> {
    let reported = |s: &Semaphore| {
        s.status.as_ref().is_some_and(|s| {
            s.holders.len() == count && s.holders.iter().all(|h| h.connection.is_some())
        })
    };
    let object = world.until("deploy", "its holders reported", PATIENCE, reported).await;
    object.status.unwrap().holders.into_iter().map(|h| h.id).collect()
}

/// Requests a revocation as any authorized user does, by the annotation alone.
async fn ask(world: &World, request: &serde_json::Value) {
    let patch = json!({"metadata": {"annotations": {REVOKE: request.to_string()}}});
    let api = world.api::<Semaphore>();
    api.patch("deploy", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

/// Waits until the request is removed. Returns the notes of the events with this reason.
async fn answered(world: &World, reason: &str) -> Vec<String> {
    let gone =
        |s: &Semaphore| s.metadata.annotations.as_ref().is_none_or(|all| !all.contains_key(REVOKE));
    world.until("deploy", "without a request", PATIENCE, gone).await;
    let recorded = async || world.events("deploy").await.iter().any(|(is, ..)| is == reason);
    eventually(&format!("an event {reason}"), PATIENCE, recorded).await;
    let events = world.events("deploy").await.into_iter();
    events.filter(|(is, ..)| is == reason).map(|(_, note, _)| note).collect()
}

async fn lost(permit: &Permit) -> LostReason {
    tokio::time::timeout(PATIENCE, permit.lost()).await.expect("the permit is lost")
}

#[tokio::test]
async fn a_holder_is_revoked_once_and_its_successor_never() {
    in_a_world("revoke", async |world| {
        with_administrator(&world).await;
        let operator = world.operator().await;
        world.semaphore("deploy", "slots: 2").await;
        world.semaphore_ready("deploy").await;
        let [first, second] = [acquire(&world, QUEUE, 1).await, acquire(&world, QUEUE, 2).await];
        let ids = ids(&world, 2).await;
        let request = json!({
            "slot": 1, "holder": ids[0], "reason": "alice\u{7} rolls back", "at": "2026-01-02T03:04:05Z",
        });
        ask(&world, &request).await;
        let why = lost(&first).await;
        assert_eq!(why, LostReason::Revoked { text: "alice  rolls back".to_owned() });
        let said = answered(&world, "HolderRevoked").await;
        assert_eq!(said.len(), 1, "{said:?}");
        for part in [&format!("slot 1 from holder {}", ids[0]), "alice  rolls back", "2026-01-02"] {
            assert!(said[0].contains(part), "{said:?}");
        }

        // Another client has the slot by then. An operator that failed in between reads
        // the same request again.
        let third = acquire(&world, QUEUE, 1).await;
        ask(&world, &request).await;
        let said = answered(&world, "RevokeRefused").await;
        assert!(said[0].contains("not held by that holder"), "{said:?}");
        assert_eq!(said.len(), 1, "{said:?}");
        // The right holder, but of another slot.
        ask(&world, &json!({"slot": 1, "holder": ids[1], "at": "b"})).await;
        eventually("the second refusal", PATIENCE, async || {
            answered(&world, "RevokeRefused").await.len() == 2
        })
        .await;
        for wrong in ["no json", r#"{"slot": 1}"#] {
            let patch = json!({"metadata": {"annotations": {REVOKE: wrong}}});
            let api = world.api::<Semaphore>();
            api.patch("deploy", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
            answered(&world, "RevokeRefused").await;
        }
        third.verify().await.unwrap();
        second.verify().await.unwrap();
        third.release().await.unwrap();
        second.release().await.unwrap();
        let requests = operator.logged().matches("reason=\"HolderRevoked\"").count();
        assert_eq!(requests, 1, "acted once");
    })
    .await;
}

#[tokio::test]
async fn without_an_administrator_nothing_is_revoked() {
    in_a_world("revoke-nobody", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 1").await;
        world.semaphore_ready("deploy").await;
        let permit = acquire(&world, QUEUE, 1).await;
        let ids = ids(&world, 1).await;
        ask(&world, &json!({"slot": 1, "holder": ids[0]})).await;
        let said = answered(&world, "RevokeRefused").await;
        assert!(said[0].contains("adminUri"), "{said:?}");
        permit.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_connection_that_has_more_than_the_slot_is_closed_by_force_only() {
    in_a_world("revoke-force", async |world| {
        with_administrator(&world).await;
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 2").await;
        world.semaphore_ready("deploy").await;
        let client = Foreign::connect(&world).await;
        let queues = [1, 2].map(|slot| format!("{}.deploy-{slot}-B", world.namespace));
        client.take(&queues[0], &[("x-lockkeeper-id", "one")]).await.unwrap();
        client.take(&queues[1], &[]).await.unwrap();
        let ids = ids(&world, 2).await;
        assert_eq!(ids[0], "one");
        assert!(ids[1].ends_with("#2"), "known by its connection: {ids:?}");
        for (slot, id) in [(1, &ids[0]), (2, &ids[1])] {
            ask(&world, &json!({"slot": slot, "holder": id, "at": slot.to_string()})).await;
            let said = answered(&world, "RevokeRefused").await;
            let more = format!("also has the exclusive queue {}", queues[2 - slot]);
            eventually("the other queues are reported", PATIENCE, async || {
                let said = answered(&world, "RevokeRefused").await;
                said.iter().any(|note| note.contains(&more))
            })
            .await;
            assert!(said.iter().all(|note| note.contains("say force")), "{said:?}");
        }
        assert!(client.owns(&queues[0]).await && client.owns(&queues[1]).await);
        ask(&world, &json!({"slot": 2, "holder": ids[1], "force": true})).await;
        answered(&world, "HolderRevoked").await;
        let free = |s: &Semaphore| s.status.as_ref().is_some_and(|s| s.held == Some(0));
        world.until("deploy", "free", PATIENCE, free).await;
    })
    .await;
}

#[tokio::test]
async fn the_holder_of_a_token_is_revoked_and_the_token_is_there_for_others() {
    in_a_world("revoke-token", async |world| {
        with_administrator(&world).await;
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 2, protocol: Token").await;
        world.semaphore_ready("deploy").await;
        let token = Protocol::Token(QueueType::Classic);
        let [one, two] = [acquire(&world, token, 0).await, acquire(&world, token, 0).await];
        let ids = ids(&world, 2).await;
        ask(&world, &json!({"holder": ids[1], "reason": "enough"})).await;
        let revoked = tokio::select! {
            why = lost(&one) => why,
            why = lost(&two) => why,
        };
        assert_eq!(revoked, LostReason::Revoked { text: "enough".to_owned() });
        let said = answered(&world, "HolderRevoked").await;
        assert!(said[0].contains(&ids[1]), "{said:?}");
        let one_free = |s: &Semaphore| s.status.as_ref().is_some_and(|s| s.free == Some(1));
        world.until("deploy", "with a free token", PATIENCE, one_free).await;
    })
    .await;
}

#[tokio::test]
async fn an_exclusive_consumer_is_notified_and_loses_its_queue_if_it_does_not_react() {
    in_a_world("revoke-consumer", async |world| {
        // Without an administrator: not required here.
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 2, protocol: ExclusiveConsumer").await;
        world.semaphore_ready("deploy").await;
        let listens = acquire(&world, Protocol::ExclusiveConsumer, 1).await;
        let first = ids(&world, 1).await.remove(0);
        ask(&world, &json!({"slot": 1, "holder": first, "reason": "enough"})).await;
        assert_eq!(lost(&listens).await, LostReason::Revoked { text: "enough".to_owned() });
        drop(listens);
        answered(&world, "HolderRevoked").await;

        let deaf = world.amqp().await;
        let channel = deaf.create_channel().await.unwrap();
        let exclusive = lapin::options::BasicConsumeOptions {
            exclusive: true,
            no_ack: true,
            ..Default::default()
        };
        let queue = format!("{}.deploy-1-C", world.namespace);
        let mut facts = lapin::types::FieldTable::default();
        let id = lapin::types::AMQPValue::LongString("deaf".into());
        facts.insert("x-lockkeeper-id".into(), id);
        let consuming =
            || channel.basic_consume(queue.as_str().into(), "t".into(), exclusive, facts.clone());
        eventually("the slot is free", PATIENCE, async || {
            world
                .until("deploy", "free", PATIENCE, |s: &Semaphore| {
                    s.status.as_ref().is_some_and(|s| s.held == Some(0))
                })
                .await;
            true
        })
        .await;
        let _consumer = consuming().await.unwrap();
        let deaf_holds = |s: &Semaphore| {
            s.status.as_ref().is_some_and(|s| s.holders.iter().any(|h| h.id == "deaf"))
        };
        world.until("deploy", "held by the deaf one", PATIENCE, deaf_holds).await;
        // For another holder: no client is notified.
        ask(&world, &json!({"slot": 1, "holder": first, "at": "2"})).await;
        let said = answered(&world, "RevokeRefused").await;
        assert!(said[0].contains("not held by that holder"), "{said:?}");
        ask(&world, &json!({"slot": 1, "holder": "deaf", "at": "3"})).await;
        let free = |s: &Semaphore| s.status.as_ref().is_some_and(|s| s.held == Some(0));
        world.until("deploy", "free again", PATIENCE, free).await;
        answered(&world, "HolderRevoked").await;
        acquire(&world, Protocol::ExclusiveConsumer, 1).await.release().await.unwrap();
    })
    .await;
}
