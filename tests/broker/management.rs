//! A management API that gives wrong answers or belongs to another broker. Its answers
//! may add to the results over AMQP, but never remove from them.

use std::time::Duration;

use futures::StreamExt;
use lapin::options::{BasicConsumeOptions, BasicGetOptions};
use lapin::types::{AMQPValue, FieldTable};
use lockkeeper_plan::naming::{LockName, Protocol, QueueType};
use lockkeeper_semaphore::{
    Broker, BrokerError, BrokerOptions, Expected, ResizeError, ResizeTo, Resized, Revocation,
    RevokeError,
};
use lockkeeper_testkit::management_proxy::{Fault, ManagementProxy};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use tokio_util::sync::CancellationToken;

use crate::broker::{broker, desired, existing, lock};

/// More than two overshoots above the other broker's slots.
const SLOTS: u32 = 40;

async fn resize(broker: &Broker, lock: &LockName, to: ResizeTo) -> Result<Resized, ResizeError> {
    broker.resize(lock, to, desired(0), &CancellationToken::new()).await
}

fn faults(other: &Vhost) -> [Fault; 6] {
    let other = Fault::OtherBroker(other.name.clone());
    let [missing, failed] = [404, 500].map(Fault::Answer);
    [Fault::None, missing, failed, other, Fault::Endless, Fault::Redirect]
}

