//! Losing the lock while a command runs, in every way: the reported reason is right, the
//! command ends in time, and with a lock delay it never writes after the next holder has
//! started.

use std::convert::Infallible;
use std::time::Duration;

use futures::future::join_all;
use lockkeeper_plan::naming::Protocol;
use lockkeeper_semaphore::{Broker, BrokerOptions};
use lockkeeper_testkit::environment::is_soak;
use lockkeeper_testkit::own_server::OwnServer;
use lockkeeper_testkit::protocols::{At, TestLock, with_protocols};
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::rabbitmq::eventually;

use crate::exec::commands::{Running, Scratch, WRITE, alive};
use crate::exec::{LOCK, create, lockkeeper, program, spoken, succeed};

with_protocols! {
    every {
        a_killed_exec_takes_its_command_with_it_before_the_next_begins,
        a_stopped_exec_loses_its_command_before_the_broker_frees_the_slot,
        a_broken_connection_ends_the_command_at_once,
        a_silent_network_ends_the_command_before_the_broker_frees_the_slot,
        a_connection_closed_by_an_administrator_ends_the_command_with_the_reason,
        a_revoked_lock_ends_the_command_with_the_reason,
        a_command_that_ignores_term_is_killed_in_time,
        on_lost_selects_how_the_command_is_stopped,
        a_stop_that_is_shorter_than_the_deadline_has_no_effect,
        a_broker_that_restarts_ends_the_command_before_the_next_begins,
    }
}

/// Number of concurrent repetitions of each way.
const REPEATS: u32 = 2;

/// A way to lose a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// kill -9 of exec.
    Killed,
    /// SIGSTOP of exec, until another client holds the lock.
    Stopped,
    /// The network goes silent.
    Silent,
    /// The connection breaks.
    Cut,
    /// An administrator closes the connection.
    Closed,
    /// An administrator closes the connection by a revocation.
    Revoked,
}

impl Loss {
    /// The reason that exec reports.
    fn reason(self) -> &'static str {
        match self {
            Self::Killed => "lockkeeper exec has ended",
            Self::Stopped | Self::Silent => "(HeartbeatMissed)",
            Self::Cut => "(ConnectionClosed)",
            Self::Closed => "out of order",
            Self::Revoked => "bob rolls back",
        }
    }

    /// Returns whether the broker frees the slot immediately. Then only a lock delay
    /// makes the next holder start after the command has ended. A silent holder's slot is
    /// freed after two heartbeats at the earliest, and the command must have ended by
    /// then.
    fn frees_at_once(self) -> bool {
        !matches!(self, Self::Stopped | Self::Silent)
    }
}

/// Number of rounds with `REPEATS` concurrent repetitions each. `make soak` sets more.
fn turns() -> u32 {
    if is_soak() { 10 } else { 1 }
}

async fn lose(protocol: Protocol, loss: Loss, script: &str) {
    for _ in 0..turns() {
        join_all((0..REPEATS).map(|_| lose_once(protocol, loss, script))).await;
    }
}

