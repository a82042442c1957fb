//! A server that closes connections or stops: waiting operations continue after it
//! recovers, and uncertain results are reported.

use std::process::Stdio;

use lockkeeper_testkit::redis::{PrivateRedis, TestQueue, asleep, eventually, in_time, is_waiting};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::{content, fill, finish, put, queue, run, seq, succeed, until_length};

/// Starts a server that keeps its data when it is killed.
async fn durable() -> (PrivateRedis, TestQueue) {
    let server = PrivateRedis::start(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let place = TestQueue::at(&server.url()).await;
    (server, place)
}

/// Returns the number of `lockkeeper` connections that are not in a blocking command.
async fn awake(place: &TestQueue) -> usize {
    let clients: String = place.run(&["CLIENT", "LIST"]).await;
    let is_awake = |line: &&str| line.contains("name=lockkeeper/") && line.contains("flags=N");
    clients.lines().filter(is_awake).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn get_outlasts_a_server_that_closes_idle_connections() {
    let server = PrivateRedis::start(&["--timeout", "1"]).await;
    let place = TestQueue::at(&server.url()).await;
    succeed(&place, "create", &[]).await;
    let getting = queue(&place, "get", &["--count", "1"]).spawn().unwrap();
    eventually("it waits", async || asleep(&place).await == 2).await;
    in_time("its idle connection is closed", async || awake(&place).await == 0).await;
    fill(&place, b"a\n").await;
    let outcome = finish(getting).await;
    assert_eq!((outcome.code, outcome.text(), outcome.stderr.as_str()), (Some(0), "a\n", ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn put_outlasts_a_server_that_closes_idle_connections() {
    let server = PrivateRedis::start(&["--timeout", "1"]).await;
    let place = TestQueue::at(&server.url()).await;
    succeed(&place, "create", &[]).await;
    let mut putting = queue(&place, "put", &[]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = putting.stdin.take().unwrap();
    stdin.write_all(b"a\n").await.unwrap();
    until_length(&place, 1).await;
    in_time("its idle connection is closed", async || awake(&place).await == 0).await;
    stdin.write_all(b"b\n").await.unwrap();
    drop(stdin);
    let outcome = finish(putting).await;
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    assert_eq!(content(&place).await, ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn put_and_get_that_wait_go_on_after_a_restart() {
    let (mut server, place) = durable().await;
    succeed(&place, "create", &["--bound", "4"]).await;
    let mut putting = queue(&place, "put", &[]).stdin(Stdio::piped()).spawn().unwrap();
    putting.stdin.take().unwrap().write_all(seq(1, 9).as_bytes()).await.unwrap();
    until_length(&place, 4).await;
    is_waiting(&place).await;
    server.kill();
    server.restart().await;
    let place = place.reconnected().await;
    assert_eq!(succeed(&place, "get", &[]).await, seq(1, 9).into_bytes());
    let outcome = finish(putting).await;
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));

    succeed(&place, "delete", &["--yes"]).await;
    succeed(&place, "create", &[]).await;
    let mut getting = queue(&place, "get", &[]).spawn().unwrap();
    let mut shown = BufReader::new(getting.stdout.take().unwrap()).lines();
    is_waiting(&place).await;
    server.kill();
    server.restart().await;
    let place = place.reconnected().await;
    assert_eq!(put(&place, &[], b"a\n").await.code, Some(0));
    assert_eq!(shown.next_line().await.unwrap().as_deref(), Some("a"));
    let outcome = finish(getting).await;
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn put_and_get_give_up_a_server_that_stays_away_after_their_timeout() {
    let (mut server, place) = durable().await;
    succeed(&place, "create", &["--bound", "4"]).await;
    let mut putting = queue(&place, "put", &["--timeout", "5s"]);
    let mut putting = putting.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = putting.stdin.take().unwrap();
    stdin.write_all(seq(1, 9).as_bytes()).await.unwrap();
    until_length(&place, 4).await;
    is_waiting(&place).await;
    server.kill();
    let outcome = tokio::time::timeout(std::time::Duration::from_secs(30), finish(putting)).await;
    let outcome = outcome.expect("it gives up");
    drop(stdin);
    assert_eq!(outcome.code, Some(69), "{outcome:?}");
    // Nothing was sent that could be in the queue.
    let account = "4 elements (4 bytes) put; 5 elements read and not put";
    assert!(outcome.stderr.contains(account), "{outcome:?}");
    for verb in ["put", "get"] {
        let outcome = run(&place, verb, &[]).await;
        assert_eq!(outcome.code, Some(69), "{outcome:?}");
        let is_certain = !outcome.stderr.contains("perhaps") && !outcome.stderr.contains("lost");
        assert!(is_certain, "{outcome:?}");
    }
}
