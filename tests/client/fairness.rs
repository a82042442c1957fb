//! Fairness when clients release and acquire in a loop. Measured in holds instead of
//! time: each hold lasts until another client waits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, Consumer};
use lockkeeper_plan::naming::Protocol;
use lockkeeper_semaphore::{Client, Lock, Permit};
use lockkeeper_testkit::protocols::{At, TestLock, with_protocols};
use lockkeeper_testkit::proxy::{ConnectionState, Method, Observer, Passed, Proxy, Sender, When};
use lockkeeper_testkit::rabbitmq::{eventually, look};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::client::wire::{LONG, about, taking, through};
use crate::client::{any, lock, name, quick, resize};

with_protocols! {
    every {
        a_client_that_acquires_again_waits_behind_another_waiter,
        equal_loops_get_equal_shares,
    }
    slots {
        a_newcomer_does_not_overtake_a_waiter_that_was_woken,
        a_late_wake_up_does_not_cost_the_next_waiter_its_turn,
        only_with_barge_a_client_takes_a_slot_before_the_waiters,
        a_client_takes_a_surplus_slot_without_joining_the_waiters,
        a_client_of_a_crowded_lock_joins_the_waiters_without_a_search,
    }
    mutex {
        a_client_that_acquires_again_waits_behind_another_waiter,
        equal_loops_get_equal_shares,
    }
}

/// A lock with one slot, and a channel to observe its waiters.
pub(super) struct Scene {
    pub place: TestLock,
    _connection: Connection,
    pub channel: Channel,
    /// In front of the scene's own clients.
    proxy: Proxy,
    waiters: Waiters,
    done: CancellationToken,
}

impl Scene {
    pub async fn new(protocol: Protocol) -> Arc<Self> {
        let place = TestLock::create(protocol).await;
        resize(&place, 1).await;
        let (connection, channel) = place.channel().await;
        if protocol == Protocol::TrueMutex {
            // Otherwise the first waiter declares it, and a test can't look before.
            declare_wait_queue(&channel, &place).await;
        }
        let waiters = Waiters { wait_queue: place.wait_queue(), joined: watch::Sender::default() };
        let proxy = Proxy::observed(&place.settings(), waiters.clone()).await;
        let done = CancellationToken::new();
        Arc::new(Self { place, _connection: connection, channel, proxy, waiters, done })
    }

    /// Returns the number of waiters. In protocol Token the holder may be one of them.
    pub async fn waiting(&self) -> u32 {
        look(&self.channel, &self.place.wait_queue()).await.consumer_count()
    }

    /// Holds the slot until another of the scene's clients waits, or the test ends.
    async fn hold(&self, permit: Permit) {
        tokio::select! {
            () = self.waiters.another(&permit) => {}
            () = self.done.cancelled() => {}
        }
        permit.release().await.unwrap();
    }

    /// The lock, with a separate client.
    pub fn lock(&self) -> Lock {
        let settings = self.proxy.settings(self.place.settings());
        Client::new(settings, quick()).semaphore(self.place.lock_name())
    }
}

/// The consumers of a wait queue, as seen by a proxy in front of them. The broker's count does
/// not show whether another client waits: a holder leaves the wait queue in the background, and
/// is counted until then.
#[derive(Clone)]
struct Waiters {
    wait_queue: String,
    /// By connection, channel and consumer tag. The value is whether the broker has confirmed it.
    joined: watch::Sender<BTreeMap<(usize, u16, String), bool>>,
}

impl Waiters {
    /// Resolves when the broker has confirmed another waiter than the one that got this permit.
    async fn another(&self, permit: &Permit) {
        let own = format!("lockkeeper-{}", permit.id());
        let mut joined = self.joined.subscribe();
        let another =
            joined.wait_for(|joined| joined.iter().any(|(at, waits)| *waits && at.2 != own));
        another.await.unwrap();
    }
}

impl Observer for Waiters {
    fn method(&self, method: &Method) {
        let Some(tag) = method.fields.consumer.clone() else { return };
        let at = (method.connection, method.channel, tag);
        self.joined.send_modify(|joined| match (method.sender, method.name.as_str()) {
            (Sender::Client, "basic.consume") if method.queue == self.wait_queue => {
                joined.insert(at, false);
            }
            (Sender::Broker, "basic.consume-ok") => {
                joined.entry(at).and_modify(|waits| *waits = true);
            }
            (Sender::Client, "basic.cancel") => {
                joined.remove(&at);
            }
            _ => {}
        });
    }

    fn connection(&self, number: usize, state: ConnectionState) {
        if state != ConnectionState::Opened {
            self.joined.send_modify(|joined| joined.retain(|at, _| at.0 != number));
        }
    }

