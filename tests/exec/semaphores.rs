//! `lockkeeper semaphore`: administration and observation, without Kubernetes.

use std::process::Stdio;

use lockkeeper_testkit::rabbitmq::Vhost;
use serde_json::{Value, json};

use crate::exec::commands::{Running, Scratch, WRITE};
use crate::exec::{LOCK, json_of, lockkeeper, semaphore, succeed};

fn counts(slots: u32, held: u32, free: u32, draining: u32) -> Value {
    json!({
        "name": LOCK, "slots": slots, "held": held, "free": free, "draining": draining, "waiting": 0,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_semaphore_is_made_grown_shrunk_and_destroyed() {
    let vhost = Vhost::create().await;
    assert_eq!(json_of(&vhost, &["create", LOCK, "--slots", "2"]).await, counts(2, 0, 2, 0));
    let again = semaphore(&vhost, &["create", LOCK, "--slots", "5"]).await;
    assert_eq!(again.code, Some(64), "{again:?}");
    assert!(again.stderr.contains("exists already"), "{again:?}");
    assert_eq!(json_of(&vhost, &["grow", LOCK, "3"]).await, counts(5, 0, 5, 0));

    let scratch = Scratch::new();
    let file = scratch.file("register");
    let holding = lockkeeper(&vhost, &["exec", LOCK, "--", "sh", "-c", WRITE, &file]);
    let mut holding = Running::start(&scratch, "holding", holding);
    scratch.next_holder(&[]).await;
    let shrunk = semaphore(&vhost, &["shrink", LOCK, "5", "--no-wait", "-o", "wide"]).await;
    assert_eq!(shrunk.code, Some(0), "{shrunk:?}");
    let table = "NAME        SLOTS   HELD   FREE   DRAINING   WAITING\n\
                 ci.deploy   0       0      0      1          0\n";
    assert_eq!(shrunk.stdout, table, "{shrunk:?}");
    assert!(shrunk.stderr.contains("ci.deploy has 0 slots, before 5"), "{shrunk:?}");
    let more = semaphore(&vhost, &["shrink", LOCK, "1"]).await;
    assert_eq!(more.code, Some(64), "{more:?}");
    holding.signal("TERM");
    assert_eq!(holding.code().await, Some(143));

    let unasked = semaphore(&vhost, &["destroy", LOCK]).await;
    assert_eq!(unasked.code, Some(64), "{unasked:?}");
    assert!(unasked.stderr.contains("--yes"), "{unasked:?}");
    assert_eq!(vhost.queues().await, ["ci.deploy-W"]);
    succeed(&vhost, &["semaphore", "destroy", LOCK, "--yes"]).await;
    assert_eq!(vhost.queues().await, [""; 0]);
    let gone = semaphore(&vhost, &["grow", LOCK, "1"]).await;
    assert_eq!(gone.code, Some(81), "{gone:?}");
    assert!(gone.stderr.contains("there is no semaphore"), "{gone:?}");
    let operators = semaphore(&vhost, &["grow", "sem/deploy", "1"]).await;
    assert_eq!(operators.code, Some(64), "{operators:?}");
    assert!(operators.stderr.contains("kubectl scale"), "{operators:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_made_and_grown_with_and_only_where_clients_know_them() {
    let vhost = Vhost::create().await;
    succeed(&vhost, &["semaphore", "create", LOCK, "--slots", "1", "--lock-delay", "15s"]).await;
    let expected = ["ci.deploy-1-A", "ci.deploy-1-F", "ci.deploy-W"];
    assert_eq!(vhost.queues().await, expected);
    let bare = semaphore(&vhost, &["grow", LOCK, "1"]).await;
    assert_eq!(bare.code, Some(64), "{bare:?}");
    succeed(&vhost, &["semaphore", "grow", LOCK, "1", "--lock-delay", "15s"]).await;
    assert!(vhost.queues().await.contains(&"ci.deploy-2-F".to_owned()));
    let python = ["--slots", "1", "--profile", "AmqpLocksPython"];
    let refused = semaphore(&vhost, &[&["create", "py", "--fencing"][..], &python].concat()).await;
    assert_eq!(refused.code, Some(64), "{refused:?}");
    succeed(&vhost, &[&["semaphore", "create", "py"][..], &python].concat()).await;
    assert!(vhost.queues().await.contains(&"py-A-1".to_owned()));
    succeed(&vhost, &["exec", "py", "--profile", "AmqpLocksPython", "--", "true"]).await;
    for more in [&["--fencing"][..], &["--queue-type", "Quorum", "--lock-delay", "1s"]] {
        let words = [&["create", LOCK, "--slots", "1", "--protocol", "Token"], more].concat();
        let refused = semaphore(&vhost, &words).await;
        assert_eq!(refused.code, Some(64), "{refused:?}");
        assert!(refused.stderr.contains("there is no --lock-delay"), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_holders_are_shown_with_the_identity_and_reason_they_announce() {
    let vhost = Vhost::create().await;
    succeed(&vhost, &["semaphore", "create", LOCK, "--slots", "2"]).await;
    assert_eq!(json_of(&vhost, &["holders", LOCK]).await, json!([]));
    let scratch = Scratch::new();
    let file = scratch.file("register");
    let says = ["--identity", "alice", "--reason", "roll out", "--link", "http://ci/7"];
    let words = [&["exec", LOCK][..], &says, &["--", "sh", "-c", WRITE, &file]].concat();
    let _holding = Running::start(&scratch, "holding", lockkeeper(&vhost, &words));
    let id = scratch.next_holder(&[]).await;
    let holders = json_of(&vhost, &["holders", LOCK]).await;
    let holder = &holders[0];
    assert_eq!((&holder["slot"], &holder["identity"]), (&json!(1), &json!("alice")), "{holders}");
    assert_eq!((&holder["id"], &holder["reason"]), (&json!(id), &json!("roll out")), "{holders}");
    let table = succeed(&vhost, &["semaphore", "holders", LOCK]).await;
    let lines: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["SLOT", "IDENTITY", "SINCE", "REASON"]);
    assert_eq!((lines[1][0], lines[1][1], lines.len()), ("1", "alice", 2), "{table}");
    let yaml = succeed(&vhost, &["semaphore", "holders", LOCK, "-o", "yaml"]).await;
    assert!(yaml.contains("url: http://ci/7\n"), "{yaml}");

    let mut blind = lockkeeper(&vhost, &["semaphore", "holders", LOCK]);
    blind.env_remove("RABBITMQ_MANAGEMENT_URL");
    let blind = crate::exec::outcome(blind).await;
    assert!(blind.stderr.contains("--management-url"), "{blind:?}");
    assert!(blind.stdout.contains("\n1 "), "{blind:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hole_a_stray_and_a_foreign_slot_are_found_and_left_alone() {
    let vhost = Vhost::create().await;
    succeed(&vhost, &["semaphore", "create", LOCK, "--slots", "4", "--fencing"]).await;
    let fine = semaphore(&vhost, &["verify", LOCK]).await;
    assert_eq!((fine.code, fine.stdout.as_str()), (Some(0), ""), "{fine:?}");
    vhost.delete("ci.deploy-2-A").await;
    vhost.delete("ci.deploy-3-F").await;
    vhost.delete("ci.deploy-1-A").await;
    vhost.declare("ci.deploy-1-A", json!({"durable": true, "auto_delete": true})).await;
    let before = vhost.queues().await;
    let found = semaphore(&vhost, &["verify", LOCK, "--slots", "3"]).await;
    assert_eq!(found.code, Some(1), "{found:?}");
    let lines: Vec<&str> = found.stdout.lines().collect();
    assert!(lines[0].starts_with("slot 1 is a foreign queue: "), "{found:?}");
    let rest = [
        "slot 2 is missing",
        "slot 3 has no record (fencing, lock delay)",
        "slot 4 should not exist",
    ];
    assert_eq!(lines[1..], rest);
    assert_eq!(vhost.queues().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_is_waited_for_until_it_is_taken_and_until_it_is_released() {
    let vhost = Vhost::create().await;
    succeed(&vhost, &["semaphore", "create", LOCK, "--slots", "1"]).await;
    let until = |what| ["wait", LOCK, "--slot", "1", "--until", what, "--timeout"];
    let free = semaphore(&vhost, &[&until("taken")[..], &["300ms"]].concat()).await;
    assert_eq!(free.code, Some(75), "{free:?}");
    assert!(free.stderr.contains("slot 1 of ci.deploy is still free"), "{free:?}");
    let wait = |what| {
        let words = [&["semaphore"][..], &until(what), &["10s"]].concat();
        lockkeeper(&vhost, &words).stdout(Stdio::null()).spawn().unwrap()
    };
    let mut taken = wait("taken");
    let scratch = Scratch::new();
    let file = scratch.file("register");
    let holding = lockkeeper(&vhost, &["exec", LOCK, "--", "sh", "-c", WRITE, &file]);
    let holding = Running::start(&scratch, "holding", holding);
    assert!(taken.wait().await.unwrap().success());
    let mut released = wait("released");
    scratch.next_holder(&[]).await;
    assert!(released.try_wait().unwrap().is_none(), "not while it is held");
    // Without a number: any slot, including removed ones.
    succeed(&vhost, &["semaphore", "shrink", LOCK, "1", "--no-wait"]).await;
    let any = |what| ["wait", LOCK, "--until", what, "--timeout", "300ms"];
    let taken = semaphore(&vhost, &any("taken")).await;
    assert_eq!(taken.code, Some(0), "{taken:?}");
    let held = semaphore(&vhost, &any("released")).await;
    assert_eq!(held.code, Some(75), "{held:?}");
    assert!(held.stderr.contains("ci.deploy is still held"), "{held:?}");
    holding.signal("TERM");
    assert!(released.wait().await.unwrap().success());
    succeed(&vhost, &[&["semaphore"][..], &any("released")].concat()).await;
    let of_tokens = [&any("taken")[..], &["--slot", "1", "--protocol", "Token"]].concat();
    let refused = semaphore(&vhost, &of_tokens).await;
    assert_eq!(refused.code, Some(64), "{refused:?}");
    assert!(refused.stderr.contains("tokens have no numbers"), "{refused:?}");
}
