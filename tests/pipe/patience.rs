//! Timeouts, and the effects of `--overfill`, `--keep-open` and `--create`.

use std::process::Stdio;
use std::time::{Duration, Instant};

use lockkeeper_testkit::redis::TestQueue;
use tokio::io::AsyncWriteExt;

use crate::pipe::{
    content, counter, fill, finish, is_at_rest, put, queue, run, seq, succeed, until_length,
};

#[tokio::test(flavor = "multi_thread")]
async fn without_waiting_put_ends_at_the_first_element_that_has_no_room() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &["--bound", "3"]).await;
    let outcome = put(&place, &["--no-wait"], seq(1, 5).as_bytes()).await;
    assert_eq!(outcome.code, Some(75), "{outcome:?}");
    assert!(outcome.stderr.contains("the queue is full"), "{outcome:?}");
    let account = "3 elements (3 bytes) put; 2 elements read and not put; the queue was not closed";
    assert!(outcome.stderr.contains(account), "{outcome:?}");
    assert_eq!(content(&place).await, ["1", "2", "3"]);
    is_at_rest(&place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_waiting_get_yields_the_present_elements_and_ends() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    fill(&place, seq(1, 5).as_bytes()).await;
    let outcome = run(&place, "get", &["--no-wait"]).await;
    assert_eq!((outcome.code, outcome.text()), (Some(75), seq(1, 5).as_str()), "{outcome:?}");
    assert!(outcome.stderr.contains("the queue is empty"), "{outcome:?}");
    fill(&place, b"6\n").await;
    succeed(&place, "close", &[]).await;
    assert_eq!(succeed(&place, "get", &["--no-wait", "--delete"]).await, b"6\n");
    assert_eq!(place.present().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_counts_from_the_last_element_that_went_through() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &["--bound", "1"]).await;
    let started = Instant::now();
    let outcome = put(&place, &["--timeout", "300ms"], b"a\nb\n").await;
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert_eq!(outcome.code, Some(75), "{outcome:?}");
    assert!(outcome.stderr.contains("there was no room"), "{outcome:?}");
    assert!(
        outcome.stderr.contains("1 element (1 byte) put; 1 element read and not put"),
        "{outcome:?}"
    );
    assert_eq!(succeed(&place, "get", &["--count", "1"]).await, b"a\n");
    let outcome = run(&place, "get", &["--timeout", "300ms"]).await;
    assert_eq!((outcome.code, outcome.text()), (Some(75), ""), "{outcome:?}");
    assert!(outcome.stderr.contains("no element came"), "{outcome:?}");

    // Each element arrives well within the timeout. Together they take longer.
    let get = tokio::spawn(crate::pipe::outcome(queue(&place, "get", &["--timeout", "5s"])));
    let mut putting = queue(&place, "put", &["--timeout", "5s"]);
    let mut putting = putting.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = putting.stdin.take().unwrap();
    for line in seq(1, 13).lines() {
        tokio::time::sleep(Duration::from_millis(500)).await;
        stdin.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }
    drop(stdin);
    assert_eq!(finish(putting).await.code, Some(0));
    let got = get.await.unwrap();
    assert_eq!((got.code, got.text()), (Some(0), seq(1, 13).as_str()), "{got:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn overfill_puts_where_there_is_no_room_and_says_nothing_about_it() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &["--bound", "2"]).await;
    let outcome = put(&place, &["--overfill", "--keep-open"], seq(1, 5).as_bytes()).await;
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    assert_eq!(content(&place).await, ["1", "2", "3", "4", "5"]);
    is_at_rest(&place).await;
    assert_eq!(put(&place, &["--no-wait"], b"x\n").await.code, Some(75));
}

#[tokio::test(flavor = "multi_thread")]
async fn put_closes_the_queue_at_the_end_of_its_input_unless_kept_open() {
    let place = TestQueue::new().await;
    let closed = async || run(&place, "closed", &[]).await.code;
    let outcome = put(&place, &["--create", "4", "--keep-open"], b"a\n").await;
    assert_eq!((outcome.code, closed().await), (Some(0), Some(1)), "{outcome:?}");
    let outcome = put(&place, &["--create", "9"], b"b\n").await;
    assert_eq!((outcome.code, closed().await), (Some(0), Some(0)), "{outcome:?}");
    assert_eq!(counter(&place, ":bound").await, 4, "it was there");
    let outcome = put(&place, &[], b"c\n").await;
    assert_eq!(outcome.code, Some(83), "{outcome:?}");
    assert_eq!(content(&place).await, ["a", "b"]);
    assert_eq!(succeed(&place, "get", &["--delete"]).await, b"a\nb\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_does_not_touch_a_queue_whose_get_ended_for_another_reason() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    fill(&place, seq(1, 3).as_bytes()).await;
    assert_eq!(run(&place, "get", &["--count", "2", "--delete"]).await.code, Some(0));
    assert_eq!(run(&place, "get", &["--no-wait", "--delete"]).await.code, Some(75));
    assert_eq!(run(&place, "exists", &[]).await.code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_waits_for_room_continues_as_soon_as_there_is_some() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &["--bound", "2"]).await;
    let mut putting = queue(&place, "put", &[]).stdin(Stdio::piped()).spawn().unwrap();
    putting.stdin.take().unwrap().write_all(seq(1, 4).as_bytes()).await.unwrap();
    until_length(&place, 2).await;
    assert_eq!(succeed(&place, "get", &["--count", "3"]).await, b"1\n2\n3\n");
    assert_eq!(finish(putting).await.code, Some(0));
    assert_eq!(content(&place).await, ["4"]);
}
