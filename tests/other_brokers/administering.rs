//! Administrators: slots are created, observed and removed, and several share one broker.

use std::collections::BTreeSet;
use std::time::Duration;

use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lockkeeper_client::Probe;
use lockkeeper_plan::naming::{LockName, Profile, Protocol, QueueType};
use lockkeeper_plan::semaphore::DesiredSlots;
use lockkeeper_semaphore::{AcquireError, Broker, BrokerError, BrokerOptions, Expected, ResizeTo};
use lockkeeper_testkit::rabbitmq::{Vhost, patient};
use tokio_util::sync::CancellationToken;

use crate::other_brokers::{AUTOMATIC, Qpid, any, name, resize, resize_of};

/// Grows, shrinks and removes the semaphore. Of 60 slots some are missing in between, so
/// that an answer given to the wrong probe would show.
async fn slots_are_created_seen_and_removed(broker: &Broker) {
    assert_eq!(resize(broker, 60).await.unwrap().after, 60);
    let seen = broker.observe(&name(), 80, 80).await.unwrap();
    assert_eq!(seen.numbered().unwrap().slots, (1..=60).collect::<BTreeSet<u32>>());
    assert_eq!((seen.total(), seen.held()), (60, 0));
    assert_eq!(resize(broker, 3).await.unwrap().after, 3);
    assert_eq!(broker.find_highest_slot(&name(), 4).await.unwrap(), Some(3));
    let stop = CancellationToken::new();
    let desired = DesiredSlots::new(3);
    let expected = Expected { slots: Some(3), records: false };
    assert_eq!(broker.check(&name(), expected, &stop).await, Ok(Vec::new()));
    broker.destroy(&name(), desired, Some(3), &stop).await.unwrap();
    assert_eq!(broker.observe(&name(), 80, 80).await.unwrap().total(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_are_created_seen_and_removed_with_each_probe() {
    let qpid = Qpid::start().await;
    for probe in [AUTOMATIC, Some(Probe::Confirm), Some(Probe::Tx), Some(Probe::Declare)] {
        slots_are_created_seen_and_removed(&qpid.broker(probe)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_rabbitmq_too_slots_are_created_seen_and_removed_with_each_probe() {
    let vhost = Vhost::create().await;
    for probe in [AUTOMATIC, Some(Probe::Confirm), Some(Probe::Tx), Some(Probe::Declare)] {
        let settings = vhost.settings_without_management().with_probe(probe);
        slots_are_created_seen_and_removed(&Broker::new(settings, patient())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_race_for_the_admin_mutex_disturbs_no_other_change() {
    let qpid = Qpid::start().await;
    let (_foreign, channel) = qpid.channel().await;
    let exclusive = QueueDeclareOptions::exclusive();
    channel.queue_declare("ci.deploy".into(), exclusive, FieldTable::default()).await.unwrap();
    let options = BrokerOptions::default().with_mutex_patience(Duration::from_millis(500));
    let broker = Broker::new(qpid.settings(AUTOMATIC), options);
    // The same handle, and so the same connection for probes.
    let others = (0..20).map(|n| {
        let broker = broker.clone();
        async move { resize_of(&broker, &LockName::new(format!("ci.x{n}")).unwrap(), 5).await }
    });
    let others = futures::future::join_all(others);
    let (busy, others) = futures::join!(resize(&broker, 3), others);
    assert!(matches!(busy, Err(BrokerError::MutexBusy { .. })), "{busy:?}");
    for other in others {
        assert_eq!(other.unwrap().after, 5);
    }
    channel.queue_delete("ci.deploy".into(), QueueDeleteOptions::default()).await.unwrap();
    assert_eq!(resize(&broker, 3).await.unwrap().after, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_administrators_take_turns() {
    let qpid = Qpid::start().await;
    let patient = BrokerOptions::default().with_mutex_patience(Duration::from_mins(1));
    let brokers = [(); 2].map(|()| Broker::new(qpid.settings(AUTOMATIC), patient.clone()));
    resize(&brokers[0], 1).await.unwrap();
    let grow = async |broker: &Broker| {
        let stop = CancellationToken::new();
        for _ in 0..10 {
            let to = ResizeTo::Grow(1);
            broker.resize(&name(), to, DesiredSlots::new(0), &stop).await.unwrap();
        }
    };
    futures::join!(grow(&brokers[0]), grow(&brokers[1]));
    assert_eq!(brokers[0].observe(&name(), 40, 0).await.unwrap().total(), 21);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_broker_cannot_carry_is_rejected_with_the_reason() {
    let qpid = Qpid::start().await;
    let broker = qpid.broker(AUTOMATIC);
    for (protocol, why) in [
        (Protocol::ExclusiveConsumer, "its queue is deleted"),
        (Protocol::Token(QueueType::Classic), "the number of tokens"),
        (Protocol::ExclusiveQueue(Profile::AmqpLocksPython), "x-max-length"),
    ] {
        let lock = name().with_protocol(protocol);
        let error = resize_of(&broker, &lock, 1).await.unwrap_err();
        assert_eq!(error.reason(), "UnsupportedByBroker");
        let text = error.to_string();
        assert!(text.contains("Apache Qpid Broker-J") && text.contains(why), "{text}");
        let error = qpid.client(AUTOMATIC).semaphore(lock).try_acquire(&any()).await.unwrap_err();
        assert!(
            matches!(error, AcquireError::Broker(BrokerError::Unsupported { .. })),
            "{error:?}"
        );
    }
    let desired = DesiredSlots { records: Some(Duration::ZERO), ..DesiredSlots::new(2) };
    let stop = CancellationToken::new();
    let error = broker.resize(&name(), ResizeTo::Exactly(2), desired, &stop).await.unwrap_err();
    assert!(error.to_string().contains("fencing and lockDelay"), "{error}");
    assert_eq!(broker.observe(&name(), 5, 5).await.unwrap().total(), 0, "nothing was created");
}

/// The negative control: this is why Lockkeeper sends no argument of RabbitMQ.
#[tokio::test(flavor = "multi_thread")]
async fn an_argument_of_rabbitmq_ends_the_connection() {
    let qpid = Qpid::start().await;
    let (connection, channel) = qpid.channel().await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(0));
    let declare = channel.queue_declare("q".into(), QueueDeclareOptions::durable(), arguments);
    assert!(declare.await.is_err());
    assert!(!connection.status().connected());
}