    fn frame(&self, _: Passed) {}
}

/// Declares the wait queue of a true mutex.
async fn declare_wait_queue(channel: &Channel, place: &TestLock) {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
    arguments.insert("x-expires".into(), AMQPValue::LongInt(10_000));
    let queue = place.lock_name().wait_queue().unwrap().as_str().into();
    channel.queue_declare(queue, QueueDeclareOptions::durable(), arguments).await.unwrap();
}

async fn a_client_that_acquires_again_waits_behind_another_waiter(protocol: Protocol) {
    let shared = Scene::new(protocol).await;
    let one = shared.lock();
    take_turns(&shared, one.clone(), one).await;
    let apart = Scene::new(protocol).await;
    take_turns(&apart, apart.lock(), apart.lock()).await;
}

/// Two loops with priorities 0 and 255: the second waits for at most 2 holds, 100 times.
async fn take_turns(scene: &Arc<Scene>, low: Lock, high: Lock) {
    let holds = Arc::new(AtomicUsize::new(0));
    let first = tokio::spawn({
        let (scene, holds) = (Arc::clone(scene), Arc::clone(&holds));
        async move {
            while !scene.done.is_cancelled() {
                let permit = low.acquire(&any()).await.unwrap();
                holds.fetch_add(1, Ordering::SeqCst);
                scene.hold(permit).await;
            }
        }
    });
    let options = any().with_priority(255);
    for turn in 0..100 {
        let before = holds.load(Ordering::SeqCst);
        let permit = high.acquire(&options).await.unwrap();
        let waited = holds.load(Ordering::SeqCst) - before;
        // The first time, it connects before it can wait.
        assert!(waited <= 2 || turn == 0, "turn {turn} waited for {waited} holds");
        scene.hold(permit).await;
    }
    scene.done.cancel();
    first.await.unwrap();
}

async fn equal_loops_get_equal_shares(protocol: Protocol) {
    const HOLDS: usize = 400;
    let scene = Scene::new(protocol).await;
    let in_one_process = scene.lock();
    let total = Arc::new(AtomicUsize::new(0));
    let loops = (0..8).map(|n| {
        // Half of them share one process.
        let lock = if n % 2 == 0 { in_one_process.clone() } else { scene.lock() };
        let (scene, total) = (Arc::clone(&scene), Arc::clone(&total));
        tokio::spawn(async move {
            let mut share = 0;
            while !scene.done.is_cancelled() {
                let permit = lock.acquire(&any()).await.unwrap();
                share += 1;
                if total.fetch_add(1, Ordering::SeqCst) + 1 >= HOLDS {
                    scene.done.cancel();
                }
                scene.hold(permit).await;
            }
            share
        })
    });
    let shares = futures::future::join_all(loops.collect::<Vec<_>>()).await;
    let shares: Vec<usize> = shares.into_iter().map(Result::unwrap).collect();
    let (smallest, largest) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
    assert!(smallest * 2 >= *largest, "{shares:?}");
}

async fn a_newcomer_does_not_overtake_a_waiter_that_was_woken(protocol: Protocol) {
    let scene = Scene::new(protocol).await;
    let permit = scene.lock().acquire(&any()).await.unwrap();
    let proxy = Proxy::start().await;
    let woken = through(&proxy, &scene.place, LONG);
    let on_its_way = proxy.hold_at(When::Before, about(taking(protocol)));
    let woken = tokio::spawn(async move { woken.acquire(&any()).await.unwrap() });
    eventually("it waits", async || scene.waiting().await == 1).await;
    permit.release().await.unwrap();
    on_its_way.wait().await;
    // The slot is free, but a waiter was already notified.
    let newcomer = scene.lock();
    let newcomer = tokio::spawn(async move { newcomer.acquire(&any()).await.unwrap() });
    eventually("the newcomer waits as well", async || scene.waiting().await == 2).await;
    proxy.resume();
    let woken = tokio::time::timeout(Duration::from_secs(30), woken).await;
    let permit = woken.expect("the newcomer has overtaken it").unwrap();
    assert!(!newcomer.is_finished());
    permit.release().await.unwrap();
    newcomer.await.unwrap().release().await.unwrap();
}

