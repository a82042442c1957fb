//! Losing the lock under a running command, in every way: the right reason, in
//! time, and with a lock delay nobody writes after the next holder has begun.

use std::time::{Duration, Instant};

use lockkeeper::plan::naming::LockName;
use lockkeeper::semaphore::{Broker, BrokerOptions};

use crate::commands::{Running, Scratch, WRITE, alive};
use crate::support::own_server::OwnServer;
use crate::support::proxy::Proxy;
use crate::support::rabbitmq::{Vhost, eventually};
use crate::{LOCK, create, lockkeeper, program, succeed};

/// How often each way is gone; with `LOCKKEEPER_SOAK` set, 20 times.
const REPEATS: u32 = 1;

/// How a lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// kill -9 of exec.
    Killed,
    /// SIGSTOP of exec, until another holds the lock.
    Stopped,
    /// The network goes silent.
    Silent,
    /// The connection breaks.
    Cut,
    /// An administrator closes the connection.
    Closed,
    /// The same, on behalf of somebody.
    Revoked,
}

impl Loss {
    /// What exec says.
    fn reason(self) -> &'static str {
        match self {
            Self::Killed => "lockkeeper exec has ended",
            Self::Stopped | Self::Silent => "(HeartbeatMissed)",
            Self::Cut => "(ConnectionClosed)",
            Self::Closed => "out of order",
            Self::Revoked => "bob rolls back",
        }
    }

    /// Within which time the command must be gone, with heartbeats of 2 s and
    /// 500 ms between TERM and KILL: before the broker frees the slot of a silent
    /// holder, which takes it 4 s at least; otherwise as soon as TERM works, and
    /// before the lock delay of 3 s has passed.
    fn bound(self) -> Duration {
        match self {
            Self::Stopped | Self::Silent => Duration::from_secs(4),
            Self::Killed | Self::Cut | Self::Closed | Self::Revoked => Duration::from_secs(2),
        }
    }
}

fn repeats() -> u32 {
    if std::env::var("LOCKKEEPER_SOAK").is_ok() { 20 } else { REPEATS }
}

async fn lose(loss: Loss, script: &str) {
    for _ in 0..repeats() {
        lose_once(loss, script).await;
    }
}

