//! Fields of a Semaphore that exclude each other, or can't be changed.

use lockkeeper::api::Semaphore;

use super::refusal;
use crate::world::in_a_world;

#[tokio::test]
async fn what_a_profile_can_not_have_is_refused_with_the_reason() {
    in_a_world("kinds", async |world| {
        for (spec, said) in [
            ("{profile: Python}", "\"Guideline\", \"AmqpLocksPython\""),
            ("{profile: AmqpLocksPython, fencing: true}", "fencing is not possible with profile"),
            ("{profile: AmqpLocksPython, lockDelay: 1ms}", "lockDelay is not possible with"),
            ("{lockDelay: \"15\"}", "lockDelay in body should match"),
            ("{lockDelay: 15 s}", "lockDelay in body should match"),
            ("{lockDelay: \"\"}", "lockDelay in body should be at least 2 chars long"),
            ("{lockDelay: 61m}", "lockDelay must be at most 1h"),
            ("{resize: {order: Random}}", "\"Descending\", \"Ascending\""),
            ("{resize: {order: Ascending, overshoot: 0}}", "needs resize.overshoot of at least 1"),
        ] {
            let refused = refusal(world.apply::<Semaphore>("deploy", spec).await);
            assert!(refused.contains(said), "{spec}: {refused}");
        }
        for spec in [
            "{lockDelay: 1h, fencing: true}",
            "{lockDelay: 59m59s999ms}",
            "{resize: {order: Ascending}}",
            "{resize: {order: Ascending, overshoot: 1}}",
            "{resize: {overshoot: 0}}",
        ] {
            world.apply::<Semaphore>("deploy", spec).await.unwrap();
        }
        world.apply::<Semaphore>("py", "{profile: AmqpLocksPython, lockDelay: 0s}").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn the_profile_can_not_be_changed() {
    in_a_world("kinds", async |world| {
        world.apply::<Semaphore>("deploy", "{}").await.unwrap();
        world.apply::<Semaphore>("py", "{profile: AmqpLocksPython}").await.unwrap();
        for (name, spec) in [("deploy", "{profile: AmqpLocksPython}"), ("py", "{}")] {
            let refused = refusal(world.apply::<Semaphore>(name, spec).await);
            assert!(refused.contains("profile can't be changed after creation"), "{refused}");
        }
        // What it is by default may be said.
        world.apply::<Semaphore>("deploy", "{profile: Guideline}").await.unwrap();
    })
    .await;
}
