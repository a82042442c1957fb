//! The other two protocols on the command line: acquiring a lock, and administering it
//! without Kubernetes.

use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use serde_json::Value;

use crate::exec::commands::{Running, Scratch, WRITE};
use crate::exec::{LOCK, Outcome, lockkeeper, run, succeed};

const CONSUMER: &[&str] = &["--protocol", "ExclusiveConsumer"];
const TOKEN: &[&str] = &["--protocol", "Token"];
const QUORUM: &[&str] = &["--protocol", "Token", "--queue-type", "Quorum"];

/// `lockkeeper semaphore` on the lock.
async fn semaphore(vhost: &Vhost, verb: &str, protocol: &[&str], more: &[&str]) -> Outcome {
    run(vhost, &[&["semaphore", verb, LOCK], protocol, more].concat()).await
}

/// Returns the numbers of slots, held and free ones, as printed by `count`.
async fn counts(vhost: &Vhost, protocol: &[&str]) -> [u64; 3] {
    let counted = semaphore(vhost, "count", protocol, &["-o", "json"]).await;
    assert_eq!(counted.code, Some(0), "{counted:?}");
    let counted: Value = serde_json::from_str(&counted.stdout).unwrap();
    ["slots", "held", "free"].map(|what| counted[what].as_u64().unwrap())
}

