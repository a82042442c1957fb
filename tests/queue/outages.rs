//! Servers that are slow, silent or unreachable: which operations fail, which wait, and
//! which results are uncertain.

use std::time::Duration;

use lockkeeper_plan::connection::RedisSettings;
use lockkeeper_pressure::{Queue, QueueError, QueueOptions, StoreError, Wait};
use lockkeeper_testkit::narrow::Narrow;
use lockkeeper_testkit::redis::{PrivateRedis, TestQueue, asleep, eventually, in_time, is_waiting};

use crate::queue::ours;

async fn place() -> (PrivateRedis, TestQueue) {
    let server = PrivateRedis::start(&[]).await;
    let place = TestQueue::at(&server.url()).await;
    (server, place)
}

/// Returns the place's queue over this network, for a client that waits a second for a
/// silent server.
fn hasty(place: &TestQueue, network: &Narrow) -> Queue {
    let settings = RedisSettings { port: network.port(), ..place.settings() };
    let second = Duration::from_secs(1);
    let options = QueueOptions::default().with_response_timeout(second);
    Queue::new(settings, place.queue.clone(), options)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_may_take_longer_than_the_timeout_while_bytes_flow() {
    let (server, place) = place().await;
    let network = Narrow::before(server.port(), 400_000).await;
    let queue = hasty(&place, &network);
    queue.create(0).await.unwrap();
    // Four seconds each way.
    let element = vec![b'x'; 200_000];
    queue.put(&element).await.unwrap();
    assert!(queue.peek(1).await.unwrap() == [element.clone()]);
    assert!(queue.try_get().await.unwrap() == element);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_get_survives_a_stall_longer_than_the_timeout() {
    let (server, place) = place().await;
    let network = Narrow::before(server.port(), 100_000_000).await;
    let queue = hasty(&place, &network);
    queue.create(0).await.unwrap();
    for wait in [Wait::No, Wait::Forever] {
        queue.put("e").await.unwrap();
        // Its connection may get elements by now.
        assert_eq!(queue.get().await.unwrap(), b"e");
        queue.put("f").await.unwrap();
        let () = place.run(&["CLIENT", "PAUSE", "4000", "ALL"]).await;
        let taken = queue.get_batch(lockkeeper_pressure::Limit::ONE, wait).await.unwrap();
        assert_eq!(taken.first(), Some(&b"f"[..]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_falls_silent_is_given_up() {
    let (server, place) = place().await;
    let network = Narrow::before(server.port(), 100_000_000).await;
    let queue = hasty(&place, &network);
    queue.create(0).await.unwrap();
    network.hold_answers();
    assert_eq!(queue.len().await, Err(QueueError::Store(StoreError::Timeout)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_without_an_answer_is_uncertain_and_not_repeated() {
    let (server, place) = place().await;
    let network = Narrow::before(server.port(), 100_000_000).await;
    let queue = hasty(&place, &network);
    queue.create(0).await.unwrap();
    queue.put("a").await.unwrap();
    network.hold_answers();
    let putting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.put_batch(&["b", "c"], Wait::Forever).await }
    });
    eventually("the server has them", async || place.length("").await == 3).await;
    drop(network);
    let failed = putting.await.unwrap().unwrap_err();
    assert_eq!((failed.put, failed.uncertain), (0, 2));
    assert!(failed.error.ends_unknown(), "{failed}");
    assert_eq!(ours(&place, "me").peek(9).await.unwrap(), [b"a", b"b", b"c"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_get_whose_connection_ends_before_the_answer_is_uncertain() {
    let (server, place) = place().await;
    let network = Narrow::before(server.port(), 100_000_000).await;
    let queue = hasty(&place, &network);
    queue.create(0).await.unwrap();
    queue.put_batch(&["a", "b"], Wait::No).await.unwrap();
    assert_eq!(queue.get().await.unwrap(), b"a");
    network.hold_answers();
    let getting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.get().await }
    });
    eventually("the server has handed it out", async || place.length("").await == 0).await;
    drop(network);
    let error = getting.await.unwrap().unwrap_err();
    assert!(error.ends_unknown(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_that_begins_during_an_outage_fails_at_once() {
    let (mut server, place) = place().await;
    let queue = ours(&place, "me");
    queue.create(1).await.unwrap();
    queue.put("a").await.unwrap();
    assert_eq!(queue.get().await.unwrap(), b"a");
    server.kill();
    // Before that, the put may be on its way when the connection ends.
    eventually("the client has noticed", async || queue.len().await.is_err()).await;
    let error = queue.put("b").await.unwrap_err();
    let is_away = matches!(error, QueueError::Store(StoreError::Unreachable { .. }));
    assert!(is_away && !error.ends_unknown(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_server_that_stays_away_ends_after_its_time() {
    let (mut server, place) = place().await;
    let queue = ours(&place, "me");
    queue.create(1).await.unwrap();
    let waiter = tokio::spawn({
        let queue = queue.clone();
        async move { queue.get_timeout(Duration::from_secs(5)).await }
    });
    is_waiting(&place).await;
    server.kill();
    let error = waiter.await.unwrap().unwrap_err();
    assert!(matches!(error, QueueError::Store(StoreError::Unreachable { .. })), "{error}");
    server.restart().await;
    assert_eq!(queue.try_get().await, Err(QueueError::DoesNotExist), "the next one connects again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_when_the_server_comes_back_without_the_queue() {
    let (mut server, place) = place().await;
    let queue = ours(&place, "me");
    queue.create(1).await.unwrap();
    let waiter = tokio::spawn(async move { queue.get().await });
    is_waiting(&place).await;
    server.kill();
    server.restart().await;
    assert_eq!(waiter.await.unwrap(), Err(QueueError::DoesNotExist));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_at_once_when_the_login_is_refused() {
    let (_server, place) = place().await;
    let queue = ours(&place, "me");
    queue.create(1).await.unwrap();
    let waiter = tokio::spawn(async move { queue.get().await });
    is_waiting(&place).await;
    let () = place.run(&["CONFIG", "SET", "requirepass", "hush"]).await;
    let _: i64 = place.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    let ended = tokio::time::timeout(Duration::from_secs(15), waiter).await;
    let error = ended.expect("it ends").unwrap().unwrap_err();
    let is_login = matches!(error, QueueError::Store(StoreError::AuthenticationFailed { .. }));
    assert!(is_login, "{error}");
    let () = place.run(&["CONFIG", "SET", "requirepass", ""]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_goes_on_over_new_connections_however_often_they_break() {
    let (_server, place) = place().await;
    let queue = ours(&place, "me");
    queue.create(1).await.unwrap();
    let waiter = tokio::spawn({
        let queue = queue.clone();
        async move { queue.get().await }
    });
    for _ in 0..7 {
        is_waiting(&place).await;
        let _: i64 = place.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    }
    in_time("it waits again", async || asleep(&place).await == 2).await;
    ours(&place, "the producer").put("e").await.unwrap();
    assert_eq!(waiter.await.unwrap().unwrap(), b"e");
}
