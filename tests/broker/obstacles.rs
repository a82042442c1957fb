//! Queues with our names but other properties, alarms and limits.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use lapin::BasicProperties;
use lapin::options::{BasicGetOptions, BasicPublishOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lockkeeper_plan::ErrorClass;
use lockkeeper_plan::naming::{LockName, Profile, Protocol, QueueType};
use lockkeeper_semaphore::{Broker, BrokerError, BrokerOptions, Expected, Fault, ResizeTo};
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::broker::{broker, desired, existing, lock, resize, sweep_to};

fn assert_in_the_way(error: &BrokerError, queue: &str, how: &str) {
    assert!(matches!(error, BrokerError::IncompatibleQueue { .. }), "{error:?}");
    assert_eq!(error.class(), ErrorClass::Invalid);
    let text = error.to_string();
    assert!(text.contains(queue) && text.contains(how), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_existing_slot_with_other_arguments_is_shown_and_left_alone() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    vhost.declare("ci.deploy-2-A", json!({"durable": false})).await;
    // Without the check it would be a slot like any other.
    assert!(resize(&broker, 3, 0).await.unwrap().seen.has_exactly(3));

    let to = sweep_to(desired(4), 3);
    let cancel = CancellationToken::new();
    let error = broker.converge(&lock(), desired(4), to, true, &cancel).await.unwrap_err();
    assert_in_the_way(&error, "ci.deploy-2-A", "durable");
    assert_eq!(vhost.queue("ci.deploy-2-A").await.unwrap()["durable"], false);
    assert_eq!(existing(&vhost).await, (1..=4).collect(), "the others are as desired");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_belongs_to_somebodys_connection_is_shown_and_left_alone() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    let (_other, channel) = vhost.channel().await;
    for queue in ["ci.deploy-2-A", "ci.deploy-9-A"] {
        let exclusive = QueueDeclareOptions::exclusive();
        channel.queue_declare(queue.into(), exclusive, FieldTable::default()).await.unwrap();
    }
    let cancel = CancellationToken::new();
    let to = sweep_to(desired(3), 0);
    let error = broker.converge(&lock(), desired(3), to, true, &cancel).await.unwrap_err();
    assert_in_the_way(&error, "ci.deploy-2-A", "locked queue");
    let error = broker.converge(&lock(), desired(3), to, false, &cancel).await.unwrap_err();
    assert_in_the_way(&error, "ci.deploy-9-A", "locked queue");
    assert_eq!(existing(&vhost).await, [1, 2, 3, 9].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn shrinking_deletes_around_a_queue_that_is_not_ours() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    let other = json!({"durable": true, "arguments": {"x-max-length": 5}});
    vhost.declare("ci.deploy-7-A", other).await;
    resize(&broker, 6, 0).await.unwrap_err();
    let error = resize(&broker, 2, 6).await.unwrap_err();
    assert_in_the_way(&error, "ci.deploy-7-A", "x-max-length");
    assert_eq!(existing(&vhost).await, [1, 2, 7].into());
}

/// The source document names no arguments.
#[tokio::test(flavor = "multi_thread")]
async fn the_slots_of_an_administrator_who_follows_the_text_are_adopted() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    for slot in 1..=4 {
        vhost.declare(&lock().slot_queue(slot), json!({"durable": true})).await;
    }
    let (_holder, channel) = vhost.channel().await;
    let exclusive = QueueDeclareOptions::exclusive();
    let holds = async || {
        let queue = lock().holder_queue(2).as_str().into();
        channel.queue_declare(queue, exclusive, FieldTable::default()).await.unwrap();
    };
    holds().await;
    for slots in [5, 1, 3] {
        let cancel = CancellationToken::new();
        let (desired, to) = (desired(slots), sweep_to(desired(slots), 5));
        let done = broker.converge(&lock(), desired, to, true, &cancel).await.unwrap();
        let seen = done.seen.numbered().unwrap();
        assert_eq!((seen.slots.clone(), seen.held.clone()), ((1..=slots).collect(), [2].into()));
        let expected = Expected { slots: Some(slots), records: false };
        assert_eq!(broker.check(&lock(), expected, &cancel).await.unwrap(), []);
        holds().await;
    }
    // Slot 1 is still the other administrator's queue, without messages of the probes.
    let plain = QueueDeclareOptions::durable();
    let slot = channel.queue_declare(lock().slot_queue(1).into(), plain, FieldTable::default());
    assert_eq!(slot.await.unwrap().message_count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_in_use_with_the_name_of_a_slot_is_neither_adopted_nor_deleted() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    let (_other, channel) = vhost.channel().await;
    let queues = [lock().slot_queue(2), lock().slot_queue(5)];
    for queue in &queues {
        vhost.declare(queue, json!({"durable": true})).await;
        let options = BasicPublishOptions::default();
        let properties = BasicProperties::default();
        channel
            .basic_publish("".into(), queue.as_str().into(), options, b"work", properties)
            .await
            .unwrap();
    }
    let cancel = CancellationToken::new();
    let to = sweep_to(desired(3), 3);
    let error = broker.converge(&lock(), desired(3), to, true, &cancel).await.unwrap_err();
    assert_in_the_way(&error, "ci.deploy-", "with messages or consumers");
    for queue in &queues {
        let options = BasicGetOptions { no_ack: true };
        let first = channel.basic_get(queue.as_str().into(), options).await.unwrap();
        assert_eq!(first.expect("its message").data, b"work");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_broker_delays_no_operation_for_longer_than_the_limit() {
    let vhost = Vhost::create().await;
    let proxy = Proxy::start().await;
    let operation_timeout = Duration::from_secs(3);
    let connect_timeout = Duration::from_secs(3);
    let options = BrokerOptions::default()
        .with_operation_timeout(operation_timeout)
        .with_connect_timeout(connect_timeout);
    let broker = Broker::new(proxy.settings(vhost.settings_without_management()), options);
    eventually("it is reached", async || resize(&broker, 3, 0).await.is_ok()).await;
    proxy.freeze(true);
    let start = Instant::now();
    assert_eq!(broker.observe(&lock(), 5, 5).await.unwrap_err().reason(), "BrokerTimeout");
    assert_eq!(resize(&broker, 5, 3).await.unwrap_err().reason(), "BrokerTimeout");
    // A connection that did not respond is not used again: a new one is tried.
    assert_eq!(broker.observe(&lock(), 5, 5).await.unwrap_err().reason(), "BrokerUnreachable");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    proxy.freeze(false);
    eventually("everything works again", async || resize(&broker, 5, 3).await.is_ok()).await;
    assert_eq!(existing(&vhost).await, (1..=5).collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_queue_of_a_lock_called_ratelimit_is_no_quota() {
    let vhost = Vhost::create().await;
    let (broker, cancel) = (broker(&vhost), CancellationToken::new());
    let lock = LockName::new("ci.ratelimit").unwrap();
    let make = async |slots| {
        broker.converge(&lock, desired(slots), sweep_to(desired(slots), 5), true, &cancel).await
    };
    make(5).await.unwrap();
    vhost.delete("ci.ratelimit-1-A").await;
    vhost.declare("ci.ratelimit-1-A", json!({"durable": true, "auto_delete": true})).await;
    assert_in_the_way(&make(2).await.unwrap_err(), "ci.ratelimit-1-A", "auto_delete");
    let seen = broker.observe(&lock, 21, 0).await.unwrap();
    assert_eq!(seen.numbered().unwrap().slots, [1, 2].into(), "the others are as desired");
    let faults = broker.check(&lock, Expected::default(), &cancel).await.unwrap();
    assert!(matches!(faults[..], [Fault::Foreign { slot: 1, .. }]), "{faults:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_limit_is_distinguished_from_other_refusals_and_ends_the_attempt() {
    let vhost = Vhost::create().await;
    let limit = format!("vhost-limits/{}/max-queues", vhost.name);
    vhost.management.put(&limit, json!({"value": 4})).await;
    let error = resize(&broker(&vhost), 200, 0).await.unwrap_err();
    assert_eq!(error.reason(), "QuotaExceeded", "{error}");
    assert!(error.to_string().contains("raise the limit, or delete a queue"), "{error}");
    // The broker counts before it creates, so concurrent declares can exceed the limit.
    let there = existing(&vhost).await.len();
    assert!(there < 40, "went on after the refusal: {there}");
    resize(&broker(&vhost), 1, 0).await.unwrap();
    assert_eq!(existing(&vhost).await, [1].into());
}

/// A change needs a queue for the admin mutex. A slot that is deleted before makes room for it.
#[tokio::test(flavor = "multi_thread")]
async fn at_a_queue_limit_a_lock_shrinks_is_verified_and_is_removed() {
    let cancel = CancellationToken::new();
    for protocol in [Protocol::default(), Protocol::ExclusiveConsumer] {
        let vhost = Vhost::create().await;
        let (broker, lock) = (broker(&vhost), lock().with_protocol(protocol));
        let converge = async |slots| {
            let (desired, to) = (desired(slots), sweep_to(desired(slots), 5));
            broker.converge(&lock, desired, to, false, &cancel).await
        };
        let resize = async |to| broker.resize(&lock, to, desired(0), &cancel).await;
        let forbid_more = async || {
            let limit = format!("vhost-limits/{}/max-queues", vhost.name);
            let all = vhost.queues().await.len();
            vhost.management.put(&limit, json!({"value": all})).await;
        };
        converge(5).await.unwrap();
        forbid_more().await;
        let error = resize(ResizeTo::Grow(1)).await.unwrap_err().to_string();
        assert!(error.contains("raise the limit, or delete a queue"), "{protocol:?}: {error}");
        let error = converge(5).await.unwrap_err();
        assert_eq!(error.reason(), "QuotaExceeded", "{protocol:?}: {error}");
        assert_eq!(existing(&vhost).await, (1..=5).collect(), "{protocol:?}");
        assert_eq!(broker.check(&lock, Expected::default(), &cancel).await, Ok(Vec::new()));
        let resized = resize(ResizeTo::Shrink(2)).await.unwrap();
        let counts = (resized.before, resized.after, resized.done.deleted);
        assert_eq!((counts, existing(&vhost).await), ((5, 3, 2), (1..=3).collect()));
        forbid_more().await;
        let done = converge(0).await.unwrap();
        assert_eq!((done.deleted, existing(&vhost).await), (3, BTreeSet::new()), "{protocol:?}");
        forbid_more().await;
        broker.destroy(&lock, desired(0), None, &cancel).await.unwrap();
        assert_eq!(vhost.queues().await, Vec::<String>::new(), "{protocol:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn at_a_queue_limit_a_lock_that_was_never_created_is_removed() {
    let vhost = Vhost::create().await;
    let (broker, cancel) = (broker(&vhost), CancellationToken::new());
    let limit = format!("vhost-limits/{}/max-queues", vhost.name);
    vhost.management.put(&limit, json!({"value": 0})).await;
    let python = Protocol::ExclusiveQueue(Profile::AmqpLocksPython);
    let token = Protocol::Token(QueueType::Quorum);
    for protocol in [Protocol::default(), python, Protocol::ExclusiveConsumer, token] {
        let lock = lock().with_protocol(protocol);
        let error = broker.converge(&lock, desired(1), 1, true, &cancel).await.unwrap_err();
        assert_eq!(error.reason(), "QuotaExceeded", "{protocol:?}");
        let removed = broker.destroy(&lock, desired(0), None, &cancel).await.unwrap();
        assert_eq!((removed.deleted, removed.left), (0, 0), "{protocol:?}");
    }
}
