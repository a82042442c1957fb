//! Aborting operations at every possible point: nothing may stay held, and nothing may
//! hang.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use lockkeeper_plan::naming::Protocol;
use lockkeeper_semaphore::{Client, Permit};
use lockkeeper_testkit::environment::is_soak;
use lockkeeper_testkit::protocols::{At, TestLock, with_protocols};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};

use crate::client::{any, broker, held, held_by, lock, quick, resize};

with_protocols! {
    every {
        an_acquire_aborted_at_any_point_leaves_no_slot_held,
        a_release_or_verify_aborted_at_any_point_still_frees_the_slot,
        waiting_aborted_at_any_point_leaves_neither_a_slot_nor_a_place,
    }
    mutex {
        a_release_or_verify_aborted_at_any_point_still_frees_the_slot,
        waiting_aborted_at_any_point_leaves_neither_a_slot_nor_a_place,
    }
}

/// A future that is dropped after it was polled this often.
struct Abort<F> {
    inner: Pin<Box<F>>,
    polls: u32,
}

fn abort_after<F: Future>(polls: u32, future: F) -> Abort<F> {
    Abort { inner: Box::pin(future), polls }
}

impl<F: Future> Future for Abort<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.polls == 0 {
            return Poll::Ready(None);
        }
        self.polls -= 1;
        let polled = self.inner.as_mut().poll(context).map(Some);
        if self.polls == 0 && polled.is_pending() {
            // Aborts in the middle of the operation, without waiting for the next
            // wake-up.
            return Poll::Ready(None);
        }
        polled
    }
}

/// Number of aborts. `make soak` sets more.
fn aborts() -> u32 {
    if is_soak() { 1_000 } else { 250 }
}

async fn an_acquire_aborted_at_any_point_leaves_no_slot_held(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 2).await;
    let client = Client::new(place.settings(), quick());
    let lock = client.semaphore(place.lock_name());
    let (mut aborted, mut completed, mut polls, mut longest) = (0, 0, 1, 0);
    while aborted < aborts() {
        match abort_after(polls, lock.acquire(&any())).await {
            None => {
                aborted += 1;
                polls += 1;
            }
            Some(permit) => {
                permit.unwrap().release().await.unwrap();
                completed += 1;
                longest = longest.max(polls);
                polls = 1;
            }
        }
    }
    println!("{aborted} aborts, {completed} completed, at most {longest} polls");
    // A token takes one round trip.
    assert!(longest > 2 && completed > 0);
    eventually("no slot stays held", async || held(&place).await.is_empty()).await;
    let one = lock.acquire(&any()).await.unwrap();
    let two = lock.acquire(&any()).await.unwrap();
    assert_ne!(held_by(&one), held_by(&two), "{:?}", one.verify().await);
}

async fn a_release_or_verify_aborted_at_any_point_still_frees_the_slot(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let client = Client::new(place.settings(), quick());
    let lock_ = client.semaphore(place.lock_name());
    for round in 0..60 {
        let permit = acquired(&lock_).await;
        let verified = abort_after(round % 6 + 1, permit.verify()).await;
        assert!(!matches!(verified, Some(Err(_))), "{verified:?}");
        assert!(permit.is_valid(), "an abandoned verify cost the slot");
        abort_after(round % 8 + 1, permit.release()).await;
    }
    acquired(&lock(&place)).await.release().await.unwrap();
}

async fn acquired(lock: &lockkeeper_semaphore::Lock) -> Permit {
    lock.acquire_timeout(&any(), Duration::from_secs(10)).await.unwrap()
}

async fn waiting_aborted_at_any_point_leaves_neither_a_slot_nor_a_place(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let permit = acquired(&lock(&place)).await;
    let client = Client::new(place.settings(), quick());
    let lock = client.semaphore(place.lock_name());
    // Until several in a row completed before they would have been aborted. How many polls
    // that takes depends on the broker's speed.
    let administrator = broker(&place);
    let waiting = async || administrator.waiting(&place.lock_name()).await.unwrap();
    let (mut in_time, mut aborted) = (0, 0);
    for polls in 1.. {
        let options = any();
        let acquiring = lock.acquire_timeout(&options, Duration::from_millis(300));
        match abort_after(polls, acquiring).await {
            None => (in_time, aborted) = (0, aborted + 1),
            Some(Err(_)) => in_time += 1,
            Some(Ok(_)) => panic!("the slot is held"),
        }
        if in_time == 5 {
            break;
        }
    }
    assert!(aborted > 0);
    eventually("no client waits", async || waiting().await == Some(0)).await;
    assert!(permit.is_valid());
    assert_eq!(held(&place).await, [1]);
    permit.release().await.unwrap();
    acquired(&lock).await.release().await.unwrap();
}

#[test]
fn a_permit_dropped_after_its_runtime_frees_its_slot() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let looking = runtime();
    let vhost = looking.block_on(async {
        let vhost = Vhost::create().await;
        resize(&vhost, 1).await;
        vhost
    });
    let gone = runtime();
    let permit = gone.block_on(async { acquired(&lock(&vhost)).await });
    drop(gone);
    drop(permit);
    looking.block_on(async {
        eventually("the slot is free", async || held(&vhost).await.is_empty()).await;
    });
}
