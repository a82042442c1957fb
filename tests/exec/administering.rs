//! `lockkeeper semaphore` in the hands of an administrator without Kubernetes: setting the
//! number of slots, waiting for removed ones, listing waiters and revoking a holder.

use lockkeeper_plan::naming::Protocol;
use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::protocols::{At, TestLock, with_protocols};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use serde_json::{Value, json};

use crate::exec::commands::{Running, Scratch, WRITE};
use crate::exec::{LOCK, create, json_of, lockkeeper, outcome, semaphore};

with_protocols! {
    every {
        set_reaches_its_number_from_any_state_and_may_be_repeated,
        a_shrink_waits_until_what_it_removed_is_released,
        waiters_are_listed_and_a_holder_is_revoked_without_kubernetes,
    }
    slots {
        removed_slots_are_waited_for_and_no_others,
    }
}

/// Returns the numbers of slots and of holders, draining ones included.
async fn counts(at: &impl At) -> [u64; 2] {
    let counted = json_of(at, &["count", LOCK]).await;
    let [slots, held, draining] =
        ["slots", "held", "draining"].map(|what| counted[what].as_u64().unwrap());
    [slots, held + draining]
}

/// Starts a command that holds a slot until it is ended.
async fn holding(place: &TestLock, scratch: &Scratch, name: &str) -> Running {
    let file = scratch.file("register");
    let known = scratch.holders();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let words = ["exec", LOCK, "--identity", name, "--", "sh", "-c", WRITE, &file];
    let holding = Running::start(scratch, name, lockkeeper(place, &words));
    scratch.next_holder(&known).await;
    holding
}

async fn set_reaches_its_number_from_any_state_and_may_be_repeated(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    for (slots, before) in [("3", 0), ("3", 3), ("1", 3), ("1", 1), ("4", 1), ("0", 4)] {
        let set = semaphore(&place, &["set", LOCK, slots]).await;
        assert_eq!(set.code, Some(0), "{set:?}");
        let after = place.lock_name().unit().count(slots.parse().unwrap());
        let said = format!("{LOCK} has {after}, before {before}");
        assert!(set.stderr.contains(&said), "{said}: {set:?}");
        assert_eq!(counts(&place).await, [slots.parse().unwrap(), 0]);
    }
    for (arguments, instead) in [
        (&["set", "sem/deploy", "1"][..], "use kubectl scale --replicas=NUMBER sem/deploy"),
        (&["destroy", "sem/deploy"], "use kubectl delete sem/deploy"),
        (
            &["revoke", "sem/deploy", "--holder", "a", "--reason", "b"],
            "use lockkeeper revoke sem/deploy",
        ),
    ] {
        let operators = semaphore(&place, arguments).await;
        assert_eq!(operators.code, Some(64), "{operators:?}");
        assert!(operators.stderr.contains(instead), "{operators:?}");
    }
}

async fn a_shrink_waits_until_what_it_removed_is_released(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    create(&place, 2).await;
    let scratch = Scratch::new();
    let mut held = holding(&place, &scratch, "build-41").await;
    let words = ["semaphore", "shrink", LOCK, "2"];
    let waits = format!("waiting for {} that is held", place.lock_name().unit().count(1));
    let mut stopped = Running::start(&scratch, "stopped", lockkeeper(&place, &words));
    stopped.until_it_says(&waits).await;
    stopped.signal("TERM");
    assert_eq!(stopped.code().await, Some(75), "{}", stopped.said());
    assert!(stopped.said().contains(LOCK), "{}", stopped.said());
    let words = ["semaphore", "set", LOCK, "0"];
    let mut waiting = Running::start(&scratch, "waiting", lockkeeper(&place, &words));
    waiting.until_it_says(&waits).await;
    assert_eq!(counts(&place).await[1], 1, "not while it is held");
    held.signal("TERM");
    assert_eq!(held.code().await, Some(143));
    assert_eq!(waiting.code().await, Some(0), "{}", waiting.said());
    assert_eq!(counts(&place).await, [0, 0]);
    let left = place.vhost().queues().await;
    assert!(left.len() == 1, "only the wait queue, or that of the tokens: {left:?}");
}

