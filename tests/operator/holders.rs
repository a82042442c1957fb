//! Holders of slots: counts, draining, and facts about holders in the status.

pub mod client;
mod rhythm;

use std::time::Duration;

use lockkeeper_api::{Semaphore, SemaphoreStatus};
use lockkeeper_testkit::audit::{Reader, Request};
use lockkeeper_testkit::rabbitmq::eventually;
use lockkeeper_testkit::world::{Kind as _, PATIENCE, World, has, has_reason, in_a_world, kubectl};

use self::client::{Client, LOCKED};

/// Returns the holder queue of a slot of the semaphore `deploy`.
fn holder(world: &World, slot: u32) -> String {
    format!("{}.deploy-{slot}-B", world.namespace)
}

/// Waits until `is` holds for the status.
async fn until(world: &World, what: &str, is: impl Fn(&SemaphoreStatus) -> bool) -> Semaphore {
    let so = |s: &Semaphore| {
        s.status
            .as_ref()
            .is_some_and(|status| status.observed_generation == s.metadata.generation && is(status))
    };
    world.until("deploy", what, PATIENCE, so).await
}

#[tokio::test]
async fn a_holder_above_the_count_drains_undisturbed_and_keeps_its_slot_when_it_grows_back() {
    in_a_world("drain", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 3").await;
        world.semaphore_ready("deploy").await;
        let [first, third, other] = [
            Client::connect(&world).await,
            Client::connect(&world).await,
            Client::connect(&world).await,
        ];
        let [b1, b3] = [1, 3].map(|slot| holder(&world, slot));
        first.take(&b1, &[]).await.unwrap();
        third.take(&b3, &[]).await.unwrap();
        until(&world, "two held", |s| s.held == Some(2) && s.draining == Some(0)).await;

        world.semaphore("deploy", "slots: 1").await;
        kubectl(&world, &["wait", "--for=condition=Drained=False", "--timeout=60s", "sem/deploy"])
            .await
            .unwrap();
        let object = until(&world, "draining", |s| s.draining == Some(1)).await;
        assert!(has_reason(&object, "Drained", "HoldersDraining"));
        let (.., message) = object.condition("Drained").unwrap();
        assert!(message.contains("slot 3"), "{message}");
        assert!(has(&object, "Ready", "True"), "a draining lock is Ready: {object:#?}");
        let status = object.status.unwrap();
        assert_eq!((status.slots, status.held, status.free), (Some(1), Some(1), Some(0)));
        let draining: Vec<_> = status.holders.iter().map(|h| (h.slot, h.draining)).collect();
        assert_eq!(draining, [(Some(1), false), (Some(3), true)]);
        let mut there = world.lock_queues("deploy", 1);
        there.extend([b1.clone(), b3.clone()]);
        assert_eq!(world.queues().await, there);
        assert!(third.owns(&b3).await, "the holder's queue is undisturbed");
        let wide = kubectl(&world, &["get", "sem", "deploy", "-o", "wide"]).await.unwrap();
        let row: Vec<_> = wide.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row[1..6], ["1", "1", "0", "0", "True"], "{wide}");
        // After the age and two holders.
        assert_eq!(row[9], "1", "DRAINING: {wide}");

        // Back to three while slot 3 is held: it still belongs to its holder.
        world.semaphore("deploy", "slots: 3").await;
        until(&world, "both held again", |s| s.held == Some(2) && s.draining == Some(0)).await;
        assert_eq!(other.take(&b3, &[]).await, Err(LOCKED));
        assert!(third.owns(&b3).await);

        // And draining again, until the holder releases.
        world.semaphore("deploy", "slots: 1").await;
        until(&world, "draining", |s| s.draining == Some(1)).await;
        assert!(third.owns(&b3).await);
        third.delete(&b3).await;
        kubectl(&world, &["wait", "--for=condition=Drained", "--timeout=60s", "sem/deploy"])
            .await
            .unwrap();
        let object = until(&world, "drained", |s| s.draining == Some(0)).await;
        assert!(has_reason(&object, "Drained", "NoneDraining"));
        assert_eq!(object.status.unwrap().held, Some(1));
    })
    .await;
}

