//! Waiting for a slot, with and without a wait queue.

use std::time::{Duration, Instant};

use lapin::options::{BasicPublishOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel};
use lockkeeper_plan::naming::Protocol;
use lockkeeper_semaphore::{AcquireError, Client};
use lockkeeper_testkit::protocols::{At, TestLock, with_protocols};
use lockkeeper_testkit::proxy::{Method, Proxy, Sender};
use lockkeeper_testkit::rabbitmq::{eventually, look};
use serde_json::json;

use crate::client::wire::taking;
use crate::client::{SOON, any, broker, lock, name, quick, resize};

with_protocols! {
    every {
        a_release_wakes_the_waiter_of_the_highest_priority_and_only_that_one,
        a_waiter_asks_the_broker_little_and_is_woken_by_a_release,
    }
    slots {
        without_a_wait_queue_waiting_ends_with_a_slot_or_with_the_time,
        a_closed_lock_is_waited_for_until_it_has_a_slot,
        a_wake_up_that_its_waiter_does_not_use_wakes_the_next_one,
        a_waiter_finds_a_new_slot_without_being_woken,
    }
    mutex {
        a_release_wakes_the_waiter_of_the_highest_priority_and_only_that_one,
        a_waiter_asks_the_broker_little_and_is_woken_by_a_release,
    }
}

/// The wait queue, as administrators declare it.
async fn wait_queue(channel: &Channel) {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
    let queue = name().wait_queue().unwrap().as_str().into();
    channel.queue_declare(queue, QueueDeclareOptions::durable(), arguments).await.unwrap();
}

async fn waiting(channel: &Channel) -> u32 {
    look(channel, name().wait_queue().unwrap().as_str()).await.consumer_count()
}

async fn wake(channel: &Channel) {
    let queue = name().wait_queue().unwrap().as_str().into();
    let expiring = BasicProperties::default().with_expiration("1000".into());
    let options = BasicPublishOptions::default();
    channel.basic_publish("".into(), queue, options, &[], expiring).await.unwrap();
}

async fn without_a_wait_queue_waiting_ends_with_a_slot_or_with_the_time(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let (_connection, channel) = place.channel().await;
    let queue = name().wait_queue().unwrap().as_str().into();
    channel.queue_delete(queue, QueueDeleteOptions::default()).await.unwrap();
    let first = lock(&place).try_acquire(&any()).await.unwrap();
    let start = Instant::now();
    let short = Duration::from_millis(400);
    let error = lock(&place).acquire_timeout(&any(), short).await.unwrap_err();
    assert!(matches!(error, AcquireError::Full { .. }), "{error}");
    assert!(start.elapsed() >= short);

    let waiter = lock(&place);
    let waiting = tokio::spawn(async move { waiter.acquire(&any()).await });
    eventually("the waiter is there", async || place.connections("hold").await.len() >= 2).await;
    first.release().await.unwrap();
    let taken = tokio::time::timeout(SOON, waiting).await.unwrap();
    assert_eq!(taken.unwrap().unwrap().slot(), Some(1));
}

/// Waits until the client behind this proxy has checked once more since it started to
/// wait, because it acquires slots that are free then out of order.
async fn settled(proxy: &Proxy, place: &TestLock) {
    let is_answer = |method: &Method| {
        let name = method.name.as_str();
        method.sender == Sender::Broker && ["basic.ack", "queue.declare-ok"].contains(&name)
    };
    eventually("it waits, and has looked", async || {
        let seen = proxy.seen();
        let waits = seen.iter().rposition(|method| method.name == "basic.consume-ok");
        let has_looked = |at: usize| {
            // A client that waits for a token gets it from the broker, and does not
            // check.
            !place.lock_name().has_slots() || seen[at..].iter().any(is_answer)
        };
        // A check may have more than one answer.
        tokio::time::sleep(Duration::from_millis(300)).await;
        waits.is_some_and(has_looked) && proxy.seen().len() == seen.len()
    })
    .await;
}

async fn a_release_wakes_the_waiter_of_the_highest_priority_and_only_that_one(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let administrator = broker(&place);
    let waiting = async || administrator.waiting(&place.lock_name()).await.unwrap();
    let mut permit = lock(&place).acquire(&any()).await.unwrap();
    let (tell, mut acquired) = tokio::sync::mpsc::unbounded_channel();
    let mut proxies = Vec::new();
    for priority in [1, 9, 0, 5] {
        let proxy = Proxy::start().await;
        let client = Client::new(proxy.settings(place.settings()), quick());
        let (lock, tell) = (client.semaphore(place.lock_name()), tell.clone());
        proxies.push(proxy);
        tokio::spawn(async move {
            let options = any().with_priority(priority);
            let permit = lock.acquire(&options).await.unwrap();
            tell.send((priority, permit)).unwrap();
        });
    }
    eventually("all wait", async || waiting().await == Some(4)).await;
    for proxy in &proxies {
        settled(proxy, &place).await;
    }
    for expected in [9, 5, 1, 0] {
        permit.release().await.unwrap();
        let next = tokio::time::timeout(SOON, acquired.recv()).await;
        let (priority, next) = next.expect("a waiter is woken").unwrap();
        assert_eq!(priority, expected);
        permit = next;
    }
    permit.release().await.unwrap();
    eventually("no client waits", async || waiting().await == Some(0)).await;
}

