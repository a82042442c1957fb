//! `lockkeeper semaphore verify`: the faults that it finds, and that it changes nothing.
//! `lockkeeper verify`: the state of the lock of the surrounding `exec`.

use std::process::Stdio;

use lapin::options::QueuePurgeOptions;
use lockkeeper_plan::naming::Protocol;
use lockkeeper_testkit::built;
use lockkeeper_testkit::protocols::{At, TestLock, with_protocols};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;

use crate::exec::commands::{Running, Scratch, WRITE};
use crate::exec::{LOCK, Outcome, lockkeeper, outcome, run, succeed};

with_protocols! {
    every {
        a_command_learns_whether_its_lock_is_still_held,
    }
}

async fn verify(vhost: &Vhost) -> Outcome {
    run(vhost, &["semaphore", "verify", LOCK]).await
}

/// Checks that it finds exactly this fault, and leaves every queue unchanged.
async fn finds(vhost: &Vhost, fault: &str) {
    let before = vhost.queues().await;
    let found = verify(vhost).await;
    assert_eq!((found.code, found.stdout.lines().count()), (Some(1), 1), "{found:?}");
    assert!(found.stdout.contains(fault), "{found:?}");
    assert_eq!(vhost.queues().await, before, "{fault}");
}

/// Recreates a lock of two slots with records.
async fn create(vhost: &Vhost) {
    if !vhost.queues().await.is_empty() {
        succeed(vhost, &["semaphore", "destroy", LOCK, "--yes"]).await;
    }
    succeed(vhost, &["semaphore", "create", LOCK, "--slots", "2", "--fencing"]).await;
    let fine = verify(vhost).await;
    assert_eq!((fine.code, fine.stdout.as_str()), (Some(0), ""), "{fine:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_finds_whatever_is_missing_empty_or_foreign() {
    let vhost = Vhost::create().await;
    finds(&vhost, "the semaphore does not exist: check its name").await;
    for (queue, fault) in [
        ("ci.deploy-1-F", "slot 1 has no record"),
        ("ci.deploy-2-F", "slot 2 has no record"),
        ("ci.deploy-W", "the wait queue is missing"),
        ("ci.deploy-1-A", "slot 1 is missing"),
    ] {
        create(&vhost).await;
        vhost.delete(queue).await;
        finds(&vhost, fault).await;
    }
    create(&vhost).await;
    let (_connection, channel) = vhost.channel().await;
    channel.queue_purge("ci.deploy-2-F".into(), QueuePurgeOptions::default()).await.unwrap();
    finds(&vhost, "slot 2 has lost its record").await;
    create(&vhost).await;
    vhost.declare("ci.deploy-1-B", json!({"durable": true})).await;
    finds(&vhost, "slot 1 can't be held, because \"ci.deploy-1-B\" is an ordinary queue").await;
    vhost.delete("ci.deploy-1-B").await;
    vhost.delete("ci.deploy-W").await;
    vhost.declare("ci.deploy-W", json!({"durable": true, "auto_delete": true})).await;
    finds(&vhost, "the wait queue is not Lockkeeper's").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_takes_neither_a_holder_nor_its_record_for_a_fault() {
    let vhost = Vhost::create().await;
    create(&vhost).await;
    let scratch = Scratch::new();
    let register = scratch.file("register");
    let holding = lockkeeper(&vhost, &["exec", LOCK, "--", "sh", "-c", WRITE, &register]);
    let _holding = Running::start(&scratch, "holding", holding);
    scratch.next_holder(&[]).await;
    let held = verify(&vhost).await;
    assert_eq!(held.code, Some(0), "{held:?}");
    succeed(&vhost, &["semaphore", "shrink", LOCK, "2", "--no-wait"]).await;
    let drains = verify(&vhost).await;
    assert_eq!(drains.code, Some(0), "a draining holder, and 0 slots: {drains:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_another_protocol_is_refused_by_every_verb() {
    let vhost = Vhost::create().await;
    let consumer = ["--protocol", "ExclusiveConsumer"];
    let create = [&["semaphore", "create", LOCK, "--slots", "1"][..], &consumer].concat();
    succeed(&vhost, &create).await;
    let before = vhost.queues().await;
    for words in [
        &["exec", LOCK, "--no-wait", "--", "true"][..],
        &["exec", LOCK, "--timeout", "10s", "--", "true"],
        &["semaphore", "grow", LOCK, "1"],
    ] {
        let refused = run(&vhost, words).await;
        assert_eq!(refused.code, Some(64), "{refused:?}");
        let why = "one of protocol ExclusiveConsumer, as the queue \"ci.deploy-1-C\" shows";
        assert!(refused.stderr.contains(why), "{refused:?}");
    }
    finds(&vhost, "one of protocol ExclusiveConsumer").await;
    assert_eq!(vhost.queues().await, before);
    succeed(&vhost, &[&["exec", LOCK][..], &consumer, &["--", "true"]].concat()).await;
}

/// Starts a command that verifies its lock for each line of its input, and prints the exit
/// codes.
async fn verifying(at: &impl At, scratch: &Scratch, words: &[&str]) -> (Running, ChildStdin) {
    let program = built::lockkeeper();
    let line =
        r#"echo $LOCK_HOLDER_ID >>$1; while read go; do "$0" verify; echo "code $?" >&2; done"#;
    let file = scratch.file("register");
    let command = ["--on-lost", "warn", "--", "sh", "-c", line, program, &file];
    let mut command = lockkeeper(at, &[words, &command].concat());
    command.stdin(Stdio::piped());
    let mut running = Running::start(scratch, "verifying", command);
    scratch.next_holder(&[]).await;
    let stdin = running.process.stdin.take().unwrap();
    (running, stdin)
}

async fn a_command_learns_whether_its_lock_is_still_held(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    succeed(&place, &["semaphore", "create", LOCK, "--slots", "1"]).await;
    let scratch = Scratch::new();
    let (mut running, mut stdin) = verifying(&place, &scratch, &["exec", LOCK]).await;
    stdin.write_all(b"go\n").await.unwrap();
    running.until_it_says("code 0").await;
    assert!(!running.said().contains("verify"), "{}", running.said());
    if protocol.has_slots() {
        succeed(&place, &["semaphore", "shrink", LOCK, "1", "--no-wait"]).await;
        stdin.write_all(b"go\n").await.unwrap();
        running.until_it_says("its slot was removed: release it soon").await;
    }
    eventually("the connection is shown", async || !place.connections("hold").await.is_empty())
        .await;
    for connection in place.connections("hold").await {
        place.management.close_connection(&connection, "maintenance").await;
    }
    running.until_it_says("was lost").await;
    stdin.write_all(b"go\n").await.unwrap();
    running.until_it_says("code 80").await;
    assert!(running.said().contains("ci.deploy was lost: the connection"), "{}", running.said());
    drop(stdin);
    assert_eq!(running.code().await, Some(80), "{}", running.said());
}

#[tokio::test(flavor = "multi_thread")]
async fn outside_of_a_command_of_exec_nothing_is_known() {
    let vhost = Vhost::create().await;
    let outside = run(&vhost, &["verify"]).await;
    assert_eq!(outside.code, Some(64), "{outside:?}");
    assert!(outside.stderr.contains("LOCK_SOCKET is not set"), "{outside:?}");
    let mut ended = lockkeeper(&vhost, &["verify"]);
    ended.env("LOCK_SOCKET", "of-an-exec-that-ended").env("LOCK_NAME", LOCK);
    let ended = outcome(ended).await;
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert!(ended.stderr.contains("whether ci.deploy is still held is not known"), "{ended:?}");
}
