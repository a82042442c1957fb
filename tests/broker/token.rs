//! Protocol Token: the number of tokens is as desired after any disturbance, on classic
//! and on quorum queues.

mod draining;
mod limits;
mod who;

use std::time::Duration;

use futures::future::join_all;
use lapin::Channel;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicGetOptions, BasicRejectOptions, QueuePurgeOptions};
use lockkeeper_plan::naming::{LockName, Protocol, QueueType};
use lockkeeper_semaphore::{
    Broker, BrokerError, BrokerOptions, Converged, Expected, Fault, ResizeError, ResizeTo,
};
use lockkeeper_testkit::proxy::{Proxy, When, named};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually, look};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::broker::{broker, desired, lock};

const QUEUE: &str = "ci.deploy.semaphore";

const TYPES: [QueueType; 2] = [QueueType::Classic, QueueType::Quorum];

fn tokens(queue_type: QueueType) -> LockName {
    lock().with_protocol(Protocol::Token(queue_type))
}

fn classic() -> LockName {
    tokens(QueueType::Classic)
}

async fn make(broker: &Broker, name: &LockName, count: u32) -> Result<Converged, BrokerError> {
    broker.converge(name, desired(count), count, false, &CancellationToken::new()).await
}

fn expected(slots: Option<u32>) -> Expected {
    Expected { slots, ..Expected::default() }
}

async fn resize(broker: &Broker, name: &LockName, to: ResizeTo) -> Result<(u32, u32), ResizeError> {
    let resized = broker.resize(name, to, desired(0), &CancellationToken::new()).await?;
    Ok((resized.before, resized.after))
}

/// Returns the total of free and held tokens according to the management API. For a
/// quorum queue it is updated only after some seconds.
async fn total(vhost: &Vhost) -> Option<u64> {
    let list = "columns=name,messages&disable_stats=true&enable_queue_totals=true";
    let list = vhost.management.get(&format!("queues/{}?{list}", vhost.name)).await.unwrap();
    let queue = list.as_array().unwrap().iter().find(|queue| queue["name"] == QUEUE)?;
    queue["messages"].as_u64()
}

async fn settles_at(vhost: &Vhost, count: u64) {
    eventually("the count is right", async || total(vhost).await == Some(count)).await;
}

/// Holds this number of tokens as a foreign client.
async fn hold(channel: &Channel, count: usize) -> Vec<Delivery> {
    let mut held = Vec::new();
    for _ in 0..count {
        let got = channel.basic_get(QUEUE.into(), BasicGetOptions::default()).await.unwrap();
        held.push(got.expect("a token is free").delivery);
    }
    held
}

async fn give_back(token: &Delivery) {
    token.acker.reject(BasicRejectOptions { requeue: true }).await.unwrap();
}

/// Returns the number of free tokens.
async fn free(channel: &Channel) -> u32 {
    look(channel, QUEUE).await.message_count()
}

