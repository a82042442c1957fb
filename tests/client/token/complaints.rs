//! The complaints of "Limitations of receive-based locking" of amqp-locks, one test
//! for each.

use std::time::{Duration, Instant};

use lockkeeper_plan::semaphore::DesiredSlots;
use lockkeeper_semaphore::{AcquireError, Client, LostReason, ResizeTo, Verdict};
use lockkeeper_testkit::proxy::{Proxy, Sender};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use tokio_util::sync::CancellationToken;

use super::{QUEUE, classic, create, free, lock, waiting};
use crate::client::{any, broker, quick};

#[tokio::test(flavor = "multi_thread")]
async fn hard_to_administer_a_decrement_stops_no_holder_and_never_takes_too_much() {
    let vhost = Vhost::create().await;
    create(&vhost, &classic(), 3).await;
    let administrator = broker(&vhost);
    let one = lock(&vhost).try_acquire(&any()).await.unwrap();
    let two = lock(&vhost).try_acquire(&any()).await.unwrap();
    let (to, cancel) = (ResizeTo::Shrink(2), CancellationToken::new());
    let shrunk = administrator.resize(&classic(), to, DesiredSlots::new(0), &cancel).await.unwrap();
    assert_eq!((shrunk.before, shrunk.after, shrunk.done.left), (3, 1, 1));
    // No holder was stopped, and waiters do not get the first released tokens.
    assert_eq!(one.verify().await, Ok(Verdict::Held));
    assert_eq!(two.verify().await, Ok(Verdict::Held));
    let next = waiting(&vhost, &classic(), any()).await;
    one.release().await.unwrap();
    eventually("one token is left", async || {
        administrator.observe(&classic(), 0, 0).await.unwrap().total() == 1
    })
    .await;
    assert!(!next.is_finished(), "a token that was to go was given away");
    two.release().await.unwrap();
    assert_eq!(next.await.unwrap().unwrap().verify().await, Ok(Verdict::Held));
    assert_eq!(administrator.observe(&classic(), 0, 0).await.unwrap().total(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn greedy_a_try_and_an_acquire_given_up_leave_no_token_in_a_buffer() {
    let vhost = Vhost::create().await;
    create(&vhost, &classic(), 1).await;
    let client = Client::new(vhost.settings(), quick());
    let lock_ = client.semaphore(classic());
    let held = lock(&vhost).acquire(&any()).await.unwrap();
    lock_.try_acquire(&any()).await.unwrap_err();
    let dropped = tokio::time::timeout(Duration::from_millis(200), lock_.acquire(&any())).await;
    assert!(dropped.is_err());
    // The last one, so it is still connected.
    let timed_out = lock_.acquire_timeout(&any(), Duration::from_millis(200)).await.unwrap_err();
    assert_eq!(timed_out, AcquireError::Full { lock: "ci.deploy".to_owned(), slots: 0 });
    held.release().await.unwrap();
    // While the first client is busy with something else, another client gets the token.
    let other = lock(&vhost).acquire_timeout(&any(), Duration::from_secs(2)).await.unwrap();
    assert_eq!(other.verify().await, Ok(Verdict::Held));
}

#[tokio::test(flavor = "multi_thread")]
async fn hard_to_verify_one_round_trip_on_the_holding_channel_and_no_polling() {
    let vhost = Vhost::create().await;
    create(&vhost, &classic(), 1).await;
    let proxy = Proxy::start().await;
    let quiet = Duration::from_mins(1);
    let options = quick().with_heartbeat(quiet).with_verify_interval(quiet);
    let client = Client::new(proxy.settings(vhost.settings()), options);
    let held = client.semaphore(classic()).try_acquire(&any()).await.unwrap();
    proxy.reset();
    assert_eq!(held.verify().await, Ok(Verdict::Held));
    let sent: Vec<String> = proxy
        .methods()
        .into_iter()
        .filter(|method| method.sender == Sender::Client)
        .map(|method| method.name)
        .collect();
    assert_eq!(sent, ["queue.declare(passive)"]);
    // Destroyed by an administrator: the holder is notified.
    vhost.delete(QUEUE).await;
    assert_eq!(held.verify().await, Ok(Verdict::Lost));
    assert_eq!(held.lost().await, LostReason::VerifyFailed);
}

#[tokio::test(flavor = "multi_thread")]
async fn hard_to_measure_it_is_known_how_many_there_are_and_how_many_are_held() {
    let vhost = Vhost::create().await;
    create(&vhost, &classic(), 5).await;
    let _one = lock(&vhost).try_acquire(&any()).await.unwrap();
    let _two = lock(&vhost).try_acquire(&any()).await.unwrap();
    // A client that had no earlier knowledge of it.
    let seen = broker(&vhost).observe(&classic(), 0, 0).await.unwrap();
    let counts = seen.counts(5);
    assert_eq!((seen.total(), counts.held, counts.free), (5, 2, 3));
    assert_eq!(free(&vhost).await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn expensive_to_fail_to_acquire_costs_one_round_trip_and_never_the_connection() {
    let vhost = Vhost::create().await;
    let proxy = Proxy::start().await;
    let client = Client::new(proxy.settings(vhost.settings()), quick());
    let lock_ = client.semaphore(classic());
    for _ in 0..5 {
        // Missing: this closes a channel. A new one is open by then.
        lock_.try_acquire(&any()).await.unwrap_err();
    }
    create(&vhost, &classic(), 1).await;
    let held = lock(&vhost).try_acquire(&any()).await.unwrap();
    lock_.try_acquire(&any()).await.unwrap_err();
    proxy.reset();
    let start = Instant::now();
    for _ in 0..20 {
        // It exists, but no token is free: only the request itself is sent.
        lock_.try_acquire(&any()).await.unwrap_err();
    }
    println!("{:?} for 20 failures", start.elapsed());
    assert_eq!(proxy.count("basic.get"), 20);
    assert_eq!((proxy.count("channel.open"), proxy.connections_opened()), (0, 0));
    drop(held);
}
