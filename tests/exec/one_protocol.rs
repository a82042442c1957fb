//! One lock has one protocol: each command rejects a lock of another one, whether it is held
//! or not, and distinguishes a lock that does not exist from one that is busy or closed.

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use lockkeeper_plan::naming::{LockName, Profile, Protocol, QueueType};
use lockkeeper_plan::semaphore::DesiredSlots;
use lockkeeper_semaphore::{
    AcquireOptions, Broker, BrokerOptions, Client, ClientOptions, Permit, ResizeTo,
};
use lockkeeper_testkit::rabbitmq::Vhost;
use serde_json::json;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::exec::{LOCK, Outcome, lockkeeper, outcome, run, succeed};

/// A protocol, its name, and the Python clients for it.
type Row = (Protocol, &'static str, &'static [&'static str]);

const ROWS: [Row; 3] = [
    (
        Protocol::ExclusiveQueue(Profile::Guideline),
        "ExclusiveQueue",
        &["guideline_client.py", "minimal_client.py"],
    ),
    (Protocol::ExclusiveConsumer, "ExclusiveConsumer", &["exclusive_consumer_client.py"]),
    (Protocol::Token(QueueType::Classic), "Token", &["token_client.py"]),
];

/// Runs a client in Python on this lock, which does not wait for it.
async fn python(vhost: &Vhost, client: &str, lock: &str) -> Outcome {
    let client = format!("{}/examples/python/{client}", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new("/usr/bin/python3");
    command.args([client.as_str(), "--timeout", "5", lock, "--", "true"]).kill_on_drop(true);
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("AMQP_URL", vhost.url());
    outcome(command).await
}

/// The commands on a lock, without the options for its protocol, and their exit codes if the
/// protocol is another one.
fn commands<'a>(lock: &'a str, with: &str) -> Vec<(Vec<&'a str>, i32)> {
    let slot = if with == "Token" { &[][..] } else { &["--slot", "1"] };
    let holder = ["--holder", "any", "--reason", "test", "--yes"];
    vec![
        (vec!["exec", lock, "--no-wait", "--", "true"], 64),
        (vec!["exec", lock, "--timeout", "20s", "--", "true"], 64),
        (vec!["hold", lock, "--timeout", "20s"], 64),
        (vec!["semaphore", "create", lock, "--slots", "1"], 64),
        (vec!["semaphore", "set", lock, "3"], 64),
        (vec!["semaphore", "grow", lock, "1"], 64),
        (vec!["semaphore", "shrink", lock, "1", "--no-wait"], 64),
        (vec!["semaphore", "destroy", lock, "--yes", "--no-wait"], 64),
        (vec!["semaphore", "count", lock], 64),
        (vec!["semaphore", "holders", lock], 64),
        (vec!["semaphore", "waiters", lock], 64),
        (vec!["semaphore", "wait", lock, "--until", "released"], 64),
        ([&["semaphore", "revoke", lock][..], slot, &holder].concat(), 64),
        // It lists the faults.
        (vec!["semaphore", "verify", lock], 1),
    ]
}

/// Inserts `--protocol` after the verb.
fn spoken<'a>(words: &[&'a str], protocol: &'a str) -> Vec<&'a str> {
    let verb = if words[0] == "semaphore" { 2 } else { 1 };
    [&words[..verb], &["--protocol", protocol], &words[verb..]].concat()
}

/// Makes a lock of the first protocol, and tries everything with the others.
async fn is_refused(vhost: &Vhost, made: Row, held: bool) {
    let (protocol, name, clients) = made;
    let lock = format!("ci.{name}.{held}");
    let lock_name = LockName::new(&lock).unwrap().with_protocol(protocol);
    let broker = Broker::new(vhost.settings(), BrokerOptions::default());
    let (to, stop) = (ResizeTo::Create(2), CancellationToken::new());
    broker.resize(&lock_name, to, DesiredSlots::new(0), &stop).await.unwrap();
    let ours = Client::new(vhost.settings(), ClientOptions::default().with_warm(0));
    let options = AcquireOptions::default();
    let mine = ours.semaphore(lock_name.clone());
    let permit = if held { Some(mine.try_acquire(&options).await.unwrap()) } else { None };
    let queues = async || {
        let queues = vhost.queues().await.into_iter();
        let is_part = |queue: &String| {
            queue.starts_with(&format!("{lock}.s")) || queue.starts_with(&format!("{lock}-"))
        };
        // The holder of a token announces itself after a second.
        queues.filter(|queue| is_part(queue) && !queue.ends_with("-B")).collect::<Vec<_>>()
    };
    let before = queues().await;
    let says = format!("the lock is one of protocol {name}, as the queue \"{lock}");
    for (_, wrong, clients) in ROWS.into_iter().filter(|(of, ..)| *of != protocol) {
        for (words, code) in commands(&lock, wrong) {
            let words = spoken(&words, wrong);
            let refused = outcome(lockkeeper(vhost, &words)).await;
            assert_eq!(refused.code, Some(code), "{name}, held: {held}, {words:?}: {refused:?}");
            let text = format!("{}{}", refused.stdout, refused.stderr);
            assert!(text.contains(&says), "{name}, held: {held}, {words:?}: {refused:?}");
        }
        for client in clients {
            let refused = python(vhost, client, &lock).await;
            assert_eq!(refused.code, Some(64), "{name}, held: {held}, {client}: {refused:?}");
            assert!(refused.stderr.contains(&says), "{name}, held: {held}, {client}: {refused:?}");
        }
        assert_eq!(queues().await, before, "{name}, held: {held}, {wrong} changed it");
    }
    // Its own clients still use it.
    assert!(permit.as_ref().is_none_or(Permit::is_valid));
    let words = spoken(&["exec", &lock, "--no-wait", "--", "true"], name);
    succeed(vhost, &words).await;
    for client in clients {
        assert_eq!(python(vhost, client, &lock).await.code, Some(0), "{client}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_command_rejects_a_lock_of_each_other_protocol_held_or_not() {
    let vhost = Vhost::create().await;
    let cases = ROWS.into_iter().flat_map(|row| [(row, false), (row, true)]);
    let mut all: FuturesUnordered<_> =
        cases.map(|(row, held)| is_refused(&vhost, row, held)).collect();
    while all.next().await.is_some() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_two_protocols_is_not_changed_until_one_of_them_is_destroyed() {
    let vhost = Vhost::create().await;
    let grow = ["semaphore", "grow", LOCK, "1"];
    let destroy = |protocol| ["semaphore", "destroy", LOCK, "--protocol", protocol, "--yes"];
    succeed(&vhost, &["semaphore", "create", LOCK, "--slots", "1"]).await;
    // As an administrator of another kind would create it.
    vhost.declare("ci.deploy.semaphore", json!({"durable": true})).await;
    let refused = run(&vhost, &grow).await;
    assert_eq!(refused.code, Some(64), "{refused:?}");
    assert!(refused.stderr.contains("one of protocol Token"), "{refused:?}");
    succeed(&vhost, &destroy("Token")).await;
    succeed(&vhost, &grow).await;
    assert_eq!(vhost.queues().await, ["ci.deploy-1-A", "ci.deploy-2-A", "ci.deploy-W"]);

    let arguments = json!({"x-max-length": 0, "x-queue-type": "classic"});
    vhost.declare("ci.deploy-2-C", json!({"durable": true, "arguments": arguments})).await;
    let refused = run(&vhost, &destroy("ExclusiveQueue")).await;
    assert_eq!(refused.code, Some(64), "{refused:?}");
    assert!(refused.stderr.contains("one of protocol ExclusiveConsumer"), "{refused:?}");
    succeed(&vhost, &destroy("ExclusiveConsumer")).await;
    succeed(&vhost, &["semaphore", "set", LOCK, "1"]).await;
    succeed(&vhost, &["exec", LOCK, "--", "true"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_does_not_exist_is_distinguished_from_a_closed_one() {
    let vhost = Vhost::create().await;
    let missing = "there is no semaphore ci.deploy";
    for (_, protocol, clients) in ROWS {
        for (words, _) in commands(LOCK, protocol) {
            if ["create", "set", "verify"].contains(&words[1]) {
                continue;
            }
            let outcome = outcome(lockkeeper(&vhost, &spoken(&words, protocol))).await;
            assert_eq!(outcome.code, Some(81), "{protocol}, {words:?}: {outcome:?}");
            assert!(outcome.stderr.contains(missing), "{protocol}, {words:?}: {outcome:?}");
        }
        for client in clients {
            let outcome = python(&vhost, client, LOCK).await;
            assert_eq!(outcome.code, Some(81), "{client}: {outcome:?}");
            assert!(outcome.stderr.contains(missing), "{client}: {outcome:?}");
        }
    }
    assert_eq!(vhost.queues().await, Vec::<String>::new());
    succeed(&vhost, &["semaphore", "create", LOCK, "--slots", "0"]).await;
    succeed(&vhost, &["semaphore", "count", LOCK]).await;
    for wait in [&["--no-wait"][..], &["--timeout", "300ms"]] {
        let closed = run(&vhost, &[&["exec", LOCK], wait, &["--", "true"]].concat()).await;
        assert_eq!(closed.code, Some(75), "{closed:?}");
        assert!(closed.stderr.contains("has no slots"), "{closed:?}");
    }
    // Without slots, its wait queue shows that it is none of tokens.
    for words in [
        &["exec", LOCK, "--no-wait", "--", "true"][..],
        &["semaphore", "create", LOCK, "--slots", "1"],
        &["semaphore", "count", LOCK],
    ] {
        let refused = outcome(lockkeeper(&vhost, &spoken(words, "Token"))).await;
        assert_eq!(refused.code, Some(64), "{words:?}: {refused:?}");
        let says = "of protocol ExclusiveQueue or ExclusiveConsumer";
        assert!(refused.stderr.contains(says), "{words:?}: {refused:?}");
    }
    for name in ["demo/deploy", "py lock"] {
        let outcome = run(&vhost, &["exec", name, "--", "true"]).await;
        assert_eq!(outcome.code, Some(64), "{outcome:?}");
        assert!(outcome.stderr.contains("for a resource, use sem/deploy"), "{outcome:?}");
    }
}
