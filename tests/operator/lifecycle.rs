//! The lifecycle of a pressure queue: created, adopted, closed, completed, deleted by its
//! clients and recreated, half created, half deleted. See `queues` for its operation.

use futures::{StreamExt, TryStreamExt};
use kube::api::{DeleteParams, WatchEvent, WatchParams};
use lockkeeper_api::PressureQueue;
use lockkeeper_testkit::pressure_text::{TextClient, Worker};
use lockkeeper_testkit::world::{
    Kind, PATIENCE, World, eventually, has, has_reason, in_a_world, is_ready,
};

use crate::operator::queues::{data, keys, send, text, until_blocked};

/// Returns the events of this reason about an object, each with its count.
async fn events(world: &World, name: &str, reason: &str) -> Vec<i32> {
    let all = world.events(name).await;
    all.into_iter().filter(|(is, ..)| is == reason).map(|(_, _, times)| times).collect()
}

#[tokio::test]
async fn an_existing_queue_is_adopted_with_its_data_and_left_with_it_by_default() {
    in_a_world("adopt", async |world| {
        let _operator = world.operator().await;
        let mut client = TextClient::connect(&text(&world, "frames"), "camera").await.unwrap();
        client.create(3).await.unwrap();
        client.put("first").await.unwrap();
        client.put("second").await.unwrap();

        world.queue("frames", "bound: 5").await;
        let status = world.queue_ready("frames").await.status.unwrap();
        assert_eq!((status.length, status.bound, status.closed), (Some(2), Some(5), Some(false)));
        assert_eq!((status.produced_messages, status.produced_bytes), (Some(2), Some(11)));
        let producer = status.producer.unwrap();
        assert_eq!((producer.id.as_deref(), producer.busy), (Some("camera"), false));
        assert_eq!(client.get().await.unwrap(), "first");

        let before = keys(&world).await;
        world.api::<PressureQueue>().delete("frames", &DeleteParams::default()).await.unwrap();
        eventually("the object is gone", PATIENCE, async || {
            world.api::<PressureQueue>().get_opt("frames").await.unwrap().is_none()
        })
        .await;
        assert_eq!(keys(&world).await, before, "deletionPolicy is Retain by default");
        assert_eq!(client.get().await.unwrap(), "second");
    })
    .await;
}

#[tokio::test]
async fn a_queue_is_closed_once_its_producer_is_done_and_is_complete_when_it_is_deleted() {
    in_a_world("close", async |world| {
        let mut operator = world.operator().await;
        world.queue("frames", "bound: 2").await;
        world.queue_ready("frames").await;
        let queue = text(&world, "frames");
        let frames = (0..3).map(|n| n.to_string());
        let producer = Worker::produce(&queue, "camera-7", frames).await;
        until_blocked(&world, &producer, 2).await;

        world.queue("frames", "bound: 2, state: Closed").await;
        let waits = world
            .until("frames", "waiting", PATIENCE, |q: &PressureQueue| {
                has(q, "WaitingForRole", "True")
            })
            .await;
        let (_, _, message) = waits.condition("WaitingForRole").unwrap();
        assert!(message.contains("as soon as its producer camera-7 is done"), "{message}");
        assert!(has(&waits, "Ready", "False") && has(&waits, "Reconciling", "True"));
        assert_eq!(waits.status.unwrap().closed, Some(false));

        let mut consumer = TextClient::connect(&queue, "encoder").await.unwrap();
        assert_eq!(consumer.get().await.unwrap(), "0");
        assert!(producer.join().await.error.is_none(), "the last put is not cut off");
        let closed = world.queue_ready("frames").await;
        assert!(has(&closed, "WaitingForRole", "False"));
        assert_eq!(closed.status.unwrap().closed, Some(true));
        assert_eq!(consumer.get().await.unwrap(), "1");
        assert_eq!(consumer.get().await.unwrap(), "2");
        consumer.get().await.expect_err("the consumer learns that there will be no more");

        consumer.delete().await.unwrap();
        is_completed(&world, "frames").await;
        operator.kill().await;
        let _operator = world.operator().await;
        // A changed spec shows that the new process has observed it too.
        world.queue("frames", "bound: 9, state: Closed").await;
        is_completed(&world, "frames").await;
    })
    .await;
}

/// Waits until a queue is completed for its newest spec, and is not recreated.
async fn is_completed(world: &World, name: &str) {
    let done = world
        .until(name, "Completed", PATIENCE, |q: &PressureQueue| has_reason(q, "Ready", "Completed"))
        .await;
    assert!(is_ready(&done));
    let status = done.status.unwrap();
    assert_eq!((status.closed, status.bound, status.length), (Some(true), None, None));
    assert_eq!(keys(world).await, [""; 0]);
}

#[tokio::test]
async fn a_queue_closed_by_a_client_is_no_drift_and_is_complete_when_it_is_deleted() {
    in_a_world("closed-by-client", async |world| {
        let mut operator = world.operator().await;
        world.queue("frames", "bound: 2").await;
        world.queue_ready("frames").await;
        let mut client = TextClient::connect(&text(&world, "frames"), "camera").await.unwrap();
        client.put("last").await.unwrap();
        client.close().await.unwrap();
        let closed = world
            .until("frames", "closed", PATIENCE, |q: &PressureQueue| {
                q.status.as_ref().is_some_and(|status| status.closed == Some(true))
            })
            .await;
        assert!(is_ready(&closed));
        let (_, _, message) = closed.condition("Ready").unwrap();
        assert!(message.contains("a client closed the queue"), "{message}");
        eventually("the event is there", PATIENCE, async || {
            events(&world, "frames", "ClosedByClient").await == [1]
        })
        .await;
        assert_eq!(client.get().await.unwrap(), "last");
        client.delete().await.unwrap();
        is_completed(&world, "frames").await;
        operator.kill().await;
        let _operator = world.operator().await;
        world.queue("frames", "bound: 9").await;
        is_completed(&world, "frames").await;
        assert_eq!(events(&world, "frames", "ClosedByClient").await, [1], "said once");
        assert_eq!(events(&world, "frames", "Recreated").await, [0; 0]);
    })
    .await;
}