async fn neither_hides_nor_deletes_a_slot(protocol: Protocol) {
    let (vhost, other) = (Vhost::create().await, Vhost::create().await);
    let (lock, api) = (lock().with_protocol(protocol), ManagementProxy::start().await);
    resize(&broker(&other), &lock, ResizeTo::Create(2)).await.unwrap();
    for fault in faults(&other) {
        resize(&broker(&vhost), &lock, ResizeTo::Create(SLOTS)).await.unwrap();
        api.suffer(fault.clone());
        // The sweep may not use the list of an earlier step.
        let options = BrokerOptions::default().with_list_interval(Duration::ZERO);
        let broker = Broker::new(api.settings(vhost.settings()), options);
        let cancel = CancellationToken::new();
        assert_eq!(broker.find_highest_slot(&lock, 16).await, Ok(Some(SLOTS)), "{fault:?}");
        let faults = broker.check(&lock, Expected::default(), &cancel).await;
        assert_eq!(faults, Ok(vec![]), "{fault:?}");
        let grown = resize(&broker, &lock, ResizeTo::Grow(1)).await.unwrap();
        assert_eq!((grown.before, grown.after), (SLOTS, SLOTS + 1), "{fault:?}");
        assert_eq!(existing(&vhost).await, (1..=SLOTS + 1).collect(), "{fault:?}");
        // The other broker has this slot.
        vhost.delete(&lock.slot_queue(2)).await;
        let seen = broker.sweep(&lock, SLOTS, 0, None).await.unwrap();
        assert_eq!(seen.total(), 39, "{fault:?}");
        assert!(!seen.numbered().unwrap().slots.contains(&2), "{fault:?}");
        broker.destroy(&lock, desired(0), None, &cancel).await.unwrap();
        assert_eq!(vhost.queues().await, [""; 0], "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_management_api_neither_hides_nor_deletes_a_slot() {
    neither_hides_nor_deletes_a_slot(Protocol::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_management_api_neither_hides_nor_deletes_a_slot_of_consumers() {
    neither_hides_nor_deletes_a_slot(Protocol::ExclusiveConsumer).await;
}

/// The other side of hazard A28: counts that are not outdated but come from another
/// broker.
#[tokio::test(flavor = "multi_thread")]
async fn no_token_is_published_because_of_another_brokers_counts() {
    let (vhost, other) = (Vhost::create().await, Vhost::create().await);
    let (api, queue) = (ManagementProxy::start().await, "ci.deploy.semaphore");
    let lock = lock().with_protocol(Protocol::Token(QueueType::Classic));
    resize(&broker(&vhost), &lock, ResizeTo::Create(3)).await.unwrap();
    resize(&broker(&other), &lock, ResizeTo::Create(1)).await.unwrap();
    let (_connection, channel) = vhost.channel().await;
    let held = channel.basic_get(queue.into(), BasicGetOptions::default()).await.unwrap();
    held.expect("a token is free");
    let handle = || Broker::new(api.settings(vhost.settings()), BrokerOptions::default());
    for fault in faults(&other).into_iter().skip(1) {
        api.suffer(fault.clone());
        for to in [ResizeTo::Grow(1), ResizeTo::Exactly(2), ResizeTo::Shrink(1)] {
            let refused = resize(&handle(), &lock, to).await;
            let Err(ResizeError::Broker(BrokerError::CountUnknown { why, .. })) = refused else {
                panic!("{fault:?}: {refused:?}")
            };
            let is_other = matches!(fault, Fault::OtherBroker(_));
            assert!(!is_other || why.contains("does not show the admin mutex"), "{why}");
        }
        match handle().observe(&lock, 0, 0).await {
            Ok(seen) => assert_eq!(seen.total(), 2, "{fault:?}: two are free"),
            Err(error) => assert_eq!(error.reason(), "CountUnknown", "{fault:?}"),
        }
    }
    api.suffer(Fault::None);
    let grown = resize(&handle(), &lock, ResizeTo::Grow(1)).await.unwrap();
    assert_eq!((grown.before, grown.after), (3, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_connection_the_server_closes_is_sent_again_once() {
    let vhost = Vhost::create().await;
    let api = ManagementProxy::start().await;
    resize(&broker(&vhost), &lock(), ResizeTo::Create(1)).await.unwrap();
    let broker = Broker::new(api.settings(vhost.settings()), BrokerOptions::default());
    api.suffer(Fault::Close);
    broker.waiters(&lock()).await.unwrap();
    api.until_met(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn says_why_the_management_api_is_of_no_help() {
    let vhost = Vhost::create().await;
    let api = ManagementProxy::start().await;
    resize(&broker(&vhost), &lock(), ResizeTo::Create(1)).await.unwrap();
    for (fault, expected) in [
        (Fault::Answer(404), "it answers with status 404: check the URL"),
        (Fault::Answer(503), "it answers with status 503"),
        (Fault::Endless, "its answer is longer than 8 MiB"),
        (Fault::Redirect, "redirects are not followed"),
    ] {
        api.suffer(fault);
        let broker = Broker::new(api.settings(vhost.settings()), BrokerOptions::default());
        let why = broker.waiters(&lock()).await.unwrap_err().to_string();
        assert!(why.contains(expected) && why.contains("http://127.0.0.1"), "{why}");
    }
}

/// Busy, it refuses a request or leaves a consumer out.
#[tokio::test(flavor = "multi_thread")]
async fn a_deaf_consumer_is_revoked_although_the_management_api_is_of_no_help_at_first() {
    let (vhost, api) = (Vhost::create().await, ManagementProxy::start().await);
    let lock = lock().with_protocol(Protocol::ExclusiveConsumer);
    resize(&broker(&vhost), &lock, ResizeTo::Create(1)).await.unwrap();
    let (_connection, channel) = vhost.channel().await;
    let exclusive = BasicConsumeOptions { exclusive: true, no_ack: true, ..Default::default() };
    let mut facts = FieldTable::default();
    facts.insert("x-lockkeeper-id".into(), AMQPValue::LongString("deaf".into()));
    let queue = lock.holder_queue(1);
    let consuming = channel.basic_consume(queue.as_str().into(), "t".into(), exclusive, facts);
    let mut consumer = consuming.await.unwrap();
    eventually("the consumer is listed", async || {
        let consumers = vhost.management.get(&format!("consumers/{}", vhost.name)).await.unwrap();
        consumers.as_array().unwrap().len() == 1
    })
    .await;

    let broker = Broker::new(api.settings(vhost.settings()), BrokerOptions::default());
    let revoke = async |holder: &str| {
        let what = Revocation {
            slot: Some(1),
            holder: holder.to_owned(),
            reason: "enough".to_owned(),
            force: false,
            known_for: Revocation::RETRY_FOR,
        };
        broker.revoke(&lock, desired(1), &what, &CancellationToken::new()).await
    };
    api.suffer(Fault::First(usize::MAX, 200, "[]"));
    let unlisted = revoke("deaf").await;
    assert!(matches!(unlisted, Err(RevokeError::Unsure { .. })), "{unlisted:?}");
    api.suffer(Fault::First(2, 503, ""));
    assert_eq!(revoke("another").await, Err(RevokeError::NotHeld));
    api.suffer(Fault::First(2, 503, ""));
    assert_eq!(revoke("deaf").await, Ok(()));
    while let Some(message) = consumer.next().await {
        assert_eq!(message.unwrap().data, b"revoke: enough");
    }
}
