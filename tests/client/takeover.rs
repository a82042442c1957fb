//! Taking over from a holder that died: the broker delivers the wake-up that it kept to the next
//! waiter. A proxy that is dropped ends all connections of the client behind it at once, as the
//! death of its process does. See `waiting` for releases.

use std::time::{Duration, Instant};

use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, BasicRejectOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel};
use lockkeeper_plan::naming::Protocol;
use lockkeeper_semaphore::{Client, Lock, LostReason, Permit};
use lockkeeper_testkit::environment::is_soak;
use lockkeeper_testkit::protocols::{At, TestLock, with_protocols};
use lockkeeper_testkit::proxy::{Proxy, Sender};
use lockkeeper_testkit::rabbitmq::{eventually, look, within};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::client::{SOON, any, broker, lock, quick, resize};

with_protocols! {
    slots {
        a_waiter_is_woken_when_a_holder_dies_that_had_waited,
        a_waiter_is_woken_when_a_holder_dies_that_found_the_slot_free,
        a_waiter_is_woken_when_a_holder_has_ended_after_a_loss,
        a_wake_up_of_a_dead_holder_is_tried_until_its_slot_is_free,
        a_holder_that_keeps_a_wake_up_is_no_waiter,
        no_wake_up_is_left_after_clean_releases,
        sixteen_waiters_take_over_from_each_holder_that_is_killed,
    }
    mutex {
        a_waiter_is_woken_when_a_holder_dies_that_had_waited,
    }
}

/// A client behind a proxy.
struct Party {
    proxy: Proxy,
    lock: Lock,
}

impl Party {
    async fn new(place: &TestLock) -> Self {
        let proxy = Proxy::start().await;
        let client = Client::new(proxy.settings(place.settings()), quick());
        Self { lock: client.semaphore(place.lock_name()), proxy }
    }

    /// Acquires in the background.
    fn wait(&self) -> JoinHandle<Permit> {
        let lock = self.lock.clone();
        tokio::spawn(async move { lock.acquire(&any()).await.unwrap() })
    }

    /// Number of wake-ups that the broker has delivered to it.
    fn woken(&self) -> usize {
        let seen = self.proxy.seen();
        let is_wake_up = |tag: &str| tag.starts_with("lockkeeper-");
        seen.iter()
            .filter(|method| method.name == "basic.deliver" && method.sender == Sender::Broker)
            .filter(|method| method.fields.consumer.as_deref().is_some_and(is_wake_up))
            .filter(|method| !method.queue.ends_with("-C"))
            .count()
    }

    /// Number of wake-ups that it has acknowledged.
    fn acknowledged(&self) -> usize {
        self.proxy.methods().iter().filter(|method| method.name == "basic.ack").count()
    }

    /// Whether it keeps a wake-up that it has sent itself.
    fn keeps_its_own(&self) -> bool {
        self.proxy.seen().iter().any(|method| {
            let tag = method.fields.consumer.as_deref();
            method.name == "basic.cancel-ok"
                && tag.is_some_and(|tag| tag.starts_with("lockkeeper-keeps-"))
        })
    }
}

async fn waiters(place: &TestLock) -> u32 {
    broker(place).waiting(&place.lock_name()).await.unwrap().unwrap_or(0)
}

async fn soon<T>(waiting: JoinHandle<T>) -> T {
    tokio::time::timeout(SOON, waiting).await.expect("soon").unwrap()
}

/// Messages of the wait queue that no client has.
async fn left(channel: &Channel, place: &TestLock) -> u32 {
    look(channel, &place.wait_queue()).await.message_count()
}

/// Returns a holder that was woken by a release, and a client that waits behind it.
async fn holder_and_waiter(place: &TestLock) -> (Party, Permit, Party, JoinHandle<Permit>) {
    resize(place, 1).await;
    let first = lock(place).acquire(&any()).await.unwrap();
    let (holder, waiter) = (Party::new(place).await, Party::new(place).await);
    let acquiring = holder.wait();
    eventually("the first client waits", async || waiters(place).await == 1).await;
    let waiting = waiter.wait();
    eventually("both wait", async || waiters(place).await == 2).await;
    first.release().await.unwrap();
    let permit = soon(acquiring).await;
    eventually("the holder has left", async || waiters(place).await == 1).await;
    (holder, permit, waiter, waiting)
}

async fn a_waiter_is_woken_when_a_holder_dies_that_had_waited(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    let (holder, permit, waiter, waiting) = holder_and_waiter(&place).await;
    assert_eq!(waiter.woken(), 0);
    if protocol == Protocol::TrueMutex {
        // Its first holder found no wait queue, and did not count the waiters.
        eventually("the holder keeps a wake-up", async || holder.keeps_its_own()).await;
    } else {
        assert_eq!((holder.woken(), holder.keeps_its_own()), (1, false));
    }
    drop(holder.proxy);
    let taken = soon(waiting).await;
    // No client has released the slot.
    assert!(waiter.woken() > 0);
    assert!(matches!(permit.lost().await, LostReason::ConnectionClosed { .. }));
    taken.release().await.unwrap();
}

async fn a_waiter_is_woken_when_a_holder_dies_that_found_the_slot_free(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let (holder, waiter) = (Party::new(&place).await, Party::new(&place).await);
    let permit = holder.lock.try_acquire(&any()).await.unwrap();
    let waiting = waiter.wait();
    eventually("the holder keeps a wake-up", async || holder.keeps_its_own()).await;
    assert_eq!(waiter.woken(), 0);
    drop(holder.proxy);
    let taken = soon(waiting).await;
    assert!(waiter.woken() > 0);
    drop(permit);
    taken.release().await.unwrap();
}

