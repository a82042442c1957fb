//! Data is transferred unchanged: lines, bytes and blocks of any kind, in order, fast and
//! with little memory.

use std::time::Instant;

use lockkeeper_testkit::built;
use lockkeeper_testkit::redis::TestQueue;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::pipe::{PATIENCE, finish, is_at_rest, outcome, put, queue, seq, sh, shell, succeed};

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_lines_pass_a_queue_of_ten_in_order_in_seconds() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &["--bound", "10"]).await;
    let started = Instant::now();
    let line = "seq 1 100000 | lockkeeper queue put jobs & lockkeeper queue get jobs && wait $!";
    let same = sh(&place, line).await == seq(1, 100_000);
    let took = started.elapsed();
    println!("100,000 lines through a bound of 10: {took:?}");
    assert!(same, "the same lines");
    is_at_rest(&place).await;
}

/// Returns the peak memory of a process, in MiB.
pub fn high_water(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib / 1024)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gigabyte_passes_unchanged_and_neither_end_grows() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &["--bound", "64"]).await;
    let bytes = 1_000_000_000;
    let started = Instant::now();
    // The same numbers on both sides. Only their sums are compared.
    let source = "openssl enc -aes-128-ctr -nosalt -k jobs -pbkdf2 -in /dev/zero 2>/dev/null \
                    | head -c BYTES | tee >(cksum >&2) | lockkeeper queue put jobs --size 64K";
    let source = source.replace("BYTES", &bytes.to_string());
    let producing = shell(&place, &source).spawn().unwrap();
    let sink = "lockkeeper queue get jobs --raw | cksum";
    let consuming = shell(&place, sink).spawn().unwrap();
    let parents = [producing.id().unwrap(), consuming.id().unwrap()];
    let watch = tokio::spawn(async move {
        let mut highest = 0;
        loop {
            for pid in parents.into_iter().flat_map(lockkeepers_of) {
                highest = highest.max(high_water(pid).unwrap_or(0));
            }
            if lockkeepers_of(parents[1]).is_empty() && highest > 0 {
                return highest;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    });
    let (produced, consumed) = tokio::join!(finish(producing), finish(consuming));
    let took = started.elapsed();
    assert_eq!(consumed.code, Some(0), "{consumed:?}");
    assert_eq!(produced.stderr, consumed.text(), "the same bytes");
    assert!(consumed.text().contains(&bytes.to_string()), "{consumed:?}");
    let highest = tokio::time::timeout(PATIENCE, watch).await.unwrap().unwrap();
    println!("1 GB in blocks of 64K: {took:?}, at most {highest} MiB in either process");
    assert!(highest < 64, "{highest} MiB");
    is_at_rest(&place).await;
}

/// Returns the `lockkeeper` processes that a shell has started.
pub fn lockkeepers_of(parent: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    let children = children.unwrap_or_default();
    let is_ours = |pid: &u32| {
        std::fs::read_link(format!("/proc/{pid}/exe"))
            .is_ok_and(|path| path == std::path::Path::new(built::lockkeeper()))
    };
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(is_ours).collect()
}

type Options = &'static [&'static str];

#[tokio::test(flavor = "multi_thread")]
async fn empty_long_and_strange_elements_come_out_as_they_went_in() {
    let place = TestQueue::new().await;
    let long = "x".repeat(3_000_000);
    let cases: [(Options, Options, Vec<u8>, Vec<u8>); 7] = [
        (&[], &[], b"a\n\n\nb".to_vec(), b"a\n\n\nb\n".to_vec()),
        (&[], &[], b"".to_vec(), b"".to_vec()),
        (&[], &["-0"], b"a\r\n\xff\0b\n".to_vec(), b"a\r\0\xff\0b\0".to_vec()),
        (&["-0"], &["-0"], b"a\nb\0\0c".to_vec(), b"a\nb\0\0c\0".to_vec()),
        (&[], &[], format!("1\n{long}\n2\n").into_bytes(), format!("1\n{long}\n2\n").into_bytes()),
        (&["--size", "3"], &[], b"abcdefgh".to_vec(), b"abc\ndef\ngh\n".to_vec()),
        (&["--size", "1M"], &["--raw"], long.clone().into_bytes(), long.into_bytes()),
    ];
    for (putting, getting, input, expected) in &cases {
        succeed(&place, "create", &[]).await;
        let outcome = put(&place, putting, input).await;
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{putting:?}");
        let got = succeed(&place, "get", &[getting, &["--delete"][..]].concat()).await;
        assert!(got == *expected, "{putting:?} {getting:?}: {} bytes", got.len());
    }
    assert_eq!(place.present().await, [""; 0], "--delete leaves nothing");
}

#[test]
fn any_bytes_put_in_blocks_are_got_unchanged() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let place = runtime.block_on(TestQueue::new());
    let mut runner =
        TestRunner::new(Config { cases: 12, failure_persistence: None, ..Config::default() });
    let bytes = prop_oneof![prop::collection::vec(any::<u8>(), 0..40), large()];
    let case = (bytes, 1_usize..70_000, prop_oneof![Just(0), 1_u64..5]);
    runner
        .run(&case, |(bytes, size, bound)| {
            // Limits the number of scripts in a test.
            let size = size.max(bytes.len() / 200).max(1);
            runtime.block_on(async {
                succeed(&place, "create", &["--bound", &bound.to_string()]).await;
                let get = tokio::spawn(outcome(queue(&place, "get", &["--raw", "--delete"])));
                let outcome = put(&place, &["--size", &size.to_string()], &bytes).await;
                assert_eq!(outcome.code, Some(0), "{outcome:?}");
                let got = get.await.unwrap();
                assert_eq!(got.code, Some(0), "{got:?}");
                assert!(got.stdout == bytes, "{} bytes for {}", got.stdout.len(), bytes.len());
            });
            Ok(())
        })
        .unwrap();
}

fn large() -> impl Strategy<Value = Vec<u8>> {
    (any::<u64>(), 1_usize..2_000_000).prop_map(|(seed, length)| {
        let mut state = seed | 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            u8::try_from(state >> 56).unwrap()
        };
        (0..length).map(|_| next()).collect()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_comes_out_before_the_next_one_is_typed() {
    use std::process::Stdio;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    let place = TestQueue::new().await;
    succeed(&place, "create", &["--bound", "3"]).await;
    let mut putting = queue(&place, "put", &[]).stdin(Stdio::piped()).spawn().unwrap();
    let mut getting = queue(&place, "get", &[]).spawn().unwrap();
    let mut typed = putting.stdin.take().unwrap();
    let mut shown = BufReader::new(getting.stdout.take().unwrap()).lines();
    for number in 0..20 {
        let line = format!("line {number}");
        typed.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        let seen = tokio::time::timeout(PATIENCE, shown.next_line()).await.unwrap().unwrap();
        assert_eq!(seen, Some(line));
    }
    drop(typed);
    assert_eq!(finish(putting).await.code, Some(0));
    assert_eq!(shown.next_line().await.unwrap(), None);
    assert_eq!(finish(getting).await.code, Some(0));
}
