//! Creating, growing, shrinking and destroying: the exact sets of slots, and the order of
//! changes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lockkeeper_plan::MayAct;
use lockkeeper_plan::naming::LockName;
use lockkeeper_semaphore::{Broker, BrokerError, BrokerOptions};
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::broker::{broker, deleted_one_by_one, desired, existing, lock, resize, sweep_to};

#[tokio::test(flavor = "multi_thread")]
async fn slots_match_the_desired_count_from_creation_to_deletion() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    let mut mark = 0;
    for (slots, declared, deleted) in
        [(3, 3, 0), (7, 4, 0), (7, 0, 0), (2, 0, 5), (5, 3, 0), (0, 0, 5), (2, 2, 0)]
    {
        let done = resize(&broker, slots, mark).await.unwrap();
        assert_eq!((done.declared, done.deleted), (declared, deleted), "to {slots}");
        assert!(done.seen.has_exactly(slots));
        assert_eq!(existing(&vhost).await, (1..=slots).collect(), "to {slots}");
        mark = mark.max(slots);
    }
    let done = broker.destroy(&lock(), desired(2), Some(mark), &CancellationToken::new()).await;
    assert_eq!(done.unwrap().deleted, 2);
    assert_eq!(vhost.queues().await, [""; 0], "nothing is left, the mutex neither");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_queue_is_declared_as_the_guideline_profile_says() {
    let vhost = Vhost::create().await;
    resize(&broker(&vhost), 1, 0).await.unwrap();
    let queue = vhost.queue("ci.deploy-1-A").await.unwrap();
    assert_eq!(queue["durable"], true);
    assert_eq!(queue["exclusive"], false);
    assert_eq!(queue["arguments"], json!({"x-max-length": 0, "x-queue-type": "classic"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_slots_come_and_go() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    for (slots, mark) in [(1000, 0), (5, 1000), (0, 1000)] {
        let done = resize(&broker, slots, mark).await.unwrap();
        assert!(done.seen.has_exactly(slots));
        assert_eq!(existing(&vhost).await, (1..=slots).collect::<BTreeSet<_>>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn holes_are_healed_and_slots_within_the_sweep_are_removed() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    resize(&broker, 8, 0).await.unwrap();
    for slot in [1, 4, 8] {
        vhost.delete(&lock().slot_queue(slot)).await;
    }
    let ours =
        json!({"durable": true, "arguments": {"x-max-length": 0, "x-queue-type": "classic"}});
    for slot in [9, 15, 24, 25, 400] {
        vhost.declare(&lock().slot_queue(slot), ours.clone()).await;
    }
    let done = resize(&broker, 8, 8).await.unwrap();
    // 25 is beyond 8 + 16, but the slots below it show that the mark is wrong.
    assert_eq!((done.declared, done.deleted), (3, 4));
    // No change of the operator could have caused this slot.
    assert_eq!(existing(&vhost).await, (1..=8).chain([400]).collect());
}

/// Follows the changes on the wire. Looks at the queues would not be atomic: a slot can
/// appear between the probe that missed it and the probe of the next one.
#[tokio::test(flavor = "multi_thread")]
async fn growth_ascends_and_shrinking_descends_so_that_no_client_meets_a_hole() {
    let (vhost, proxy) = (Vhost::create().await, Proxy::start().await);
    let through = Broker::new(proxy.settings(vhost.settings()), BrokerOptions::default());
    for mark in [0, 300] {
        proxy.reset();
        resize(&through, 300, mark).await.unwrap();
        let seen = proxy.seen();
        let mut existing = BTreeSet::new();
        for method in &seen {
            let Some(slot) = lock().slot_of_slot_queue(&method.queue) else { continue };
            if method.name == "queue.declare" {
                // At most 16 declares are in flight at a time.
                let missing = (1..slot).filter(|below| !existing.contains(below)).count();
                assert!(missing < 16, "{missing} missing below {slot}: {existing:?}");
            } else if method.name == "queue.declare-ok" {
                existing.insert(slot);
            }
        }
        assert_eq!(existing, (1..=300).collect());
        proxy.reset();
        resize(&through, 0, 300).await.unwrap();
        let deleted = deleted_one_by_one(&proxy.seen(), &lock(), 1..=300);
        assert_eq!(deleted, (1..=300).rev().collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_mark_the_highest_slot_is_found_with_and_without_management() {
    let vhost = Vhost::create().await;
    let with = broker(&vhost);
    resize(&with, 130, 0).await.unwrap();
    let without = Broker::new(vhost.settings_without_management(), BrokerOptions::default());
    assert!(with.has_management() && !without.has_management());
    for slot in 40..60 {
        // A gap of 20 is shorter than 2 × 16.
        vhost.delete(&lock().slot_queue(slot)).await;
    }
    assert_eq!(with.find_highest_slot(&lock(), 16).await, Ok(Some(130)));
    assert_eq!(without.find_highest_slot(&lock(), 16).await, Ok(Some(130)));
    let nothing = LockName::new("ci.deployed").unwrap();
    assert_eq!(with.find_highest_slot(&nothing, 16).await, Ok(Some(0)));
    assert_eq!(without.find_highest_slot(&nothing, 16).await, Ok(Some(0)));
    assert_eq!(with.find_mark_for_change(&lock(), 16).await, Ok(Some(130)));
    assert_eq!(with.find_mark_for_change(&nothing, 16).await, Ok(Some(0)));
}

/// As with the management API of another broker, which lists no queue of the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_finds_the_slots_above_a_mark_that_is_too_low() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    resize(&broker, 60, 0).await.unwrap();
    vhost.delete(&lock().slot_queue(50)).await;
    let resized = resize(&broker, 3, 0).await.unwrap();
    assert_eq!(resized.deleted, 56);
    assert_eq!(broker.find_highest_slot(&lock(), 16).await, Ok(Some(3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_locks_that_ask_concurrently_each_get_their_own_highest_slot() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    // Names that differ in characters with a meaning in patterns, and resemble slots of
    // other locks. They are too many for a single request.
    let locks: Vec<(LockName, u32)> = (0..150)
        .map(|n| (LockName::new(format!("ci.(a|b)-{n}-{}", "long".repeat(5))).unwrap(), n % 4))
        .collect();
    for (lock, highest) in &locks {
        if *highest > 0 {
            vhost.declare(&lock.slot_queue(*highest), serde_json::json!({"durable": true})).await;
        }
    }
    let found = locks.iter().map(|(lock, _)| broker.find_highest_slot(lock, 16));
    let found: Vec<_> = futures::future::join_all(found).await;
    for ((lock, highest), found) in locks.iter().zip(found) {
        assert_eq!(found, Ok(Some(*highest)), "{lock}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_administrators_with_the_same_target_end_with_the_exact_set() {
    let vhost = Vhost::create().await;
    let (one, other) = (broker(&vhost), broker(&vhost));
    for round in 0..20 {
        let slots = [7, 3, 12, 0][round % 4];
        let (a, b) = tokio::join!(resize(&one, slots, 12), resize(&other, slots, 12));
        let (a, b) = (a.unwrap(), b.unwrap());
        assert!(a.seen.has_exactly(slots) && b.seen.has_exactly(slots), "round {round}");
        // Under the mutex, the second finds no remaining work.
        assert!(a.declared + a.deleted == 0 || b.declared + b.deleted == 0, "{a:?} {b:?}");
        assert_eq!(existing(&vhost).await, (1..=slots).collect());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tasks_of_one_process_never_hold_the_mutex_together() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    for round in 0..10 {
        let slots = [9, 2][round % 2];
        let tasks = (0..6).map(|_| resize(&broker, slots, 9));
        let done = futures::future::join_all(tasks).await;
        let busy = done.iter().filter(|d| d.as_ref().unwrap().declared > 0).count()
            + done.iter().filter(|d| d.as_ref().unwrap().deleted > 0).count();
        // On one connection, the broker grants the mutex to all of them.
        assert!(busy <= 1, "{busy} tasks did the same work in round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_change_stops_between_effects_and_the_next_one_finishes() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    let cancel = CancellationToken::new();
    let change = {
        let (broker, cancel) = (broker.clone(), cancel.clone());
        tokio::spawn(async move {
            broker
                .converge(&lock(), desired(2000), sweep_to(desired(2000), 2000), false, &cancel)
                .await
        })
    };
    eventually("some slots", async || broker.observe(&lock(), 40, 0).await.unwrap().total() > 20)
        .await;
    cancel.cancel();
    assert_eq!(change.await.unwrap(), Err(BrokerError::Interrupted));
    let there = existing(&vhost).await.len();
    assert!(there < 2000, "{there}");
    // The mutex is free again. Otherwise this would wait for it in vain.
    let done = resize(&broker, 3, 2000).await.unwrap();
    assert!(done.seen.has_exactly(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_change_gives_the_mutex_back() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    let change = tokio::spawn({
        let broker = broker.clone();
        async move { resize(&broker, 2000, 2000).await }
    });
    eventually("some slots", async || broker.observe(&lock(), 40, 0).await.unwrap().total() > 20)
        .await;
    change.abort();
    let done = resize(&broker, 3, 2000).await.unwrap();
    assert!(done.seen.has_exactly(3));
    assert!(done.deleted < 1900, "the dropped change went on: {}", done.deleted);
    assert_eq!(vhost.queues().await.len(), 4, "three slots and the wait queue");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_that_may_no_longer_act_stops_between_two_effects() {
    let vhost = Vhost::create().await;
    // The process resumes in the middle of a change, after its term has ended.
    let asked = Arc::new(AtomicU32::new(0));
    let asks = Arc::clone(&asked);
    let may_act = MayAct::when(move || asks.fetch_add(1, Ordering::Relaxed) < 30);
    let options = BrokerOptions::default().with_may_act(may_act);
    let broker = Broker::new(vhost.settings(), options);
    let error = resize(&broker, 500, 0).await.unwrap_err();
    assert_eq!(error, BrokerError::Interrupted);
    let made = existing(&vhost).await.len();
    assert!((1..50).contains(&made), "{made}");
    assert!(asked.load(Ordering::Relaxed) >= 30);
    // Neither the mutex nor anything else blocks the process that may act now.
    resize(&crate::broker::broker(&vhost), 500, 0).await.unwrap();
    assert_eq!(existing(&vhost).await.len(), 500);
}