#[tokio::test]
async fn a_queue_deleted_while_open_is_made_again_with_one_event() {
    in_a_world("recreated", async |world| {
        let _operator = world.operator().await;
        world.queue("frames", "bound: 2").await;
        world.queue_ready("frames").await;
        let queue = text(&world, "frames");
        let mut client = TextClient::connect(&queue, "camera").await.unwrap();
        client.put("lost").await.unwrap();
        client.delete().await.unwrap();
        eventually("the queue is made again", PATIENCE, async || {
            let bound: Option<u64> =
                send(&world, &["GET", &format!("{}:bound", data(&world, "frames"))]).await;
            bound == Some(2)
        })
        .await;
        eventually("the event is there", PATIENCE, async || {
            events(&world, "frames", "Recreated").await == [1]
        })
        .await;
        // The next observation finds it as desired.
        client.put("kept").await.unwrap();
        let seen = world
            .until("frames", "seen at work", PATIENCE, |q: &PressureQueue| {
                is_ready(q) && q.status.as_ref().is_some_and(|status| status.length == Some(1))
            })
            .await;
        assert_eq!(seen.status.unwrap().bound, Some(2));
        assert_eq!(events(&world, "frames", "Recreated").await, [1]);
        assert_eq!(events(&world, "frames", "Created").await, [1], "that was at first");
        assert_eq!(client.get().await.unwrap(), "kept");
    })
    .await;
}

/// Applies an object. Returns Ready's reason, and whether the object was Stalled, in each
/// of its statuses until it is Stalled.
async fn statuses_until_stalled(world: &World, name: &str) -> Vec<(String, bool)> {
    let applied = world.queue(name, "bound: 3").await;
    let params = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(60);
    let version = applied.metadata.resource_version.unwrap();
    let api = world.api::<PressureQueue>();
    let mut changes = api.watch(&params, &version).await.unwrap().boxed();
    let mut seen = Vec::new();
    while let Some(change) = changes.try_next().await.unwrap() {
        let WatchEvent::Modified(queue) = change else { panic!("{change:?}") };
        if let Some((_, reason, _)) = queue.condition("Ready") {
            let stalled = has(&queue, "Stalled", "True");
            assert_ne!(stalled, has(&queue, "Reconciling", "True"), "{queue:#?}");
            seen.push((reason, stalled));
            if stalled {
                return seen;
            }
        }
    }
    panic!("{name} is never Stalled: {seen:?}");
}

#[tokio::test]
async fn a_half_made_queue_is_reported_when_it_is_seen_twice_and_left_to_its_maker() {
    in_a_world("half-made", async |world| {
        let _operator = world.operator().await;
        let bound = format!("{}:bound", data(&world, "frames"));
        let () = send(&world, &["SET", &bound, "3"]).await;
        let seen = statuses_until_stalled(&world, "frames").await;
        assert_eq!(seen, [("Confirming".to_owned(), false), ("HalfCreated".to_owned(), true)]);
        let queue = world.api::<PressureQueue>().get("frames").await.unwrap();
        let (_, _, message) = queue.condition("Stalled").unwrap();
        assert!(message.contains(":producer_free :consumer_free :not_full"), "{message}");
        assert_eq!(keys(&world).await, [bound], "its maker may be at it just now");
        assert_eq!(events(&world, "frames", "HalfCreated").await, [1]);

        for suffix in [":producer_free", ":consumer_free", ":not_full"] {
            let key = format!("{}{suffix}", data(&world, "frames"));
            let _: i64 = send(&world, &["LPUSH", &key, "1"]).await;
        }
        world.queue_ready("frames").await;
    })
    .await;
}

#[tokio::test]
async fn leftovers_of_a_deletion_are_reported_when_seen_twice_and_not_reused() {
    in_a_world("residue", async |world| {
        let _operator = world.operator().await;
        let closed = format!("{}:closed", data(&world, "frames"));
        let _: i64 = send(&world, &["LPUSH", &closed, "0", "0"]).await;
        let seen = statuses_until_stalled(&world, "frames").await;
        assert_eq!(seen, [("Confirming".to_owned(), false), ("Residue".to_owned(), true)]);
        let queue = world.api::<PressureQueue>().get("frames").await.unwrap();
        let (_, _, message) = queue.condition("Stalled").unwrap();
        assert!(message.contains(":closed left over from its deletion"), "{message}");
        assert_eq!(keys(&world).await, std::slice::from_ref(&closed), "it would be born closed");
        assert_eq!(events(&world, "frames", "Residue").await, [1]);

        let _: i64 = send(&world, &["DEL", &closed]).await;
        let made = world.queue_ready("frames").await.status.unwrap();
        assert_eq!((made.bound, made.closed), (Some(3), Some(false)));
    })
    .await;
}
