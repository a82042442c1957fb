//! A slot that is removed while a command runs.

use lockkeeper_plan::naming::Protocol;
use lockkeeper_semaphore::{Broker, BrokerOptions};
use lockkeeper_testkit::protocols::{At, TestLock, with_protocols};
use lockkeeper_testkit::rabbitmq::eventually;

use crate::exec::commands::{Running, Scratch, WRITE, alive};
use crate::exec::{LOCK, create, lockkeeper, run, succeed};

with_protocols! {
    slots {
        a_shrink_changes_nothing_for_a_command_that_may_finish,
        a_shrink_ends_a_command_that_is_to_stop_and_its_slot_is_given_back,
        a_command_that_is_to_stop_and_does_not_is_killed,
    }
}

/// Returns whether slot 2, which was removed, is held.
async fn is_held(place: &TestLock) -> bool {
    let broker = Broker::new(place.settings(), BrokerOptions::default());
    broker.observe(&place.lock_name(), 2, 2).await.unwrap().numbered().unwrap().held.contains(&2)
}

/// A command on slot 2 of 2, and one on slot 1.
async fn two(place: &TestLock, scratch: &Scratch, options: &[&str], script: &str) -> [Running; 2] {
    create(place, 2).await;
    let register = scratch.file("register");
    let first = ["exec", LOCK, "--", "sh", "-c", WRITE, &register];
    let first = Running::start(scratch, "first", lockkeeper(place, &first));
    scratch.next_holder(&[]).await;
    let file = scratch.file("second");
    let second = [&["exec", LOCK][..], options, &["--", "sh", "-c", script, &file]].concat();
    let second = Running::start(scratch, "second-exec", lockkeeper(place, &second));
    eventually("the second one runs", async || scratch.read("second").contains("slot 2")).await;
    [first, second]
}

/// Prints its slot, and runs until it is ended.
const WORK: &str = r#"echo "slot $LOCK_SLOT" >>"$0"
    trap 'echo term >>"$0"; exit 9' TERM; trap 'echo usr1 >>"$0"; exit 5' USR1
    while :; do sleep 0.02; done"#;

async fn a_shrink_changes_nothing_for_a_command_that_may_finish(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    let scratch = Scratch::new();
    let [mut first, mut second] = two(&place, &scratch, &["--heartbeat", "2s"], WORK).await;
    succeed(&place, &["semaphore", "shrink", LOCK, "1", "--no-wait"]).await;
    second.until_it_says("slot 2 of ci.deploy is draining").await;
    // Grown back: the slot exists again, and is still held.
    succeed(&place, &["semaphore", "grow", LOCK, "1"]).await;
    let outcome = run(&place, &["exec", LOCK, "--no-wait", "--", "true"]).await;
    assert_eq!(outcome.code, Some(75), "{outcome:?}");
    second.signal("USR1");
    assert_eq!(second.code().await, Some(5), "{}", second.said());
    assert_eq!(scratch.read("second"), "slot 2\nusr1\n");
    let said = second.said();
    assert_eq!(said.lines().filter(|line| line.starts_with("lockkeeper:")).count(), 1, "{said}");
    succeed(&place, &["exec", LOCK, "--no-wait", "--", "true"]).await;
    first.signal("TERM");
    assert_eq!(first.code().await, Some(143));
}

async fn a_shrink_ends_a_command_that_is_to_stop_and_its_slot_is_given_back(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    let scratch = Scratch::new();
    let options = ["--heartbeat", "2s", "--on-drain", "stop"];
    let [_first, mut second] = two(&place, &scratch, &options, WORK).await;
    succeed(&place, &["semaphore", "shrink", LOCK, "1", "--no-wait"]).await;
    assert_eq!(second.code().await, Some(9), "{}", second.said());
    assert_eq!(scratch.read("second"), "slot 2\nterm\n");
    assert!(!is_held(&place).await);
}

async fn a_command_that_is_to_stop_and_does_not_is_killed(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    let scratch = Scratch::new();
    let deaf = r#"trap '' TERM; echo "slot $LOCK_SLOT" >>"$0"; echo "$LOCK_HOLDER_ID" >>"$0"
        while :; do sleep 0.02; done"#;
    let options = ["--heartbeat", "2s", "--on-drain", "stop", "--kill-after", "300ms"];
    let [_first, mut second] = two(&place, &scratch, &options, deaf).await;
    succeed(&place, &["semaphore", "shrink", LOCK, "1", "--no-wait"]).await;
    assert_eq!(second.code().await, Some(137), "{}", second.said());
    assert_eq!(alive(scratch.read("second").lines().last().unwrap()), [0; 0]);
    assert!(!is_held(&place).await);
}
