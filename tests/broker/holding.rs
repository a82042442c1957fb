//! The guideline's client: taking, proving, losing and giving back a slot.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use lockkeeper::semaphore::{HoldError, HoldOptions, Verdict, hold};
use serde_json::json;

use crate::support::proxy::Proxy;
use crate::support::rabbitmq::{Vhost, eventually};
use crate::{broker, lock, resize};

fn options() -> HoldOptions {
    HoldOptions { heartbeat: Duration::from_secs(1), ..HoldOptions::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_is_taken_proved_and_given_back() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    resize(&broker, 2, 0).await.unwrap();
    let one = hold(&vhost.settings(), &lock(), &options(), None).await.unwrap();
    let two = hold(&vhost.settings(), &lock(), &options(), None).await.unwrap();
    assert_eq!((one.slot(), two.slot()), (1, 2));
    assert_ne!(one.id(), two.id());
    assert_eq!(one.verify().await, Ok(Verdict::Held));
    let error = hold(&vhost.settings(), &lock(), &options(), None).await.unwrap_err();
    assert_eq!(error, HoldError::Full { lock: "ci.deploy".to_owned(), slots: 2 });
    one.release().await;
    let again = hold(&vhost.settings(), &lock(), &options(), None).await.unwrap();
    assert_eq!(again.slot(), 1);
    drop(again);
    eventually("dropping frees the slot", async || {
        broker.observe(&lock(), 2, 2).await.unwrap().held == [2].into()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_without_slots_is_told_from_one_that_is_full() {
    let vhost = Vhost::create().await;
    let error = hold(&vhost.settings(), &lock(), &options(), None).await.unwrap_err();
    assert_eq!(error, HoldError::NoSlots { lock: "ci.deploy".to_owned() });
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_ends_with_a_slot_or_with_the_time() {
    let vhost = Vhost::create().await;
    resize(&broker(&vhost), 1, 0).await.unwrap();
    let first = hold(&vhost.settings(), &lock(), &options(), None).await.unwrap();
    let start = Instant::now();
    let short = Some(Duration::from_millis(400));
    let error = hold(&vhost.settings(), &lock(), &options(), short).await.unwrap_err();
    assert!(matches!(error, HoldError::Full { .. }));
    assert!(start.elapsed() >= Duration::from_millis(400));

    let waiting = tokio::spawn({
        let settings = vhost.settings();
        async move { hold(&settings, &lock(), &options(), Some(Duration::from_secs(20))).await }
    });
    eventually("the waiter is there", async || vhost.connections("hold").await.len() >= 2).await;
    first.release().await;
    assert_eq!(waiting.await.unwrap().unwrap().slot(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_whose_queue_went_away_is_lost_although_its_connection_lives() {
    let vhost = Vhost::create().await;
    resize(&broker(&vhost), 1, 0).await.unwrap();
    let held = hold(&vhost.settings(), &lock(), &options(), None).await.unwrap();
    assert!(held.is_valid());
    // An administrator's policy: A[1] stays, so a probe of it would say "held".
    let policy = format!("policies/{}/gone", vhost.name);
    let definition = json!({"pattern": "-B$", "definition": {"expires": 1}, "apply-to": "queues"});
    vhost.management.put(&policy, definition).await;
    tokio::time::timeout(Duration::from_secs(5), held.lost()).await.expect("the loss is told");
    assert!(!held.is_valid());
    assert_eq!(held.verify().await, Ok(Verdict::Lost));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_connection_is_a_lost_slot_at_once() {
    let vhost = Vhost::create().await;
    resize(&broker(&vhost), 1, 0).await.unwrap();
    let slow = HoldOptions { heartbeat: Duration::from_secs(60), ..options() };
    let held = hold(&vhost.settings(), &lock(), &slow, None).await.unwrap();
    eventually("the connection is shown", async || !vhost.connections("hold").await.is_empty())
        .await;
    for connection in vhost.connections("hold").await {
        vhost.management.close_connection(&connection, "test").await;
    }
    tokio::time::timeout(Duration::from_secs(2), held.lost()).await.expect("the loss is told");
    assert_eq!(held.verify().await, Ok(Verdict::Lost));
    let next = hold(&vhost.settings(), &lock(), &options(), None).await.unwrap();
    assert_eq!(next.slot(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_stays_held_for_longer_than_its_heartbeats_would_last() {
    let vhost = Vhost::create().await;
    resize(&broker(&vhost), 1, 0).await.unwrap();
    let held = hold(&vhost.settings(), &lock(), &options(), None).await.unwrap();
    let lost = tokio::time::timeout(Duration::from_secs(5), held.lost()).await;
    assert!(lost.is_err(), "lost without a cause");
    assert_eq!(held.verify().await, Ok(Verdict::Held));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_two_of_many_at_once_get_the_same_slot() {
    let vhost = Vhost::create().await;
    resize(&broker(&vhost), 8, 0).await.unwrap();
    for _ in 0..3 {
        let settings = vhost.settings();
        let all = (0..20).map(|_| {
            let settings = settings.clone();
            async move { hold(&settings, &lock(), &options(), None).await }
        });
        let held: Vec<_> =
            futures::future::join_all(all).await.into_iter().filter_map(Result::ok).collect();
        let slots: HashSet<u32> = held.iter().map(lockkeeper::semaphore::Held::slot).collect();
        assert_eq!(slots.len(), held.len(), "two holders on one slot");
        assert!(!held.is_empty());
        futures::future::join_all(held.into_iter().map(lockkeeper::semaphore::Held::release)).await;
    }
}

/// What a shrink between the client's look and its declare comes to, without
/// having to hit that moment.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_is_gone_when_its_holder_queue_is_declared_is_not_acquired() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    resize(&broker, 1, 0).await.unwrap();
    let blind = HoldOptions { try_first: Some(3), ..options() };
    let held = hold(&vhost.settings(), &lock(), &blind, None).await.unwrap();
    assert_eq!(held.slot(), 1, "slot 3 does not exist");
    let seen = broker.observe(&lock(), 5, 5).await.unwrap();
    assert_eq!(seen.held, [1].into(), "the failed attempt left its queue");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_race_costs_a_channel_and_the_next_free_slot_is_taken() {
    let vhost = Vhost::create().await;
    resize(&broker(&vhost), 3, 0).await.unwrap();
    let first = hold(&vhost.settings(), &lock(), &options(), None).await.unwrap();
    let blind = HoldOptions { try_first: Some(first.slot()), ..options() };
    let second = hold(&vhost.settings(), &lock(), &blind, None).await.unwrap();
    assert_eq!((first.slot(), second.slot()), (1, 2));
    assert_eq!(first.verify().await, Ok(Verdict::Held));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_off_holder_knows_before_the_broker_gives_its_slot_away() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    resize(&broker, 1, 0).await.unwrap();
    let proxy = Proxy::start().await;
    let settings = proxy.settings(vhost.settings());
    let held = hold(&settings, &lock(), &options(), None).await.unwrap();
    let cut = Instant::now();
    proxy.freeze(true);
    held.lost().await;
    let told = cut.elapsed();
    assert!(!held.is_valid());
    // The broker frees it after two heartbeats at the earliest.
    assert!(told < Duration::from_secs(2), "told only after {told:?}");
    assert_eq!(broker.observe(&lock(), 1, 1).await.unwrap().held, [1].into());
    eventually("the broker frees the slot", async || {
        broker.observe(&lock(), 1, 1).await.unwrap().held.is_empty()
    })
    .await;
}
