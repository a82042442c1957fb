//! A lock with the most slots that its spec may ask for. It takes the broker a minute, so only
//! `make soak` runs it. See `operator::slots` for locks of the usual sizes.

use lockkeeper_api::Semaphore;
use lockkeeper_testkit::world::{PATIENCE, in_a_world, is_ready};

#[tokio::test]
async fn the_most_slots_that_a_spec_may_ask_for_are_made() {
    in_a_world("most", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 10000").await;
        world.until("deploy", "Ready", PATIENCE * 3, is_ready::<Semaphore>).await;
        assert_eq!(world.queues().await, world.lock_queues("deploy", 10_000));
    })
    .await;
}
