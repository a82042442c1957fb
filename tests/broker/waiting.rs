//! The wait queue for administrators: created before the slots, observed without side
//! effects, woken when slots are added, removed with the semaphore.

use std::time::{Duration, Instant};

use futures::StreamExt;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Consumer};
use lockkeeper_plan::naming::Profile;
use lockkeeper_semaphore::Converged;
use lockkeeper_testkit::rabbitmq::{Vhost, eventually, look};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::broker::{broker, desired, lock, resize};

/// Starts a foreign client that waits as the protocol describes.
async fn waiter(channel: &Channel, priority: i32) -> Consumer {
    channel.basic_qos(1, BasicQosOptions::default()).await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-priority".into(), AMQPValue::LongInt(priority));
    let options = BasicConsumeOptions::default();
    channel.basic_consume("ci.deploy-W".into(), "".into(), options, arguments).await.unwrap()
}

/// Returns whether a wake-up arrives within this time. It is not acknowledged.
async fn woken(waiter: &mut Consumer, within: Duration) -> bool {
    tokio::time::timeout(within, waiter.next()).await.is_ok()
}

/// Checks that no wake-up has arrived so far: a message sent now is the waiter's first
/// one.
async fn assert_not_woken(channel: &Channel, waiter: &mut Consumer) {
    let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
    let sent = channel.basic_publish("".into(), "ci.deploy-W".into(), options, b"now", properties);
    sent.await.unwrap();
    let first = tokio::time::timeout(SOON, waiter.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(first.data, b"now", "a wake-up came before");
    first.ack(BasicAckOptions::default()).await.unwrap();
}

const SOON: Duration = Duration::from_secs(30);

/// Returns the number of undelivered wake-ups according to the broker.
async fn undelivered(channel: &Channel) -> u32 {
    look(channel, "ci.deploy-W").await.message_count()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wait_queue_is_there_from_the_first_change_to_the_last() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    assert_eq!(broker.waiting(&lock()).await, Ok(None));
    assert_eq!(resize(&broker, 2, 0).await.unwrap().waiting, Some(0));
    let queue = vhost.queue("ci.deploy-W").await.unwrap();
    assert_eq!((&queue["durable"], &queue["exclusive"]), (&json!(true), &json!(false)));
    assert_eq!(queue["arguments"], json!({"x-queue-type": "classic"}));

    // Closed, but not deleted: waiting clients keep waiting.
    resize(&broker, 0, 2).await.unwrap();
    assert_eq!(vhost.queues().await, ["ci.deploy-W"]);
    assert_eq!(broker.waiting(&lock()).await, Ok(Some(0)));

    vhost.delete("ci.deploy-W").await;
    assert_eq!(broker.waiting(&lock()).await, Ok(None));
    resize(&broker, 0, 2).await.unwrap();
    assert_eq!(vhost.queues().await, ["ci.deploy-W"], "made again");

    let cancel = CancellationToken::new();
    let done = broker.destroy(&lock(), desired(0), Some(2), &cancel).await.unwrap();
    assert_eq!(done.waiting, None);
    assert_eq!(vhost.queues().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_queue_with_other_arguments_is_shown_and_left_alone() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    vhost.declare("ci.deploy-W", json!({"durable": true, "arguments": {"x-max-length": 5}})).await;
    let error = resize(&broker, 2, 0).await.unwrap_err();
    assert_eq!(error.reason(), "IncompatibleQueue");
    assert!(error.to_string().contains("\"ci.deploy-W\""), "{error}");
    assert_eq!(vhost.queues().await, ["ci.deploy-1-A", "ci.deploy-2-A", "ci.deploy-W"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_profile_of_amqp_locks_python_has_no_wait_queue() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    let lock = lock().with_profile(Profile::AmqpLocksPython);
    let Converged { waiting, .. } =
        broker.converge(&lock, desired(1), 17, true, &CancellationToken::new()).await.unwrap();
    assert_eq!((waiting, broker.waiting(&lock).await), (None, Ok(None)));
    broker.wake(&lock, 3).await.unwrap();
    assert_eq!(vhost.queues().await, ["ci.deploy-A-1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn counting_the_waiters_wakes_none() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    resize(&broker, 1, 0).await.unwrap();
    let (_connection, channel) = vhost.channel().await;
    let mut waiting = waiter(&channel, 0).await;
    for _ in 0..20 {
        assert_eq!(broker.waiting(&lock()).await, Ok(Some(1)));
    }
    // A change that adds no slot wakes no client either.
    let done = resize(&broker, 1, 1).await.unwrap();
    assert_eq!(done.waiting, Some(1));
    assert_eq!(resize(&broker, 0, 1).await.unwrap().waiting, Some(1));
    assert_not_woken(&channel, &mut waiting).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_added_slot_wakes_one_waiter_the_highest_priority_first() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    resize(&broker, 0, 0).await.unwrap();
    let mut waiters = Vec::new();
    for priority in [1, 9, 5] {
        let (connection, channel) = vhost.channel().await;
        let consumer = waiter(&channel, priority).await;
        waiters.push((connection, channel, consumer));
    }
    let [low, high, middle] = &mut waiters[..] else { unreachable!() };
    assert_eq!(resize(&broker, 1, 0).await.unwrap().waiting, Some(3));
    assert!(woken(&mut high.2, SOON).await);
    // A waiter that is busy with its first wake-up is passed over.
    resize(&broker, 2, 1).await.unwrap();
    assert!(woken(&mut middle.2, SOON).await);
    // One wake-up for each slot.
    assert_not_woken(&low.1, &mut low.2).await;
    resize(&broker, 7, 2).await.unwrap();
    assert!(woken(&mut low.2, SOON).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_wake_ups_are_sent_than_clients_wait_and_none_is_left_behind() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    resize(&broker, 0, 0).await.unwrap();
    let (_connection, channel) = vhost.channel().await;
    let mut waiting = waiter(&channel, 0).await;
    resize(&broker, 5, 0).await.unwrap();
    let wake_up = waiting.next().await.unwrap().unwrap();
    // A second wake-up would stay queued until the first is acknowledged.
    assert_eq!(undelivered(&channel).await, 0, "one waits, so one is sent");
    assert!(wake_up.data.is_empty());
    assert_eq!(wake_up.properties.expiration().as_ref().unwrap().as_str(), "1000");
    wake_up.ack(BasicAckOptions::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wake_up_that_no_client_takes_expires_after_a_second() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    resize(&broker, 0, 0).await.unwrap();
    let (_connection, channel) = vhost.channel().await;
    let start = Instant::now();
    broker.wake(&lock(), 3).await.unwrap();
    let published = async || {
        let queue = vhost.queue("ci.deploy-W").await.unwrap();
        queue["message_stats"]["publish"].as_u64().unwrap_or_default()
    };
    eventually("all were sent", async || published().await == 3).await;
    eventually("they are gone", async || undelivered(&channel).await == 0).await;
    assert!(start.elapsed() > Duration::from_secs(1), "{:?}", start.elapsed());
}
