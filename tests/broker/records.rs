//! Slot records for administrators: created and filled before the slots, kept when slots
//! are removed, and never changed otherwise.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lapin::BasicProperties;
use lapin::options::{
    BasicAckOptions, BasicGetOptions, BasicPublishOptions, BasicRejectOptions, ConfirmSelectOptions,
};
use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_plan::record::{RecordState, SlotRecord};
use lockkeeper_plan::semaphore::DesiredSlots;
use lockkeeper_semaphore::{Broker, BrokerOptions, Converged, Expected, Fault};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::broker::{broker, desired, lock, sweep_to};

const DELAY: Duration = Duration::from_secs(15);

fn with_records(slots: u32) -> DesiredSlots {
    DesiredSlots { records: Some(DELAY), ..desired(slots) }
}

async fn converge(broker: &Broker, desired: DesiredSlots, mark: u32, thorough: bool) -> Converged {
    let cancel = CancellationToken::new();
    broker.converge(&lock(), desired, sweep_to(desired, mark), thorough, &cancel).await.unwrap()
}

/// Returns the slots that have a record queue.
async fn records(vhost: &Vhost) -> BTreeSet<u32> {
    let slot = |queue: &str| queue.strip_prefix("ci.deploy-")?.strip_suffix("-F")?.parse().ok();
    vhost.queues().await.iter().filter_map(|queue| slot(queue)).collect()
}

/// Returns the contents of a slot's record. Every message is returned to the queue.
async fn read(vhost: &Vhost, slot: u32) -> Vec<SlotRecord> {
    let (_connection, channel) = vhost.channel().await;
    let queue = lock().record_queue(slot).unwrap();
    let mut found = Vec::new();
    let mut taken = Vec::new();
    while let Some(message) =
        channel.basic_get(queue.as_str().into(), BasicGetOptions::default()).await.unwrap()
    {
        assert_eq!(message.delivery.properties.delivery_mode(), &Some(2), "it is persistent");
        found.push(serde_json::from_slice(&message.delivery.data).unwrap());
        taken.push(message);
    }
    for message in taken {
        message.delivery.reject(BasicRejectOptions { requeue: true }).await.unwrap();
    }
    found
}

