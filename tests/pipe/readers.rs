//! Readers that end early and outputs that fill up: elements that were taken and not
//! delivered are returned, in order.

use std::process::Stdio;

use lockkeeper_testkit::redis::{TestQueue, eventually};

use crate::pipe::{
    content, counter, fill, finish, is_at_rest, outcome, queue, seq, sh, shell, succeed,
};

#[tokio::test(flavor = "multi_thread")]
async fn head_takes_its_lines_and_leaves_the_rest_in_the_queue_in_order() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    fill(&place, seq(1, 700).as_bytes()).await;
    let mut next = 1;
    for lines in [3, 1, 100, 500] {
        let line =
            format!("lockkeeper queue get jobs | head -n {lines}; echo ${{PIPESTATUS[0]}} >&2");
        let outcome = outcome(shell(&place, &line)).await;
        assert_eq!(outcome.text(), seq(next, next + lines - 1));
        assert_eq!(outcome.stderr, "141\n", "quietly, for nothing is lost");
        next += lines;
        let rest: Vec<String> = (next..=700).map(|number| number.to_string()).collect();
        assert_eq!(content(&place).await, rest);
        assert_eq!(counter(&place, ":stats:consumed_messages").await, next as u64 - 1);
        is_at_rest(&place).await;
    }
}

/// After the first thousand, elements are written in blocks. Blocks that the reader has
/// read count as delivered, but blocks left in the pipe are not lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_blocks_that_ends_early_loses_nothing_that_it_has_not_read() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    fill(&place, seq(1, 60_000).as_bytes()).await;
    // dd reads exactly the requested bytes.
    let read = sh(&place, "lockkeeper queue get jobs | dd bs=1 count=30000 status=none").await;
    assert_eq!(read.len(), 30_000);
    let whole = read.rfind('\n').unwrap() + 1;
    let expected: Vec<String> = seq(1, 60_000)[whole..].lines().map(str::to_owned).collect();
    let rest = content(&place).await;
    assert_eq!(rest.len(), expected.len());
    assert!(rest == expected, "the rest, in order, with the line that was read in part");
    is_at_rest(&place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_get_ends_when_its_output_has_no_reader() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    let mut getting = queue(&place, "get", &[]).spawn().unwrap();
    drop(getting.stdout.take());
    let outcome = finish(getting).await;
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(141), ""));
    is_at_rest(&place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_costs_no_element() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &["--bound", "50"]).await;
    fill(&place, seq(1, 50).as_bytes()).await;
    let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
    let mut getting = queue(&place, "get", &[]);
    getting.stdout(full());
    let outcome = outcome(getting).await;
    assert_eq!(outcome.code, Some(73), "{outcome:?}");
    assert!(outcome.stderr.contains("No space left on device"), "{outcome:?}");
    assert!(outcome.stderr.contains("given back to the queue"), "{outcome:?}");
    assert_eq!(content(&place).await.join("\n") + "\n", seq(1, 50));
    is_at_rest(&place).await;

    let mut peeking = queue(&place, "peek", &[]);
    peeking.stdout(full());
    assert_eq!(crate::pipe::outcome(peeking).await.code, Some(73));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_may_not_grow_ends_get_with_a_count_of_whole_elements() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    fill(&place, seq(1000, 9999).as_bytes()).await;
    let folder = env!("CARGO_TARGET_TMPDIR");
    let file = format!("{folder}/short-{}", place.queue.prefix());
    // The shell's limit is in KiB. A process that exceeds it gets a signal unless it is
    // ignored.
    let line = format!("ulimit -f 8; trap '' XFSZ; lockkeeper queue get jobs >'{file}'");
    let outcome = outcome(shell(&place, &line)).await;
    assert_eq!(outcome.code, Some(73), "{outcome:?}");
    let written = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(written.len(), 8192);
    assert!(outcome.stderr.contains("1638 elements (6552 bytes) written"), "{outcome:?}");
    assert!(outcome.stderr.contains("written in part"), "{outcome:?}");
    let rest = content(&place).await;
    assert_eq!((rest.len(), rest[0].as_str()), (9000 - 1638, "2638"));
    is_at_rest(&place).await;
}

/// Another consumer continued, so the elements cannot return to their place.
#[tokio::test(flavor = "multi_thread")]
async fn elements_that_cannot_be_returned_are_saved_in_a_named_file() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    fill(&place, b"a\nb\nc\nd\n").await;
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(place.queue.prefix());
    std::fs::create_dir(&folder).unwrap();
    let mut getting = queue(&place, "get", &["--count", "3"]);
    let mut getting = getting.current_dir(&folder).spawn().unwrap();
    // "a" is in the pipe and unread. "b" and "c" wait behind it.
    let taken = async || place.length("").await == 1;
    eventually("it has taken all it can", taken).await;
    let other = succeed(&place, "get", &["--count", "1"]).await;
    assert_eq!(other, b"d\n");
    drop(getting.stdout.take());
    let outcome = finish(getting).await;
    assert_eq!(outcome.code, Some(141), "{outcome:?}");
    assert!(outcome.stderr.contains("another client has got elements since"), "{outcome:?}");
    let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|f| f.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{outcome:?}");
    assert!(outcome.stderr.contains(files[0].to_str().unwrap()), "{outcome:?}");
    assert_eq!(std::fs::read(&files[0]).unwrap(), b"a\nb\nc\n");
    let command = outcome.stderr.split("; ").find_map(|part| part.split_once(" puts them"));
    sh(&place, command.expect("a command").0).await;
    assert_eq!(content(&place).await, ["a", "b", "c"]);
    std::fs::remove_dir_all(&folder).unwrap();
}