/// A waiter that finds the slot itself misses the wake-up that is just being published for
/// it. The next waiter gets that one, and tries in vain while the slot is released.
async fn a_late_wake_up_does_not_cost_the_next_waiter_its_turn(protocol: Protocol) {
    let scene = Scene::new(protocol).await;
    let permit = scene.lock().acquire(&any()).await.unwrap();
    let proxy = Proxy::start().await;
    let next = through(&proxy, &scene.place, LONG);
    let in_vain = proxy.hold_at(When::Before, about(taking(protocol)));
    let next = tokio::spawn(async move { next.acquire(&any()).await.unwrap() });
    eventually("it waits", async || scene.waiting().await == 1).await;
    let queue = scene.place.lock_name().wait_queue().unwrap();
    let late = BasicProperties::default().with_correlation_id("1".into());
    let options = BasicPublishOptions::default();
    scene.channel.basic_publish("".into(), queue.into(), options, &[], late).await.unwrap();
    in_vain.wait().await;
    permit.release().await.unwrap();
    let newcomer = scene.lock();
    let newcomer = tokio::spawn(async move { newcomer.acquire(&any()).await.unwrap() });
    eventually("the newcomer waits as well", async || scene.waiting().await == 2).await;
    proxy.resume();
    let next = tokio::time::timeout(Duration::from_secs(30), next).await;
    let permit = next.expect("the newcomer got its wake-up").unwrap();
    assert!(!newcomer.is_finished());
    permit.release().await.unwrap();
    newcomer.await.unwrap().release().await.unwrap();
}

/// Returns a waiter whose process is suspended.
pub(super) async fn deaf_waiter(
    place: &TestLock,
    priority: i32,
) -> (Connection, Channel, Consumer) {
    let (connection, channel) = place.channel().await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-priority".into(), AMQPValue::LongInt(priority));
    let queue = name().wait_queue().unwrap().as_str().into();
    let options = BasicConsumeOptions::default();
    channel.basic_qos(2, BasicQosOptions::default()).await.unwrap();
    let consumer = channel.basic_consume(queue, "deaf".into(), options, arguments).await.unwrap();
    (connection, channel, consumer)
}

/// Returns how many of these methods the clients sent about queues with this suffix.
pub(super) fn sent(proxy: &Proxy, name: &str, suffix: &str) -> usize {
    let counts = |method: &&Method| method.name == name && method.queue.ends_with(suffix);
    proxy.methods().iter().filter(counts).count()
}

async fn only_with_barge_a_client_takes_a_slot_before_the_waiters(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let _deaf = deaf_waiter(&place, 255).await;
    let proxy = Proxy::start().await;
    let lock_ = through(&proxy, &place, LONG);
    let has_joined = || {
        let joined = sent(&proxy, "basic.consume", "-W") > 0;
        proxy.reset();
        joined
    };
    let barging = any().with_barge(true);
    lock_.acquire(&barging).await.unwrap().release().await.unwrap();
    assert!(!has_joined());
    lock_.try_acquire(&any()).await.unwrap().release().await.unwrap();
    assert!(!has_joined());
    // The wake-ups of the releases went to the suspended waiter. Others soon detect the
    // free slot.
    let limit = Duration::from_secs(20);
    let permit = lock_.acquire_timeout(&any(), limit).await.unwrap();
    assert!(has_joined());
    permit.release().await.unwrap();
    // So does a client that does not observe the waiters.
    lock(&place).acquire_timeout(&any(), limit).await.unwrap().release().await.unwrap();
}

/// If each client that looks joined the waiters, the next ones would find waiters, and
/// many clients would keep each other busy although there are slots for all.
async fn a_client_takes_a_surplus_slot_without_joining_the_waiters(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 4).await;
    let _deaf = deaf_waiter(&place, 255).await;
    let proxy = Proxy::start().await;
    let client = through(&proxy, &place, LONG);
    for _ in 0..5 {
        let permits =
            [client.acquire(&any()).await.unwrap(), client.acquire(&any()).await.unwrap()];
        for permit in permits {
            permit.release().await.unwrap();
        }
    }
    assert_eq!(sent(&proxy, "basic.consume", "-W"), 0);
}

/// A search costs two messages per slot, and the broker's statistics of them slow down
/// each release.
async fn a_client_of_a_crowded_lock_joins_the_waiters_without_a_search(protocol: Protocol) {
    const TURNS: usize = 20;
    let scene = Scene::new(protocol).await;
    // Never woken while another client waits.
    let _deaf = deaf_waiter(&scene.place, -1).await;
    let proxy = Proxy::start().await;
    let clients = [through(&proxy, &scene.place, LONG), through(&proxy, &scene.place, LONG)];
    let mut permit = clients[0].try_acquire(&any()).await.unwrap();
    for turn in 1..=TURNS {
        let next = clients[turn % 2].clone();
        let next = tokio::spawn(async move { next.acquire(&any()).await.unwrap() });
        eventually("it waits", async || scene.waiting().await == 2).await;
        permit.release().await.unwrap();
        permit = next.await.unwrap();
    }
    permit.release().await.unwrap();
    let probes = sent(&proxy, "basic.publish", "-1-A");
    assert!(probes < TURNS, "{probes} probes of the slot in {TURNS} acquisitions");
}
