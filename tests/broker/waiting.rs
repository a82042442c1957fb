//! The wait queue as whoever administers has it: made before the slots, looked at
//! without a trace, woken when slots are added, gone with the semaphore.

use std::time::{Duration, Instant};

use futures::StreamExt;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Consumer};
use lockkeeper::plan::naming::Profile;
use lockkeeper::semaphore::Converged;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::support::rabbitmq::{Vhost, eventually};
use crate::{broker, lock, resize, wish};

/// A foreign client that waits, as the protocol says.
async fn waiter(channel: &Channel, priority: i32) -> Consumer {
    channel.basic_qos(1, BasicQosOptions::default()).await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-priority".into(), AMQPValue::LongInt(priority));
    let options = BasicConsumeOptions::default();
    channel.basic_consume("ci.deploy-W".into(), "".into(), options, arguments).await.unwrap()
}

/// Whether a wake-up comes within this time; it is not acknowledged.
async fn woken(waiter: &mut Consumer, within: Duration) -> bool {
    tokio::time::timeout(within, waiter.next()).await.is_ok()
}

const SOON: Duration = Duration::from_secs(10);
/// That nothing comes can only be waited for.
const NOT_MEANWHILE: Duration = Duration::from_millis(300);

#[tokio::test(flavor = "multi_thread")]
async fn the_wait_queue_is_there_from_the_first_change_to_the_last() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    assert_eq!(broker.waiting(&lock()).await, Ok(None));
    assert_eq!(resize(&broker, 2, 0).await.unwrap().waiting, Some(0));
    let queue = vhost.queue("ci.deploy-W").await.unwrap();
    assert_eq!((&queue["durable"], &queue["exclusive"]), (&json!(true), &json!(false)));
    assert_eq!(queue["arguments"], json!({"x-queue-type": "classic"}));

    // Closed, but not gone: who waits goes on waiting.
    resize(&broker, 0, 2).await.unwrap();
    assert_eq!(vhost.queues().await, ["ci.deploy-W"]);
    assert_eq!(broker.waiting(&lock()).await, Ok(Some(0)));

    vhost.delete("ci.deploy-W").await;
    assert_eq!(broker.waiting(&lock()).await, Ok(None));
    resize(&broker, 0, 2).await.unwrap();
    assert_eq!(vhost.queues().await, ["ci.deploy-W"], "made again");

    let cancel = CancellationToken::new();
    let done = broker.destroy(&lock(), wish(0), Some(2), &cancel).await.unwrap();
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
        broker.converge(&lock, wish(1), 17, true, &CancellationToken::new()).await.unwrap();
    assert_eq!((waiting, broker.waiting(&lock).await), (None, Ok(None)));
    broker.wake(&lock, 3).await.unwrap();
    assert_eq!(vhost.queues().await, ["ci.deploy-A-1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn looking_who_waits_wakes_nobody() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    resize(&broker, 1, 0).await.unwrap();
    let (_connection, channel) = vhost.channel().await;
    let mut waiting = waiter(&channel, 0).await;
    for _ in 0..20 {
        assert_eq!(broker.waiting(&lock()).await, Ok(Some(1)));
    }
    // Nor does a change that adds nothing.
    let done = resize(&broker, 1, 1).await.unwrap();
    assert_eq!(done.waiting, Some(1));
    assert_eq!(resize(&broker, 0, 1).await.unwrap().waiting, Some(1));
    assert!(!woken(&mut waiting, NOT_MEANWHILE).await);
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
    // Busy with its first one, it is passed by.
    resize(&broker, 2, 1).await.unwrap();
    assert!(woken(&mut middle.2, SOON).await);
    assert!(!woken(&mut low.2, NOT_MEANWHILE).await, "one for each slot");
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
    assert!(wake_up.data.is_empty());
    assert_eq!(wake_up.properties.expiration().as_ref().unwrap().as_str(), "1000");
    wake_up.ack(BasicAckOptions::default()).await.unwrap();
    assert!(!woken(&mut waiting, NOT_MEANWHILE).await, "one waits, so one is sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wake_up_that_nobody_takes_is_gone_after_a_second() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    resize(&broker, 0, 0).await.unwrap();
    let (_connection, channel) = vhost.channel().await;
    broker.wake(&lock(), 3).await.unwrap();
    let start = Instant::now();
    let messages = async || {
        let passive = lapin::options::QueueDeclareOptions::default().passive();
        let looking = channel.queue_declare("ci.deploy-W".into(), passive, FieldTable::default());
        looking.await.unwrap().message_count()
    };
    eventually("they are there", async || messages().await == 3).await;
    eventually("they are gone", async || messages().await == 0).await;
    let lived = start.elapsed();
    assert!(lived > Duration::from_millis(900) && lived < Duration::from_secs(5), "{lived:?}");
    // Whoever comes now is not woken for nothing.
    let mut late = waiter(&channel, 0).await;
    assert!(!woken(&mut late, NOT_MEANWHILE).await);
}
