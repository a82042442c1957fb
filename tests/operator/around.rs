//! The auxiliary queues of a Semaphore: the wait queue with its waiters, the slots'
//! records, and the names of the other profile.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt;
use kube::api::DeleteParams;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicGetOptions, BasicQosOptions, QueuePurgeOptions,
};
use lapin::types::FieldTable;
use lapin::{Connection, Consumer};
use lockkeeper_api::{Semaphore, SemaphoreStatus};
use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::DesiredSlots;
use lockkeeper_semaphore::{Broker, BrokerOptions, ManagedLock};
use lockkeeper_testkit::world::{PATIENCE, World, eventually, has_reason, in_a_world, kubectl};
use tokio_util::sync::CancellationToken;

use crate::operator::holders::client::Client;

/// Starts a foreign client that waits for a slot of `deploy` as the protocol describes.
async fn waiter(world: &World) -> (Connection, Consumer) {
    let connection = world.amqp().await;
    let channel = connection.create_channel().await.unwrap();
    channel.basic_qos(1, BasicQosOptions::default()).await.unwrap();
    let queue = format!("{}.deploy-W", world.namespace);
    let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
    let consumer = channel.basic_consume(queue.as_str().into(), "".into(), options, none);
    (connection, consumer.await.unwrap())
}

/// Returns whether a wake-up arrives within this time. It is acknowledged as after a
/// failed attempt.
async fn woken(waiter: &mut Consumer, within: Duration) -> bool {
    let Ok(wake_up) = tokio::time::timeout(within, waiter.next()).await else { return false };
    wake_up.unwrap().unwrap().ack(BasicAckOptions::default()).await.unwrap();
    true
}

/// Returns whether one of the two is woken.
async fn either(one: &mut Consumer, other: &mut Consumer) -> bool {
    let long = Duration::from_secs(20);
    tokio::select! {
        is_woken = woken(one, long) => is_woken,
        is_woken = woken(other, long) => is_woken,
    }
}

async fn until(world: &World, what: &str, is: impl Fn(&SemaphoreStatus) -> bool) {
    let so = |s: &Semaphore| {
        let status = s.status.as_ref();
        status.is_some_and(|s2| s2.observed_generation == s.metadata.generation && is(s2))
    };
    world.until("deploy", what, PATIENCE, so).await;
}

/// Returns the queues of `deploy`, without its name. The mutex has exactly that name.
async fn queues(world: &World) -> BTreeSet<String> {
    let of_lock = format!("{}.deploy-", world.namespace);
    let queues = world.queues().await;
    queues.iter().map(|queue| queue.strip_prefix(&of_lock).unwrap_or("mutex").to_owned()).collect()
}

fn named(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

/// Two observations with the quick intervals. The absence of events can only be waited
/// for.
const TWO_LOOKS: Duration = Duration::from_millis(2500);

#[tokio::test]
async fn waiting_clients_are_shown_and_as_many_are_woken_as_slots_are_added() {
    in_a_world("waiting", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 0").await;
        world.semaphore_ready("deploy").await;
        until(&world, "no client waits", |s| s.waiting == Some(0)).await;
        let (_one, mut one) = waiter(&world).await;
        let (_other, mut other) = waiter(&world).await;
        until(&world, "both are counted", |s| s.waiting == Some(2)).await;
        let table = kubectl(&world, &["get", "sem", "deploy"]).await.unwrap();
        let column = |line: usize| table.lines().nth(line).unwrap().split_whitespace().nth(4);
        assert_eq!((column(0), column(1)), (Some("WAITING"), Some("2")), "{table}");
        assert!(!woken(&mut one, TWO_LOOKS).await, "there is no slot");

        // Growing by one wakes one waiter, which acquires the slot before the next
        // observation.
        let holder = Client::connect(&world).await;
        world.semaphore("deploy", "slots: 1").await;
        assert!(either(&mut one, &mut other).await);
        holder.take(&format!("{}.deploy-1-B", world.namespace), &[]).await.unwrap();
        until(&world, "the slot is held", |s| s.held == Some(1) && s.free == Some(0)).await;
        tokio::time::sleep(TWO_LOOKS).await;
        let moment = Duration::from_millis(50);
        assert!(!woken(&mut one, moment).await && !woken(&mut other, moment).await, "nor others");

        // A holder that disconnects notifies no client; the operator detects it.
        holder.leave().await;
        assert!(either(&mut one, &mut other).await);
    })
    .await;
}