/// Returns the number of consumers, drains included. A quorum queue also counts those that hold a
/// token by `basic.get`.
async fn consumers(channel: &Channel) -> u32 {
    look(channel, QUEUE).await.consumer_count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_semaphore_of_tokens_is_created_grown_shrunk_and_destroyed() {
    for queue_type in TYPES {
        let vhost = Vhost::create().await;
        let (broker, name) = (broker(&vhost), tokens(queue_type));
        assert_eq!(broker.observe(&name, 9, 9).await.unwrap().total(), 0);
        assert_eq!(broker.find_highest_slot(&name, 3).await, Ok(None));
        assert_eq!(resize(&broker, &name, ResizeTo::Create(3)).await, Ok((0, 3)));
        assert_eq!(resize(&broker, &name, ResizeTo::Grow(600)).await, Ok((3, 603)));
        assert_eq!(resize(&broker, &name, ResizeTo::Shrink(601)).await, Ok((603, 2)));
        assert_eq!(broker.observe(&name, 9, 9).await.unwrap().total(), 2);
        let done = make(&broker, &name, 4).await.unwrap();
        assert_eq!((done.declared, done.deleted, done.left), (2, 0, 0));
        assert!(done.seen.has_exactly(4));
        let done = make(&broker, &name, 4).await.unwrap();
        assert_eq!((done.declared, done.deleted, done.left), (0, 0, 0));
        settles_at(&vhost, 4).await;
        let exists = Err(ResizeError::Exists { lock: name.clone(), slots: 4 });
        assert_eq!(resize(&broker, &name, ResizeTo::Create(1)).await, exists);
        // A closed lock still exists.
        assert_eq!(resize(&broker, &name, ResizeTo::Exactly(0)).await, Ok((4, 0)));
        assert_eq!(resize(&broker, &name, ResizeTo::Grow(1)).await, Ok((0, 1)));
        broker.destroy(&name, desired(0), None, &CancellationToken::new()).await.unwrap();
        assert_eq!(vhost.queues().await, [""; 0]);
        let missing = Err(ResizeError::Missing { lock: name.clone() });
        assert_eq!(resize(&broker, &name, ResizeTo::Grow(1)).await, missing);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_administrator_is_not_misled_by_outdated_counts() {
    join_all(TYPES.map(async |queue_type| {
        let vhost = Vhost::create().await;
        let name = tokens(queue_type);
        resize(&broker(&vhost), &name, ResizeTo::Create(3)).await.unwrap();
        assert_eq!(resize(&broker(&vhost), &name, ResizeTo::Grow(2)).await, Ok((3, 5)));
        assert_eq!(resize(&broker(&vhost), &name, ResizeTo::Shrink(4)).await, Ok((5, 1)));
        settles_at(&vhost, 1).await;
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn administrators_who_each_add_one_add_as_many_as_they_are() {
    let vhost = Vhost::create().await;
    resize(&broker(&vhost), &classic(), ResizeTo::Create(1)).await.unwrap();
    let patient = || BrokerOptions::default().with_mutex_patience(Duration::from_secs(60));
    let administrators: Vec<_> = (0..3).map(|_| Broker::new(vhost.settings(), patient())).collect();
    let each = administrators.iter().map(async |broker| {
        for _ in 0..3 {
            resize(broker, &classic(), ResizeTo::Grow(1)).await.unwrap();
        }
    });
    join_all(each).await;
    assert_eq!(total(&vhost).await, Some(10));
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_acknowledged_by_mistake_and_purged_are_published_again() {
    join_all(TYPES.map(async |queue_type| {
        let vhost = Vhost::create().await;
        let name = tokens(queue_type);
        make(&broker(&vhost), &name, 5).await.unwrap();
        let (_connection, channel) = vhost.channel().await;
        let held = hold(&channel, 2).await;
        held[0].acker.ack(BasicAckOptions::default()).await.unwrap();
        settles_at(&vhost, 4).await;
        let done = make(&broker(&vhost), &name, 5).await.unwrap();
        assert_eq!((done.declared, done.seen.counts(5).held), (1, 1));
        settles_at(&vhost, 5).await;
        channel.queue_purge(QUEUE.into(), QueuePurgeOptions::default()).await.unwrap();
        settles_at(&vhost, 1).await;
        let done = make(&broker(&vhost), &name, 5).await.unwrap();
        assert_eq!((done.declared, done.deleted), (4, 0));
        settles_at(&vhost, 5).await;
        assert_eq!(free(&channel).await, 4);
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_taking_tokens_and_removing_them_removes_none() {
    let vhost = Vhost::create().await;
    make(&broker(&vhost), &classic(), 6).await.unwrap();
    let proxy = Proxy::start().await;
    let through = Broker::new(proxy.settings(vhost.settings()), BrokerOptions::default());
    let cut = proxy.cut_at(When::Before, named("basic.ack"));
    let error = make(&through, &classic(), 2).await.unwrap_err();
    cut.wait().await;
    assert!(matches!(error, BrokerError::MutexLost { .. }), "{error:?}");
    settles_at(&vhost, 6).await;
    let (_connection, channel) = vhost.channel().await;
    eventually("all are free again", async || free(&channel).await == 6).await;
    let done = make(&through, &classic(), 2).await.unwrap();
    assert_eq!((done.deleted, done.left), (4, 0));
    assert_eq!(total(&vhost).await, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_tokens_are_removed_at_once_than_a_quorum_queue_takes_note_of() {
    for queue_type in TYPES {
        let (vhost, proxy) = (Vhost::create().await, Proxy::start().await);
        let through = Broker::new(proxy.settings(vhost.settings()), BrokerOptions::default());
        make(&through, &tokens(queue_type), 90).await.unwrap();
        make(&through, &tokens(queue_type), 2).await.unwrap();
        let methods = proxy.methods();
        let names = methods.iter().map(|method| method.name.as_str());
        let sent: Vec<&str> =
            names.filter(|name| ["basic.get", "basic.ack"].contains(name)).collect();
        let together = sent.split(|name| *name == "basic.ack").map(<[_]>::len);
        assert_eq!(together.clone().sum::<usize>(), 88);
        assert!(together.max() <= Some(16), "{sent:?}");
        settles_at(&vhost, 2).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_amid_publishing_is_made_up_for_and_never_for_too_much() {
    let vhost = Vhost::create().await;
    make(&broker(&vhost), &classic(), 1).await.unwrap();
    let proxy = Proxy::start().await;
    let through = Broker::new(proxy.settings(vhost.settings()), BrokerOptions::default());
    for at in [1, 3] {
        let mut published = 0;
        let cut = proxy.cut_at(When::After, move |method: &lockkeeper_testkit::proxy::Method| {
            published += u32::from(method.name == "basic.publish");
            published == at
        });
        make(&through, &classic(), 4).await.unwrap_err();
        cut.wait().await;
        assert!(total(&vhost).await.unwrap() <= 4, "more than desired");
    }
    make(&through, &classic(), 4).await.unwrap();
    assert_eq!(total(&vhost).await, Some(4));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_management_api_nothing_is_guessed() {
    let vhost = Vhost::create().await;
    let without = Broker::new(vhost.settings_without_management(), BrokerOptions::default());
    // For a missing queue, the number of tokens is known.
    make(&without, &classic(), 2).await.unwrap();
    assert_eq!(total(&vhost).await, Some(2));
    let later = Broker::new(vhost.settings_without_management(), BrokerOptions::default());
    for error in [
        make(&later, &classic(), 3).await.unwrap_err(),
        later.observe(&classic(), 0, 0).await.unwrap_err(),
    ] {
        assert_eq!(error.reason(), "CountUnknown", "{error}");
    }
    assert_eq!(total(&vhost).await, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_another_type_is_not_used() {
    let vhost = Vhost::create().await;
    make(&broker(&vhost), &tokens(QueueType::Quorum), 2).await.unwrap();
    let error = make(&broker(&vhost), &classic(), 2).await.unwrap_err();
    assert!(matches!(error, BrokerError::IncompatibleQueue { .. }), "{error}");
    assert!(error.to_string().contains("it is a quorum queue where a classic one"), "{error}");
    let faults =
        broker(&vhost).check(&classic(), expected(Some(2)), &CancellationToken::new()).await;
    assert!(matches!(faults.unwrap()[..], [Fault::ForeignTokenQueue { .. }]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_with_other_arguments_is_used() {
    let vhost = Vhost::create().await;
    let arguments = json!({"x-max-priority": 3});
    vhost.declare(QUEUE, json!({"durable": true, "arguments": arguments})).await;
    assert_eq!(make(&broker(&vhost), &classic(), 2).await.unwrap().declared, 2);
    assert_eq!(total(&vhost).await, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_reports_missing_and_surplus_tokens_and_changes_nothing() {
    let vhost = Vhost::create().await;
    let (broker, cancel) = (broker(&vhost), CancellationToken::new());
    let check = async |slots| broker.check(&classic(), expected(slots), &cancel).await.unwrap();
    assert_eq!(check(Some(1)).await, [Fault::Absent]);
    make(&broker, &classic(), 2).await.unwrap();
    assert_eq!(check(None).await, []);
    assert_eq!(check(Some(2)).await, []);
    assert_eq!(check(Some(3)).await, [Fault::TokenCount { missing: 1, surplus: 0 }]);
    assert_eq!(check(Some(1)).await, [Fault::TokenCount { missing: 0, surplus: 1 }]);
    assert_eq!(total(&vhost).await, Some(2));
}
