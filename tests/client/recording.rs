//! Slot records: fencing tokens that only grow, and the lock delay after an unclean end.

use std::time::{Duration, Instant};

use lapin::options::{
    BasicGetOptions, BasicNackOptions, BasicPublishOptions, ConfirmSelectOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel};
use lockkeeper_plan::naming::Protocol;
use lockkeeper_plan::record::{RecordState, SlotRecord};
use lockkeeper_plan::semaphore::{DesiredSlots, sweep_to};
use lockkeeper_semaphore::{Client, Verdict};
use lockkeeper_testkit::protocols::{At, TestLock, with_protocols};
use lockkeeper_testkit::proxy::{Method, Proxy, When};
use lockkeeper_testkit::rabbitmq::{eventually, look};
use tokio_util::sync::CancellationToken;

use crate::client::{SOON, any, broker, held, lock, name, quick, resize};

with_protocols! {
    slots {
        each_holder_of_a_slot_has_a_greater_token_than_those_before,
        a_record_left_twice_or_lost_or_unreadable_never_repeats_a_token,
        a_slot_whose_holder_ended_uncleanly_rests_for_the_lock_delay,
        records_made_under_a_holder_say_that_the_slot_is_held,
        a_record_that_reaches_no_queue_gives_no_token,
    }
}

/// Creates the record queue of `slot` with `record`, as administrators do.
pub(super) async fn seed(channel: &Channel, slot: u32, record: &SlotRecord) {
    let queue = name().record_queue(slot).unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(1));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    let durable = QueueDeclareOptions::durable();
    channel.queue_declare(queue.as_str().into(), durable, arguments).await.unwrap();
    publish(channel, slot, record).await;
}

pub(super) async fn publish(channel: &Channel, slot: u32, record: &SlotRecord) {
    let queue = name().record_queue(slot).unwrap().as_str().into();
    let persistent = BasicProperties::default().with_delivery_mode(2);
    let body = record.to_json();
    let options = BasicPublishOptions::default();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let sent = channel.basic_publish("".into(), queue, options, &body, persistent).await.unwrap();
    // The next operation on another channel must not overtake this one.
    sent.await.unwrap();
}

/// Returns all records in the queue, which keeps them.
pub(super) async fn records(place: &TestLock, slot: u32) -> Vec<SlotRecord> {
    let (connection, channel) = place.channel().await;
    let queue = name().record_queue(slot).unwrap();
    let mut found = Vec::new();
    while let Some(message) =
        channel.basic_get(queue.as_str().into(), BasicGetOptions::default()).await.unwrap()
    {
        found.push(serde_json::from_slice(&message.delivery.data).unwrap());
    }
    // The answer to the declare follows the requeue. Closing alone would return earlier.
    let all = BasicNackOptions { multiple: true, requeue: true };
    channel.basic_nack(0, all).await.unwrap();
    look(&channel, &queue).await;
    connection.close(200, "looked".into()).await.unwrap();
    found
}

pub(super) fn first(delay: Duration) -> SlotRecord {
    let since = "2026-01-01T00:00:00Z".to_owned();
    SlotRecord::seed(1_000, since, delay, RecordState::Released)
}

async fn kill_holders(place: &TestLock) {
    place.close_until("hold", "test", async || held(place).await.is_empty()).await;
}

async fn each_holder_of_a_slot_has_a_greater_token_than_those_before(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let (_connection, channel) = place.channel().await;
    seed(&channel, 1, &first(Duration::ZERO)).await;
    let lock = lock(&place);
    for expected in 1_001..1_020 {
        let permit = lock.acquire(&any()).await.unwrap();
        assert_eq!(permit.fence(), Some(expected));
        let id = permit.id().to_owned();
        assert_eq!(records(&place, 1).await[0].state, RecordState::Held);
        permit.release().await.unwrap();
        let [record] = records(&place, 1).await.try_into().unwrap();
        assert_eq!((record.token, record.state), (expected, RecordState::Released));
        assert_eq!(record.holder, id);
    }
    // A probe by another client must not displace the record.
    let (_, other) = place.channel().await;
    let mandatory = BasicPublishOptions { mandatory: true, immediate: false };
    let expired = BasicProperties::default().with_expiration("0".into());
    let queue = name().record_queue(1).unwrap().as_str().into();
    other.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let sent = other.basic_publish("".into(), queue, mandatory, &[], expired).await.unwrap();
    sent.await.unwrap();
    assert_eq!(lock.acquire(&any()).await.unwrap().fence(), Some(1_020));
}

