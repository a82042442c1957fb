//! Changing the bound, with clients that follow the text.

use std::time::Duration;

use lockkeeper_plan::pressure_queue::doctor::symptoms;
use lockkeeper_plan::pressure_queue::{
    DesiredQueue, DesiredState, PreviousStatus, QueueEffect, Remark, plan,
};
use lockkeeper_pressure::{Applied, Store};
use lockkeeper_testkit::pressure_text::Worker;
use lockkeeper_testkit::redis::{TestQueue, eventually, is_blocked, wait_until_blocked};
use tokio::time::timeout;

use crate::store::{numbers, text_queue};

async fn set_bound(store: &Store, place: &TestQueue, bound: u64) -> Applied {
    store.apply(&place.queue, &QueueEffect::SetBound { bound }).await.unwrap()
}

async fn created(bound: u64) -> (TestQueue, Store) {
    let place = TestQueue::new().await;
    let store = place.store();
    store.apply(&place.queue, &QueueEffect::Create { bound }).await.unwrap();
    (place, store)
}

/// Creates a queue that a producer has filled to its bound, and waits.
async fn full(bound: u64) -> (TestQueue, Store, Worker) {
    let (place, store) = created(bound).await;
    let producer = Worker::produce(&text_queue(&place), "producer", numbers(100)).await;
    wait_until_blocked(&place.raw, producer.client).await;
    assert_eq!(place.length("").await, bound);
    (place, store, producer)
}

#[tokio::test]
async fn a_raised_bound_wakes_a_blocked_producer() {
    let (place, store, producer) = full(3).await;
    assert_eq!(set_bound(&store, &place, 5).await, Applied::Done);
    eventually("two more are put", async || place.length("").await == 5).await;
    wait_until_blocked(&place.raw, producer.client).await;
    // One after the other: exactly as much capacity as the bound has.
    assert_eq!(place.length("").await, 5);
    assert_eq!(producer.so_far().len(), 5);
}

#[tokio::test]
async fn a_bound_taken_away_wakes_a_blocked_producer_for_good() {
    let (place, store, producer) = full(3).await;
    assert_eq!(set_bound(&store, &place, 0).await, Applied::Done);
    let record = timeout(Duration::from_secs(60), producer.join()).await.expect("it never waits");
    assert_eq!(record.elements.len(), 100);
    assert_eq!(place.length("").await, 100);
}

#[tokio::test]
async fn a_bound_given_to_an_unbounded_queue_stops_its_producer() {
    let (place, store) = created(0).await;
    let producer = Worker::produce(&text_queue(&place), "producer", numbers(usize::MAX)).await;
    eventually("ten are put", async || place.length("").await >= 10).await;
    assert_eq!(set_bound(&store, &place, 5).await, Applied::Done);
    let then = place.length("").await;
    wait_until_blocked(&place.raw, producer.client).await;
    let now = place.length("").await;
    assert!(now <= then + 2, "{then} elements, then {now}");
    let seen = store.observe(&place.queue).await.unwrap();
    let plan = plan(
        &DesiredQueue { bound: 5, state: DesiredState::Open },
        &seen,
        &PreviousStatus { existed: true, closed: false },
    );
    assert!(plan.effects.is_empty());
    assert_eq!(plan.remarks, [Remark::Overfilled { length: now, bound: 5 }]);
}

#[tokio::test]
async fn after_a_lowered_bound_at_most_one_put_lands_until_the_queue_is_drained() {
    let (place, store) = created(10).await;
    let queue = text_queue(&place);
    let producer = Worker::produce(&queue, "producer", numbers(5)).await;
    assert!(producer.join().await.error.is_none());
    assert_eq!(set_bound(&store, &place, 1).await, Applied::Done);
    assert_eq!(place.length(":not_full").await, 0);

    let producer =
        Worker::produce(&queue, "producer", (5..9).map(|number| number.to_string())).await;
    wait_until_blocked(&place.raw, producer.client).await;
    let landed = place.length("").await - 5;
    assert!(landed <= 1, "{landed} landed");
    // The consumer gets elements until one is left. The producer stays blocked all the
    // time.
    let left = usize::try_from(place.length("").await).unwrap() - 1;
    let consumer = Worker::consume(&queue, "consumer", left).await;
    let mut got = consumer.join().await.elements;
    assert_eq!(place.length("").await, 1);
    assert!(is_blocked(&place.raw, producer.client).await);
    let consumer = Worker::consume(&queue, "consumer", 9 - left).await;
    got.extend(consumer.join().await.elements);
    assert_eq!(got, numbers(9).collect::<Vec<_>>());
    assert!(producer.join().await.error.is_none());
}

#[tokio::test]
async fn a_put_in_the_middle_of_which_the_bound_falls_leaves_no_token_behind() {
    let (place, store) = created(10).await;
    // By hand: a producer up to the moment before it pushes its element.
    let () = place.run(&["RPOP", &place.key(":producer_free")]).await;
    let () = place.run(&["SET", &place.key(":producer"), "slow"]).await;
    let () = place.run(&["RPOP", &place.key(":not_full")]).await;
    let () = place.run(&["LPUSH", &place.key(""), "a", "b"]).await;
    assert_eq!(set_bound(&store, &place, 1).await, Applied::Done);
    assert_eq!(place.length(":not_full").await, 0);
}