#[tokio::test]
async fn the_status_has_a_holders_identity_and_its_user_and_connection_on_the_broker() {
    in_a_world("facts", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 3").await;
        let described = Client::connect(&world).await;
        let silent = Client::connect_as(&world.amqp_url(), "nightly backup").await;
        let facts = [
            ("x-lockkeeper-id", "4fz7"),
            ("x-lockkeeper-identity", "ci-runner-9"),
            ("x-lockkeeper-reason", "release 1.4"),
            ("x-lockkeeper-url", "https://ci.example/9"),
            ("x-lockkeeper-since", "2026-01-02T03:04:05Z"),
        ];
        described.take(&holder(&world, 1), &facts).await.unwrap();
        silent.take(&holder(&world, 3), &[]).await.unwrap();
        let both_connections = |s: &SemaphoreStatus| {
            s.holders.len() == 2 && s.holders.iter().all(|h| h.connection.is_some())
        };
        let status = until(&world, "both reported", both_connections).await.status.unwrap();
        let [one, three] = &status.holders[..] else { unreachable!() };
        assert_eq!((one.id.as_str(), one.slot), ("4fz7", Some(1)));
        assert_eq!(one.identity.as_deref(), Some("ci-runner-9"));
        assert_eq!(one.reason.as_deref(), Some("release 1.4"));
        assert_eq!(one.url.as_deref(), Some("https://ci.example/9"));
        assert_eq!(one.since.as_deref(), Some("2026-01-02T03:04:05Z"));
        // The broker's names of the two connections: peer -> broker.
        let amqp = url::Url::parse(&world.amqp_url()).unwrap();
        let at = format!(" -> 127.0.0.1:{}", amqp.port().unwrap());
        for holder in [one, three] {
            let connection = holder.connection.as_deref().unwrap();
            assert!(
                connection.starts_with("127.0.0.1:") && connection.contains(&at),
                "{connection}"
            );
        }
        assert_ne!(one.connection, three.connection);
        // Without an id and an identity, its connection and its user are shown.
        assert_eq!(three.id, format!("{}#3", three.connection.as_deref().unwrap()));
        assert_eq!(three.identity.as_deref(), Some(amqp.username()));
        assert!(three.connection.as_deref().unwrap().contains("nightly backup"), "{three:?}");
        assert_eq!(
            status.holders_summary.as_deref(),
            Some(format!("ci-runner-9, {}", amqp.username()).as_str())
        );

        // Another acquisition of the same slot is another holder, even if it follows so
        // soon that the slot is never observed as free.
        let next = Client::connect(&world).await;
        described.delete(&holder(&world, 1)).await;
        next.take(&holder(&world, 1), &[("x-lockkeeper-id", "8xq2")]).await.unwrap();
        until(&world, "the next one reported", |s| {
            s.holders.iter().any(|h| h.id == "8xq2" && h.connection.is_some())
                && !s.holders.iter().any(|h| h.id == "4fz7")
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn without_a_management_api_holders_are_counted_and_known_by_their_slot() {
    in_a_world("bare", async |world| {
        world.secret("rabbit", &[("amqpUri", world.amqp_url())]).await;
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 3").await;
        let client = Client::connect(&world).await;
        for slot in [1, 3] {
            client.take(&holder(&world, slot), &[("x-lockkeeper-id", "4fz7")]).await.unwrap();
        }
        let object = until(&world, "two held", |s| s.held == Some(2)).await;
        let status = object.status.as_ref().unwrap();
        let ids: Vec<_> = status.holders.iter().map(|h| h.id.as_str()).collect();
        assert_eq!(ids, ["slot-1", "slot-3"]);
        assert_eq!(status.holders_summary.as_deref(), Some("slot-1, slot-3"));
        assert!(has(&object, "Ready", "True"));
    })
    .await;
}

#[tokio::test]
async fn of_many_holders_fifty_are_listed_and_all_are_counted() {
    in_a_world("many", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 60").await;
        world.semaphore_ready("deploy").await;
        let client = Client::connect(&world).await;
        for slot in 1..=57 {
            client.take(&holder(&world, slot), &[]).await.unwrap();
        }
        let status = until(&world, "57 held", |s| s.held == Some(57)).await.status.unwrap();
        assert_eq!(status.free, Some(3));
        let slots: Vec<_> = status.holders.iter().filter_map(|h| h.slot).collect();
        assert_eq!(slots, (1..=50).collect::<Vec<_>>(), "the lowest fifty");
        assert!(status.holders_truncated);
        let summary = status.holders_summary.unwrap();
        let (names, more) = summary.rsplit_once(", +").unwrap();
        assert_eq!(names.split(", ").count() + more.parse::<usize>().unwrap(), 57, "{summary}");

        for slot in 50..=57 {
            client.delete(&holder(&world, slot)).await;
        }
        let status = until(&world, "49 held", |s| s.held == Some(49)).await.status.unwrap();
        assert_eq!((status.holders.len(), status.holders_truncated), (49, false));
    })
    .await;
}

#[tokio::test]
async fn a_lock_is_saturated_while_no_slot_may_be_taken() {
    in_a_world("full", async |world| {
        let _operator = world.operator().await;
        let saturated = async |status: &str, reason: &str| {
            let so = |s: &Semaphore| {
                has(s, "Saturated", status)
                    && has_reason(s, "Saturated", reason)
                    && has(s, "Ready", "True")
            };
            world.until("deploy", reason, PATIENCE, so).await;
        };
        world.semaphore("deploy", "slots: 0").await;
        saturated("True", "NoSlots").await;
        world.semaphore("deploy", "slots: 2").await;
        saturated("False", "SlotsFree").await;
        let client = Client::connect(&world).await;
        client.take(&holder(&world, 1), &[]).await.unwrap();
        client.take(&holder(&world, 2), &[]).await.unwrap();
        saturated("True", "AllSlotsHeld").await;
        client.delete(&holder(&world, 2)).await;
        saturated("False", "SlotsFree").await;
    })
    .await;
}

#[tokio::test]
async fn holders_that_come_and_go_cost_at_most_one_write_in_five_seconds() {
    in_a_world("busy", async |world| {
        let _operator = world.operator_with(&["--observe-interval", "200ms"]).await;
        world.semaphore("deploy", "slots: 9").await;
        world.semaphore_ready("deploy").await;
        let mut log = Reader::from_here();
        // One change per second: several within every five seconds.
        let client = Client::connect(&world).await;
        for slot in 1..=9 {
            client.take(&holder(&world, slot), &[]).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        until(&world, "nine held", |s| s.held == Some(9)).await;
        // By the API server's account: a watch may deliver an object late, and before the log
        // has the write.
        let mut writes = Vec::new();
        eventually("the last write is in the log", async || {
            let of_status = |r: &Request| {
                r.is_by_an_operator()
                    && r.namespace() == world.namespace
                    && (r.resource().as_str(), r.code()) == ("semaphores/status", 200)
            };
            writes.extend(log.read().into_iter().filter(of_status));
            writes.last().is_some_and(|last| last.object()["status"]["held"] == 9)
        })
        .await;
        let counts: Vec<_> =
            writes.iter().map(|write| write.object()["status"]["held"].clone()).collect();
        println!("held, as reported: {counts:?}");
        for pair in writes.windows(2) {
            let between = pair[1].received().duration_since(pair[0].answered());
            assert!(between.as_millis() > 4900, "{between:?} between two: {counts:?}");
        }
        // The status that made it Ready was written before.
        assert!(writes.len() >= 2, "the changes were reported as they came: {counts:?}");
    })
    .await;
}
