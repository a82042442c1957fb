//! Queues of ours that are not as ours would be, alarms and limits.

use std::time::{Duration, Instant};

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lockkeeper::plan::ErrorClass;
use lockkeeper::semaphore::{Broker, BrokerError, BrokerOptions};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::support::proxy::Proxy;
use crate::support::rabbitmq::{Vhost, eventually};
use crate::{broker, existing, lock, resize, sweep_to, wish};

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
    // Without the check it is a slot like any other.
    assert!(resize(&broker, 3, 0).await.unwrap().seen.is_as_wished(3));

    let to = sweep_to(wish(4), 3);
    let cancel = CancellationToken::new();
    let error = broker.converge(&lock(), wish(4), to, true, &cancel).await.unwrap_err();
    assert_in_the_way(&error, "ci.deploy-2-A", "durable");
    assert_eq!(vhost.queue("ci.deploy-2-A").await.unwrap()["durable"], false);
    assert_eq!(existing(&vhost).await, (1..=4).collect(), "the others are as wished");
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
    let to = sweep_to(wish(3), 0);
    let error = broker.converge(&lock(), wish(3), to, true, &cancel).await.unwrap_err();
    assert_in_the_way(&error, "ci.deploy-2-A", "locked queue");
    let error = broker.converge(&lock(), wish(3), to, false, &cancel).await.unwrap_err();
    assert_in_the_way(&error, "ci.deploy-9-A", "locked queue");
    assert_eq!(existing(&vhost).await, [1, 2, 3, 9].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn shrinking_deletes_around_a_queue_that_is_not_ours() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    vhost.declare("ci.deploy-7-A", json!({"durable": true})).await;
    resize(&broker, 6, 0).await.unwrap_err();
    let error = resize(&broker, 2, 6).await.unwrap_err();
    assert_in_the_way(&error, "ci.deploy-7-A", "x-max-length");
    assert_eq!(existing(&vhost).await, [1, 2, 7].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_falls_silent_delays_nobody_for_longer_than_the_limit() {
    let vhost = Vhost::create().await;
    let proxy = Proxy::start().await;
    let operation_timeout = Duration::from_secs(2);
    let connect_timeout = Duration::from_secs(1);
    let options = BrokerOptions { operation_timeout, connect_timeout, ..BrokerOptions::default() };
    let broker = Broker::new(proxy.settings(vhost.settings_without_management()), options);
    resize(&broker, 3, 0).await.unwrap();
    proxy.freeze(true);
    let start = Instant::now();
    assert_eq!(broker.observe(&lock(), 5, 5).await.unwrap_err().reason(), "BrokerTimeout");
    assert_eq!(resize(&broker, 5, 3).await.unwrap_err().reason(), "BrokerTimeout");
    // What didn't answer isn't asked again: a new connection is tried.
    assert_eq!(broker.observe(&lock(), 5, 5).await.unwrap_err().reason(), "BrokerUnreachable");
    assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
    proxy.freeze(false);
    eventually("everything works again", async || resize(&broker, 5, 3).await.is_ok()).await;
    assert_eq!(existing(&vhost).await, (1..=5).collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_limit_is_told_from_other_refusals_and_ends_the_attempt() {
    let vhost = Vhost::create().await;
    let limit = format!("vhost-limits/{}/max-queues", vhost.name);
    vhost.management.put(&limit, json!({"value": 4})).await;
    let error = resize(&broker(&vhost), 200, 0).await.unwrap_err();
    assert_eq!(error.reason(), "QuotaExceeded", "{error}");
    assert!(error.to_string().contains("raise the limit"), "{error}");
    // The broker counts before it creates: those in flight together get by.
    let there = existing(&vhost).await.len();
    assert!(there < 40, "went on after the refusal: {there}");
}