async fn a_closed_lock_is_waited_for_until_it_has_a_slot(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    let (_connection, channel) = place.channel().await;
    wait_queue(&channel).await;
    let waiter = |place: &TestLock| {
        let lock = lock(place);
        tokio::spawn(async move { lock.acquire(&any()).await })
    };
    let first = waiter(&place);
    eventually("it waits", async || waiting(&channel).await == 1).await;
    resize(&place, 1).await;
    wake(&channel).await;
    let permit = tokio::time::timeout(SOON, first).await.expect("it is woken");
    permit.unwrap().unwrap().release().await.unwrap();

    resize(&place, 0).await;
    wait_queue(&channel).await;
    let second = waiter(&place);
    eventually("it waits", async || waiting(&channel).await == 1).await;
    let queue = name().wait_queue().unwrap().as_str().into();
    channel.queue_delete(queue, QueueDeleteOptions::default()).await.unwrap();
    // One that finds neither slots nor a wait queue does not wait.
    let error = lock(&place).acquire(&any()).await.unwrap_err();
    assert!(matches!(error, AcquireError::Missing { .. }), "{error}");
    resize(&place, 1).await;
    let permit = tokio::time::timeout(SOON, second).await.expect("it finds the new slot");
    permit.unwrap().unwrap().release().await.unwrap();
}

async fn a_waiter_asks_the_broker_little_and_is_woken_by_a_release(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let administrator = broker(&place);
    let waiting = async || administrator.waiting(&place.lock_name()).await.unwrap();
    let holder = lock(&place);
    let proxy = Proxy::start().await;
    // Long heartbeats, because they are counted as well.
    let slow = quick().with_heartbeat(Duration::from_secs(60));
    let waiter = Client::new(proxy.settings(place.settings()), slow).semaphore(place.lock_name());
    let mut took = Vec::new();
    let (_, suffix) = taking(protocol);
    // Its first probes, which show that the slot is still held.
    let is_probe = |method: &Method| {
        method.queue.ends_with(suffix)
            || ["channel.open", "confirm.select"].contains(&method.name.as_str())
    };
    // A waiter for a token is silent.
    let most = if matches!(protocol, Protocol::Token(_)) { 0 } else { 10 };
    for _ in 0..5 {
        let permit = holder.acquire(&any()).await.unwrap();
        proxy.reset();
        let waits = tokio::spawn({
            let waiter = waiter.clone();
            async move {
                let permit = waiter.acquire(&any()).await.unwrap();
                (Instant::now(), permit)
            }
        });
        eventually("it waits", async || waiting().await == Some(1)).await;
        settled(&proxy, &place).await;
        proxy.reset();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let sent = proxy.methods();
        assert!(sent.iter().all(is_probe) && sent.len() <= most, "{sent:?}");
        let released = Instant::now();
        permit.release().await.unwrap();
        let (acquired, permit) = waits.await.unwrap();
        took.push(acquired.duration_since(released));
        assert!(proxy.count("basic.deliver") > 0, "the broker has woken it");
        permit.release().await.unwrap();
    }
    took.sort();
    println!("from the call of release to the next one's permit: {took:?}");
    // Without a wake-up, a waiter probes twice, 0.6 s apart at least.
    assert!(took[2] < Duration::from_secs(1), "{took:?}");
}

async fn a_wake_up_that_its_waiter_does_not_use_wakes_the_next_one(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let (_connection, channel) = place.channel().await;
    wait_queue(&channel).await;
    let permit = lock(&place).acquire(&any()).await.unwrap();
    // A foreign waiter with the highest priority that receives the wake-up and fails.
    let (foreign, deaf) = place.channel().await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-priority".into(), AMQPValue::LongInt(255));
    let queue = name().wait_queue().unwrap().as_str().into();
    let options = lapin::options::BasicConsumeOptions::default();
    let _consumer = deaf.basic_consume(queue, "deaf".into(), options, arguments).await.unwrap();
    let waiter = lock(&place);
    let waiter = tokio::spawn(async move { waiter.acquire(&any()).await });
    eventually("both wait", async || waiting(&channel).await == 2).await;
    permit.release().await.unwrap();
    foreign.close(200, "gone".into()).await.unwrap();
    let next = tokio::time::timeout(SOON, waiter).await.expect("it is woken");
    assert_eq!(next.unwrap().unwrap().slot(), Some(1));
}

/// The wake-up for it may have gone to a suspended waiter.
async fn a_waiter_finds_a_new_slot_without_being_woken(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let _permit = lock(&place).acquire(&any()).await.unwrap();
    let proxy = Proxy::start().await;
    let waiter = Client::new(proxy.settings(place.settings()), quick());
    let waiter = waiter.semaphore(place.lock_name());
    let acquiring = tokio::spawn(async move { waiter.acquire(&any()).await.unwrap() });
    eventually("it waits", async || {
        broker(&place).waiting(&place.lock_name()).await.unwrap() == Some(1)
    })
    .await;
    settled(&proxy, &place).await;
    proxy.reset();
    let consumers = protocol == Protocol::ExclusiveConsumer;
    let holder = if consumers { "ci.deploy-1-C" } else { "ci.deploy-1-B" };
    let asked = || proxy.methods().into_iter().map(|sent| sent.queue).collect::<Vec<_>>();
    let asks = |queue: &str| asked().iter().filter(|asked| *asked == queue).count();
    eventually("it looks for a new slot", async || asks("ci.deploy-2-A") > 0).await;
    // Its first probes ask only for the known slot.
    assert!(asked().iter().all(|queue| [holder, "ci.deploy-2-A"].contains(&queue.as_str())));
    assert!((2..=10).contains(&asks(holder)), "{:?}", asked());
    let slot =
        json!({"durable": true, "arguments": {"x-max-length": 0, "x-queue-type": "classic"}});
    if consumers {
        place.declare("ci.deploy-2-C", slot.clone()).await;
    }
    place.declare("ci.deploy-2-A", slot).await;
    let permit = tokio::time::timeout(SOON, acquiring).await.expect("it finds it").unwrap();
    assert_eq!(permit.slot(), Some(2));
    assert_eq!(proxy.count("basic.deliver"), 0);
}