async fn lose_once(protocol: Protocol, loss: Loss, script: &str) {
    let place = TestLock::create(protocol).await;
    let delay = if loss.frees_at_once() { delay(protocol) } else { &[] };
    succeed(&place, &[&["semaphore", "create", LOCK, "--slots", "1"], delay].concat()).await;
    let scratch = Scratch::new();
    let file = scratch.file("register");
    let proxy = Proxy::start().await;
    let command = |url: &str| {
        // Short only where the test waits for the end of the heartbeats.
        let heartbeat = if loss.frees_at_once() { "10s" } else { "3s" };
        let options = ["--heartbeat", heartbeat, "--kill-after", "500ms", "--url", url];
        let words = [&["exec", LOCK][..], &options, &["--", "sh", "-c", script, &file]].concat();
        lockkeeper(&place, &words)
    };
    let mut first = Running::start(&scratch, "first", command(&proxy.url(&place.url())));
    let one = scratch.next_holder(&[]).await;
    // Known only after some seconds. All other queues of the first holder are deleted
    // with it.
    let owners = async || place.connections("lockkeeper hold").await;
    if matches!(loss, Loss::Closed | Loss::Revoked) {
        eventually("the API knows the connection", async || !owners().await.is_empty()).await;
    }
    let owners = owners().await;
    let mut second = Running::start(&scratch, "second", command(&place.url()));
    second.until_it_says("waiting for a ").await;

    match loss {
        Loss::Killed => first.signal("KILL"),
        Loss::Stopped => first.signal("STOP"),
        Loss::Silent => proxy.freeze(true),
        Loss::Cut => proxy.cut(),
        Loss::Closed => close(&place, &owners, "out of order").await,
        Loss::Revoked => close(&place, &owners, "revoked: bob rolls back").await,
    }
    let turn = async {
        eventually("the command is gone", async || alive(&one).is_empty()).await;
        eventually("the next one holds the lock", async || scratch.holders().len() > 1).await;
    };
    tokio::select! {
        () = turn => {}
        never = wake_at_once(&place) => match never {},
    }
    let two = scratch.next_holder(&[&one]).await;
    if loss == Loss::Stopped {
        first.signal("CONT");
    }
    let code = first.code().await;
    let expected = if loss == Loss::Killed { None } else { Some(80) };
    assert_eq!(code, expected, "{loss:?}: {}", first.said());
    // The guardian of a killed exec reports it after the command has ended, when the next
    // holder may have started.
    if loss == Loss::Killed {
        first.until_it_says(loss.reason()).await;
    }
    assert!(first.said().contains(loss.reason()), "{}", first.said());
    let lines = scratch.read("register").lines().count();
    eventually("it goes on", async || scratch.read("register").lines().count() > lines + 20).await;
    if loss.frees_at_once() && delay.is_empty() {
        // The lock was free before the command had ended.
        assert_eq!(scratch.holders().last(), Some(&two));
    } else {
        assert_eq!(scratch.holders(), [one, two.clone()], "one after the other");
    }
    // It may not react to other signals.
    second.signal("KILL");
    second.code().await;
    eventually("nothing is left", async || alive(&two).is_empty()).await;
}

