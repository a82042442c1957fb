//! Acquiring, proving, losing and releasing a slot.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use lockkeeper_plan::naming::Protocol;
use lockkeeper_semaphore::{
    AcquireError, Client, LostReason, Moment, Permit, RunError, Start, Verdict,
};
use lockkeeper_testkit::protocols::{At, TestLock, with_protocols};
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::rabbitmq::eventually;

use crate::client::{BRIEF, SOON, any, brief, held, held_by, lock, quick, resize, starting_at};

with_protocols! {
    every {
        a_slot_is_acquired_verified_and_released,
        a_lock_without_slots_is_distinguished_from_one_that_is_full,
        two_permits_of_one_client_never_share_a_slot_or_a_connection,
        a_slot_whose_queue_went_away_is_lost_although_its_connection_lives,
        a_killed_connection_loses_its_slot_immediately_with_the_close_reason,
        a_verification_ends_with_its_connection,
        a_slot_stays_held_for_longer_than_its_heartbeats_would_last,
        no_two_of_many_at_once_get_the_same_slot,
        a_cut_off_holder_knows_before_the_broker_gives_its_slot_away,
        work_under_a_lock_is_stopped_when_the_lock_is_lost,
        a_client_that_is_closed_leaves_no_connection,
    }
    slots {
        a_search_starts_at_the_requested_slot,
        a_shrink_is_reported_and_the_slot_stays_with_its_holder_until_its_release,
        a_slot_that_is_gone_when_its_holder_queue_is_declared_is_not_acquired,
        a_lost_race_costs_a_channel_and_the_next_free_slot_is_taken,
    }
    mutex {
        a_slot_whose_queue_went_away_is_lost_although_its_connection_lives,
        a_killed_connection_loses_its_slot_immediately_with_the_close_reason,
        a_cut_off_holder_knows_before_the_broker_gives_its_slot_away,
    }
}

async fn a_slot_is_acquired_verified_and_released(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 2).await;
    let one = lock(&place).try_acquire(&any()).await.unwrap();
    let two = lock(&place).try_acquire(&any()).await.unwrap();
    assert_eq!((one.slot(), two.slot()), (place.slot(1), place.slot(2)));
    assert_ne!(one.id(), two.id());
    assert_ne!(held_by(&one), held_by(&two));
    assert_eq!(one.fence(), None);
    assert_eq!(one.verify().await, Ok(Verdict::Held));
    let error = lock(&place).try_acquire(&any()).await.unwrap_err();
    assert!(matches!(&error, AcquireError::Full { lock, .. } if lock == "ci.deploy"), "{error:?}");
    one.release().await.unwrap();
    let again = lock(&place).try_acquire(&any()).await.unwrap();
    assert_eq!(again.slot(), place.slot(1));
    drop(again);
    eventually("dropping frees the slot", async || held(&place).await.len() == 1).await;
}

async fn a_lock_without_slots_is_distinguished_from_one_that_is_full(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    let error = lock(&place).try_acquire(&any()).await.unwrap_err();
    assert_eq!(error, AcquireError::Missing { lock: "ci.deploy".to_owned() });
    let error = lock(&place).acquire(&any()).await.unwrap_err();
    assert_eq!(error, AcquireError::Missing { lock: "ci.deploy".to_owned() });
}

async fn two_permits_of_one_client_never_share_a_slot_or_a_connection(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 2).await;
    let lock = lock(&place);
    let one = lock.try_acquire(&starting_at(1)).await.unwrap();
    // On the same connection this declare would succeed.
    let two = lock.try_acquire(&starting_at(1)).await.unwrap();
    assert_eq!((one.slot(), two.slot()), (place.slot(1), place.slot(2)));
    drop(one);
    eventually("only one of them ends", async || held(&place).await.len() == 1).await;
    assert_eq!(two.verify().await, Ok(Verdict::Held));
}

