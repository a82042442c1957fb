//! The broker takes back messages that a consumer has not acknowledged within its
//! consumer timeout, 30 minutes by default, which applies to holders of tokens.

use std::time::Duration;

use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_plan::naming::{LockName, Protocol, QueueType};
use lockkeeper_plan::semaphore::DesiredSlots;
use lockkeeper_semaphore::{
    Broker, BrokerOptions, Client, ClientOptions, Lock, LostReason, Permit, ResizeTo,
};
use lockkeeper_testkit::own_server::OwnServer;
use tokio_util::sync::CancellationToken;

use crate::client::any;

/// Longer than the server's timeout and the time to notice it.
const LONGER: Duration = Duration::from_secs(8);

async fn words(permit: &Permit) -> String {
    let lost = tokio::time::timeout(LONGER, permit.lost()).await.expect("the loss is reported");
    match lost {
        LostReason::ConnectionClosed { text } => text,
        reason => panic!("{reason:?}"),
    }
}

/// Acquires one token immediately and one by waiting.
async fn both(lock: &Lock) -> [Permit; 2] {
    let got = lock.try_acquire(&any()).await.unwrap();
    let other = lock.try_acquire(&any()).await.unwrap();
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire(&any()).await.unwrap() }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    // On a busy machine, the broker may already have taken the token back.
    let _ = other.release().await;
    [got, waiting.await.unwrap()]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_timeout_is_a_loss_with_the_close_reason_unless_the_queue_has_a_longer_one() {
    let server = OwnServer::rabbitmq().await;
    server.hurry().await;
    let urls = (server.variable("AMQP_URL"), server.variable("RABBITMQ_MANAGEMENT_URL"));
    let settings = RabbitmqSettings::from_urls(&urls.0, Some(&urls.1)).unwrap();
    let broker = Broker::new(settings.clone(), BrokerOptions::default());
    let version = broker.identity().await.unwrap().version;
    for queue_type in [QueueType::Classic, QueueType::Quorum] {
        let name = LockName::new(format!("ci.{queue_type:?}")).unwrap();
        let name = name.with_protocol(Protocol::Token(queue_type));
        let (desired, cancel) = (DesiredSlots::new(0), CancellationToken::new());
        broker.resize(&name, ResizeTo::Create(2), desired, &cancel).await.unwrap();
        // On 3.10, a channel that used a queue of another type fails because of this one.
        let options = ClientOptions::default().with_warm(0);
        let client = Client::new(settings.clone(), options);
        let held = both(&client.semaphore(name.clone())).await;
        // A quorum queue is declared with its own timeout, which 3.10 ignores. Classic queues
        // have none since 4.3.
        let is_unlimited = match queue_type {
            QueueType::Quorum => !version.starts_with("3.10."),
            QueueType::Classic => !["3.", "4.0."].iter().any(|old| version.starts_with(old)),
        };
        if is_unlimited {
            for permit in &held {
                let lost = tokio::time::timeout(LONGER, permit.lost()).await;
                assert!(lost.is_err(), "lost in spite of the queue's timeout: {lost:?}");
            }
            continue;
        }
        for permit in &held {
            let words = words(permit).await;
            let expected = "PRECONDITION_FAILED - delivery acknowledgement on channel";
            assert!(words.starts_with(expected), "{words}");
        }
        let lock = client.semaphore(name.clone());
        lock.acquire_timeout(&any(), Duration::from_secs(2))
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        drop(held);
        broker.destroy(&name, desired, None, &cancel).await.unwrap();
    }
}
