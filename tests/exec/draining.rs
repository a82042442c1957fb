//! A slot that is removed under a running command.

use crate::commands::{Running, Scratch, WRITE, alive};
use crate::support::rabbitmq::{Vhost, eventually};
use crate::{LOCK, create, lockkeeper, run, succeed};

/// A command on slot 2 of 2, and one on slot 1.
async fn two(vhost: &Vhost, scratch: &Scratch, options: &[&str], script: &str) -> [Running; 2] {
    create(vhost, 2).await;
    let register = scratch.file("register");
    let first = ["exec", LOCK, "--", "sh", "-c", WRITE, &register];
    let first = Running::start(scratch, "first", lockkeeper(vhost, &first));
    scratch.next_holder(&[]).await;
    let file = scratch.file("second");
    let second = [&["exec", LOCK][..], options, &["--", "sh", "-c", script, &file]].concat();
    let second = Running::start(scratch, "second-exec", lockkeeper(vhost, &second));
    eventually("the second one runs", async || scratch.read("second").contains("slot 2")).await;
    [first, second]
}

/// Says its slot, and goes on until it is told to end.
const WORK: &str = r#"echo "slot $LOCK_SLOT" >>"$0"
    trap 'echo term >>"$0"; exit 9' TERM; trap 'echo usr1 >>"$0"; exit 5' USR1
    while :; do sleep 0.02; done"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_shrink_changes_nothing_for_a_command_that_may_finish() {
    let vhost = Vhost::create().await;
    let scratch = Scratch::new();
    let [mut first, mut second] = two(&vhost, &scratch, &["--heartbeat", "1s"], WORK).await;
    succeed(&vhost, &["semaphore", "shrink", LOCK, "1"]).await;
    second.until_it_says("slot 2 of ci.deploy is draining").await;
    // Grown back: the slot is there again, and still taken.
    succeed(&vhost, &["semaphore", "grow", LOCK, "1"]).await;
    let outcome = run(&vhost, &["exec", LOCK, "--no-wait", "--", "true"]).await;
    assert_eq!(outcome.code, Some(75), "{outcome:?}");
    second.signal("USR1");
    assert_eq!(second.code().await, Some(5), "{}", second.said());
    assert_eq!(scratch.read("second"), "slot 2\nusr1\n");
    let said = second.said();
    assert_eq!(said.lines().filter(|line| line.starts_with("lockkeeper:")).count(), 1, "{said}");
    succeed(&vhost, &["exec", LOCK, "--no-wait", "--", "true"]).await;
    first.signal("TERM");
    assert_eq!(first.code().await, Some(143));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shrink_ends_a_command_that_is_to_stop_and_its_slot_is_given_back() {
    let vhost = Vhost::create().await;
    let scratch = Scratch::new();
    let options = ["--heartbeat", "1s", "--on-drain", "stop"];
    let [_first, mut second] = two(&vhost, &scratch, &options, WORK).await;
    succeed(&vhost, &["semaphore", "shrink", LOCK, "1"]).await;
    assert_eq!(second.code().await, Some(9), "{}", second.said());
    assert_eq!(scratch.read("second"), "slot 2\nterm\n");
    assert!(!vhost.queues().await.contains(&"ci.deploy-2-B".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_to_stop_and_does_not_is_killed() {
    let vhost = Vhost::create().await;
    let scratch = Scratch::new();
    let deaf = r#"trap '' TERM; echo "slot $LOCK_SLOT" >>"$0"; echo "$LOCK_HOLDER_ID" >>"$0"
        while :; do sleep 0.02; done"#;
    let options = ["--heartbeat", "1s", "--on-drain", "stop", "--kill-after", "300ms"];
    let [_first, mut second] = two(&vhost, &scratch, &options, deaf).await;
    succeed(&vhost, &["semaphore", "shrink", LOCK, "1"]).await;
    assert_eq!(second.code().await, Some(137), "{}", second.said());
    assert_eq!(alive(scratch.read("second").lines().last().unwrap()), [0; 0]);
    assert!(!vhost.queues().await.contains(&"ci.deploy-2-B".to_owned()));
}
