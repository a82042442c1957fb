//! Fields of a Semaphore that exclude each other, or are immutable.

use lockkeeper_api::Semaphore;
use lockkeeper_testkit::world::in_a_world;

use super::refusal;

#[tokio::test]
async fn fields_that_a_profile_does_not_support_are_rejected_with_the_reason() {
    in_a_world("kinds", async |world| {
        for (spec, said) in [
            ("{profile: Python}", "\"Guideline\", \"AmqpLocksPython\""),
            ("{profile: AmqpLocksPython, fencing: true}", "fencing is not possible with profile"),
            ("{profile: AmqpLocksPython, lockDelay: 1ms}", "lockDelay is not possible with"),
            ("{lockDelay: \"15\"}", "lockDelay must be a duration such as 15s"),
            ("{lockDelay: 15 s}", "lockDelay must be a duration such as 15s"),
            ("{lockDelay: 1d, protocol: Token}", "lockDelay must be a duration such as 15s"),
            ("{drain: {revokeAfter: 10 m}}", "revokeAfter must be a duration such as 10m"),
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
        // The default value may be set explicitly.
        world.apply::<Semaphore>("deploy", "{profile: Guideline}").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn fields_that_a_protocol_does_not_support_are_rejected_with_advice() {
    in_a_world("kinds", async |world| {
        for (spec, said) in [
            ("{protocol: Paper}", "\"ExclusiveQueue\", \"ExclusiveConsumer\", \"Token\""),
            (
                "{protocol: ExclusiveConsumer, profile: AmqpLocksPython}",
                "profile AmqpLocksPython is only for protocol ExclusiveQueue",
            ),
            (
                "{protocol: Token, profile: AmqpLocksPython}",
                "profile AmqpLocksPython is only for protocol ExclusiveQueue",
            ),
            ("{token: {}}", "token is only for protocol Token: leave it out, or set protocol"),
            ("{protocol: ExclusiveConsumer, token: {}}", "token is only for protocol Token"),
            ("{protocol: Token, token: {queueType: Stream}}", "\"Classic\", \"Quorum\""),
            ("{protocol: Token, fencing: true}", "needs token.queueType: Quorum"),
            ("{protocol: Token, fencing: true, token: {}}", "needs token.queueType: Quorum"),
            ("{protocol: Token, lockDelay: 1s}", "lockDelay is not possible with protocol Token"),
            (
                "{protocol: Token, token: {queueType: Quorum}, lockDelay: 1ms}",
                "lockDelay is not possible with protocol Token",
            ),
        ] {
            let refused = refusal(world.apply::<Semaphore>("deploy", spec).await);
            assert!(refused.contains(said), "{spec}: {refused}");
        }
        for spec in [
            "{protocol: ExclusiveConsumer, fencing: true, lockDelay: 1h}",
            "{protocol: Token, lockDelay: 0s, resize: {overshoot: 64}}",
            "{protocol: Token, token: {queueType: Quorum}, fencing: true}",
            "{protocol: ExclusiveQueue, profile: AmqpLocksPython}",
        ] {
            let name = format!("a-{}", spec.len());
            world.apply::<Semaphore>(&name, spec).await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn neither_the_protocol_nor_the_queue_type_can_be_changed() {
    in_a_world("kinds", async |world| {
        let protocols = ["{}", "{protocol: ExclusiveConsumer}", "{protocol: Token}"];
        for (number, before) in protocols.iter().enumerate() {
            let name = format!("a-{number}");
            world.apply::<Semaphore>(&name, before).await.unwrap();
            for after in protocols.iter().filter(|after| after != &before) {
                let refused = refusal(world.apply::<Semaphore>(&name, after).await);
                let said = "protocol can't be changed after creation: create another";
                assert!(refused.contains(said), "{before} to {after}: {refused}");
            }
        }
        let quorum = "{protocol: Token, token: {queueType: Quorum}}";
        world.apply::<Semaphore>("quorum", quorum).await.unwrap();
        for (name, spec) in [
            ("a-2", quorum),
            ("quorum", "{protocol: Token}"),
            ("quorum", "{protocol: Token, token: {queueType: Classic}}"),
        ] {
            let refused = refusal(world.apply::<Semaphore>(name, spec).await);
            let said = "token.queueType can't be changed after creation";
            assert!(refused.contains(said), "{spec}: {refused}");
        }
        // The default value may be set explicitly, and removed again.
        for (name, spec) in [
            ("a-0", "{protocol: ExclusiveQueue}"),
            ("a-2", "{protocol: Token, token: {queueType: Classic}}"),
            ("a-2", "{protocol: Token, token: {}}"),
            ("a-2", "{protocol: Token, suspend: true}"),
        ] {
            world.apply::<Semaphore>(name, spec).await.unwrap();
        }
    })
    .await;
}