/// Starts a holder that holds until it is ended.
async fn holding(vhost: &Vhost, protocol: &[&str], scratch: &Scratch) -> Running {
    let file = scratch.file("register");
    let words = [&["exec", LOCK], protocol, &["--", "sh", "-c", WRITE, &file]].concat();
    let known = scratch.holders();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let holding = Running::start(scratch, "holding", lockkeeper(vhost, &words));
    scratch.next_holder(&known).await;
    holding
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_under_a_slot_or_a_token_and_finds_which() {
    for (protocol, variables) in [
        (CONSUMER, &["LOCK_SLOT"][..]),
        (TOKEN, &["LOCK_TOKEN_ID"]),
        (QUORUM, &["LOCK_TOKEN", "LOCK_TOKEN_ID"]),
    ] {
        let vhost = Vhost::create().await;
        let made = semaphore(&vhost, "create", protocol, &["--slots", "1"]).await;
        assert_eq!(made.code, Some(0), "{made:?}");
        let show = ["--", "sh", "-c", "env | grep ^LOCK_ | sort"];
        let shown = succeed(&vhost, &[&["exec", LOCK], protocol, &show].concat()).await;
        let found: Vec<&str> = shown.lines().map(|line| line.split('=').next().unwrap()).collect();
        let always = ["LOCK_HOLDER_ID", "LOCK_NAME", "LOCK_SOCKET"];
        let mut expected: Vec<&str> = always.iter().chain(variables).copied().collect();
        expected.sort_unstable();
        assert_eq!(found, expected, "{protocol:?}");

        let scratch = Scratch::new();
        let mut held = holding(&vhost, protocol, &scratch).await;
        let words = [&["exec", LOCK, "--no-wait"], protocol, &["--", "true"]].concat();
        assert_eq!(run(&vhost, &words).await.code, Some(75), "{protocol:?}");
        let until = |what| ["--until", what, "--timeout", "10s"];
        assert_eq!(semaphore(&vhost, "wait", protocol, &until("taken")).await.code, Some(0));
        held.signal("TERM");
        assert_eq!(held.code().await, Some(143));
        assert_eq!(semaphore(&vhost, "wait", protocol, &until("released")).await.code, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_of_consumers_are_counted_verified_shrunk_and_destroyed_with_the_last_holder() {
    let vhost = Vhost::create().await;
    assert_eq!(semaphore(&vhost, "create", CONSUMER, &["--slots", "2"]).await.code, Some(0));
    let scratch = Scratch::new();
    let mut held = holding(&vhost, CONSUMER, &scratch).await;
    assert_eq!(counts(&vhost, CONSUMER).await, [2, 1, 1]);
    vhost.delete("ci.deploy-2-C").await;
    let faulty = semaphore(&vhost, "verify", CONSUMER, &[]).await;
    assert_eq!(faulty.code, Some(1), "{faulty:?}");
    assert!(faulty.stdout.contains("slot 2 has no holder queue"), "{faulty:?}");
    let shrunk = semaphore(&vhost, "shrink", CONSUMER, &["2", "--no-wait"]).await;
    assert_eq!(shrunk.code, Some(0), "a slot goes at once: {shrunk:?}");
    held.until_it_says("is draining").await;

    let left = semaphore(&vhost, "destroy", CONSUMER, &["--yes", "--no-wait"]).await;
    assert_eq!(left.code, Some(0), "{left:?}");
    assert!(left.stderr.contains("1 of ci.deploy are still held"), "{left:?}");
    assert_eq!(vhost.queues().await, ["ci.deploy-1-C"]);
    let words = [&["semaphore", "destroy", LOCK, "--yes"], CONSUMER].concat();
    let mut destroying = Running::start(&scratch, "destroying", lockkeeper(&vhost, &words));
    destroying.until_it_says("waiting for 1 slot that is held").await;
    held.signal("TERM");
    assert_eq!(held.code().await, Some(143));
    assert_eq!(destroying.code().await, Some(0));
    assert_eq!(vhost.queues().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shrink_waits_for_tokens_that_are_held() {
    let vhost = Vhost::create().await;
    assert_eq!(semaphore(&vhost, "create", TOKEN, &["--slots", "3"]).await.code, Some(0));
    assert_eq!(vhost.queues().await, ["ci.deploy.semaphore"]);
    let scratch = Scratch::new();
    let mut held = holding(&vhost, TOKEN, &scratch).await;
    assert_eq!(counts(&vhost, TOKEN).await, [3, 1, 2]);
    let fine = semaphore(&vhost, "verify", TOKEN, &["--slots", "3"]).await;
    assert_eq!(fine.code, Some(0), "{fine:?}");
    let faulty = semaphore(&vhost, "verify", TOKEN, &["--slots", "5"]).await;
    assert_eq!((faulty.code, faulty.stdout.as_str()), (Some(1), "2 tokens are missing\n"));

    // Free ones are removed immediately, held ones only while a process waits for them.
    let unwaited = semaphore(&vhost, "shrink", TOKEN, &["3", "--no-wait"]).await;
    assert_eq!(unwaited.code, Some(0), "{unwaited:?}");
    assert!(unwaited.stderr.contains("ci.deploy has 0 tokens, before 3"), "{unwaited:?}");
    assert!(unwaited.stderr.contains("shrink ci.deploy 1`"), "what is to be done: {unwaited:?}");
    assert_eq!(counts(&vhost, TOKEN).await, [1, 1, 0]);

    let words = [&["semaphore", "shrink", LOCK, "1"], TOKEN].concat();
    let mut stopped = Running::start(&scratch, "stopped", lockkeeper(&vhost, &words));
    stopped.until_it_says("waiting for 1 token that is held").await;
    stopped.signal("TERM");
    assert_eq!(stopped.code().await, Some(75));
    assert!(
        stopped.said().contains("held surplus token of ci.deploy: 1. Run"),
        "{}",
        stopped.said()
    );
    assert_eq!(counts(&vhost, TOKEN).await, [1, 1, 0]);

    let mut shrinking = Running::start(&scratch, "shrinking", lockkeeper(&vhost, &words));
    shrinking.until_it_says("waiting for 1 token that is held").await;
    held.signal("TERM");
    assert_eq!(held.code().await, Some(143));
    assert_eq!(shrinking.code().await, Some(0));
    assert_eq!(counts(&vhost, TOKEN).await, [0, 0, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_semaphore_of_tokens_is_destroyed_with_its_last_holder() {
    let vhost = Vhost::create().await;
    assert_eq!(semaphore(&vhost, "create", TOKEN, &["--slots", "2"]).await.code, Some(0));
    let scratch = Scratch::new();
    let mut held = holding(&vhost, TOKEN, &scratch).await;
    let words = [&["semaphore", "destroy", LOCK, "--yes"], TOKEN].concat();
    let mut destroying = Running::start(&scratch, "destroying", lockkeeper(&vhost, &words));
    destroying.until_it_says("waiting for 1 token that is held").await;
    held.signal("TERM");
    assert_eq!(held.code().await, Some(143));
    assert_eq!(destroying.code().await, Some(0));
    assert!(
        destroying.said().contains("gone with 2 tokens, 1 of them held"),
        "{}",
        destroying.said()
    );
    eventually("its queue is gone", async || vhost.queues().await.is_empty()).await;
}