#[tokio::test]
async fn a_put_in_the_middle_of_which_the_bound_rises_may_exceed_it_by_one() {
    let (place, store) = created(2).await;
    let queue = text_queue(&place);
    let () = place.run(&["RPOP", &place.key(":producer_free")]).await;
    let () = place.run(&["SET", &place.key(":producer"), "slow"]).await;
    let () = place.run(&["RPOP", &place.key(":not_full")]).await;
    // Indistinguishable from a waiting producer, so the token is pushed.
    assert_eq!(set_bound(&store, &place, 3).await, Applied::Done);
    assert_eq!(place.length(":not_full").await, 1);
    // The slow producer continues as the text describes.
    let () = place.run(&["LPUSH", &place.key(""), "slow"]).await;
    let () = place.run(&["LPUSH", &place.key(":not_full"), "0"]).await;
    let () = place.run(&["LTRIM", &place.key(":not_full"), "0", "0"]).await;
    let () = place.run(&["LPUSH", &place.key(":producer_free"), "0"]).await;
    let producer = Worker::produce(&queue, "producer", numbers(10)).await;
    wait_until_blocked(&place.raw, producer.client).await;
    assert!(place.length("").await <= 4);
}

#[tokio::test]
async fn the_same_bound_again_changes_nothing_while_a_producer_waits() {
    let (place, store, producer) = full(3).await;
    let before = place.dump().await;
    assert_eq!(set_bound(&store, &place, 3).await, Applied::AlreadySo);
    assert_eq!(place.dump().await, before);
    assert!(is_blocked(&place.raw, producer.client).await);
}

#[tokio::test]
async fn the_same_bound_again_changes_nothing_in_the_middle_of_a_put() {
    let (place, store) = created(3).await;
    let () = place.run(&["RPOP", &place.key(":producer_free")]).await;
    let () = place.run(&["SET", &place.key(":producer"), "slow"]).await;
    let () = place.run(&["RPOP", &place.key(":not_full")]).await;
    assert_eq!(set_bound(&store, &place, 3).await, Applied::AlreadySo);
    assert_eq!(place.length(":not_full").await, 0, "the producer has the token");
}

#[tokio::test]
async fn a_bound_lowered_to_the_length_or_below_leaves_no_room() {
    for (bound, tokens) in [(4, 1), (3, 0), (2, 0)] {
        let (place, store) = created(10).await;
        let () = place.run(&["LPUSH", &place.key(""), "a", "b", "c"]).await;
        assert_eq!(set_bound(&store, &place, bound).await, Applied::Done);
        assert_eq!(place.length(":not_full").await, tokens, "bound {bound}");
    }
}

#[tokio::test]
async fn surplus_tokens_are_removed_when_no_client_works_on_the_queue() {
    let (place, store) = created(3).await;
    let () = place.run(&["LPUSH", &place.key(":not_full"), "1", "1"]).await;
    assert_eq!(set_bound(&store, &place, 3).await, Applied::Done);
    assert_eq!(place.length(":not_full").await, 1);
    assert_eq!(set_bound(&store, &place, 3).await, Applied::AlreadySo);
}

#[tokio::test]
async fn a_change_of_the_bound_repeated_is_the_same_as_once() {
    for (from, to) in [(3, 5), (5, 3), (0, 4), (4, 0), (1, 1)] {
        let (place, store) = created(from).await;
        let () = place.run(&["LPUSH", &place.key(""), "a", "b", "c", "d"]).await;
        set_bound(&store, &place, to).await;
        let once = place.dump().await;
        assert_eq!(set_bound(&store, &place, to).await, Applied::AlreadySo);
        assert_eq!(place.dump().await, once, "from {from} to {to}");
    }
}

#[tokio::test]
async fn a_lost_token_is_seen_and_setting_the_same_bound_restores_it() {
    let (place, store) = created(3).await;
    let () = place.run(&["SET", &place.key(":producer"), "p"]).await;
    let () = place.run(&["DEL", &place.key(":not_full")]).await;
    let seen = store.observe(&place.queue).await.unwrap();
    assert_eq!(symptoms(&seen), [Remark::LostToken]);
    assert_eq!(set_bound(&store, &place, 3).await, Applied::Done);
    let seen = store.observe(&place.queue).await.unwrap();
    assert!(symptoms(&seen).is_empty());
}

#[tokio::test]
async fn the_bound_of_a_queue_that_is_gone_is_not_set() {
    let place = TestQueue::new().await;
    assert_eq!(set_bound(&place.store(), &place, 3).await, Applied::Absent);
    assert!(place.dump().await.is_empty());
}

#[tokio::test]
async fn the_largest_bound_is_kept_exactly() {
    let (place, store) = created(i64::MAX.unsigned_abs()).await;
    let seen = store.observe(&place.queue).await.unwrap();
    assert_eq!(seen.bound, Some(i64::MAX.unsigned_abs()));
    assert_eq!(set_bound(&store, &place, i64::MAX.unsigned_abs() - 1).await, Applied::Done);
    let seen = store.observe(&place.queue).await.unwrap();
    assert_eq!(seen.bound, Some(i64::MAX.unsigned_abs() - 1));
}
