//! The admin mutex: held by another client, and a holder whose connection ends.

use std::time::Duration;

use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lockkeeper_plan::ErrorClass;
use lockkeeper_semaphore::{Broker, BrokerError, BrokerOptions};
use lockkeeper_testkit::proxy::{Method, Proxy, Sender, When};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use serde_json::json;

use crate::broker::{broker, existing, lock, resize};

fn impatient(vhost: &Vhost) -> Broker {
    let mutex_patience = Duration::from_millis(300);
    Broker::new(vhost.settings(), BrokerOptions::default().with_mutex_patience(mutex_patience))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_mutex_is_waited_for_then_reported_and_taken_once_it_is_free() {
    let vhost = Vhost::create().await;
    let (_other, channel) = vhost.channel().await;
    let exclusive = QueueDeclareOptions::exclusive();
    channel.queue_declare("ci.deploy".into(), exclusive, FieldTable::default()).await.unwrap();

    let error = resize(&impatient(&vhost), 3, 0).await.unwrap_err();
    assert_eq!(error.reason(), "AdminMutexBusy");
    assert!(matches!(error.class(), ErrorClass::Waiting(_)));
    assert!(existing(&vhost).await.is_empty(), "nothing may change without the mutex");
    eventually("the connection that holds it is named", async || {
        let error = resize(&impatient(&vhost), 3, 0).await.unwrap_err().to_string();
        error.contains("held by the connection 127.0.0.1:") && error.contains(" of user ")
    })
    .await;

    // The management API may show its connection late.
    let patient = BrokerOptions::default().with_mutex_patience(Duration::from_mins(2));
    let broker = Broker::new(vhost.settings(), patient);
    let waiting = tokio::spawn({
        let broker = broker.clone();
        async move { resize(&broker, 3, 0).await }
    });
    eventually("the waiting administrator is connected", async || {
        !vhost.connections("lockkeeper admin").await.is_empty()
    })
    .await;
    channel.queue_delete("ci.deploy".into(), QueueDeleteOptions::default()).await.unwrap();
    assert!(waiting.await.unwrap().unwrap().seen.has_exactly(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordinary_queue_with_the_mutexs_name_is_named_as_the_obstacle() {
    let vhost = Vhost::create().await;
    vhost.declare("ci.deploy", json!({"durable": true})).await;
    let error = resize(&impatient(&vhost), 3, 0).await.unwrap_err();
    assert_eq!(error.reason(), "IncompatibleQueue");
    assert!(error.to_string().contains("\"ci.deploy\""), "{error}");
    assert_eq!(vhost.queues().await, ["ci.deploy"], "it is not ours to delete");
}

#[tokio::test(flavor = "multi_thread")]
async fn losing_the_mutexs_connection_is_an_error_and_the_next_change_heals() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    resize(&broker, 1, 0).await.unwrap();
    eventually("the management API shows the connection", async || {
        !vhost.connections("lockkeeper admin").await.is_empty()
    })
    .await;
    let connection = vhost.connections("lockkeeper admin").await.remove(0);

    let change = tokio::spawn({
        let broker = broker.clone();
        async move { resize(&broker, 3000, 3000).await }
    });
    eventually("some slots", async || broker.observe(&lock(), 40, 0).await.unwrap().total() > 20)
        .await;
    assert!(vhost.management.close_connection(&connection, "a test says so").await);
    let error = change.await.unwrap().unwrap_err();
    assert!(matches!(&error, BrokerError::MutexLost { .. }), "{error:?}");
    assert!(error.to_string().contains("a test says so"), "{error}");
    assert_eq!(error.class(), ErrorClass::Transient);
    assert!(existing(&vhost).await.len() < 3000);

    // As if a declare in flight arrived late: beyond the usual sweep.
    let ours =
        json!({"durable": true, "arguments": {"x-max-length": 0, "x-queue-type": "classic"}});
    vhost.declare("ci.deploy-3030-A", ours).await;
    let done = resize(&broker, 40, 3000).await.unwrap();
    assert!(done.seen.has_exactly(40));
    assert_eq!(existing(&vhost).await, (1..=40).collect());
    assert_eq!(vhost.queues().await.len(), 41, "with the wait queue; the mutex is gone too");
}

/// Nothing but the end of its connection frees a mutex whose declare was answered too late.
/// The administrator does not ask again.
#[tokio::test(flavor = "multi_thread")]
async fn a_mutex_that_is_taken_too_late_is_not_kept() {
    let vhost = Vhost::create().await;
    let proxy = Proxy::start().await;
    let options = BrokerOptions::default().with_operation_timeout(Duration::from_secs(3));
    let slow = Broker::new(proxy.settings(vhost.settings()), options);
    let taking = |method: &Method| {
        method.sender == Sender::Client
            && method.name == "queue.declare"
            && method.queue == "ci.deploy"
    };
    let declared = proxy.hold_at(When::After, taking);
    let error = resize(&slow, 1, 0).await.unwrap_err();
    declared.wait().await;
    assert!(matches!(error, BrokerError::Timeout { .. }), "{error}");
    proxy.resume();
    eventually("the mutex is free", async || vhost.queues().await.is_empty()).await;
    drop(slow);
}
