//! Protocol `ExclusiveConsumer` for holders: which events are pushed to them, and which
//! queues they refuse to use.

use std::time::{Duration, Instant};

use futures::StreamExt;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel};
use lockkeeper_plan::naming::{LockName, Protocol};
use lockkeeper_plan::semaphore::{DesiredSlots, sweep_to};
use lockkeeper_semaphore::{AcquireError, BrokerError, Client, Lock, LostReason, Start};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually, look};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::client::{SOON, any, broker, quick};

const HOLDER_QUEUE: &str = "ci.deploy-1-C";

fn name() -> LockName {
    LockName::new("ci.deploy").unwrap().with_protocol(Protocol::ExclusiveConsumer)
}

fn lock(vhost: &Vhost) -> Lock {
    Client::new(vhost.settings(), quick()).semaphore(name())
}

async fn create(vhost: &Vhost, slots: u32) {
    let desired = DesiredSlots::new(slots);
    let cancel = CancellationToken::new();
    broker(vhost).converge(&name(), desired, sweep_to(desired, 0), true, &cancel).await.unwrap();
}

async fn publish(channel: &Channel, body: &str) {
    let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
    let queue = HOLDER_QUEUE.into();
    channel.basic_publish("".into(), queue, options, body.as_bytes(), properties).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_holder_queue_is_pushed_to_its_holder() {
    let vhost = Vhost::create().await;
    // The second one shows the protocol when the first has lost its queue.
    create(&vhost, 2).await;
    let (_connection, channel) = vhost.channel().await;
    // A proof would detect it much later.
    let minute = Duration::from_secs(60);
    let slow = quick().with_heartbeat(minute).with_verify_interval(minute);
    let lock = Client::new(vhost.settings(), slow).semaphore(name());
    let mut took = Vec::new();
    for _ in 0..7 {
        let held = lock.try_acquire(&any()).await.unwrap();
        let lost = tokio::spawn(async move { (held.lost().await, Instant::now(), held) });
        let deleted = Instant::now();
        channel.queue_delete(HOLDER_QUEUE.into(), QueueDeleteOptions::default()).await.unwrap();
        let lost = tokio::time::timeout(SOON, lost).await;
        let (reason, at, held) = lost.expect("the broker cancels its consumer").unwrap();
        assert_eq!(reason, LostReason::VerifyFailed);
        assert!(!held.is_valid() && held.token().is_cancelled());
        assert_eq!(held.release().await, Err(LostReason::VerifyFailed));
        took.push(at - deleted);
        create(&vhost, 2).await;
    }
    println!("from the deletion to the loss: {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_to_the_holder_drains_revokes_or_makes_it_look() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let (_connection, channel) = vhost.channel().await;
    let held = lock(&vhost).try_acquire(&any()).await.unwrap();
    for word in ["", "anything"] {
        let before = held.valid_until();
        publish(&channel, word).await;
        tokio::time::timeout(SOON, held.proved_after(before)).await.expect("it looks");
    }
    assert!(tokio::time::timeout(Duration::ZERO, held.draining()).await.is_err());
    publish(&channel, "drain").await;
    tokio::time::timeout(SOON, held.draining()).await.expect("it is notified");
    assert!(held.is_valid());
    publish(&channel, "revoke: alice rolls back").await;
    let lost = tokio::time::timeout(SOON, held.lost()).await.expect("it is notified");
    assert_eq!(lost, LostReason::Revoked { text: "alice rolls back".to_owned() });
    assert!(!held.is_valid());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_queue_is_refused_because_two_could_hold_by_it() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    vhost.delete(HOLDER_QUEUE).await;
    let (_connection, channel) = vhost.channel().await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    let durable = QueueDeclareOptions::durable();
    channel.queue_declare(HOLDER_QUEUE.into(), durable, arguments).await.unwrap();
    for _ in 0..2 {
        // A quorum queue loses the consumer of a refused client only after a write to the disk, and
        // shows the slot as held until then.
        eventually("the queue has no consumer", async || {
            look(&channel, HOLDER_QUEUE).await.consumer_count() == 0
        })
        .await;
        let error = lock(&vhost).try_acquire(&any()).await.unwrap_err();
        let AcquireError::Broker(BrokerError::IncompatibleQueue { queue, why }) = &error else {
            panic!("{error}");
        };
        assert_eq!(queue, HOLDER_QUEUE);
        assert!(why.contains("lets two clients hold the slot at once"), "{why}");
    }
    let queue = vhost.queue(HOLDER_QUEUE).await.unwrap();
    assert_eq!(queue["type"], json!("quorum"), "it is not ours to remove");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_whose_holder_queue_is_missing_is_no_slot_and_none_is_made() {
    let vhost = Vhost::create().await;
    create(&vhost, 2).await;
    vhost.delete(HOLDER_QUEUE).await;
    let options = any().with_start(Start::At(2));
    let _second = lock(&vhost).try_acquire(&options).await.unwrap();
    let error = lock(&vhost).try_acquire(&any()).await.unwrap_err();
    assert!(matches!(error, AcquireError::Contended { .. }), "{error}");
    assert!(vhost.queue(HOLDER_QUEUE).await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn looking_for_a_free_slot_sends_nothing_to_a_holder() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let (_connection, channel) = vhost.channel().await;
    let exclusive = BasicConsumeOptions { exclusive: true, no_ack: true, ..Default::default() };
    let mut holder = channel
        .basic_consume(HOLDER_QUEUE.into(), "foreign".into(), exclusive, FieldTable::default())
        .await
        .unwrap();
    for _ in 0..3 {
        let error = lock(&vhost).try_acquire(&any()).await.unwrap_err();
        assert_eq!(error, AcquireError::Full { lock: "ci.deploy".to_owned(), slots: 1 });
    }
    publish(&channel, "first").await;
    assert_eq!(holder.next().await.unwrap().unwrap().data, b"first");
}
