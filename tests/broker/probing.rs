//! Probes: their results under pipelining, and other answers.

use std::collections::BTreeSet;

use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Confirmation};
use lockkeeper_semaphore::{Broker, BrokerOptions};
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::rabbitmq::Vhost;
use serde_json::json;

use crate::broker::{broker, lock, resize};

/// Returns an administrator over the proxy. Without the management API, it observes with probes.
fn through(proxy: &Proxy, vhost: &Vhost) -> Broker {
    let settings = proxy.settings(vhost.settings_without_management());
    Broker::new(settings, BrokerOptions::default())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_probe_of_a_batch_is_given_anothers_verdict() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    resize(&broker, 200, 0).await.unwrap();
    let expected: BTreeSet<u32> = (1..=200).filter(|slot| slot % 3 != 0).collect();
    for slot in (1..=200).filter(|slot| slot % 3 == 0) {
        vhost.delete(&lock().slot_queue(slot)).await;
    }
    for round in 0..40 {
        let seen = broker.observe(&lock(), 200, 0).await.unwrap();
        assert_eq!(seen.numbered().unwrap().slots, expected, "round {round}");
    }
}

/// The broker keeps its counters of a channel's probes until the channel is closed, and
/// iterates over them when any queue is deleted.
#[tokio::test(flavor = "multi_thread")]
async fn no_channel_probes_enough_names_to_slow_the_broker_down() {
    let vhost = Vhost::create().await;
    let proxy = Proxy::start().await;
    let broker = through(&proxy, &vhost);
    let mut seen = BTreeSet::new();
    for _ in 0..10 {
        let now = broker.observe(&lock(), 300, 300).await.unwrap();
        seen.extend(now.numbered().unwrap().slots.clone());
    }
    assert_eq!(seen, BTreeSet::new());
    let probes = proxy.count("basic.publish");
    assert!(probes >= 6000, "{probes}");
    let closed = proxy.count("channel.close");
    // A batch may have as many probes as a channel, and there are two channels.
    assert!(closed >= probes / 2000 - 2, "{closed} channels were closed after {probes} probes");
}

/// The negative control: shows the errors that would result from trusting each future's
/// own answer. If this test fails one day, lapin was fixed.
#[tokio::test(flavor = "multi_thread")]
async fn a_single_futures_answer_is_not_to_be_believed_under_pipelining() {
    let vhost = Vhost::create().await;
    let (_connection, channel) = vhost.channel().await;
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    for slot in (0..200).filter(|slot| slot % 2 == 0) {
        let options = QueueDeclareOptions::default();
        channel
            .queue_declare(format!("q{slot}").into(), options, FieldTable::default())
            .await
            .unwrap();
    }
    let mut wrong = 0;
    for _ in 0..40 {
        let probes = (0..200).map(|slot| {
            let channel = &channel;
            async move {
                let options = BasicPublishOptions { mandatory: true, immediate: false };
                let expire = BasicProperties::default().with_expiration("0".into());
                let name = format!("q{slot}").into();
                channel.basic_publish("".into(), name, options, &[], expire).await.unwrap().await
            }
        });
        let answers = futures::future::join_all(probes).await;
        wrong += answers
            .into_iter()
            .enumerate()
            .filter(|(slot, answer)| {
                let returned = matches!(answer, Ok(Confirmation::Ack(Some(_))));
                returned != (slot % 2 == 1)
            })
            .count();
    }
    assert!(wrong > 0, "each future got its own answer in 40 batches of 200");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_observations_at_once_do_not_mix_their_answers() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    resize(&broker, 30, 0).await.unwrap();
    let looks = (1..=60).map(|to| {
        let broker = &broker;
        async move { (to, broker.observe(&lock(), to, to / 2).await.unwrap()) }
    });
    for (to, seen) in futures::future::join_all(looks).await {
        let seen = seen.numbered().unwrap();
        assert_eq!(seen.slots, (1..=to.min(30)).collect(), "1 to {to}");
        assert_eq!((seen.swept_to, seen.held.len()), (to, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abandoned_observation_does_not_spoil_the_next_one() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    resize(&broker, 5, 0).await.unwrap();
    for round in 0..50 {
        let abandoned = tokio::spawn({
            let broker = broker.clone();
            async move { broker.observe(&lock(), 900, 900).await }
        });
        tokio::task::yield_now().await;
        abandoned.abort();
        let seen = broker.observe(&lock(), 10, 10).await.unwrap();
        assert!(seen.has_exactly(5), "round {round}: {seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_rejects_publishes_is_found_to_exist() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    let rejecting = json!({"durable": true, "arguments":
        {"x-max-length": 0, "x-overflow": "reject-publish"}});
    vhost.declare("ci.deploy-1-A", rejecting.clone()).await;
    vhost.declare("ci.deploy-3-A", rejecting).await;
    for _ in 0..10 {
        let seen = broker.observe(&lock(), 6, 6).await.unwrap();
        let seen = seen.numbered().unwrap();
        assert_eq!(seen.slots, [1, 3].into());
        assert!(seen.held.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_deleted_while_it_is_probed_ends_a_connection_but_no_observation() {
    let vhost = Vhost::create().await;
    let proxy = Proxy::start().await;
    let broker = through(&proxy, &vhost);
    resize(&broker, 3, 0).await.unwrap();
    // Two workers probe: the connection ends for both.
    for _ in 0..2 {
        let deleted = proxy.delete_meanwhile();
        let name = lock();
        let (one, other) = tokio::join!(broker.observe(&name, 6, 0), broker.observe(&name, 9, 0));
        deleted.wait().await;
        assert!(one.unwrap().has_exactly(3) && other.unwrap().has_exactly(3));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_leave_nothing_behind_in_a_queue_without_a_length_limit() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    let (_connection, channel) = vhost.channel().await;
    vhost.declare("ci.deploy-1-A", json!({"durable": true})).await;
    for _ in 0..20 {
        assert_eq!(
            broker.observe(&lock(), 3, 3).await.unwrap().numbered().unwrap().slots,
            [1].into()
        );
    }
    let left =
        channel.queue_delete("ci.deploy-1-A".into(), QueueDeleteOptions::default()).await.unwrap();
    assert_eq!(left, 0);
}
