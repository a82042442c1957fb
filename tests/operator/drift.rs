//! Slots changed out of band, and two operators at the same time.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kube::ResourceExt;
use lockkeeper_api::Semaphore;
use lockkeeper_testkit::world::{PATIENCE, World, eventually, has_reason, in_a_world, is_ready};

use crate::operator::holders::client::Client;

/// Time limit for a started repair, on a machine with other work. Shorter than the default
/// interval, so that a sweep that comes an interval late is noticed.
const REPAIR: Duration = Duration::from_secs(20);

/// Removes two slots and adds two, one of them at the far end of the sweep.
async fn disturb(world: &World, client: &Client, slots: u32) {
    let slot = |slot| format!("{}.deploy-{slot}-A", world.namespace);
    client.declare_slot(&slot(slots + 1)).await;
    client.declare_slot(&slot(slots + 16)).await;
    client.delete(&slot(2)).await;
    client.delete(&slot(slots)).await;
}

/// Waits until the queues are exactly the desired slots. Returns how long that took.
async fn until_repaired(world: &World, slots: u32, patience: Duration) -> Duration {
    let start = Instant::now();
    let wanted = world.lock_queues("deploy", slots);
    eventually(&format!("{slots} slots again"), patience, async || world.queues().await == wanted)
        .await;
    start.elapsed()
}

/// Returns the events about repairs.
async fn repairs(world: &World) -> Vec<(String, i32)> {
    let events = world.events("deploy").await;
    let repairs = events.into_iter().filter(|(reason, ..)| reason == "DriftRepaired");
    repairs.map(|(_, note, times)| (note, times)).collect()
}

#[tokio::test]
async fn by_default_drift_is_repaired_within_thirty_seconds_with_one_event() {
    in_a_world("drift", async |world| {
        let _operator = world.operator_with(&[]).await;
        world.semaphore("deploy", "slots: 5").await;
        world.semaphore_ready("deploy").await;
        let client = Client::connect(&world).await;
        disturb(&world, &client, 5).await;
        let after = until_repaired(&world, 5, Duration::from_secs(30) + REPAIR).await;
        println!("repaired after {after:?}");
        eventually("the event is there", PATIENCE, async || !repairs(&world).await.is_empty())
            .await;
        let events = repairs(&world).await;
        assert_eq!(events, [("5 slots: 2 added, 2 removed".to_owned(), 1)]);
        // Drift is not caused by the user, and is no change of the outcome.
        let object = world.semaphore_ready("deploy").await;
        assert!(has_reason(&object, "Ready", "InSync"));
    })
    .await;
}

#[tokio::test]
async fn each_drift_is_recorded_as_one_event_and_a_healthy_state_as_none() {
    in_a_world("again", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 40").await;
        world.semaphore_ready("deploy").await;
        let client = Client::connect(&world).await;
        let interval = Duration::from_secs(3);
        for times in 1..=2 {
            // Found by one observation or by two: only concurrent differences count as
            // one drift.
            client.delete(&format!("{}.deploy-7-A", world.namespace)).await;
            until_repaired(&world, 40, interval + REPAIR).await;
            eventually("the event is there", PATIENCE, async || {
                repairs(&world).await == [("40 slots: 1 added, 0 removed".to_owned(), times)]
            })
            .await;
        }
        // The absence of further events can only be waited for: two sweeps.
        tokio::time::sleep(interval * 2).await;
        assert_eq!(repairs(&world).await, [("40 slots: 1 added, 0 removed".to_owned(), 2)]);
    })
    .await;
}

#[tokio::test]
async fn drift_of_a_semaphore_without_slots_is_repaired_too() {
    in_a_world("none", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 0").await;
        world.semaphore_ready("deploy").await;
        let client = Client::connect(&world).await;
        for slot in [1, 9, 16] {
            client.declare_slot(&format!("{}.deploy-{slot}-A", world.namespace)).await;
        }
        until_repaired(&world, 0, Duration::from_secs(3) + REPAIR).await;
    })
    .await;
}

#[tokio::test]
async fn two_operators_on_the_same_objects_end_with_exactly_the_slots_and_do_not_flap() {
    in_a_world("two", async |world| {
        let _operators = [world.operator().await, world.operator().await];
        let mut targets = Vec::new();
        for _ in 0..12 {
            let slots = rand::random_range(0..=200u32);
            targets.push(slots);
            world.semaphore("deploy", &format!("slots: {slots}")).await;
            // From "before the first one has noticed" to "when both are done".
            tokio::time::sleep(rand::random_range(Duration::ZERO..Duration::from_secs(2))).await;
        }
        println!("targets: {targets:?}");
        world.semaphore_ready("deploy").await;
        let desired = world.lock_queues("deploy", targets[11]);
        eventually("exactly the last target", Duration::from_secs(30), async || {
            world.queues().await == desired
        })
        .await;
        let quiet = quiet_since_now(&world).await;
        println!("at rest after {quiet:?}");
        assert_eq!(world.queues().await, desired, "{targets:?}");
    })
    .await;
}

#[tokio::test]
async fn an_operator_that_slept_through_newer_resizes_leaves_no_slot_behind() {
    in_a_world("asleep", async |world| {
        let sleeper = world.operator().await;
        world.semaphore("deploy", "slots: 5").await;
        world.semaphore_ready("deploy").await;
        // It is suspended while it waits for the mutex, about to create four slots.
        let mutex = Client::connect(&world).await;
        mutex.take(&format!("{}.deploy", world.namespace), &[]).await.unwrap();
        world.semaphore("deploy", "slots: 4").await;
        let busy = |s: &Semaphore| has_reason(s, "Ready", "AdminMutexBusy");
        world.until("deploy", "shown as busy", PATIENCE, busy).await;
        // The next attempt begins within two seconds and lasts for five.
        tokio::time::sleep(Duration::from_secs(3)).await;
        sleeper.signal("STOP");
        mutex.leave().await;

        // Another operator creates four and then two hundred, and stops. Then three are
        // desired.
        let mut other = world.operator().await;
        world.semaphore_ready("deploy").await;
        world.semaphore("deploy", "slots: 200").await;
        world.semaphore_ready("deploy").await;
        other.kill().await;
        world.semaphore("deploy", "slots: 3").await;

        sleeper.signal("CONT");
        world.semaphore_ready("deploy").await;
        let wanted = world.lock_queues("deploy", 3);
        assert_eq!(world.queues().await, wanted);
    })
    .await;
}

/// Waits until neither the object nor any queue has changed for three drift intervals.
/// Returns the time until the last change.
async fn quiet_since_now(world: &World) -> Duration {
    const QUIET: Duration = Duration::from_secs(9);
    let start = Instant::now();
    let api = world.api::<Semaphore>();
    let mut since = Instant::now();
    let mut before: Option<(Option<String>, BTreeSet<String>)> = None;
    while since.elapsed() < QUIET {
        let object = api.get("deploy").await.unwrap();
        let ready = is_ready(&object);
        let now = Some((object.resource_version(), world.queues().await));
        if now != before || !ready {
            (since, before) = (Instant::now(), now);
        }
        assert!(start.elapsed() < QUIET + Duration::from_secs(20), "it flaps: {before:#?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    start.elapsed().saturating_sub(QUIET)
}
