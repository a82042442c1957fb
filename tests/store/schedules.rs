//! Random changes of the bound, a producer and a consumer that follow the text, all three
//! as fast as possible: the invariants hold in any order of events.

use std::time::Duration;

use lockkeeper_plan::pressure_queue::{ObservedQueue, QueueEffect};
use lockkeeper_testkit::pressure_text::Worker;
use lockkeeper_testkit::redis::{TestQueue, eventually};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::store::{numbers, text_queue};

const ELEMENTS: usize = 100;

/// Checks the lists that may have at most one element. `:not_full` may have one more for
/// each of the two clients that is between its push and its trim.
fn check_tokens(seen: &ObservedQueue) {
    assert!(seen.producer_free <= 1, "{seen:?}");
    assert!(seen.consumer_free <= 1, "{seen:?}");
    assert!(seen.not_full <= 3, "{seen:?}");
}

async fn run_schedule(seed: u64) {
    println!("seed {seed}: set LOCKKEEPER_TEST_SEED={seed} to repeat it");
    let mut random = SmallRng::seed_from_u64(seed);
    let place = TestQueue::new().await;
    let queue = text_queue(&place);
    let store = place.store();
    let mut highest = random.random_range(1..8);
    store.apply(&place.queue, &QueueEffect::Create { bound: highest }).await.unwrap();
    let producer = Worker::produce(&queue, "producer", numbers(ELEMENTS)).await;
    let consumer = Worker::consume(&queue, "consumer", ELEMENTS).await;
    let mut was_unbounded = false;
    let mut last = highest;
    while !producer.is_finished() && !consumer.is_finished() {
        let bound = if random.random_bool(0.1) { 0 } else { random.random_range(1..8) };
        was_unbounded |= bound == 0;
        highest = highest.max(bound);
        last = bound;
        store.apply(&place.queue, &QueueEffect::SetBound { bound }).await.unwrap();
        for _ in 0..random.random_range(0..4) {
            let now = store.observe(&place.queue).await.unwrap();
            check_tokens(&now);
            // One for a put that was in progress when the bound rose, one for a get that
            // compared before it fell.
            assert!(was_unbounded || now.length <= highest + 2, "{now:?}");
        }
    }
    let done = tokio::time::timeout(Duration::from_secs(20), async {
        (producer.join().await, consumer.join().await)
    });
    let (put, got) = done.await.expect("no client waits without end");
    assert!(put.error.is_none() && got.error.is_none(), "{put:?} {got:?}");
    assert_eq!(got.elements, numbers(ELEMENTS).collect::<Vec<_>>(), "nothing lost or reordered");
    eventually("at rest there is one token, and everybody is free", async || {
        let now = store.observe(&place.queue).await.unwrap();
        (now.not_full, now.producer_free, now.consumer_free) == (1, 1, 1)
            && (now.length, now.bound) == (0, Some(last))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_the_bound_at_any_moment_lose_nothing_and_leave_no_client_asleep() {
    if let Ok(seed) = std::env::var("LOCKKEEPER_TEST_SEED") {
        return run_schedule(seed.parse().expect("a number")).await;
    }
    for _ in 0..8 {
        run_schedule(rand::random()).await;
    }
}