async fn a_search_starts_at_the_requested_slot(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 40).await;
    let lock = lock(&place);
    let options = |start| any().with_start(start);
    let third = lock.try_acquire(&options(Start::At(3))).await.unwrap();
    assert_eq!(third.slot(), Some(3));
    third.release().await.unwrap();
    let last = lock.try_acquire(&options(Start::Last)).await.unwrap();
    assert_eq!(last.slot(), Some(3));
    let first = lock.try_acquire(&options(Start::First)).await.unwrap();
    assert_eq!(first.slot(), Some(1));
    let mut seen = HashSet::new();
    // Repeated to cover random choices: it picks among the few known slots.
    for _ in 0..100 {
        let any = lock.try_acquire(&options(Start::Random)).await.unwrap();
        seen.insert(any.slot());
        any.release().await.unwrap();
    }
    assert!(seen.len() > 3, "{seen:?}");
    // The end is found from any start.
    let error = vec![lock.try_acquire(&options(Start::At(41))).await.unwrap().slot()];
    assert_eq!(error, [Some(2)]);
}

async fn a_slot_whose_queue_went_away_is_lost_although_its_connection_lives(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let held = lock(&place).try_acquire(&any()).await.unwrap();
    assert!(held.is_valid());
    // A[1] stays, so a probe of it would report "held".
    place.take_away().await;
    let lost = tokio::time::timeout(SOON, held.lost()).await;
    assert_eq!(lost.expect("the loss is reported"), LostReason::VerifyFailed);
    assert!(!held.is_valid() && held.token().is_cancelled());
    assert_eq!(held.verify().await, Ok(Verdict::Lost));
    assert_eq!(held.release().await, Err(LostReason::VerifyFailed));
}

async fn a_killed_connection_loses_its_slot_immediately_with_the_close_reason(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    for (given, reason) in [
        ("maintenance", "ConnectionClosed { text: \"CONNECTION_FORCED - maintenance\" }"),
        ("revoked: alice rolls back", "Revoked { text: \"alice rolls back\" }"),
    ] {
        let slow = quick().with_heartbeat(Duration::from_secs(60));
        let lock_ = Client::new(place.settings(), slow).semaphore(place.lock_name());
        let held = lock_.try_acquire(&any()).await.unwrap();
        place.close_until("hold", given, async || !held.is_valid()).await;
        let lost = tokio::time::timeout(SOON, held.lost()).await;
        assert_eq!(format!("{:?}", lost.expect("the loss is reported")), reason);
        // The client may hear of it before the broker has deleted the queue.
        let (next, mut permit) = (lock(&place), None);
        eventually("the slot is free", async || {
            permit = next.try_acquire(&any()).await.ok();
            permit.is_some()
        })
        .await;
        let permit = permit.unwrap();
        assert_eq!(permit.slot(), place.slot(1));
        permit.release().await.unwrap();
    }
}

/// lapin does not always end a request that meets the end of its connection.
async fn a_verification_ends_with_its_connection(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let proxy = Proxy::start().await;
    let client = Client::new(proxy.settings(place.settings()), quick());
    let lock = client.semaphore(place.lock_name());
    for round in 0..100 {
        let permit = lock.acquire_timeout(&any(), SOON).await.unwrap();
        proxy.cut();
        // Before, while and after the client notices.
        tokio::time::sleep(Duration::from_micros(20 * (round % 20))).await;
        let (verified, ended) =
            tokio::join!(async { (permit.verify().await, Instant::now()) }, async {
                (permit.lost().await, Instant::now())
            },);
        assert!(matches!(verified.0, Ok(Verdict::Lost) | Err(_)), "round {round}: {verified:?}");
        let after = verified.1.saturating_duration_since(ended.1);
        assert!(after < Duration::from_secs(2), "round {round}: {after:?} after the loss");
    }
}

async fn a_slot_stays_held_for_longer_than_its_heartbeats_would_last(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let lock = Client::new(place.settings(), brief()).semaphore(place.lock_name());
    let held = lock.try_acquire(&any()).await.unwrap();
    // The broker frees a silent holder's slot after three heartbeats at the latest.
    let lost = tokio::time::timeout(BRIEF * 7 / 2, held.lost()).await;
    assert!(lost.is_err(), "lost without a cause");
    assert_eq!(held.verify().await, Ok(Verdict::Held));
}

