//! A server at its memory limit: waiting operations continue when memory is available
//! again.

use std::process::Stdio;

use lockkeeper_testkit::redis::{PrivateRedis, TestQueue, asleep, eventually};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::{content, fill, finish, queue, seq, succeed, until_length};

async fn place() -> (PrivateRedis, TestQueue) {
    let server = PrivateRedis::start(&["--maxmemory-policy", "noeviction"]).await;
    let place = TestQueue::at(&server.url()).await;
    (server, place)
}

/// Sets a limit below the server's current usage, or none.
async fn limit_memory(place: &TestQueue, is_limited: bool) {
    let bytes = if is_limited { "1" } else { "0" };
    let () = place.run(&["CONFIG", "SET", "maxmemory", bytes]).await;
}

/// Returns how many commands the server has rejected for lack of memory.
async fn refused(place: &TestQueue) -> u64 {
    let info: String = place.run(&["INFO", "errorstats"]).await;
    let line = info.lines().find_map(|line| line.strip_prefix("errorstat_OOM:count="));
    line.map_or(0, |count| count.trim().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn get_waits_for_an_element_at_the_memory_limit() {
    let (_server, place) = place().await;
    succeed(&place, "create", &[]).await;
    fill(&place, seq(1, 3).as_bytes()).await;
    limit_memory(&place, true).await;
    let mut getting = queue(&place, "get", &["--count", "4"]).spawn().unwrap();
    let mut shown = BufReader::new(getting.stdout.take().unwrap()).lines();
    for number in 1..=3 {
        assert_eq!(shown.next_line().await.unwrap(), Some(number.to_string()));
    }
    // Redis rejects the command by which it waits.
    eventually("it has begun to wait", async || refused(&place).await >= 2).await;
    limit_memory(&place, false).await;
    fill(&place, b"4\n").await;
    assert_eq!(shown.next_line().await.unwrap().as_deref(), Some("4"));
    let outcome = finish(getting).await;
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn put_waits_for_room_at_the_memory_limit() {
    let (_server, place) = place().await;
    succeed(&place, "create", &["--bound", "2"]).await;
    let mut putting = queue(&place, "put", &[]).stdin(Stdio::piped()).spawn().unwrap();
    putting.stdin.take().unwrap().write_all(seq(1, 4).as_bytes()).await.unwrap();
    until_length(&place, 2).await;
    eventually("it waits for room", async || asleep(&place).await == 2).await;
    limit_memory(&place, true).await;
    // There is capacity now, but no memory.
    assert_eq!(succeed(&place, "get", &["--count", "1"]).await, b"1\n");
    let before = refused(&place).await;
    eventually("it has been refused", async || refused(&place).await >= before + 2).await;
    assert_eq!(succeed(&place, "get", &["--count", "1"]).await, b"2\n");
    limit_memory(&place, false).await;
    let outcome = finish(putting).await;
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    assert_eq!(content(&place).await, ["3", "4"]);
}