async fn lose_once(loss: Loss, script: &str) {
    let vhost = Vhost::create().await;
    let delay = ["--slots", "1", "--lock-delay", "3s"];
    succeed(&vhost, &[&["semaphore", "create", LOCK][..], &delay].concat()).await;
    let scratch = Scratch::new();
    let file = scratch.file("register");
    let proxy = Proxy::start().await;
    let command = |url: &str| {
        let options = ["--heartbeat", "2s", "--kill-after", "500ms", "--url", url];
        let words = [&["exec", LOCK][..], &options, &["--", "sh", "-c", script, &file]].concat();
        lockkeeper(&vhost, &words)
    };
    let mut by_proxy = url::Url::parse(&vhost.url()).unwrap();
    by_proxy.set_port(Some(proxy.port())).unwrap();
    let mut first = Running::start(&scratch, "first", command(by_proxy.as_str()));
    let one = scratch.next_holder(&[]).await;
    // Known only after some seconds.
    let owner = async || {
        let queue = vhost.queue("ci.deploy-1-B").await;
        queue.and_then(|q| q["owner_pid_details"]["name"].as_str().map(str::to_owned))
    };
    if matches!(loss, Loss::Closed | Loss::Revoked) {
        eventually("the API knows the connection", async || owner().await.is_some()).await;
    }
    let mut second = Running::start(&scratch, "second", command(&vhost.url()));
    second.until_it_says("waiting for a slot").await;

    let began = Instant::now();
    match loss {
        Loss::Killed => first.signal("KILL"),
        Loss::Stopped => first.signal("STOP"),
        Loss::Silent => proxy.freeze(true),
        Loss::Cut => proxy.cut(),
        Loss::Closed => {
            vhost.management.close_connection(&owner().await.unwrap(), "out of order").await;
        }
        Loss::Revoked => {
            let reason = "revoked: bob rolls back";
            vhost.management.close_connection(&owner().await.unwrap(), reason).await;
        }
    }
    eventually("the command is gone", async || alive(&one).is_empty()).await;
    let took = began.elapsed();
    assert!(took < loss.bound(), "{loss:?}: the command was alive for {took:?}");

    // Whoever waits is told of a slot seen free by whoever administers it.
    let administrator = Broker::new(vhost.settings(), BrokerOptions::default());
    let lock = LockName::new(LOCK).unwrap();
    eventually("the next one holds the lock", async || {
        administrator.wake(&lock, 1).await.unwrap();
        scratch.holders().len() > 1
    })
    .await;
    let two = scratch.next_holder(&[&one]).await;
    if loss == Loss::Stopped {
        first.signal("CONT");
    }
    let code = first.code().await;
    let expected = if loss == Loss::Killed { None } else { Some(80) };
    assert_eq!(code, expected, "{loss:?}: {}", first.said());
    assert!(first.said().contains(loss.reason()), "{loss:?}: {}", first.said());
    let lines = scratch.read("register").lines().count();
    eventually("it goes on", async || scratch.read("register").lines().count() > lines + 20).await;
    assert_eq!(scratch.holders(), [one, two.clone()], "one after the other");
    // It may be deaf.
    second.signal("KILL");
    second.code().await;
    eventually("nothing is left", async || alive(&two).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_exec_takes_its_command_with_it_before_the_next_begins() {
    lose(Loss::Killed, WRITE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_exec_loses_its_command_before_the_broker_frees_the_slot() {
    lose(Loss::Stopped, WRITE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_connection_ends_the_command_at_once() {
    lose(Loss::Cut, WRITE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_network_ends_the_command_before_the_broker_frees_the_slot() {
    lose(Loss::Silent, WRITE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_closed_by_an_administrator_ends_the_command_with_their_words() {
    lose(Loss::Closed, WRITE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_lock_ends_the_command_with_the_reason() {
    lose(Loss::Revoked, WRITE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_ignores_term_is_killed_in_time_all_the_same() {
    let deaf = format!("trap '' TERM; {WRITE}");
    for loss in [Loss::Killed, Loss::Stopped, Loss::Silent, Loss::Closed] {
        lose(loss, &deaf).await;
    }
}

/// A holder whose lock is lost, with this to be done about it.
async fn closed(on_lost: &str, script: &str) -> (Scratch, Running) {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    let file = scratch.file("register");
    let options = ["exec", LOCK, "--heartbeat", "2s", "--kill-after", "10s", "--on-lost", on_lost];
    let words = [&options[..], &["--", "sh", "-c", script, &file]].concat();
    let mut exec = Running::start(&scratch, "exec", lockkeeper(&vhost, &words));
    scratch.next_holder(&[]).await;
    // Deleted under it, by an administrator.
    let policy = format!("policies/{}/gone", vhost.name);
    let definition = serde_json::json!({"expires": 1});
    let policy_of =
        serde_json::json!({"pattern": "-B$", "definition": definition, "apply-to": "queues"});
    vhost.management.put(&policy, policy_of).await;
    assert_eq!(exec.code().await, Some(80), "{}", exec.said());
    assert!(exec.said().contains("(VerifyFailed)"), "{}", exec.said());
    (scratch, exec)
}

#[tokio::test(flavor = "multi_thread")]
async fn on_lost_chooses_what_the_command_gets() {
    let told = r#"
        trap 'echo term >>"$0"' TERM; trap 'echo usr1 >>"$0"; exit' USR1
        echo "$LOCK_HOLDER_ID" >>"$0"; i=0
        while [ $i -lt 250 ]; do sleep 0.02; i=$((i + 1)); done; echo end >>"$0""#;
    let (scratch, _) = closed("signal=USR1", told).await;
    assert_eq!(scratch.holders()[1..], ["usr1"]);
    let (scratch, exec) = closed("warn", told).await;
    assert_eq!(scratch.holders()[1..], ["end"]);
    assert!(exec.said().contains("runs on without it"), "{}", exec.said());
    let (scratch, _) = closed("kill", told).await;
    assert_eq!(scratch.holders()[1..], [""; 0]);
    let (scratch, _) = closed("terminate", told).await;
    // With such heartbeats, 10 s to end is more than a proof lasts.
    assert_eq!(scratch.holders()[1..], ["term"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_that_is_shorter_than_the_deadline_harms_nobody() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    let file = scratch.file("register");
    let options = ["exec", LOCK, "--heartbeat", "5s", "--kill-after", "500ms", "--"];
    let words = [&options[..], &["sh", "-c", WRITE, &file]].concat();
    let mut exec = Running::start(&scratch, "exec", lockkeeper(&vhost, &words));
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

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_restarts_ends_the_command_before_the_next_begins() {
    let broker = OwnServer::rabbitmq().await;
    for round in 0..repeats() {
        restart_once(&broker, &format!("{LOCK}-{round}")).await;
    }
}

async fn restart_once(broker: &OwnServer, lock: &str) {
    let address = broker.variable("AMQP_URL");
    let scratch = Scratch::new();
    let file = scratch.file("register");
    let start = |name: &str, words: &[&str]| {
        let mut command = program(&[], words);
        command.env("AMQP_URL", &address).env_remove("RABBITMQ_MANAGEMENT_URL");
        Running::start(&scratch, name, command)
    };
    let create = ["semaphore", "create", lock, "--slots", "1", "--lock-delay", "3s"];
    assert_eq!(start("create", &create).code().await, Some(0));
    let exec = ["exec", lock, "--kill-after", "500ms", "--", "sh", "-c", WRITE, &file];
    let mut first = start("first", &exec);
    let one = scratch.next_holder(&[]).await;
    broker.stop().await;
    assert_eq!(first.code().await, Some(80), "{}", first.said());
    assert!(first.said().contains("(ConnectionClosed)"), "{}", first.said());
    assert_eq!(alive(&one), [0; 0]);
    broker.start().await;
    let second = start("second", &exec);
    let two = scratch.next_holder(&[&one]).await;
    assert_eq!(scratch.holders(), [one, two.clone()], "one after the other");
    second.signal("KILL");
    eventually("nothing is left", async || alive(&two).is_empty()).await;
}
