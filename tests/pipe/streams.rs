//! Standard streams that are closed, limited, non-blocking or shared: nothing is taken for
//! an output that does not exist, and no queue is closed for an input that does not.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::Duration;

use lockkeeper_testkit::redis::{PrivateRedis, TestQueue, eventually};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::pipe::{
    content, fill, finish, is_at_rest, outcome, queue, run, seq, sh, shell, succeed, until_length,
};

/// Runs a shell line. Returns the exit code and the messages.
async fn code(place: &TestQueue, line: &str) -> (Option<i32>, String) {
    let outcome = outcome(shell(place, line)).await;
    (outcome.code, outcome.stderr)
}

#[tokio::test(flavor = "multi_thread")]
async fn get_takes_nothing_if_its_output_is_closed_or_not_open_for_writing() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    fill(&place, b"a\nb\nc\n").await;
    for to in [">&-", "1</dev/null", "1<>/dev/null", "1</etc/passwd"] {
        let (code, said) = code(&place, &format!("lockkeeper queue get jobs --count 2 {to}")).await;
        assert_eq!(code, Some(73), "{to}: {said}");
        assert!(said.contains("standard output can't be written"), "{to}: {said}");
    }
    assert_eq!(content(&place).await, ["a", "b", "c"]);
    sh(&place, "lockkeeper queue get jobs --count 3 >/dev/null").await;
    assert_eq!(content(&place).await, [""; 0]);
    is_at_rest(&place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn put_leaves_the_queue_open_if_its_input_is_closed_or_not_open_for_reading() {
    let place = TestQueue::new().await;
    for from in ["<&-", "0>/dev/null", "<>/dev/null"] {
        for options in ["", "--keep-open", "--create 5"] {
            let line = format!("lockkeeper queue put jobs {options} {from}");
            let (code, said) = code(&place, &line).await;
            assert_eq!(code, Some(74), "{line}: {said}");
            assert!(said.contains("standard input can't be read"), "{line}: {said}");
        }
    }
    assert_eq!(run(&place, "closed", &[]).await.code, Some(81), "nothing was created");
    succeed(&place, "create", &[]).await;
    assert_eq!(code(&place, "lockkeeper queue put jobs <&-").await.0, Some(74));
    assert_eq!(run(&place, "closed", &[]).await.code, Some(1));
    sh(&place, "lockkeeper queue put jobs </dev/null").await;
    assert_eq!(run(&place, "closed", &[]).await.code, Some(0), "an empty input has an end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_file_sizes_costs_no_element() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    fill(&place, seq(10_000, 19_999).as_bytes()).await;
    let folder = env!("CARGO_TARGET_TMPDIR");
    let file = format!("{folder}/limited-{}", place.queue.prefix());
    for limit in [0, 4] {
        let line = format!("ulimit -f {limit}; lockkeeper queue get jobs >'{file}'");
        let (code, said) = code(&place, &line).await;
        assert_eq!(code, Some(73), "{said}");
        assert!(said.contains("File too large"), "{said}");
        let written = std::fs::read_to_string(&file).unwrap();
        let whole = written.matches('\n').count();
        assert_eq!(written.len(), limit * 1024);
        assert_eq!(content(&place).await.len(), 10_000 - whole);
    }
    std::fs::remove_file(&file).unwrap();
    // Commands have the limit's usual effect.
    succeed(&place, "delete", &["--yes"]).await;
    succeed(&place, "create", &[]).await;
    fill(&place, b"a\n").await;
    let line = "lockkeeper queue run jobs --timeout 1s -- grep SigIgn /proc/self/status >&2";
    let (_, said) = code(&place, line).await;
    let mask = said.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = u64::from_str_radix(mask.unwrap_or_else(|| panic!("{said}")).trim(), 16).unwrap();
    assert_eq!(mask >> 24 & 1, 0, "SIGXFSZ is not ignored");
}

#[tokio::test(flavor = "multi_thread")]
async fn put_waits_for_an_input_that_another_process_made_non_blocking() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    let (reader, writer) = std::io::pipe().unwrap();
    fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    let mut putting = queue(&place, "put", &[]);
    let putting = putting.stdin(Stdio::from(reader)).spawn().unwrap();
    let mut writer = File::from(OwnedFd::from(writer));
    for number in 1..=3 {
        writeln!(writer, "{number}").unwrap();
        until_length(&place, number).await;
    }
    drop(writer);
    let outcome = finish(putting).await;
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    assert_eq!(content(&place).await, ["1", "2", "3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verb_waits_for_an_output_that_another_process_made_non_blocking() {
    let place = TestQueue::new().await;
    let (mut reader, writer) = std::io::pipe().unwrap();
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    // More than a pipe holds.
    succeed(&place, "create", &[]).await;
    fill(&place, seq(1, 100_000).as_bytes()).await;
    let mut printing = shell(&place, "exec lockkeeper queue peek jobs --count 100000");
    let running = printing.stdout(Stdio::from(writer)).spawn().unwrap();
    // With its end of the pipe.
    drop(printing);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let text = tokio::task::spawn_blocking(move || std::io::read_to_string(&mut reader));
    let outcome = finish(running).await;
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let text = text.await.unwrap().unwrap();
    assert!(text.len() > 64 << 10 && text == seq(1, 100_000), "{} bytes", text.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_leaves_ends_peek_and_stat_silently() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    fill(&place, seq(1, 100_000).as_bytes()).await;
    for line in ["peek jobs --count 100000 | head -n 1", "stat jobs -o json | exec true"] {
        let line = format!("set -o pipefail; lockkeeper queue {line} >/dev/null; echo $?");
        let outcome = outcome(shell(&place, &line)).await;
        assert_eq!(outcome.stderr, "", "{line}");
        assert!(["141\n", "0\n"].contains(&outcome.text()), "{line}: {outcome:?}");
        // Whether `true` ends first is a race.
        assert!(line.contains("stat") || outcome.text() == "141\n", "{outcome:?}");
    }
}

/// Other processes write to the same pipe. What its reader leaves there belongs to one of
/// them, and none takes the elements of another for its own.
#[tokio::test(flavor = "multi_thread")]
async fn two_gets_that_share_a_pipe_lose_nothing_when_its_reader_leaves() {
    let place = TestQueue::new().await;
    let lists = ["a", "b", "c"].map(|name| format!("{}:{name}", place.queue.prefix()));
    for round in 0..12 {
        for name in ["a", "b", "c"] {
            let lines = "lockkeeper queue create NAME; seq -f 'NAME%g' 3000 | lockkeeper queue put NAME --keep-open";
            sh(&place, &lines.replace("NAME", name)).await;
        }
        // The first thousand go one by one, the others in blocks.
        let lines = [1, 7, 100, 900, 4000][round % 5];
        let line = format!(
            "{{ for name in a b c; do lockkeeper queue get $name --timeout 5s & done; wait; }} | head -n {lines} | sort"
        );
        let read = sh(&place, &line).await;
        let mut all: Vec<String> = read.lines().map(str::to_owned).collect();
        assert_eq!(all.len(), lines);
        for list in &lists {
            let left: Vec<String> = place.run(&["LRANGE", list, "0", "-1"]).await;
            all.extend(left);
        }
        // Head takes whole blocks, and those are read.
        let expected: Vec<String> = ["a", "b", "c"]
            .iter()
            .flat_map(|name| (1..=3000).map(move |n| format!("{name}{n}")))
            .collect();
        let unique: std::collections::BTreeSet<&String> = all.iter().collect();
        if lines <= 900 {
            assert_eq!(unique.len(), all.len(), "none twice");
            assert_eq!(unique.len(), expected.len(), "none lost");
        }
        for name in ["a", "b", "c"] {
            sh(&place, &format!("lockkeeper queue delete {name} --yes")).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn elements_go_one_by_one_into_a_pipe_that_another_process_had_filled() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    fill(&place, seq(1, 2000).as_bytes()).await;
    // 30 kB of text before, of which head reads the last part together with what follows.
    let line = "{ seq 100001 104000; lockkeeper queue get jobs; } | { sleep 1; head -n 4050; }";
    let read = sh(&place, line).await;
    assert_eq!(read, seq(100_001, 104_000) + &seq(1, 50));
    let left = content(&place).await;
    assert_eq!((left.len(), left[0].as_str()), (1950, "51"));
}

/// An answer that comes after the process has ended would be lost with its elements.
#[tokio::test(flavor = "multi_thread")]
async fn a_stall_of_the_server_beyond_the_timeout_costs_a_get_no_element() {
    let server = PrivateRedis::start(&[]).await;
    let place = TestQueue::at(&server.url()).await;
    succeed(&place, "create", &[]).await;
    fill(&place, seq(1, 10).as_bytes()).await;
    let mut getting = queue(&place, "get", &["--timeout", "2s"]).spawn().unwrap();
    // It has taken one, then two, which wait for the first to be read.
    until_length(&place, 7).await;
    let () = place.run(&["CLIENT", "PAUSE", "62000", "ALL"]).await;
    let mut lines = BufReader::new(getting.stdout.take().unwrap()).lines();
    let mut read = String::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        read += &(line + "\n");
    }
    let outcome = finish(getting).await;
    assert_eq!(read, seq(1, 10), "{outcome:?}");
    assert_eq!(outcome.code, Some(75), "{outcome:?}");
    assert!(!outcome.stderr.contains("lost"), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn run_takes_no_more_elements_once_its_output_has_no_reader() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    fill(&place, seq(1, 50).as_bytes()).await;
    let line = "lockkeeper queue run jobs -- sh -c 'cat; echo' | head -n 2; echo ${PIPESTATUS[0]}";
    let outcome = outcome(shell(&place, line)).await;
    assert_eq!(outcome.text(), "1\n2\n141\n", "{outcome:?}");
    eventually("its element returns", async || place.length("").await >= 46).await;
}