/// Makes waiters check for a free slot continuously, so that the next holder starts as
/// soon as the broker frees the slot.
async fn wake_at_once(place: &TestLock) -> Infallible {
    let administrator = Broker::new(place.settings(), BrokerOptions::default());
    loop {
        administrator.wake(&place.lock_name(), 1).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The lock delay, where it is supported.
fn delay(protocol: Protocol) -> &'static [&'static str] {
    let has_slots = !matches!(protocol, Protocol::Token(_));
    if has_slots { &["--lock-delay", "3s"] } else { &[] }
}

async fn close(place: &TestLock, connections: &[String], reason: &str) {
    for connection in connections {
        place.management.close_connection(connection, reason).await;
    }
}

async fn a_killed_exec_takes_its_command_with_it_before_the_next_begins(protocol: Protocol) {
    lose(protocol, Loss::Killed, WRITE).await;
}

async fn a_stopped_exec_loses_its_command_before_the_broker_frees_the_slot(protocol: Protocol) {
    lose(protocol, Loss::Stopped, WRITE).await;
}

async fn a_broken_connection_ends_the_command_at_once(protocol: Protocol) {
    lose(protocol, Loss::Cut, WRITE).await;
}

async fn a_silent_network_ends_the_command_before_the_broker_frees_the_slot(protocol: Protocol) {
    lose(protocol, Loss::Silent, WRITE).await;
}

async fn a_connection_closed_by_an_administrator_ends_the_command_with_the_reason(
    protocol: Protocol,
) {
    lose(protocol, Loss::Closed, WRITE).await;
}

async fn a_revoked_lock_ends_the_command_with_the_reason(protocol: Protocol) {
    lose(protocol, Loss::Revoked, WRITE).await;
}

async fn a_command_that_ignores_term_is_killed_in_time(protocol: Protocol) {
    let deaf = format!("trap '' TERM; {WRITE}");
    let losses = [Loss::Killed, Loss::Stopped, Loss::Silent, Loss::Closed];
    join_all(losses.map(|loss| lose(protocol, loss, &deaf))).await;
}

/// Starts a holder with this `--on-lost`, and makes it lose its lock.
/// With `warn`, the command's file `register.go` exists once exec has said so.
async fn closed(protocol: Protocol, on_lost: &str, script: &str) -> Scratch {
    let place = TestLock::create(protocol).await;
    create(&place, 1).await;
    let scratch = Scratch::new();
    let file = scratch.file("register");
    let options = ["exec", LOCK, "--heartbeat", "2s", "--kill-after", "10s", "--on-lost", on_lost];
    let words = [&options[..], &["--", "sh", "-c", script, &file]].concat();
    let mut exec = Running::start(&scratch, "exec", lockkeeper(&place, &words));
    scratch.next_holder(&[]).await;
    // An administrator deletes it while it is held.
    place.take_away().await;
    if on_lost == "warn" {
        exec.until_it_says("runs on without it").await;
        std::fs::write(scratch.file("register.go"), "").unwrap();
    }
    assert_eq!(exec.code().await, Some(80), "{}", exec.said());
    assert!(exec.said().contains("(VerifyFailed)"), "{}", exec.said());
    scratch
}

async fn on_lost_selects_how_the_command_is_stopped(protocol: Protocol) {
    let script = r#"
        trap 'echo term >>"$0"' TERM; trap 'echo usr1 >>"$0"; exit' USR1
        echo "$LOCK_HOLDER_ID" >>"$0"
        until [ -e "$0.go" ]; do sleep 0.02; done; echo end >>"$0""#;
    let scratch = closed(protocol, "signal=USR1", script).await;
    assert_eq!(scratch.holders()[1..], ["usr1"]);
    let scratch = closed(protocol, "warn", script).await;
    assert_eq!(scratch.holders()[1..], ["end"]);
    let scratch = closed(protocol, "kill", script).await;
    assert_eq!(scratch.holders()[1..], [""; 0]);
    let scratch = closed(protocol, "terminate", script).await;
    // With these heartbeats, 10 s to end is longer than a proof is valid.
    assert_eq!(scratch.holders()[1..], ["term"]);
}

async fn a_stop_that_is_shorter_than_the_deadline_has_no_effect(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    create(&place, 1).await;
    let scratch = Scratch::new();
    let file = scratch.file("register");
    let options = ["exec", LOCK, "--heartbeat", "5s", "--kill-after", "500ms", "--"];
    let words = [&options[..], &["sh", "-c", WRITE, &file]].concat();
    let mut exec = Running::start(&scratch, "exec", lockkeeper(&place, &words));
    let holder = scratch.next_holder(&[]).await;
    exec.signal("STOP");
    tokio::time::sleep(Duration::from_secs(1)).await;
    exec.signal("CONT");
    let lines = scratch.read("register").lines().count();
    eventually("it goes on", async || scratch.read("register").lines().count() > lines + 20).await;
    assert!(!alive(&holder).is_empty());
    exec.signal("TERM");
    assert_eq!(exec.code().await, Some(143), "{}", exec.said());
}

async fn a_broker_that_restarts_ends_the_command_before_the_next_begins(protocol: Protocol) {
    let broker = OwnServer::rabbitmq().await;
    for turn in 0..turns() {
        let locks: Vec<String> = (0..REPEATS).map(|n| format!("{LOCK}-{turn}-{n}")).collect();
        restart_once(protocol, &broker, &locks).await;
    }
}

/// Runs a command under each of the locks, and restarts their broker.
async fn restart_once(protocol: Protocol, broker: &OwnServer, locks: &[String]) {
    let address = broker.variable("AMQP_URL");
    let scratch: Vec<Scratch> = locks.iter().map(|_| Scratch::new()).collect();
    let start = |scratch: &Scratch, name: &str, words: &[&str]| {
        let mut command = program(&[], &spoken(protocol, words));
        command.env("AMQP_URL", &address).env_remove("RABBITMQ_MANAGEMENT_URL");
        Running::start(scratch, name, command)
    };
    let exec = |scratch: &Scratch, lock: &str, name: &str| {
        let file = scratch.file("register");
        let exec = ["exec", lock, "--kill-after", "500ms", "--", "sh", "-c", WRITE, &file];
        start(scratch, name, &exec)
    };
    let mut first = Vec::new();
    for (lock, scratch) in locks.iter().zip(&scratch) {
        let create = [&["semaphore", "create", lock, "--slots", "1"], delay(protocol)].concat();
        let mut create = start(scratch, "create", &create);
        assert_eq!(create.code().await, Some(0), "{}", create.said());
        let first_ = exec(scratch, lock, "first");
        first.push((first_, scratch.next_holder(&[]).await));
    }
    broker.stop().await;
    for (exec, one) in &mut first {
        assert_eq!(exec.code().await, Some(80), "{}", exec.said());
        assert!(exec.said().contains("(ConnectionClosed)"), "{}", exec.said());
        assert_eq!(alive(one), [0; 0]);
    }
    broker.start().await;
    for ((lock, scratch), (_, one)) in locks.iter().zip(&scratch).zip(first) {
        let second = exec(scratch, lock, "second");
        let two = scratch.next_holder(&[&one]).await;
        assert_eq!(scratch.holders(), [one, two.clone()], "one after the other");
        second.signal("KILL");
        eventually("nothing is left", async || alive(&two).is_empty()).await;
    }
}
