//! Slot records: fencing tokens that only grow, and the lock delay after an
//! unclean end.

use std::time::{Duration, Instant};

use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel};
use lockkeeper::plan::naming::Protocol;
use lockkeeper::plan::record::{RecordState, SlotRecord};
use lockkeeper::semaphore::{AcquireError, AcquireOptions};

use crate::support::protocols::{Place, with_protocols};
use crate::support::rabbitmq::eventually;
use crate::{any, held, lock, name, resize};

with_protocols! {
    slots {
        each_holder_of_a_slot_has_a_greater_token_than_those_before,
        a_record_left_twice_or_lost_or_unreadable_never_repeats_a_token,
        a_slot_whose_holder_ended_uncleanly_rests_for_the_lock_delay,
        a_slot_goes_on_resting_when_whoever_found_it_gives_up,
    }
}

/// The record queue of `slot` with `record` in it, as administrators make it.
async fn seed(channel: &Channel, slot: u32, record: &SlotRecord) {
    let queue = name().record_queue(slot).unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(1));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    let durable = QueueDeclareOptions::durable();
    channel.queue_declare(queue.as_str().into(), durable, arguments).await.unwrap();
    publish(channel, slot, record).await;
}

async fn publish(channel: &Channel, slot: u32, record: &SlotRecord) {
    let queue = name().record_queue(slot).unwrap().as_str().into();
    let persistent = BasicProperties::default().with_delivery_mode(2);
    let body = record.to_json();
    let options = BasicPublishOptions::default();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let sent = channel.basic_publish("".into(), queue, options, &body, persistent).await.unwrap();
    // What another channel does next must not be quicker.
    sent.await.unwrap();
}

/// All that the record queue has, which is put back.
async fn records(place: &Place, slot: u32) -> Vec<SlotRecord> {
    let (connection, channel) = place.channel().await;
    let queue = name().record_queue(slot).unwrap();
    let mut found = Vec::new();
    while let Some(message) =
        channel.basic_get(queue.as_str().into(), BasicGetOptions::default()).await.unwrap()
    {
        found.push(serde_json::from_slice(&message.delivery.data).unwrap());
    }
    connection.close(200, "looked".into()).await.unwrap();
    found
}

fn first(delay: Duration) -> SlotRecord {
    SlotRecord::seed(1_000, "2026-01-01T00:00:00Z".to_owned(), delay)
}

async fn kill_holders(place: &Place) {
    eventually("the holder is shown", async || !place.connections("hold").await.is_empty()).await;
    for connection in place.connections("hold").await {
        place.management.close_connection(&connection, "test").await;
    }
    eventually("the slot is free", async || held(place).await.is_empty()).await;
}

async fn each_holder_of_a_slot_has_a_greater_token_than_those_before(protocol: Protocol) {
    let place = Place::create(protocol).await;
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
    // A probe by whoever looks for it must not displace the record.
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
    let place = Place::create(protocol).await;
    resize(&place, 1).await;
    let (_connection, channel) = place.channel().await;
    seed(&channel, 1, &first(Duration::ZERO)).await;
    // What a crash between publishing the new one and acknowledging the old leaves.
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

    // Purged by somebody: made from the clock, which is later than any before.
    let options = lapin::options::QueuePurgeOptions::default();
    channel.queue_purge(queue.as_str().into(), options).await.unwrap();
    let permit = lock(&place).acquire(&any()).await.unwrap();
    assert!(permit.fence() > Some(1_000_000_000), "{:?}", permit.fence());
    permit.release().await.unwrap();

    // Deleted while it is held: the release has nothing to write, and succeeds.
    let permit = lock(&place).acquire(&any()).await.unwrap();
    let options = QueueDeleteOptions::default();
    channel.queue_delete(queue.as_str().into(), options).await.unwrap();
    permit.release().await.unwrap();
    assert_eq!(lock(&place).acquire(&any()).await.unwrap().fence(), None);
}

async fn a_slot_whose_holder_ended_uncleanly_rests_for_the_lock_delay(protocol: Protocol) {
    let delay = Duration::from_secs(1);
    let place = Place::create(protocol).await;
    resize(&place, 1).await;
    let (_connection, channel) = place.channel().await;
    seed(&channel, 1, &first(delay)).await;
    let clean = lock(&place).acquire(&any()).await.unwrap();
    clean.release().await.unwrap();
    let start = Instant::now();
    let permit = lock(&place).acquire(&any()).await.unwrap();
    assert!(start.elapsed() < delay, "a clean release needs no rest");

    kill_holders(&place).await;
    drop(permit);
    let start = Instant::now();
    let next = lock(&place).acquire(&any()).await.unwrap();
    assert!(start.elapsed() >= delay, "{:?}", start.elapsed());

    // A newer delay, which this client knows from the lock's resource, is passed on.
    kill_holders(&place).await;
    drop(next);
    let newer = AcquireOptions { lock_delay: Some(Duration::ZERO), ..any() };
    let start = Instant::now();
    let last = lock(&place).acquire(&newer).await.unwrap();
    assert!(start.elapsed() < delay);
    assert_eq!(records(&place, 1).await[0].delay, 0);
    last.release().await.unwrap();
}

async fn a_slot_goes_on_resting_when_whoever_found_it_gives_up(protocol: Protocol) {
    let delay = Duration::from_secs(3);
    let place = Place::create(protocol).await;
    resize(&place, 1).await;
    let (_connection, channel) = place.channel().await;
    seed(&channel, 1, &SlotRecord { state: RecordState::Held, ..first(delay) }).await;
    let start = Instant::now();
    let short = Duration::from_millis(500);
    let lock_ = lock(&place);
    let error = lock_.acquire_timeout(&any(), short).await.unwrap_err();
    assert!(matches!(error, AcquireError::Resting { slot: 1, .. }), "{error}");
    assert!(start.elapsed() < delay);
    // Without that, these would begin the rest anew each time, for ever.
    let permit = loop {
        match lock_.acquire_timeout(&any(), short).await {
            Ok(permit) => break permit,
            Err(AcquireError::Full { .. } | AcquireError::Resting { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(start.elapsed() < delay * 4, "starved");
    };
    assert!(start.elapsed() >= delay, "{:?}", start.elapsed());
    permit.release().await.unwrap();
}
