//! An API server with faults: the operator waits until it recovers, does not flood it,
//! and then applies the changes that were requested in the meantime.

use std::time::{Duration, Instant};

use lockkeeper_api::Semaphore;
use lockkeeper_testkit::api_server::{ApiServer, Fault};
use lockkeeper_testkit::world;
use lockkeeper_testkit::world::{PATIENCE, World, eventually, in_a_world};

/// Duration of each fault.
const TROUBLE: Duration = Duration::from_secs(4);

/// Injects the fault while the number of slots is changed. Checks that the slots and the
/// status have the new number afterwards.
async fn outlives(world: &World, server: &ApiServer, fault: Fault, slots: u32) {
    server.suffer(fault);
    let began = Instant::now();
    world.semaphore("deploy", &format!("slots: {slots}")).await;
    eventually(&format!("{fault:?} was met"), PATIENCE, async || server.met() > 0).await;
    tokio::time::sleep(TROUBLE.saturating_sub(began.elapsed())).await;
    let (met, took) = (server.met(), began.elapsed());
    println!("{fault:?}: {met} requests in {took:?}");
    // At most ten per second.
    let enough = usize::try_from(took.as_millis()).unwrap() / 100;
    assert!(met <= enough, "{fault:?}: {met} requests in {took:?}");
    server.suffer(Fault::None);
    let ready = |object: &Semaphore| {
        let said = object.status.as_ref().and_then(|status| status.slots);
        world::is_ready(object) && said == i32::try_from(slots).ok()
    };
    world.until("deploy", &format!("as desired after {fault:?}"), PATIENCE, ready).await;
    assert_eq!(world.queues().await, world.lock_queues("deploy", slots), "{fault:?}");
}

#[tokio::test]
async fn an_api_server_that_refuses_or_hangs_is_waited_out_and_not_flooded() {
    in_a_world("trouble", async |world| {
        let server = ApiServer::new().await;
        let rhythm = ["--observe-interval", "1s", "--drift-interval", "3s"];
        let operator = world.operator_by(&server.kubeconfig, &rhythm).await;
        operator.until_ready().await;
        world.semaphore("deploy", "slots: 1").await;
        world.semaphore_ready("deploy").await;

        let faults = [
            Fault::Answer(429),
            Fault::Answer(500),
            Fault::Answer(503),
            Fault::Answer(410),
            Fault::RefuseChanges(409),
            Fault::RefuseChanges(429),
            Fault::ExpireWatches,
            Fault::Hang,
        ];
        for (fault, slots) in faults.into_iter().zip(2..) {
            outlives(&world, &server, fault, slots).await;
        }
    })
    .await;
}

#[tokio::test]
async fn nothing_is_changed_on_a_server_before_the_status_shows_the_owner() {
    in_a_world("unannounced", async |world| {
        let server = ApiServer::new().await;
        let operator = world.operator_by(&server.kubeconfig, &[]).await;
        operator.until_ready().await;
        server.suffer(Fault::RefuseStatus(500));
        // Without slots, there is no higher mark to write either.
        world.semaphore("deploy", "slots: 0").await;
        eventually("a status is refused", PATIENCE, async || server.met() > 0).await;
        assert!(world.queues().await.is_empty());
        server.suffer(Fault::RefuseStatus(500));
        world.queue("frames", "bound: 2").await;
        // The semaphore's are retried too, at growing intervals.
        eventually("statuses are refused", PATIENCE, async || server.met() > 3).await;
        let keys = redis::cmd("DBSIZE").query_async::<u64>(&mut world.redis().await).await;
        assert_eq!(keys, Ok(0));
        server.suffer(Fault::None);
        world.semaphore_ready("deploy").await;
        world.queue_ready("frames").await;
    })
    .await;
}
