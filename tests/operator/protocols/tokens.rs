//! Semaphores of protocol Token: tokens instead of slots, in queues of both types.

use std::collections::BTreeSet;

use lapin::options::{BasicAckOptions, BasicGetOptions, QueuePurgeOptions};
use lockkeeper_api::SemaphoreStatus;
use lockkeeper_plan::naming::{Protocol, QueueType};
use lockkeeper_semaphore::{AcquireError, AcquireOptions};
use lockkeeper_testkit::rabbitmq::look;
use lockkeeper_testkit::world::{Kind as _, PATIENCE, World, eventually, has_reason, in_a_world};

use super::{Deploy, Row};

const CLASSIC: Row = Row { spec: "protocol: Token", protocol: Protocol::Token(QueueType::Classic) };

const QUORUM: Row = Row {
    spec: "protocol: Token, token: {queueType: Quorum}, fencing: true",
    protocol: Protocol::Token(QueueType::Quorum),
};

fn queue(world: &World) -> String {
    format!("{}.deploy.semaphore", world.namespace)
}

/// Returns the number of free tokens, which the broker reports immediately.
async fn free(world: &World) -> u32 {
    let connection = world.amqp().await;
    let channel = connection.create_channel().await.unwrap();
    look(&channel, &queue(world)).await.message_count()
}

async fn has_free(world: &World, tokens: u32) {
    let what = format!("{tokens} tokens are free");
    eventually(&what, PATIENCE, async || free(world).await == tokens).await;
}

async fn live_their_life(row: Row) {
    in_a_world("tokens", async move |world| {
        let _operator = world.operator().await;
        let deploy = Deploy { world: &world, row };
        for tokens in [2, 40, 0, 3] {
            deploy.resize(tokens).await;
            assert_eq!(free(&world).await, tokens);
            assert_eq!(world.queues().await, BTreeSet::from([queue(&world)]));
        }
        let [first, second] = [deploy.acquire(0, "alice").await, deploy.acquire(0, "bob").await];
        assert_eq!(first.fence().is_some(), row.spec.contains("fencing"));
        let facts = |s: &SemaphoreStatus| {
            let known = |who: &str| {
                s.holders.iter().any(|h| {
                    h.identity.as_deref() == Some(who)
                        && h.reason.as_deref() == Some("release 1.4")
                        && h.slot.is_none()
                        && !h.draining
                })
            };
            known("alice") && known("bob") && s.held == Some(2) && s.free == Some(1)
        };
        let status = deploy.until("both reported", facts).await.status.unwrap();
        assert_eq!((status.slots, status.draining), (Some(3), Some(0)));
        assert_eq!((status.highest_slot, status.holders.len()), (None, 2));

        // After a shrink, free tokens are removed, and no holder is interrupted.
        deploy.resize(1).await;
        let object = deploy.until_held(1, 1).await;
        assert!(has_reason(&object, "Drained", "HoldersDraining"), "{object:#?}");
        assert!(has_reason(&object, "Ready", "InSync"), "{object:#?}");
        let (.., said) = object.condition("Drained").unwrap();
        assert!(said.contains("1 token is more than the count of 1 held"), "{said}");
        assert_eq!(free(&world).await, 0);

        // Back to three: two are still held, and only one is free.
        deploy.resize(3).await;
        deploy.until_held(2, 0).await;
        let third = deploy.acquire(0, "carol").await;
        let full = deploy.lock().try_acquire(&AcquireOptions::default()).await;
        assert!(matches!(full, Err(AcquireError::Full { .. })), "{full:?}");

        // The tokens that are released first are removed.
        deploy.resize(1).await;
        deploy.until_held(1, 2).await;
        first.release().await.unwrap();
        deploy.until_held(1, 1).await;
        third.release().await.unwrap();
        let object = deploy.until_held(1, 0).await;
        assert!(has_reason(&object, "Drained", "NoneDraining"), "{object:#?}");
        assert!(second.is_valid());

        deploy.delete().await;
        deploy.until_cleaning_up(1).await;
        second.release().await.unwrap();
        deploy.is_gone().await;
        assert_eq!(world.queues().await, BTreeSet::new());
    })
    .await;
}

#[tokio::test]
async fn tokens_of_a_classic_queue_are_made_resized_held_drained_and_removed() {
    live_their_life(CLASSIC).await;
}

#[tokio::test]
async fn tokens_of_a_quorum_queue_are_made_resized_held_drained_and_removed() {
    live_their_life(QUORUM).await;
}

#[tokio::test]
async fn tokens_that_were_purged_or_acknowledged_are_published_again_with_an_event() {
    in_a_world("tokens-drift", async |world| {
        let _operator = world.operator().await;
        let deploy = Deploy { world: &world, row: CLASSIC };
        deploy.resize(3).await;
        let held = deploy.acquire(0, "alice").await;
        // For the same action, one event counts all occurrences and keeps the first
        // message.
        let repaired = async |times: i32| {
            eventually(&format!("{times} repairs are recorded"), PATIENCE, async || {
                let event = ("DriftRepaired".into(), "3 tokens: 2 added, 0 removed".into(), times);
                world.events("deploy").await.contains(&event)
            })
            .await;
        };
        let connection = world.amqp().await;
        let channel = connection.create_channel().await.unwrap();
        let name = queue(&world);
        let purge = QueuePurgeOptions::default();
        assert_eq!(channel.queue_purge(name.as_str().into(), purge).await.unwrap(), 2);
        has_free(&world, 2).await;
        repaired(1).await;

        let options = BasicGetOptions::default();
        let token = channel.basic_get(name.as_str().into(), options).await.unwrap().unwrap();
        token.delivery.ack(BasicAckOptions::default()).await.unwrap();
        has_free(&world, 2).await;
        repaired(2).await;
        deploy.until_held(1, 0).await;
        held.release().await.unwrap();
        has_free(&world, 3).await;
    })
    .await;
}

#[tokio::test]
async fn without_the_management_api_nothing_about_tokens_is_guessed() {
    in_a_world("tokens-blind", async |world| {
        let _operator = world.operator().await;
        let deploy = Deploy { world: &world, row: CLASSIC };
        deploy.resize(2).await;
        world.secret("rabbit", &[("amqpUri", world.amqp_url())]).await;
        let blind = |s: &lockkeeper_api::Semaphore| has_reason(s, "Ready", "CountUnknown");
        world.until("deploy", "CountUnknown", PATIENCE, blind).await;
        deploy.apply(3).await;
        let object = world.until("deploy", "CountUnknown", PATIENCE, blind).await;
        let (.., said) = object.condition("Ready").unwrap();
        assert!(said.contains("management"), "{said}");
        assert_eq!(free(&world).await, 2, "nothing was changed");
    })
    .await;
}
