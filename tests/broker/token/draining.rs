//! Fewer tokens than are held: held tokens are waited for, and exactly the surplus is
//! removed, whatever clients and administrators do in the meantime.

use std::time::Duration;

use futures::future::join_all;
use lapin::options::BasicAckOptions;
use lockkeeper_plan::naming::QueueType;
use lockkeeper_semaphore::{Broker, BrokerError, BrokerOptions};
use lockkeeper_testkit::proxy::{Proxy, When, named};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use tokio_util::sync::CancellationToken;

use super::{
    QUEUE, TYPES, classic, consumers, free, give_back, hold, make, settles_at, tokens, total,
};
use crate::broker::{broker, desired};

#[tokio::test(flavor = "multi_thread")]
async fn to_none_and_back_with_all_tokens_held() {
    join_all(TYPES.map(async |queue_type| {
        let vhost = Vhost::create().await;
        let (broker, name) = (broker(&vhost), tokens(queue_type));
        make(&broker, &name, 3).await.unwrap();
        let (_connection, channel) = vhost.channel().await;
        let held = hold(&channel, 3).await;
        let done = make(&broker, &name, 0).await.unwrap();
        assert_eq!((done.declared, done.deleted, done.left), (0, 0, 3));
        assert_eq!(done.seen.counts(0).draining, 3);
        // One is released, then the count grows again: two are still held, one is new.
        give_back(&held[0]).await;
        settles_at(&vhost, 2).await;
        let done = make(&broker, &name, 3).await.unwrap();
        assert_eq!((done.declared, done.deleted, done.left), (1, 0, 0));
        give_back(&held[1]).await;
        give_back(&held[2]).await;
        eventually("all are free", async || free(&channel).await == 3).await;
        settles_at(&vhost, 3).await;
        // And back to none.
        let done = make(&broker, &name, 0).await.unwrap();
        assert_eq!((done.deleted, done.left), (3, 0));
        settles_at(&vhost, 0).await;
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn to_none_and_back_at_once_takes_nothing() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    make(&broker, &classic(), 2).await.unwrap();
    let (_connection, channel) = vhost.channel().await;
    let held = hold(&channel, 2).await;
    for _ in 0..5 {
        assert_eq!(make(&broker, &classic(), 0).await.unwrap().left, 2);
        assert_eq!(make(&broker, &classic(), 2).await.unwrap().declared, 0);
    }
    give_back(&held[0]).await;
    give_back(&held[1]).await;
    eventually("both are free", async || free(&channel).await == 2).await;
    assert_eq!(total(&vhost).await, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_concurrent_drains_remove_no_more_than_one() {
    let vhost = Vhost::create().await;
    let brokers = [broker(&vhost), broker(&vhost)];
    make(&brokers[0], &classic(), 6).await.unwrap();
    let (_connection, channel) = vhost.channel().await;
    let held = hold(&channel, 6).await;
    for broker in &brokers {
        assert_eq!(make(broker, &classic(), 3).await.unwrap().left, 3);
    }
    for token in &held[..5] {
        give_back(token).await;
    }
    settles_at(&vhost, 3).await;
    eventually("the others are free", async || free(&channel).await == 2).await;
    give_back(&held[5]).await;
    eventually("that one stays", async || free(&channel).await == 3).await;
    assert_eq!(total(&vhost).await, Some(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_dies_between_taking_and_removing_starts_over() {
    let vhost = Vhost::create().await;
    let proxy = Proxy::start().await;
    let through = Broker::new(proxy.settings(vhost.settings()), BrokerOptions::default());
    make(&through, &classic(), 3).await.unwrap();
    let (_connection, channel) = vhost.channel().await;
    let held = hold(&channel, 3).await;
    assert_eq!(make(&through, &classic(), 1).await.unwrap().left, 2);
    let cut = proxy.cut_at(When::Before, named("basic.ack"));
    give_back(&held[0]).await;
    cut.wait().await;
    settles_at(&vhost, 2).await;
    give_back(&held[1]).await;
    settles_at(&vhost, 1).await;
    give_back(&held[2]).await;
    eventually("it is free", async || free(&channel).await == 1).await;
    assert_eq!(total(&vhost).await, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_with_its_handle_and_leaves_every_token() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    make(&broker, &classic(), 2).await.unwrap();
    let (_connection, channel) = vhost.channel().await;
    let held = hold(&channel, 2).await;
    assert_eq!(make(&broker, &classic(), 0).await.unwrap().left, 2);
    drop(broker);
    eventually("no drain left", async || vhost.queue(QUEUE).await.unwrap()["consumers"] == 0).await;
    give_back(&held[0]).await;
    eventually("it is free", async || free(&channel).await == 1).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(total(&vhost).await, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn held_tokens_keep_a_semaphore_from_being_destroyed() {
    for queue_type in TYPES {
        let vhost = Vhost::create().await;
        let (broker, name) = (broker(&vhost), tokens(queue_type));
        let destroy =
            async || broker.destroy(&name, desired(0), None, &CancellationToken::new()).await;
        make(&broker, &name, 2).await.unwrap();
        let (_connection, channel) = vhost.channel().await;
        let held = hold(&channel, 1).await;
        // The holder itself, in a quorum queue.
        let others = consumers(&channel).await;
        assert_eq!(destroy().await.unwrap().left, 1);
        assert_eq!(vhost.queues().await, [QUEUE]);
        // Not by the management API, which may still show the total of the new queue: none.
        eventually("it is waited for", async || consumers(&channel).await > others).await;
        give_back(&held[0]).await;
        eventually("the drain has ended", async || consumers(&channel).await == 0).await;
        settles_at(&vhost, 0).await;
        assert_eq!(destroy().await.unwrap().left, 0);
        assert_eq!(vhost.queues().await, [""; 0]);
        // Repeating it is no error.
        assert_eq!(destroy().await.unwrap().left, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_acknowledged_by_mistake_while_others_drain_is_one_fewer_to_wait_for() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    make(&broker, &tokens(QueueType::Classic), 3).await.unwrap();
    let (_connection, channel) = vhost.channel().await;
    let held = hold(&channel, 3).await;
    assert_eq!(make(&broker, &classic(), 2).await.unwrap().left, 1);
    held[0].acker.ack(BasicAckOptions::default()).await.unwrap();
    settles_at(&vhost, 2).await;
    give_back(&held[1]).await;
    // The drain takes it, counts, and returns it.
    eventually("it is free", async || free(&channel).await == 1).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(total(&vhost).await, Some(2));
    let _: Result<_, BrokerError> = make(&broker, &classic(), 2).await;
    assert_eq!(total(&vhost).await, Some(2));
}
