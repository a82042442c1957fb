//! Fencing tokens over everything that can happen between two acquisitions.

use std::collections::HashMap;
use std::time::Duration;

use lockkeeper::plan::semaphore::{SlotWish, sweep_to};
use lockkeeper::semaphore::{AcquireOptions, Client, Permit, Start};
use tokio_util::sync::CancellationToken;

use crate::support::proxy::Proxy;
use crate::support::rabbitmq::{Vhost, eventually};
use crate::{any, broker, held, name, quick};

const ACQUISITIONS: u32 = 1_000;
const SLOTS: u32 = 2;

fn fenced(slots: u32) -> SlotWish {
    SlotWish { records: Some(Duration::ZERO), ..SlotWish::new(slots) }
}

async fn resize(vhost: &Vhost, slots: u32) {
    let wish = fenced(slots);
    let cancel = CancellationToken::new();
    broker(vhost).converge(&name(), wish, sweep_to(wish, SLOTS), false, &cancel).await.unwrap();
}

async fn destroy(vhost: &Vhost) {
    let cancel = CancellationToken::new();
    broker(vhost).destroy(&name(), fenced(0), Some(SLOTS), &cancel).await.unwrap();
    assert_eq!(vhost.queues().await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_over_crashes_shrinks_and_recreations_of_the_semaphore() {
    let vhost = Vhost::create().await;
    resize(&vhost, SLOTS).await;
    let proxy = Proxy::start().await;
    let lock = Client::new(proxy.settings(vhost.settings()), quick()).semaphore(name());
    let mut last: HashMap<Option<u32>, u64> = HashMap::new();
    let mut granted = |permit: &Permit| {
        let token = permit.fence().expect("the semaphore has fencing");
        let before = last.insert(permit.slot(), token);
        assert!(before < Some(token), "{:?}: {token} after {before:?}", permit.slot());
    };
    for n in 1..=ACQUISITIONS {
        let start = if n % 2 == 0 { Start::First } else { Start::At(2) };
        let options = AcquireOptions { start, ..any() };
        let permit = lock.acquire_timeout(&options, Duration::from_secs(20)).await.unwrap();
        granted(&permit);
        if n % 10 != 0 {
            permit.release().await.unwrap();
            continue;
        }
        // A crash: nobody says goodbye.
        proxy.cut();
        permit.lost().await;
        eventually("the broker has noticed", async || held(&vhost).await.is_empty()).await;
        match n % 50 {
            10 => resize(&vhost, 0).await,
            20 => destroy(&vhost).await,
            _ => continue,
        }
        resize(&vhost, SLOTS).await;
    }
}
