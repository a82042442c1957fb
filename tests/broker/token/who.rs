//! Holders of tokens, and the number of waiters.

use std::time::Duration;

use lockkeeper_semaphore::{AcquireOptions, Client, ClientOptions};
use lockkeeper_testkit::blog::BlogClient;
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};

use super::{QUEUE, classic, hold, make};
use crate::broker::broker;

#[tokio::test(flavor = "multi_thread")]
async fn holders_are_shown_with_identity_and_reason_foreign_ones_by_their_connection() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    make(&broker, &classic(), 4).await.unwrap();
    let options = AcquireOptions::default()
        .with_identity("alice")
        .with_reason("rollout")
        .with_url("https://ci.example/1");
    let client = Client::new(vhost.settings(), ClientOptions::default());
    let permit = client.semaphore(classic()).acquire(&options).await.unwrap();
    let mut theirs = BlogClient::start(&vhost, "ci.deploy", None).await;
    theirs.next().await;
    // By basic.get: the holder is unknown.
    let (_connection, channel) = vhost.channel().await;
    let _held = hold(&channel, 1).await;
    let mut holders = lockkeeper_semaphore::Holders::default();
    eventually("all is known", async || {
        let seen = broker.observe(&classic(), 0, 0).await.unwrap();
        holders = broker.holders(&classic(), &seen, 4, 50).await;
        let known = holders.list.iter().filter(|holder| holder.connection.is_some());
        known.count() == 2
    })
    .await;
    let [ours, foreign, unknown] = &holders.list[..] else { panic!("{holders:?}") };
    assert_eq!(ours.id, permit.id());
    assert_eq!(ours.identity.as_deref(), Some("alice"));
    assert_eq!(ours.reason.as_deref(), Some("rollout"));
    assert_eq!(ours.url.as_deref(), Some("https://ci.example/1"));
    assert!(ours.since.is_some() && ours.slot.is_none() && !ours.draining);
    assert!(ours.connection.as_ref().unwrap().ends_with("lockkeeper hold"), "{ours:?}");
    assert_eq!(Some(&foreign.id), foreign.connection.as_ref());
    assert_eq!(unknown.id, "token-3");
    permit.release().await.unwrap();
    eventually("it is gone", async || {
        let seen = broker.observe(&classic(), 0, 0).await.unwrap();
        holders = broker.holders(&classic(), &seen, 4, 50).await;
        holders.list.len() == 2
            && holders.list.iter().all(|holder| holder.identity.as_deref() != Some("alice"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_counted_and_holders_are_not() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    assert_eq!(broker.waiting(&classic()).await, Ok(None));
    make(&broker, &classic(), 1).await.unwrap();
    assert_eq!(broker.waiting(&classic()).await, Ok(Some(0)));
    let mut first = BlogClient::start(&vhost, "ci.deploy", None).await;
    first.next().await;
    let client = Client::new(vhost.settings(), ClientOptions::default());
    let lock = client.semaphore(classic());
    let waiting = tokio::spawn(async move { lock.acquire(&AcquireOptions::default()).await });
    let _second = BlogClient::start(&vhost, "ci.deploy", None).await;
    eventually("two wait, one holds", async || broker.waiting(&classic()).await == Ok(Some(2)))
        .await;
    waiting.abort();
    eventually("one waits", async || broker.waiting(&classic()).await == Ok(Some(1))).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(vhost.queues().await, [QUEUE]);
}