async fn a_shrink_is_reported_and_the_slot_stays_with_its_holder_until_its_release(
    protocol: Protocol,
) {
    let place = TestLock::create(protocol).await;
    resize(&place, 2).await;
    let _one = lock(&place).try_acquire(&any()).await.unwrap();
    let two = lock(&place).try_acquire(&any()).await.unwrap();
    resize(&place, 1).await;
    tokio::time::timeout(SOON, two.draining()).await.expect("it is notified");
    assert!(two.is_valid());
    assert_eq!(two.verify().await, Ok(Verdict::Draining));
    resize(&place, 2).await;
    assert_eq!(two.verify().await, Ok(Verdict::Held));
    let error = lock(&place).try_acquire(&any()).await.unwrap_err();
    assert_eq!(error, AcquireError::Full { lock: "ci.deploy".to_owned(), slots: 2 });
    two.release().await.unwrap();
    assert_eq!(lock(&place).try_acquire(&any()).await.unwrap().slot(), Some(2));
}

async fn no_two_of_many_at_once_get_the_same_slot(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 8).await;
    let locks: Vec<_> = (0..20).map(|_| lock(&place)).collect();
    for _ in 0..3 {
        let all = locks.iter().map(async |lock| lock.try_acquire(&any()).await);
        let held: Vec<Permit> =
            futures::future::join_all(all).await.into_iter().filter_map(Result::ok).collect();
        let slots: HashSet<_> = held.iter().map(held_by).collect();
        assert_eq!(slots.len(), held.len(), "two holders on one slot");
        assert!(!held.is_empty());
        futures::future::join_all(held.into_iter().map(Permit::release)).await;
    }
}

/// The effect of a shrink between the client's check and its declare, without having to
/// hit that moment.
async fn a_slot_that_is_gone_when_its_holder_queue_is_declared_is_not_acquired(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let permit = lock(&place).try_acquire(&starting_at(3)).await.unwrap();
    assert_eq!(permit.slot(), Some(1), "slot 3 does not exist");
    assert_eq!(held(&place).await, [1], "the failed attempt left its queue");
}

async fn a_lost_race_costs_a_channel_and_the_next_free_slot_is_taken(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 3).await;
    let first = lock(&place).try_acquire(&any()).await.unwrap();
    let second = lock(&place).try_acquire(&starting_at(1)).await.unwrap();
    assert_eq!((first.slot(), second.slot()), (Some(1), Some(2)));
    assert_eq!(first.verify().await, Ok(Verdict::Held));
}

async fn a_cut_off_holder_knows_before_the_broker_gives_its_slot_away(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let proxy = Proxy::start().await;
    let settings = proxy.settings(place.settings());
    let lock = Client::new(settings, brief()).semaphore(place.lock_name());
    let permit = lock.try_acquire(&any()).await.unwrap();
    proxy.freeze(true);
    let frozen = Moment::now();
    let until = permit.valid_until();
    assert_eq!(permit.lost().await, LostReason::HeartbeatMissed);
    assert!(!permit.is_valid());
    eventually("the broker frees the slot", async || held(&place).await.is_empty()).await;
    // A machine that stalls observes both late. So this does not compare when they were
    // observed, but until when the permit was valid, and the minimum time that the broker
    // waits.
    assert!(until < frozen + BRIEF * 2, "valid for longer than the broker waits");
    assert!(frozen.elapsed() > BRIEF * 2, "the broker freed it after {:?}", frozen.elapsed());
}

async fn work_under_a_lock_is_stopped_when_the_lock_is_lost(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let lock = lock(&place);
    let done = lock.run(&any(), None, async |permit| permit.slot()).await;
    assert_eq!(done, Ok(place.slot(1)));
    assert_eq!(held(&place).await, Vec::<u32>::new(), "given back at the end");

    let cut = async |permit: &Permit| {
        place.close_until("hold", "test", async || !permit.is_valid()).await;
        std::future::pending::<()>().await;
    };
    let lost = tokio::time::timeout(SOON * 2, lock.run(&any(), Some(SOON), cut)).await;
    assert!(
        matches!(lost, Ok(Err(RunError::Lost(LostReason::ConnectionClosed { .. })))),
        "{lost:?}"
    );
}

async fn a_client_that_is_closed_leaves_no_connection(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let client = Client::new(place.settings(), quick().with_warm(2));
    let lock = client.semaphore(place.lock_name());
    for _ in 0..3 {
        lock.acquire(&any()).await.unwrap().release().await.unwrap();
    }
    eventually("they are shown", async || place.connections("hold").await.len() >= 2).await;
    client.close().await;
    eventually("all are gone", async || {
        place.connections("hold").await.is_empty() && place.connections("probe").await.is_empty()
    })
    .await;
}