async fn removed_slots_are_waited_for_and_no_others(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    create(&place, 2).await;
    let scratch = Scratch::new();
    let mut first = holding(&place, &scratch, "build-41").await;
    let mut second = holding(&place, &scratch, "build-42").await;
    let until = |timeout| ["wait", LOCK, "--until", "drained", "--timeout", timeout];
    let none = semaphore(&place, &until("1s")).await;
    assert_eq!(none.code, Some(0), "held slots that exist are not drained: {none:?}");
    let shrunk = semaphore(&place, &["shrink", LOCK, "1", "--no-wait"]).await;
    assert_eq!(shrunk.code, Some(0), "{shrunk:?}");
    assert!(shrunk.stderr.contains("are still held: 2."), "{shrunk:?}");
    let held = semaphore(&place, &until("300ms")).await;
    assert_eq!(held.code, Some(75), "{held:?}");
    assert!(held.stderr.contains("the removed slot 2 of ci.deploy is still held"), "{held:?}");
    let one = semaphore(&place, &[&until("1s")[..], &["--slot", "2"]].concat()).await;
    assert_eq!(one.code, Some(64), "{one:?}");

    let mut last = Value::Null;
    eventually("the holder of slot 2 is listed", async || {
        let holders = json_of(&place, &["holders", LOCK]).await;
        let mut all = holders.as_array().unwrap().iter();
        last = all.find(|holder| holder["slot"] == 2).unwrap()["identity"].clone();
        last.is_string()
    })
    .await;
    if last == "build-41" {
        std::mem::swap(&mut first, &mut second);
    }
    second.signal("TERM");
    assert_eq!(second.code().await, Some(143));
    let drained = semaphore(&place, &until("30s")).await;
    assert_eq!(drained.code, Some(0), "{drained:?}");
    assert_eq!(counts(&place).await, [1, 1]);
    first.signal("TERM");
    assert_eq!(first.code().await, Some(143));
}

async fn waiters_are_listed_and_a_holder_is_revoked_without_kubernetes(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    create(&place, 1).await;
    assert_eq!(json_of(&place, &["waiters", LOCK]).await, json!({"waiting": 0, "waiters": []}));
    let scratch = Scratch::new();
    let mut held = holding(&place, &scratch, "build-41").await;
    let words = ["exec", LOCK, "--identity", "build-42", "--priority", "7", "--", "true"];
    let mut next = Running::start(&scratch, "next", lockkeeper(&place, &words));
    eventually("the waiter is listed", async || {
        let waiting = json_of(&place, &["waiters", LOCK]).await;
        waiting["waiting"] == 1
            && waiting["waiters"][0]["priority"] == 7
            && waiting["waiters"][0]["identity"] == "build-42"
    })
    .await;
    let mut id = String::new();
    eventually("the holder is listed", async || {
        let holders = json_of(&place, &["holders", LOCK]).await;
        holders[0]["id"].as_str().unwrap_or_default().clone_into(&mut id);
        holders[0]["identity"] == "build-41"
    })
    .await;

    let slot = if place.lock_name().has_slots() { &["--slot", "1"][..] } else { &[] };
    let of = |holder: &'static str, id: &str| {
        let words = [&["revoke", LOCK, holder, id, "--reason", "rollback", "--yes"], slot].concat();
        lockkeeper(&place, &[&["semaphore"][..], &words].concat())
    };
    let other = outcome(of("--holder", "another")).await;
    assert_eq!(other.code, Some(64), "{other:?}");
    assert!(other.stderr.contains(&format!("held are: {}", listed(slot, &id))), "{other:?}");
    if protocol != Protocol::ExclusiveConsumer {
        let refused = outcome(of("--holder", &id)).await;
        assert_eq!(refused.code, Some(64), "{refused:?}");
        assert!(refused.stderr.contains("--admin-url"), "{refused:?}");
    }
    let mut revoking = of("--holder", &id);
    revoking.env("RABBITMQ_ADMIN_URL", variable("RABBITMQ_MANAGEMENT_URL"));
    let revoked = outcome(revoking).await;
    assert_eq!(revoked.code, Some(0), "{revoked:?}");
    assert!(revoked.stderr.contains("was taken from"), "{revoked:?}");
    assert_eq!(held.code().await, Some(80), "{}", held.said());
    assert!(held.said().contains("rollback"), "{}", held.said());
    assert_eq!(next.code().await, Some(0), "{}", next.said());
}

fn listed(slot: &[&str], id: &str) -> String {
    if slot.is_empty() { id.to_owned() } else { format!("slot 1 by {id}") }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stray_slot_is_removed_only_if_it_is_within_the_overshoot() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let slot = json!({
        "durable": true, "auto_delete": false,
        "arguments": {"x-max-length": 0, "x-queue-type": "classic"},
    });
    vhost.declare("ci.deploy-80-A", slot).await;
    // Without the management API only probes find the stray.
    let set = async |overshoot: &str| {
        let words = ["semaphore", "set", LOCK, "1", "--overshoot", overshoot];
        let mut set = lockkeeper(&vhost, &words);
        set.env_remove("RABBITMQ_MANAGEMENT_URL");
        let set = outcome(set).await;
        assert_eq!(set.code, Some(0), "{set:?}");
        vhost.queues().await.contains(&"ci.deploy-80-A".to_owned())
    };
    assert!(set("1").await, "slot 80 is beyond a check of few slots");
    assert!(!set("100").await, "and within one of many");
}