#[tokio::test]
async fn a_suspended_semaphore_counts_its_waiters_and_wakes_none() {
    in_a_world("paused", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 1").await;
        world.semaphore_ready("deploy").await;
        world.semaphore("deploy", "slots: 1, suspend: true").await;
        world.semaphore_ready("deploy").await;
        let (_connection, mut waiting) = waiter(&world).await;
        until(&world, "the waiter is counted", |s| s.waiting == Some(1) && s.free == Some(1)).await;
        assert!(!woken(&mut waiting, TWO_LOOKS).await);
        world.semaphore("deploy", "slots: 1").await;
        assert!(woken(&mut waiting, Duration::from_secs(20)).await);
    })
    .await;
}

/// Returns the contents of the record of a slot of `deploy`, and returns it to the queue.
async fn record(world: &World, slot: u32) -> serde_json::Value {
    let connection = world.amqp().await;
    let channel = connection.create_channel().await.unwrap();
    let queue = format!("{}.deploy-{slot}-F", world.namespace);
    let got = channel.basic_get(queue.as_str().into(), BasicGetOptions::default()).await.unwrap();
    // Closing the connection returns it to the queue.
    serde_json::from_slice(&got.unwrap().delivery.data).unwrap()
}

#[tokio::test]
async fn slots_have_records_while_fencing_or_a_lock_delay_is_on() {
    in_a_world("records", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 3, fencing: true").await;
        world.semaphore_ready("deploy").await;
        let all = ["1-A", "2-A", "3-A", "1-F", "2-F", "3-F", "W"];
        assert_eq!(queues(&world).await, named(&all));
        let first = record(&world, 2).await;
        assert_eq!((&first["delay"], &first["state"]), (&0.into(), &"released".into()));

        // A lock delay alone keeps the records too, and new slots start with it.
        world.semaphore("deploy", "slots: 4, lockDelay: 15s").await;
        world.semaphore_ready("deploy").await;
        assert_eq!(record(&world, 4).await["delay"], 15_000);
        assert_eq!(record(&world, 2).await, first, "what holders wrote is theirs");
        world.semaphore("deploy", "slots: 1, lockDelay: 15s").await;
        world.semaphore_ready("deploy").await;
        assert_eq!(queues(&world).await, named(&["1-A", "1-F", "2-F", "3-F", "4-F", "W"]));

        // Disabled while suspended, it is disabled after the suspension.
        world.semaphore("deploy", "slots: 1, suspend: true").await;
        world.semaphore_ready("deploy").await;
        assert_eq!(queues(&world).await.len(), 6);
        world.semaphore("deploy", "slots: 1").await;
        world.semaphore_ready("deploy").await;
        assert_eq!(queues(&world).await, named(&["1-A", "W"]));

        world.semaphore("deploy", "slots: 2, fencing: true, lockDelay: 1m30s").await;
        world.semaphore_ready("deploy").await;
        let again = record(&world, 2).await;
        assert_eq!(again["delay"], 90_000);
        assert!(again["token"].as_u64() > first["token"].as_u64());
        world.semaphore("deploy", "slots: 1, fencing: true").await;
        world.semaphore_ready("deploy").await;
        world.api::<Semaphore>().delete("deploy", &DeleteParams::default()).await.unwrap();
        eventually("nothing is left", PATIENCE, async || world.queues().await.is_empty()).await;
    })
    .await;
}

#[tokio::test]
async fn a_lost_wait_queue_and_a_lost_record_are_drift_and_are_made_again() {
    in_a_world("lost", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 2, fencing: true").await;
        world.semaphore_ready("deploy").await;
        let all = queues(&world).await;
        let client = Client::connect(&world).await;
        for (lost, what) in [("W", "the wait queue made again"), ("2-F", "slot records made again")]
        {
            client.delete(&format!("{}.deploy-{lost}", world.namespace)).await;
            eventually("it is there again", PATIENCE, async || queues(&world).await == all).await;
            eventually("an event is recorded", PATIENCE, async || {
                let events = world.events("deploy").await;
                events.iter().any(|(reason, note, _)| reason == "DriftRepaired" && note.contains(what))
                    // The second event is counted as a repeat of the first.
                    || events.iter().any(|(reason, _, times)| reason == "DriftRepaired" && *times > 1)
            })
            .await;
        }
        let drifts = world.events("deploy").await;
        let drifts: Vec<_> = drifts.iter().filter(|(r, ..)| r == "DriftRepaired").collect();
        let note = "2 slots: 0 added, 0 removed, the wait queue made again";
        assert_eq!(drifts[0].1, note, "{drifts:?}");
    })
    .await;
}

