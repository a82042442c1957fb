//! `lockkeeper mutex`: looking at a true mutex, waiting for it and revoking it, with
//! `exec --mutex` and with clients of others.

use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use serde_json::{Value, json};

use crate::exec::commands::{Running, Scratch, WRITE};
use crate::exec::{LOCK, Outcome, lockkeeper, outcome, run, succeed};

/// Runs a verb of `lockkeeper mutex` to its end.
async fn mutex(vhost: &Vhost, arguments: &[&str]) -> Outcome {
    run(vhost, &[&["mutex"], arguments].concat()).await
}

async fn json_of(vhost: &Vhost, verb: &str) -> Value {
    let text = succeed(vhost, &["mutex", verb, LOCK, "-o", "json"]).await;
    serde_json::from_str(&text).unwrap()
}

/// Starts a command that holds the mutex until it is ended.
async fn holding(vhost: &Vhost, scratch: &Scratch) -> Running {
    let file = scratch.file("register");
    let says = ["exec", "--mutex", LOCK, "--identity", "bob", "--reason", "roll out"];
    let words = [&says[..], &["--", "sh", "-c", WRITE, &file]].concat();
    let holding = Running::start(scratch, "holding", lockkeeper(vhost, &words));
    scratch.next_holder(&[]).await;
    holding
}

#[tokio::test(flavor = "multi_thread")]
async fn each_verb_shows_the_holder() {
    let vhost = Vhost::create().await;
    let free = mutex(&vhost, &["verify", LOCK]).await;
    assert_eq!((free.code, free.stderr.trim_end()), (Some(0), "lockkeeper: ci.deploy is free"));
    assert_eq!(json_of(&vhost, "holders").await, json!([]));
    let counted = json_of(&vhost, "count").await;
    assert_eq!(counted, json!({"name": LOCK, "held": false, "waiting": 0}));

    let scratch = Scratch::new();
    let taken = lockkeeper(&vhost, &["mutex", "wait", LOCK, "--until", "taken"]);
    let mut taken = Running::start(&scratch, "taken", taken);
    let mut held = holding(&vhost, &scratch).await;
    assert_eq!(taken.code().await, Some(0), "{}", taken.said());
    assert!(taken.said().contains("ci.deploy is held by bob"), "{}", taken.said());
    let words = ["exec", "--mutex", LOCK, "--priority", "7", "--identity", "eve", "--", "true"];
    let mut next = Running::start(&scratch, "next", lockkeeper(&vhost, &words));
    next.until_it_says("waiting for the mutex ci.deploy: it is held by bob since 2").await;
    eventually("the waiter is listed", async || {
        let waiting = json_of(&vhost, "waiters").await;
        waiting["waiting"] == 1
            && waiting["waiters"][0]["priority"] == 7
            && waiting["waiters"][0]["identity"] == "eve"
    })
    .await;

    let table = succeed(&vhost, &["mutex", "count", LOCK]).await;
    let rows: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows, [["NAME", "HELD", "HOLDER", "WAITING"], [LOCK, "yes", "bob", "1"]]);
    let holders = json_of(&vhost, "holders").await;
    let holder = &holders[0];
    assert_eq!((&holder["identity"], &holder["reason"]), (&json!("bob"), &json!("roll out")));
    assert_eq!((&holder["slot"], holders.as_array().unwrap().len()), (&Value::Null, 1));
    let verified = mutex(&vhost, &["verify", LOCK]).await;
    assert_eq!(verified.code, Some(0), "{verified:?}");
    assert!(verified.stderr.contains("ci.deploy is held by bob"), "{verified:?}");
    let until = ["wait", LOCK, "--until", "released", "--timeout", "300ms"];
    let waited = mutex(&vhost, &until).await;
    assert_eq!(waited.code, Some(75), "{waited:?}");
    assert!(waited.stderr.contains("ci.deploy is still held"), "{waited:?}");

    held.signal("TERM");
    assert_eq!((held.code().await, next.code().await), (Some(143), Some(0)), "{}", next.said());
    succeed(&vhost, &["mutex", "wait", LOCK, "--until", "released"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_third_party_holder_is_excluded_and_shown_by_its_connection() {
    let vhost = Vhost::create().await;
    let (connection, channel) = vhost.channel().await;
    let exclusive = QueueDeclareOptions::exclusive();
    channel.queue_declare(LOCK.into(), exclusive, FieldTable::default()).await.unwrap();
    let excluded = run(&vhost, &["exec", "--mutex", LOCK, "--no-wait", "--", "true"]).await;
    assert_eq!(excluded.code, Some(75), "{excluded:?}");
    assert!(excluded.stderr.contains("is held: try again later"), "{excluded:?}");
    eventually("its connection is shown", async || {
        let holders = json_of(&vhost, "holders").await;
        let connection = holders[0]["connection"].as_str();
        connection.is_some_and(|name| name.starts_with("127.0.0.1:"))
    })
    .await;
    let counted = json_of(&vhost, "count").await;
    assert!(counted["holder"].is_string(), "{counted}");
    channel.queue_delete(LOCK.into(), QueueDeleteOptions::default()).await.unwrap();
    succeed(&vhost, &["exec", "--mutex", LOCK, "--", "true"]).await;
    drop(connection);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mutex_is_revoked_from_its_holder_and_no_other() {
    let vhost = Vhost::create().await;
    let scratch = Scratch::new();
    let mut held = holding(&vhost, &scratch).await;
    let id = scratch.holders().pop().unwrap();
    let administrator = variable("RABBITMQ_MANAGEMENT_URL");
    let revoke = async |holder: &str| {
        let words = ["mutex", "revoke", LOCK, "--holder", holder, "--reason", "roll back"];
        let mut command = lockkeeper(&vhost, &[&words[..], &["--yes"]].concat());
        command.env("RABBITMQ_ADMIN_URL", &administrator);
        outcome(command).await
    };
    let other = revoke("someone").await;
    assert_eq!(other.code, Some(64), "{other:?}");
    assert!(other.stderr.contains(&format!("held are: {id}")), "{other:?}");
    let done = revoke(&id).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stderr.contains(&format!("ci.deploy was taken from {id} (bob)")), "{done:?}");
    assert_eq!(held.code().await, Some(80));
    assert!(held.said().contains("roll back"), "{}", held.said());
    let counted = json_of(&vhost, "count").await;
    assert_eq!(counted["held"], json!(false));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordinary_queue_with_the_name_of_a_mutex_is_a_fault() {
    let vhost = Vhost::create().await;
    let (_connection, channel) = vhost.channel().await;
    let durable = QueueDeclareOptions::durable();
    channel.queue_declare(LOCK.into(), durable, FieldTable::default()).await.unwrap();
    let wrong = mutex(&vhost, &["verify", LOCK]).await;
    assert_eq!(wrong.code, Some(1), "{wrong:?}");
    assert!(wrong.stderr.contains("ordinary queue has the name of the mutex"), "{wrong:?}");
    let holders = mutex(&vhost, &["holders", LOCK]).await;
    assert_eq!(holders.code, Some(64), "{holders:?}");
}
