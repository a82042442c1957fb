//! Early ends from outside: a signal, a queue that another client closes or deletes, a
//! server that stops. The completed work is reported exactly.

use std::io::Seek;
use std::process::Stdio;
use std::time::Duration;

use lockkeeper_testkit::redis::{PrivateRedis, TestQueue, eventually};
use tokio::io::AsyncWriteExt;
use tokio::process::Child;

use crate::pipe::{
    content, counter, end, fill, finish, is_at_rest, put, queue, run, seq, shell, succeed,
    until_length,
};

/// Starts a `put` that has filled the queue and has read all lines.
async fn full_put(
    place: &TestQueue,
    arguments: &[&str],
    lines: usize,
) -> (Child, tokio::process::ChildStdin) {
    let bound = counter(place, ":bound").await;
    let mut putting = queue(place, "put", arguments).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = putting.stdin.take().unwrap();
    stdin.write_all(seq(1, lines).as_bytes()).await.unwrap();
    until_length(place, bound).await;
    (putting, stdin)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_put_with_a_full_account_and_an_open_queue() {
    let place = TestQueue::new().await;
    for (name, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        succeed(&place, "create", &["--bound", "7"]).await;
        let (putting, stdin) = full_put(&place, &[], 20).await;
        // The queue stays full, and its input open: only the signal can end it.
        let outcome = end(putting, name).await;
        drop(stdin);
        assert_eq!(outcome.code, Some(code), "{outcome:?}");
        let said = format!(
            "lockkeeper: stopped by SIG{name}. 7 elements (7 bytes) put; 13 elements read and not put; the queue was not closed\n"
        );
        assert_eq!(outcome.stderr, said);
        assert_eq!(run(&place, "closed", &[]).await.code, Some(1));
        is_at_rest(&place).await;
        succeed(&place, "delete", &["--yes"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_during_put_leaves_exactly_the_elements_it_reports() {
    let place = TestQueue::new().await;
    for pause in [3, 30, 100] {
        succeed(&place, "create", &[]).await;
        let line = "yes 123456789 | exec lockkeeper queue put jobs";
        let putting = shell(&place, &line.replace("yes", "exec yes")).spawn().unwrap();
        let busy = async || place.length("").await > 0;
        eventually("elements flow", busy).await;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let pid = crate::pipe::flow::lockkeepers_of(putting.id().unwrap())[0];
        lockkeeper_testkit::environment::signal(pid, "INT");
        let outcome = finish(putting).await;
        let put = place.length("").await;
        let said = format!("stopped by SIGINT. {put} elements ({} bytes) put; ", put * 9);
        assert!(outcome.stderr.contains(&said), "{put} in the queue: {outcome:?}");
        assert!(!outcome.stderr.contains("perhaps"), "{outcome:?}");
        is_at_rest(&place).await;
        succeed(&place, "delete", &["--yes"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_put_accounts_for_every_line_that_it_has_read() {
    let place = TestQueue::new().await;
    let path = format!("{}/lines-{}", env!("CARGO_TARGET_TMPDIR"), place.queue.prefix());
    std::fs::write(&path, "123456789\n".repeat(3_000_000)).unwrap();
    for number in 0..20 {
        let (bound, pause) = if number == 0 { ("3", 50) } else { ("0", number * 3) };
        succeed(&place, "create", &["--bound", bound]).await;
        let mut file = std::fs::File::open(&path).unwrap();
        let mut putting = queue(&place, "put", &[]);
        let putting = putting.stdin(file.try_clone().unwrap()).spawn().unwrap();
        eventually("elements flow", async || place.length("").await > 2).await;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let outcome = end(putting, "INT").await;
        assert_eq!(outcome.code, Some(130), "{outcome:?}");
        let numbers: Vec<u64> =
            outcome.stderr.split([' ', '(']).filter_map(|word| word.parse().ok()).collect();
        let (put, bytes, left) = match numbers[..] {
            [put, bytes, left] => (put, bytes, left),
            // It had put all that it had read.
            [put, bytes] => (put, bytes, 0),
            _ => panic!("{outcome:?}"),
        };
        assert_eq!((put, bytes), (place.length("").await, put * 9), "{outcome:?}");
        // The process and the test share the position in the file.
        let read = file.stream_position().unwrap();
        assert_eq!(put + left, read / 10, "{outcome:?}");
        assert_eq!(
            outcome.stderr.contains("and a beginning"),
            !read.is_multiple_of(10),
            "{outcome:?}"
        );
        succeed(&place, "delete", &["--yes"]).await;
    }
    std::fs::remove_file(path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn put_reads_only_so_far_ahead_of_a_queue_that_is_full() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &["--bound", "1"]).await;
    let line = "exec yes | exec lockkeeper queue put jobs";
    let putting = shell(&place, line).spawn().unwrap();
    until_length(&place, 1).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let pid = crate::pipe::flow::lockkeepers_of(putting.id().unwrap())[0];
    let memory = crate::pipe::flow::high_water(pid).unwrap();
    lockkeeper_testkit::environment::signal(pid, "INT");
    let outcome = finish(putting).await;
    let read =
        outcome.stderr.split("; ").find_map(|part| part.strip_suffix(" elements read and not put"));
    let read: u32 = read.and_then(|read| read.parse().ok()).expect(&outcome.stderr);
    println!("{read} elements read ahead, {memory} MiB");
    // A batch, and the lines of a single byte from one read.
    assert!(read < 40_000 && memory < 64, "{read} elements, {memory} MiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_get_and_returns_the_elements_it_has_taken() {
    let place = TestQueue::new().await;
    // The last two end a process that does not handle them.
    for (name, code) in [("INT", 130), ("TERM", 143), ("USR1", 138), ("ALRM", 142)] {
        // While it waits for an element.
        succeed(&place, "create", &[]).await;
        let getting = queue(&place, "get", &[]).spawn().unwrap();
        let waits = async || place.present().await.iter().any(|key| key == ":consumer");
        eventually("it has asked for an element", waits).await;
        let outcome = end(getting, name).await;
        assert_eq!(outcome.code, Some(code), "{outcome:?}");
        assert!(outcome.stderr.contains("0 elements (0 bytes) written\n"), "{outcome:?}");

        // While its output is not read.
        fill(&place, seq(1, 30_000).as_bytes()).await;
        let mut getting = queue(&place, "get", &[]).spawn().unwrap();
        let taken = async || counter(&place, ":stats:consumed_messages").await >= 3;
        eventually("it has taken more than it can write", taken).await;
        lockkeeper_testkit::environment::signal(getting.id().unwrap(), name);
        getting.wait().await.unwrap();
        let outcome = finish(getting).await;
        assert_eq!(outcome.code, Some(code), "{outcome:?}");
        assert!(outcome.stderr.contains("given back to the queue"), "{outcome:?}");
        let written = outcome.text().lines().count();
        assert_eq!(outcome.text(), seq(1, written));
        let said = format!("{written} element");
        assert!(outcome.stderr.contains(&said), "{outcome:?}");
        assert_eq!(content(&place).await.join("\n") + "\n", seq(written + 1, 30_000));
        is_at_rest(&place).await;
        succeed(&place, "delete", &["--yes"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_that_is_ignored_from_the_start_stays_so() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    let line = "trap '' HUP; exec lockkeeper queue get jobs";
    let getting = shell(&place, line).spawn().unwrap();
    let waits = async || place.present().await.iter().any(|key| key == ":consumer");
    eventually("it has asked for an element", waits).await;
    lockkeeper_testkit::environment::signal(getting.id().unwrap(), "HUP");
    assert_eq!(put(&place, &[], b"a\n").await.code, Some(0));
    let outcome = finish(getting).await;
    assert_eq!((outcome.code, outcome.text()), (Some(0), "a\n"), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_others_close_or_delete_ends_put_with_an_account() {
    let place = TestQueue::new().await;
    let cases: [(&str, &[&str], i32); 2] = [("close", &[], 83), ("delete", &["--yes"], 81)];
    for (verb, arguments, code) in cases {
        succeed(&place, "create", &["--bound", "5"]).await;
        let (putting, stdin) = full_put(&place, &[], 12).await;
        succeed(&place, verb, arguments).await;
        let outcome = finish(putting).await;
        drop(stdin);
        assert_eq!(outcome.code, Some(code), "{outcome:?}");
        let account = "5 elements (5 bytes) put; 7 elements read and not put";
        assert!(outcome.stderr.contains(account), "{outcome:?}");
        assert!(!outcome.stderr.contains("not closed"), "{outcome:?}");
        if verb == "close" {
            is_at_rest_and_closed(&place).await;
            succeed(&place, "delete", &["--yes"]).await;
        }
        assert_eq!(place.present().await, [""; 0]);
    }
}

async fn is_at_rest_and_closed(place: &TestQueue) {
    is_at_rest(place).await;
    assert_eq!(place.length(":closed").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_deleted_ends_get_with_the_error_and_a_closed_one_without() {
    let place = TestQueue::new().await;
    for (verb, code) in [("delete", 81), ("close", 0)] {
        succeed(&place, "create", &[]).await;
        let getting = queue(&place, "get", &[]).spawn().unwrap();
        let waits = async || place.present().await.iter().any(|key| key == ":consumer");
        eventually("it has asked for an element", waits).await;
        succeed(&place, verb, &[]).await;
        let outcome = finish(getting).await;
        assert_eq!(outcome.code, Some(code), "{outcome:?}");
    }
}

/// The server's result is unknown, and is only waited for briefly.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_the_server_hangs_ends_put_and_reports_uncertain_elements() {
    let server = PrivateRedis::start(&[]).await;
    let place = TestQueue::at(&server.url()).await;
    succeed(&place, "create", &[]).await;
    let mut putting = queue(&place, "put", &[]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = putting.stdin.take().unwrap();
    stdin.write_all(b"a\n").await.unwrap();
    until_length(&place, 1).await;
    let () = place.run(&["CLIENT", "PAUSE", "60000", "ALL"]).await;
    stdin.write_all(b"b\n").await.unwrap();
    // No external sign shows that it has read the line.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let outcome = end(putting, "TERM").await;
    assert_eq!(outcome.code, Some(143), "{outcome:?}");
    let account = "1 element (1 byte) put, and perhaps up to 1 more; the queue was not closed";
    assert!(outcome.stderr.contains(account), "{outcome:?}");
    // Otherwise the place would wait for the server to remove its keys.
    drop(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_a_get_whose_answer_does_not_come() {
    let server = PrivateRedis::start(&[]).await;
    let place = TestQueue::at(&server.url()).await;
    succeed(&place, "create", &[]).await;
    let getting = queue(&place, "get", &[]).spawn().unwrap();
    let waits = async || place.present().await.iter().any(|key| key == ":consumer");
    eventually("it has asked for an element", waits).await;
    let () = place.run(&["CLIENT", "PAUSE", "60000", "ALL"]).await;
    lockkeeper_testkit::environment::signal(getting.id().unwrap(), "TERM");
    let outcome = end(getting, "INT").await;
    assert!(matches!(outcome.code, Some(130 | 143)), "{outcome:?}");
    assert!(outcome.stderr.contains("at most 1 element may be lost"), "{outcome:?}");
    drop(server);
}
