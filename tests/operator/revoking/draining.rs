//! `drain.revokeAfter`.

use std::time::{Duration, Instant};

use lockkeeper_api::Semaphore;
use lockkeeper_semaphore::LostReason;
use lockkeeper_testkit::world::{PATIENCE, has, in_a_world};

use super::{QUEUE, acquire, ids, lost, with_administrator};

#[tokio::test]
async fn a_draining_holder_is_revoked_after_its_time_and_not_before_even_after_a_restart() {
    in_a_world("revoke-after", async |world| {
        with_administrator(&world).await;
        let mut operator = world.operator().await;
        let spec = |slots: u32| format!("slots: {slots}, drain: {{revokeAfter: 8s}}");
        world.semaphore("deploy", &spec(3)).await;
        world.semaphore_ready("deploy").await;
        let [first, third] = [acquire(&world, QUEUE, 1).await, acquire(&world, QUEUE, 3).await];
        ids(&world, 2).await;
        world.semaphore("deploy", &spec(1)).await;
        let draining = |s: &Semaphore| s.status.as_ref().is_some_and(|s| s.draining == Some(1));
        world.until("deploy", "draining", PATIENCE, draining).await;
        // The time restarts with a new operator.
        operator.kill().await;
        let restarted = Instant::now();
        let _operator = world.operator().await;
        let why = lost(&third).await;
        let after = restarted.elapsed();
        assert!(after >= Duration::from_secs(8), "{after:?}");
        let LostReason::Revoked { text } = why else { panic!("{why:?}") };
        assert!(text.contains("drained for longer than 8s"), "{text}");
        first.verify().await.unwrap();
        let drained = |s: &Semaphore| has(s, "Drained", "True");
        world.until("deploy", "drained", PATIENCE, drained).await;
        let events = world.events("deploy").await;
        assert!(events.iter().any(|(is, ..)| is == "HolderRevoked"), "{events:?}");
        first.release().await.unwrap();
    })
    .await;
}
