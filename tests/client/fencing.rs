//! Fencing tokens after every event that can occur between two acquisitions.

use std::collections::HashMap;
use std::time::Duration;

use lockkeeper_plan::naming::Protocol;
use lockkeeper_plan::semaphore::{DesiredSlots, sweep_to};
use lockkeeper_semaphore::{Client, Permit, Start};
use lockkeeper_testkit::environment::is_soak;
use lockkeeper_testkit::protocols::{At, TestLock, with_protocols};
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::rabbitmq::eventually;
use tokio_util::sync::CancellationToken;

use crate::client::{any, broker, held, held_by, quick};

with_protocols! {
    fencing {
        tokens_grow_over_crashes_shrinks_and_recreations_of_the_semaphore,
    }
}

/// Number of acquisitions. Each change of the number of tokens takes seconds, until the
/// previous number is known. `make soak` sets more.
fn acquisitions(protocol: Protocol) -> u32 {
    match (protocol, is_soak()) {
        (Protocol::Token(_), false) => 40,
        (Protocol::Token(_), true) | (_, false) => 100,
        (_, true) => 1_000,
    }
}

const SLOTS: u32 = 2;

fn fenced(slots: u32) -> DesiredSlots {
    DesiredSlots { records: Some(Duration::ZERO), ..DesiredSlots::new(slots) }
}

async fn resize(place: &TestLock, slots: u32) {
    let desired = fenced(slots);
    let cancel = CancellationToken::new();
    broker(place)
        .converge(&place.lock_name(), desired, sweep_to(desired, SLOTS), false, &cancel)
        .await
        .unwrap();
}

async fn destroy(place: &TestLock) {
    let cancel = CancellationToken::new();
    broker(place).destroy(&place.lock_name(), fenced(0), Some(SLOTS), &cancel).await.unwrap();
    assert_eq!(place.queues().await, Vec::<String>::new());
}

async fn tokens_grow_over_crashes_shrinks_and_recreations_of_the_semaphore(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, SLOTS).await;
    let proxy = Proxy::start().await;
    let lock = Client::new(proxy.settings(place.settings()), quick()).semaphore(place.lock_name());
    let mut last: HashMap<_, u64> = HashMap::new();
    let mut granted = |permit: &Permit| {
        let token = permit.fence().expect("the semaphore has fencing");
        let before = last.insert(held_by(permit), token);
        assert!(before < Some(token), "{:?}: {token} after {before:?}", held_by(permit));
    };
    for n in 1..=acquisitions(protocol) {
        let start = if n % 2 == 0 { Start::First } else { Start::At(2) };
        let options = any().with_start(start);
        let permit = lock.acquire_timeout(&options, Duration::from_secs(20)).await.unwrap();
        granted(&permit);
        if n % 10 != 0 {
            permit.release().await.unwrap();
            continue;
        }
        // A crash, without a clean close.
        proxy.cut();
        permit.lost().await;
        eventually("the broker has noticed", async || held(&place).await.is_empty()).await;
        match n % 50 {
            10 => resize(&place, 0).await,
            20 => destroy(&place).await,
            _ => continue,
        }
        resize(&place, SLOTS).await;
    }
}
