//! Operations whose future is dropped before the broker has answered, on a connection that
//! holds a slot.

use std::time::Duration;

use lockkeeper_plan::naming::Protocol;
use lockkeeper_semaphore::{AcquireError, BrokerError, Client, ClientOptions, Verdict};
use lockkeeper_testkit::protocols::{At, TestLock, with_protocols};
use lockkeeper_testkit::proxy::{Method, Proxy, Sender, When};
use lockkeeper_testkit::rabbitmq::eventually;

use crate::client::wire::{LONG, about, taking, through};
use crate::client::{any, held, lock, resize};

with_protocols! {
    slots {
        a_verification_given_up_before_it_is_refused_does_not_lose_the_slot,
        a_slot_is_verified_soon_after_it_was_taken,
    }
}

/// The broker refuses to show a missing slot and closes the channel, just as the client
/// closes it because the answer is no longer awaited.
async fn a_verification_given_up_before_it_is_refused_does_not_lose_the_slot(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let proxy = Proxy::start().await;
    let permit = through(&proxy, &place, LONG).acquire(&any()).await.unwrap();
    resize(&place, 0).await;
    assert_eq!(permit.verify().await, Ok(Verdict::Draining));
    for _ in 0..5 {
        proxy.reset();
        proxy.delay(Sender::Broker, Duration::from_secs(1));
        let refused = async || proxy.count("channel.close") > 0;
        tokio::select! {
            verdict = permit.verify() => assert_eq!(verdict, Ok(Verdict::Draining)),
            () = eventually("the broker refuses", refused) => {}
        }
        // The next answer follows the delayed refusal immediately.
        proxy.delay(Sender::Broker, Duration::ZERO);
        assert_eq!(permit.verify().await, Ok(Verdict::Draining));
    }
    permit.release().await.unwrap();
}

/// If its connection ended before, RabbitMQ could delete the queue that another client has
/// declared in the meantime.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_given_up_is_answered_before_its_connection_ends() {
    let place = TestLock::create(Protocol::default()).await;
    resize(&place, 1).await;
    let proxy = Proxy::start().await;
    let client = through(&proxy, &place, LONG);
    for _ in 0..3 {
        proxy.reset();
        let lock = client.clone();
        let claimed = proxy.hold_at(When::After, about(taking(Protocol::default())));
        let claiming = tokio::spawn(async move { lock.acquire(&any()).await });
        claimed.wait().await;
        claiming.abort();
        assert!(claiming.await.unwrap_err().is_cancelled());
        proxy.resume();
        let answered = async || proxy.count("basic.qos-ok") > 0;
        eventually("the broker answers what follows the claim", answered).await;
        eventually("the slot is free", async || held(&place).await.is_empty()).await;
    }
}

/// The same for a claim that is answered later than the client waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_without_an_answer_in_time_is_answered_before_its_connection_ends() {
    let place = TestLock::create(Protocol::default()).await;
    resize(&place, 1).await;
    let proxy = Proxy::start().await;
    let lock = through(&proxy, &place, Duration::from_secs(3));
    let claimed = proxy.hold_at(When::After, about(taking(Protocol::default())));
    let error = lock.try_acquire(&any()).await.unwrap_err();
    claimed.wait().await;
    assert!(matches!(error, AcquireError::Broker(BrokerError::Timeout { .. })), "{error}");
    proxy.resume();
    let answered = async || proxy.count("basic.qos-ok") > 0;
    eventually("the broker answers what follows the claim", answered).await;
    eventually("the slot is free", async || held(&place).await.is_empty()).await;
    lock.try_acquire(&any()).await.unwrap().release().await.unwrap();
}

/// The declares of clients that have given up reach the broker together with the end of
/// their connections, while another client takes the slot.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_give_up_take_no_slot_from_another() {
    let protocol = Protocol::default();
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let other = lock(&place);
    let proxies = [Proxy::start().await, Proxy::start().await, Proxy::start().await];
    let clients = proxies.each_ref().map(|proxy| through(proxy, &place, LONG));
    for _ in 0..20 {
        for (proxy, client) in proxies.iter().zip(&clients) {
            let claimed = proxy.hold_at(When::Before, about(taking(protocol)));
            let client = client.clone();
            let claiming = tokio::spawn(async move { client.acquire(&any()).await });
            claimed.wait().await;
            claiming.abort();
            assert!(claiming.await.unwrap_err().is_cancelled());
        }
        for proxy in &proxies {
            proxy.resume();
        }
        let permit = loop {
            match other.try_acquire(&any()).await {
                Ok(permit) => break permit,
                Err(AcquireError::Full { .. } | AcquireError::Contended { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        };
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(permit.verify().await, Ok(Verdict::Held));
        permit.release().await.unwrap();
    }
}

/// Directly after a claim, the broker can still delete its queue together with the
/// connection of another client.
async fn a_slot_is_verified_soon_after_it_was_taken(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let proxy = Proxy::start().await;
    let options = ClientOptions::default()
        .with_heartbeat(Duration::from_mins(10))
        .with_verify_interval(Duration::from_mins(2));
    let client = Client::new(proxy.settings(place.settings()), options);
    let permit = client.semaphore(place.lock_name()).acquire(&any()).await.unwrap();
    proxy.reset();
    let proved =
        tokio::time::timeout(Duration::from_mins(1), permit.proved_after(permit.valid_until()));
    proved.await.expect("the slot is verified long before the interval has passed");
    let verifies = |method: &Method| method.queue.ends_with("-1-A");
    assert!(proxy.methods().iter().any(verifies));
    permit.release().await.unwrap();
}