fn micros() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_slot_gets_one_record_with_the_time_as_token_and_the_lock_delay() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    let before = micros();
    assert_eq!(converge(&broker, with_records(3), 0, true).await.seeded, 3);
    let queue = vhost.queue("ci.deploy-2-F").await.unwrap();
    assert_eq!((&queue["durable"], &queue["exclusive"]), (&json!(true), &json!(false)));
    assert_eq!(
        queue["arguments"],
        json!({"x-queue-type": "classic", "x-max-length": 1, "x-overflow": "reject-publish"})
    );
    for slot in 1..=3 {
        let found = read(&vhost, slot).await;
        let [record] = &found[..] else { panic!("slot {slot}: {found:?}") };
        assert!(record.token >= before && record.token <= micros(), "{record:?}");
        assert_eq!((record.state, record.holder.as_str()), (RecordState::Released, ""));
        assert_eq!(record.delay, 15_000);
        assert!(record.since.starts_with("20") && record.since.ends_with('Z'), "{record:?}");
    }
    // A second check finds the records and leaves them unchanged.
    let first = read(&vhost, 1).await;
    assert_eq!(converge(&broker, with_records(3), 3, true).await.seeded, 0);
    let later = DesiredSlots { records: Some(DELAY * 2), ..desired(4) };
    assert_eq!(converge(&broker, later, 3, true).await.seeded, 1);
    assert_eq!(read(&vhost, 1).await, first);
    assert_eq!(read(&vhost, 4).await[0].delay, 30_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_is_never_there_before_its_record() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    let watcher = tokio::spawn({
        let broker = broker.clone();
        async move {
            loop {
                let seen = broker.observe(&lock(), 1, 0).await.unwrap();
                if seen.total() == 1 {
                    // All of them, before the first slot.
                    return broker.has_records(&lock(), 300).await.unwrap();
                }
            }
        }
    });
    converge(&broker, with_records(300), 300, false).await;
    assert!(watcher.await.unwrap());
    for slot in [1, 150, 300] {
        assert_eq!(read(&vhost, slot).await.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_kept_when_its_slot_goes_and_comes_back() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    converge(&broker, with_records(5), 0, true).await;
    // A holder of slot 4 has written the next record.
    let (_connection, channel) = vhost.channel().await;
    let options = BasicGetOptions::default();
    let old = channel.basic_get("ci.deploy-4-F".into(), options).await.unwrap().unwrap();
    let found: SlotRecord = serde_json::from_slice(&old.delivery.data).unwrap();
    let (next, _) = SlotRecord::acquired(Some(&found), "4fz", String::new(), 0, None);
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let persistent = BasicProperties::default().with_delivery_mode(2);
    let (to, options) = ("ci.deploy-4-F".into(), BasicPublishOptions::default());
    let confirm = channel.basic_publish("".into(), to, options, &next.to_json(), persistent).await;
    assert!(confirm.unwrap().await.unwrap().is_ack());
    old.delivery.ack(BasicAckOptions::default()).await.unwrap();

    converge(&broker, with_records(2), 5, true).await;
    assert_eq!(records(&vhost).await, (1..=5).collect());
    assert_eq!(converge(&broker, with_records(5), 5, true).await.seeded, 0);
    assert_eq!(read(&vhost, 4).await, [next]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_queue_that_was_lost_is_made_again_with_a_greater_token() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    converge(&broker, with_records(3), 0, true).await;
    let first = read(&vhost, 2).await[0].token;
    assert_eq!(broker.has_records(&lock(), 3).await, Ok(true));
    vhost.delete("ci.deploy-2-F").await;
    assert_eq!(broker.has_records(&lock(), 3).await, Ok(false));
    assert_eq!(converge(&broker, with_records(3), 3, false).await.seeded, 1);
    assert_eq!(broker.has_records(&lock(), 3).await, Ok(true));
    assert!(read(&vhost, 2).await[0].token > first);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_records_no_longer_desired_are_deleted_and_the_slots_stay() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    converge(&broker, with_records(40), 0, true).await;
    converge(&broker, with_records(2), 40, true).await;
    // Not on every observation: only the check after a change of the spec includes the
    // records.
    converge(&broker, desired(2), 40, false).await;
    assert_eq!(records(&vhost).await.len(), 40);
    converge(&broker, desired(2), 2, true).await;
    assert_eq!(vhost.queues().await, ["ci.deploy-1-A", "ci.deploy-2-A", "ci.deploy-W"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destroyed_semaphore_leaves_no_record_and_the_next_one_repeats_no_token() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    let cancel = CancellationToken::new();
    converge(&broker, with_records(120), 0, true).await;
    let first = read(&vhost, 1).await[0].token;
    converge(&broker, with_records(1), 120, true).await;
    // Even if the earlier maximum is no longer known.
    broker.destroy(&lock(), with_records(1), Some(1), &cancel).await.unwrap();
    assert_eq!(vhost.queues().await, [""; 0]);
    converge(&broker, with_records(1), 0, true).await;
    assert!(read(&vhost, 1).await[0].token > first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_queue_with_other_arguments_is_shown_and_left_alone() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    vhost.declare("ci.deploy-2-F", json!({"durable": true})).await;
    let arguments = async || vhost.queue("ci.deploy-2-F").await.unwrap()["arguments"].clone();
    let before = arguments().await;
    let cancel = CancellationToken::new();
    let to = sweep_to(desired(3), 0);
    let done = broker.converge(&lock(), with_records(3), to, true, &cancel).await;
    let error = done.unwrap_err();
    assert_eq!(error.reason(), "IncompatibleQueue");
    assert!(error.to_string().contains("-F"), "{error}");
    assert_eq!(arguments().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_growth_cut_short_leaves_gaps_between_records_and_yet_all_of_them_go() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    converge(&broker, with_records(200), 0, false).await;
    // As if methods in flight on other channels had been performed, but this one had not.
    for slot in (31..=60).chain(113..=120).chain(141..=150) {
        vhost.delete(&format!("ci.deploy-{slot}-F")).await;
    }
    converge(&broker, with_records(2), 200, false).await;
    converge(&broker, desired(2), 2, true).await;
    assert_eq!(vhost.queues().await, ["ci.deploy-1-A", "ci.deploy-2-A", "ci.deploy-W"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_permissions_suffice_for_records_and_for_waiters() {
    let vhost = Vhost::create().await;
    let (username, password) = vhost.user(Some([r"^ci\.", r"^amq\.default$", "^$"])).await;
    let settings = vhost.settings_without_management();
    let settings = RabbitmqSettings { username, password: password.into(), ..settings };
    let broker = Broker::new(settings, BrokerOptions::default());
    assert_eq!(converge(&broker, with_records(3), 0, true).await.waiting, Some(0));
    assert_eq!(broker.has_records(&lock(), 3).await, Ok(true));
    broker.wake(&lock(), 1).await.unwrap();
    converge(&broker, desired(1), 3, true).await;
    assert_eq!(records(&vhost).await, [].into());
    broker.destroy(&lock(), desired(0), None, &CancellationToken::new()).await.unwrap();
    assert_eq!(vhost.queues().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_record_is_a_fault_and_is_seeded_as_held() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    let cancel = CancellationToken::new();
    let definition = json!({"message-ttl": 1});
    let policy = json!({"pattern": "-2-F$", "definition": definition, "apply-to": "queues"});
    vhost.management.put(&format!("policies/{}/ttl", vhost.name), policy).await;
    converge(&broker, with_records(2), 0, true).await;
    let expected = Expected { slots: Some(2), records: true };
    let faults = async || broker.check(&lock(), expected, &cancel).await.unwrap();
    let lost = async || broker.missing_auxiliary(&lock(), with_records(2)).await.unwrap();
    eventually("it is a fault", async || faults().await == [Fault::EmptiedRecord { slot: 2 }])
        .await;
    assert_eq!(lost().await, ["emptied slot records"]);
    vhost.management.delete(&format!("policies/{}/ttl", vhost.name)).await;
    eventually("the next record stays", async || {
        converge(&broker, with_records(2), 2, false).await;
        lost().await.is_empty()
    })
    .await;
    let [record] = read(&vhost, 2).await.try_into().unwrap();
    assert_eq!((record.state, record.delay), (RecordState::Held, 15_000));
    let untouched = &read(&vhost, 1).await[0];
    assert_eq!(untouched.state, RecordState::Released);
    assert!(record.token > untouched.token);
    assert_eq!(faults().await, []);
}