async fn a_record_left_twice_or_lost_or_unreadable_never_repeats_a_token(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let (_connection, channel) = place.channel().await;
    seed(&channel, 1, &first(Duration::ZERO)).await;
    // The state after a crash between publishing the new record and acknowledging the old
    // one.
    let (crashing, reader) = place.channel().await;
    let queue = name().record_queue(1).unwrap();
    let got = reader.basic_get(queue.as_str().into(), BasicGetOptions::default()).await.unwrap();
    assert!(got.is_some());
    let next = SlotRecord { token: 1_001, state: RecordState::Held, ..first(Duration::ZERO) };
    publish(&channel, 1, &next).await;
    crashing.close(200, "crash".into()).await.unwrap();
    eventually("both are there", async || records(&place, 1).await.len() == 2).await;
    let permit = lock(&place).acquire(&any()).await.unwrap();
    assert_eq!(permit.fence(), Some(1_002));
    permit.release().await.unwrap();
    assert_eq!(records(&place, 1).await.len(), 1);

    // Purged: the new record is derived from the clock, which is later than any before.
    let options = lapin::options::QueuePurgeOptions::default();
    channel.queue_purge(queue.as_str().into(), options).await.unwrap();
    let permit = lock(&place).acquire(&any()).await.unwrap();
    assert!(permit.fence() > Some(1_000_000_000), "{:?}", permit.fence());
    permit.release().await.unwrap();

    // Deleted while the slot is held: the release has no record to write, and succeeds.
    let permit = lock(&place).acquire(&any()).await.unwrap();
    let options = QueueDeleteOptions::default();
    channel.queue_delete(queue.as_str().into(), options).await.unwrap();
    permit.release().await.unwrap();
    assert_eq!(lock(&place).acquire(&any()).await.unwrap().fence(), None);
}

async fn a_slot_whose_holder_ended_uncleanly_rests_for_the_lock_delay(protocol: Protocol) {
    let (delay, hour) = (Duration::from_secs(1), Duration::from_hours(1));
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let (_connection, channel) = place.channel().await;
    seed(&channel, 1, &first(hour)).await;
    let clean = lock(&place).acquire(&any()).await.unwrap();
    clean.release().await.unwrap();
    let permit = lock(&place).acquire_timeout(&any(), SOON).await;
    permit.expect("a clean release needs no rest").release().await.unwrap();

    // A newer delay, which this client knows from the lock's resource, is saved.
    let permit = lock(&place).acquire(&any().with_lock_delay(delay)).await.unwrap();
    kill_holders(&place).await;
    drop(permit);
    let start = Instant::now();
    let next = lock(&place).acquire(&any()).await.unwrap();
    assert!(start.elapsed() >= delay, "{:?}", start.elapsed());
    next.release().await.unwrap();

    let permit = lock(&place).acquire(&any().with_lock_delay(hour)).await.unwrap();
    kill_holders(&place).await;
    drop(permit);
    let none = any().with_lock_delay(Duration::ZERO);
    let last = lock(&place).acquire_timeout(&none, SOON).await.expect("no rest is needed any more");
    assert_eq!(records(&place, 1).await[0].delay, 0);
    last.release().await.unwrap();
}

async fn records_made_under_a_holder_say_that_the_slot_is_held(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 2).await;
    let holder = lock(&place).acquire(&any()).await.unwrap();
    assert_eq!(holder.slot(), Some(1));
    // Added to a lock in use, and recreated under its holder.
    for _ in 0..2 {
        let desired =
            DesiredSlots { records: Some(Duration::from_secs(15)), ..DesiredSlots::new(2) };
        let (to, cancel) = (sweep_to(desired, 2), CancellationToken::new());
        let broker = broker(&place);
        broker.converge(&place.lock_name(), desired, to, true, &cancel).await.unwrap();
        for (slot, state) in [(1, RecordState::Held), (2, RecordState::Released)] {
            let [record] = records(&place, slot).await.try_into().unwrap();
            assert_eq!((record.state, record.holder.as_str()), (state, ""), "slot {slot}");
        }
        broker.destroy(&place.lock_name(), desired, Some(2), &cancel).await.unwrap();
    }
    assert_eq!(holder.verify().await, Ok(Verdict::Draining));
}

async fn a_record_that_reaches_no_queue_gives_no_token(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let (_connection, channel) = place.channel().await;
    seed(&channel, 1, &first(Duration::ZERO)).await;
    let proxy = Proxy::start().await;
    let client = Client::new(proxy.settings(place.settings()), quick());
    let queue = name().record_queue(1).unwrap();
    let on_its_way = proxy.hold_at(When::Before, {
        let queue = queue.clone();
        move |method: &Method| method.name == "basic.publish" && method.queue == queue
    });
    let acquiring = tokio::spawn({
        let lock = client.semaphore(place.lock_name());
        async move { lock.try_acquire(&any()).await }
    });
    on_its_way.wait().await;
    // Confirmed nevertheless, as if it had been stored.
    channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
    proxy.resume();
    assert_eq!(acquiring.await.unwrap().unwrap().fence(), None);
}