async fn a_waiter_is_woken_when_a_holder_has_ended_after_a_loss(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    let (holder, permit, waiter, waiting) = holder_and_waiter(&place).await;
    place.close_until("hold", "maintenance", async || !permit.is_valid()).await;
    assert!(matches!(permit.lost().await, LostReason::ConnectionClosed { .. }));
    // The work under the lock may go on until it knows of the loss.
    assert_eq!(waiter.woken(), 0);
    drop(permit);
    eventually("the waiter is woken", async || waiter.woken() > 0).await;
    soon(waiting).await.release().await.unwrap();
    drop(holder);
}

/// A wake-up that comes back to the queue may be delivered before the broker has freed the slot.
async fn a_wake_up_of_a_dead_holder_is_tried_until_its_slot_is_free(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let (_connection, channel) = place.channel().await;
    let permit = lock(&place).acquire(&any()).await.unwrap();
    // The wake-up reaches this consumer first, which gives it back.
    channel.basic_qos(1, BasicQosOptions::default()).await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-priority".into(), AMQPValue::LongInt(500));
    let queue = place.wait_queue();
    let options = BasicConsumeOptions::default();
    let tag = "dies";
    let mut consumer =
        channel.basic_consume(queue.as_str().into(), tag.into(), options, arguments).await.unwrap();
    let waiter = Party::new(&place).await;
    let waiting = waiter.wait();
    eventually("it waits", async || waiters(&place).await >= 2).await;
    waiter.proxy.reset();
    let properties = BasicProperties::default()
        .with_expiration("1800000".into())
        .with_correlation_id("1".into());
    let publish = BasicPublishOptions::default();
    channel
        .basic_publish("".into(), queue.as_str().into(), publish, &[], properties)
        .await
        .unwrap();
    let wake_up = futures::StreamExt::next(&mut consumer).await.unwrap().unwrap();
    channel.basic_cancel(tag.into(), lapin::options::BasicCancelOptions::default()).await.unwrap();
    wake_up.acker.reject(BasicRejectOptions { requeue: true }).await.unwrap();
    let refused = || waiter.proxy.count("channel.close");
    // Later it may be refused because of a search.
    within(SOON, "it has tried more than twice", async || refused() > 2).await;
    permit.release().await.unwrap();
    soon(waiting).await.release().await.unwrap();
}

async fn a_holder_that_keeps_a_wake_up_is_no_waiter(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let holder = Party::new(&place).await;
    let permit = holder.lock.try_acquire(&any()).await.unwrap();
    let waiter = Party::new(&place).await;
    let waiting = waiter.wait();
    eventually("the holder keeps a wake-up", async || holder.keeps_its_own()).await;
    assert_eq!(waiters(&place).await, 1);
    waiting.abort();
    eventually("no client waits", async || waiters(&place).await == 0).await;
    // A newcomer that counted it would join the waiters instead of taking the slot.
    permit.release().await.unwrap();
    let next = lock(&place).acquire(&any()).await.unwrap();
    next.release().await.unwrap();
}

async fn no_wake_up_is_left_after_clean_releases(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    let (_connection, channel) = place.channel().await;
    for _ in 0..5 {
        let (holder, permit, waiter, waiting) = holder_and_waiter(&place).await;
        permit.release().await.unwrap();
        soon(waiting).await.release().await.unwrap();
        for party in [&holder, &waiter] {
            eventually("it has acknowledged each wake-up", async || {
                party.acknowledged() >= party.woken()
            })
            .await;
        }
        // A wake-up that they still keep would be in the queue again.
        drop((holder, waiter));
        eventually("no client is connected", async || {
            waiters(&place).await == 0 && left(&channel, &place).await == 0
        })
        .await;
    }
}

/// Number of holders that are killed. `make soak` kills more.
fn kills() -> usize {
    if is_soak() { 200 } else { 12 }
}

/// Each holder is killed at a random moment, and its client replaced by another one, which waits
/// too. Only the first one has not waited.
async fn sixteen_waiters_take_over_from_each_holder_that_is_killed(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let (tell, mut acquired) = mpsc::unbounded_channel();
    let start = async || {
        let Party { proxy, lock } = Party::new(&place).await;
        let tell = tell.clone();
        tokio::spawn(async move {
            if let Ok(permit) = lock.acquire(&any()).await {
                let _ = tell.send((Instant::now(), proxy, permit));
            }
        });
    };
    for _ in 0..17 {
        start().await;
    }
    let mut took = Vec::new();
    let mut killed = None;
    for _ in 0..=kills() {
        let next = tokio::time::timeout(SOON, acquired.recv()).await.expect("soon");
        let (at, proxy, permit) = next.unwrap();
        took.extend(killed.map(|killed| at.saturating_duration_since(killed)));
        start().await;
        let random = Duration::from_millis(rand::random_range(0..600));
        tokio::time::sleep(random).await;
        assert!(acquired.try_recv().is_err(), "two clients hold the slot");
        assert!(permit.is_valid());
        killed = Some(Instant::now());
        drop(proxy);
    }
    took.sort_unstable();
    let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
    println!("{protocol:?}: {} kills: median {median:?}, longest {longest:?}", took.len());
    // A waiter that is not woken looks after 4 s at the earliest, behind 16 others.
    assert!(median < Duration::from_secs(2), "{took:?}");
}