#[tokio::test]
async fn emptied_slot_records_are_drift_and_are_made_again() {
    in_a_world("emptied", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 2, lockDelay: 15s").await;
        world.semaphore_ready("deploy").await;
        let connection = world.amqp().await;
        let channel = connection.create_channel().await.unwrap();
        let queue = format!("{}.deploy-2-F", world.namespace);
        let purged = channel.queue_purge(queue.as_str().into(), QueuePurgeOptions::default()).await;
        assert_eq!(purged.unwrap(), 1);
        let note = "2 slots: 0 added, 0 removed, emptied slot records made again";
        eventually("an event is recorded", PATIENCE, async || {
            let events = world.events("deploy").await;
            events.iter().any(|(reason, said, _)| reason == "DriftRepaired" && said == note)
        })
        .await;
        let again = record(&world, 2).await;
        assert_eq!((&again["delay"], &again["state"]), (&15_000.into(), &"held".into()));
        assert_eq!(record(&world, 1).await["state"], "released");
    })
    .await;
}

#[tokio::test]
async fn a_semaphore_of_amqp_locks_python_has_that_librarys_queues_and_holders() {
    in_a_world("python", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 3, profile: AmqpLocksPython").await;
        world.semaphore_ready("deploy").await;
        assert_eq!(queues(&world).await, named(&["A-1", "A-2", "A-3"]));
        let holder = Client::connect(&world).await;
        holder.take(&format!("{}.deploy-B-3", world.namespace), &[]).await.unwrap();
        until(&world, "its holder is reported", |s| {
            s.held == Some(1) && s.holders.iter().any(|h| h.slot == Some(3)) && s.waiting.is_none()
        })
        .await;
        let ascending = "slots: 1, profile: AmqpLocksPython, resize: {order: Ascending}";
        world.semaphore("deploy", ascending).await;
        let object = world.semaphore_ready("deploy").await;
        assert!(has_reason(&object, "Drained", "HoldersDraining"));
        assert_eq!(queues(&world).await, named(&["A-1", "B-3"]));
        world.api::<Semaphore>().delete("deploy", &DeleteParams::default()).await.unwrap();
        eventually("the slots are gone", PATIENCE, async || {
            queues(&world).await == named(&["B-3"])
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn undesired_records_and_a_lost_token_queue_are_drift_and_are_repaired() {
    in_a_world("undesired", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 2").await;
        world.semaphore("closed", "slots: 0, protocol: Token").await;
        world.semaphore_ready("deploy").await;
        world.semaphore_ready("closed").await;
        let desired = queues(&world).await;

        let settings = RabbitmqSettings::from_urls(&world.amqp_url(), None).unwrap();
        let broker = Broker::new(settings, BrokerOptions::default());
        let lock = LockName::new(format!("{}.deploy", world.namespace)).unwrap();
        let fenced = DesiredSlots { records: Some(Duration::ZERO), ..DesiredSlots::new(2) };
        let managed = ManagedLock::new(&broker, &lock, fenced);
        managed.apply(Some(2), false, &CancellationToken::new()).await.unwrap();
        let client = Client::connect(&world).await;
        client.delete(&format!("{}.closed.semaphore", world.namespace)).await;

        for (name, note) in [
            ("deploy", "2 slots: 0 added, 0 removed, slot records removed"),
            ("closed", "0 tokens: 0 added, 0 removed, the token queue made again"),
        ] {
            eventually("an event is recorded", PATIENCE, async || {
                let events = world.events(name).await;
                events.iter().any(|(reason, said, _)| reason == "DriftRepaired" && said == note)
            })
            .await;
        }
        eventually("only the desired queues exist", PATIENCE, async || {
            queues(&world).await == desired
        })
        .await;
    })
    .await;
}
