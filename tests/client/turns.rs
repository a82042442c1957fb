//! How a waiting client takes its turn: it takes its slot, leaves the waiters, and wakes the next
//! one; and when a client stops competing for slots and joins them. See `fairness` for the order
//! among clients.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use lapin::BasicProperties;
use lapin::options::BasicPublishOptions;
use lockkeeper_plan::naming::{LockName, Protocol};
use lockkeeper_semaphore::{Lock, Permit, Start};
use lockkeeper_testkit::protocols::{At, TestLock, with_protocols};
use lockkeeper_testkit::proxy::{Method, Proxy, Sender, When, named};
use lockkeeper_testkit::rabbitmq::eventually;

use crate::client::fairness::{Scene, deaf_waiter, sent};
use crate::client::wire::{LONG, about, giving_back, taking, through};
use crate::client::{any, lock, resize};

with_protocols! {
    slots {
        a_client_that_waits_again_opens_no_channel_for_that,
        of_clients_that_join_an_unused_wait_queue_together_the_first_takes_the_slot,
        a_client_that_waited_alone_does_not_take_itself_for_another_waiter,
        an_acquire_returns_before_it_has_left_the_waiters_and_its_release_waits_for_that,
        a_wake_up_that_comes_after_the_slot_was_taken_goes_to_the_next_waiter,
        a_client_that_loses_races_for_few_slots_joins_the_waiters,
        after_a_lost_race_one_free_slot_among_twenty_is_enough,
    }
    mutex {
        a_client_that_waits_again_opens_no_channel_for_that,
        of_clients_that_join_an_unused_wait_queue_together_the_first_takes_the_slot,
        a_client_that_waited_alone_does_not_take_itself_for_another_waiter,
        an_acquire_returns_before_it_has_left_the_waiters_and_its_release_waits_for_that,
        a_wake_up_that_comes_after_the_slot_was_taken_goes_to_the_next_waiter,
    }
}

/// No answer is late enough for this limit.
const NEVER: Duration = Duration::from_mins(10);

/// Limit for events that nothing delays.
const SOON: Duration = Duration::from_secs(60);

/// Acquires with this client while another one holds the only slot, and releases that one.
async fn wait_in(scene: &Arc<Scene>, client: &Lock) {
    let permit = scene.lock().acquire(&any()).await.unwrap();
    let next = client.clone();
    let next = tokio::spawn(async move { next.acquire(&any()).await.unwrap() });
    eventually("it waits", async || scene.waiting().await == 1).await;
    permit.release().await.unwrap();
    next.await.unwrap().release().await.unwrap();
}

/// Whether the queue is the slot's, or its holder's.
fn is_of(lock: &LockName, slot: u32, queue: &str) -> bool {
    [lock.slot_queue(slot), lock.holder_queue(slot)].iter().any(|name| name == queue)
}

fn joins(method: &Method) -> bool {
    method.name == "basic.consume" && method.queue.ends_with("-W")
}

/// On a slow machine, another request may have used up the channel before some of the joins.
async fn a_client_that_waits_again_opens_no_channel_for_that(protocol: Protocol) {
    let scene = Scene::new(protocol).await;
    let proxy = Proxy::start().await;
    let client = through(&proxy, &scene.place, LONG);
    for _ in 0..5 {
        wait_in(&scene, &client).await;
    }
    let methods = proxy.methods();
    let joined: Vec<usize> = (0..methods.len()).filter(|at| joins(&methods[*at])).collect();
    let reuses = |pair: &[usize]| {
        let next = &methods[pair[1]];
        let opens = |method: &Method| {
            method.name == "channel.open"
                && (method.connection, method.channel) == (next.connection, next.channel)
        };
        !methods[pair[0]..pair[1]].iter().any(opens)
    };
    assert!(joined.windows(2).any(reuses), "{methods:?}");
}

/// If each of them saw the others, all would wait for a wake-up that none sends.
async fn of_clients_that_join_an_unused_wait_queue_together_the_first_takes_the_slot(
    protocol: Protocol,
) {
    let scene = Scene::new(protocol).await;
    let proxy = Proxy::start().await;
    let client = through(&proxy, &scene.place, NEVER);
    let permit = scene.lock().acquire(&any()).await.unwrap();
    let joining = proxy.hold_at(When::Before, joins);
    let first = tokio::spawn(async move { client.acquire(&any()).await.unwrap() });
    joining.wait().await;
    permit.release().await.unwrap();
    let _deaf = deaf_waiter(&scene.place, -1).await;
    proxy.reset();
    proxy.resume();
    let permit = tokio::time::timeout(SOON, first).await.expect("it has the slot").unwrap();
    // It looked once. A client that waits in vain looks twice before it takes a slot.
    let seen = proxy.seen();
    let lock_name = scene.place.lock_name();
    let looks = |method: &&Method| {
        let is_of_slot = is_of(&lock_name, 1, &method.queue)
            || protocol == Protocol::TrueMutex && method.queue == lock_name.as_str();
        method.sender == Sender::Client && is_of_slot
    };
    let look = seen.iter().find(looks).unwrap();
    let same = |method: &&Method| (&method.name, &method.queue) == (&look.name, &look.queue);
    assert_eq!(seen.iter().filter(looks).filter(same).count(), 1, "{seen:?}");
    permit.release().await.unwrap();
}

/// Its release does not ask for waiters, because it has not left them yet. A lone client that
/// believed in others would search and join for each of its acquisitions.
async fn a_client_that_waited_alone_does_not_take_itself_for_another_waiter(protocol: Protocol) {
    let scene = Scene::new(protocol).await;
    let proxy = Proxy::start().await;
    let client = through(&proxy, &scene.place, NEVER);
    let permit = scene.lock().acquire(&any()).await.unwrap();
    let leaving = proxy.hold_at(When::Before, named("basic.cancel"));
    let waiter = client.clone();
    let waiter = tokio::spawn(async move { waiter.acquire(&any()).await.unwrap() });
    eventually("it waits", async || scene.waiting().await == 1).await;
    permit.release().await.unwrap();
    leaving.wait().await;
    let released = tokio::spawn(waiter.await.unwrap().release());
    let side = proxy.seen().into_iter().find(joins).unwrap().connection;
    eventually("it gives the slot back", async || {
        let mut gives_back = about(giving_back(protocol));
        proxy.seen().iter().any(|method| method.connection != side && gives_back(method))
    })
    .await;
    proxy.resume();
    released.await.unwrap().unwrap();
    proxy.reset();
    client.acquire(&any()).await.unwrap().release().await.unwrap();
    assert_eq!(proxy.seen().into_iter().find(joins), None);
}

/// The next client to be woken would be this one.
async fn an_acquire_returns_before_it_has_left_the_waiters_and_its_release_waits_for_that(
    protocol: Protocol,
) {
    let scene = Scene::new(protocol).await;
    let proxy = Proxy::start().await;
    let client = through(&proxy, &scene.place, NEVER);
    // Afterwards it has a channel for the wake-up, and opens none.
    for _ in 0..2 {
        wait_in(&scene, &client).await;
    }
    proxy.reset();
    let permit = scene.lock().acquire(&any()).await.unwrap();
    let leaving = proxy.hold_at(When::Before, named("basic.cancel"));
    let waiter = tokio::spawn(async move { client.acquire(&any()).await.unwrap() });
    eventually("it waits", async || scene.waiting().await == 1).await;
    permit.release().await.unwrap();
    leaving.wait().await;
    let permit = tokio::time::timeout(SOON, waiter).await.expect("it has its slot").unwrap();
    let released = tokio::spawn(permit.release());
    let next = scene.lock();
    let next = tokio::spawn(async move { next.acquire(&any()).await.unwrap() });
    eventually("the next one has the slot, or waits", async || {
        next.is_finished() || scene.waiting().await == 2
    })
    .await;
    proxy.resume();
    released.await.unwrap().unwrap();
    next.await.unwrap().release().await.unwrap();

    let seen = proxy.seen();
    // The last wake-up of the turns before may have passed later than the count was reset.
    let joined = seen.iter().position(joins).unwrap();
    let side = seen[joined].connection;
    let left = seen
        .iter()
        .position(|method| method.connection == side && method.name == "basic.cancel-ok")
        .unwrap();
    let wakes = |method: &&Method| method.name == "basic.publish" && method.queue.ends_with("-W");
    assert_eq!(seen[joined..left].iter().find(wakes), None);
    assert_ne!(seen[left..].iter().find(wakes), None, "{seen:?}");
}

async fn a_wake_up_that_comes_after_the_slot_was_taken_goes_to_the_next_waiter(protocol: Protocol) {
    let scene = Scene::new(protocol).await;
    let proxy = Proxy::start().await;
    let client = through(&proxy, &scene.place, NEVER);
    let permit = scene.lock().acquire(&any()).await.unwrap();
    let leaving = proxy.hold_at(When::Before, named("basic.cancel"));
    let waiter = tokio::spawn(async move { client.acquire(&any()).await.unwrap() });
    eventually("it waits", async || scene.waiting().await == 1).await;
    // Gets the wake-ups that the waiter, whose priority is higher, passes on.
    let (_connection, _channel, mut next) = deaf_waiter(&scene.place, -1).await;
    permit.release().await.unwrap();
    leaving.wait().await;
    let wait_queue = scene.place.lock_name().wait_queue().unwrap();
    let (options, late) = (BasicPublishOptions::default(), BasicProperties::default());
    scene.channel.basic_publish("".into(), wait_queue.into(), options, &[], late).await.unwrap();
    let delivered =
        |method: &&Method| method.sender == Sender::Broker && method.name == "basic.deliver";
    // On the same channel, so the broker has delivered it.
    assert_eq!(scene.waiting().await, 2);
    proxy.resume();
    let passed_on = tokio::time::timeout(SOON, next.next()).await.expect("it gets the wake-up");
    assert!(passed_on.unwrap().unwrap().redelivered);
    assert_eq!(proxy.seen().iter().filter(delivered).count(), 2);
    waiter.await.unwrap().release().await.unwrap();
}

/// Many clients that begin together on a few slots would lose race after race, each at the cost
/// of a search and a channel.
async fn a_client_that_loses_races_for_few_slots_joins_the_waiters(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 4).await;
    let proxy = Proxy::start().await;
    let client = through(&proxy, &place, LONG);
    let (name, first) = taking(protocol);
    let any_slot = first.strip_prefix("-1").unwrap();
    let lock_name = place.lock_name();
    let mut claim = proxy.hold_at(When::Before, about((name, first)));
    let from_first = any().with_start(Start::First);
    let acquiring = tokio::spawn(async move { client.acquire(&from_first).await.unwrap() });
    let mut faster: Vec<Permit> = Vec::new();
    for _ in 0..3 {
        claim.wait().await;
        let claimed = proxy.methods().into_iter().rfind(|method| method.name == name);
        let claimed = claimed.unwrap().queue;
        let slot = (1..=4).find(|slot| is_of(&lock_name, *slot, &claimed));
        let slot = slot.unwrap_or_else(|| panic!("{claimed} is no slot's"));
        faster.push(lock(&place).try_acquire(&any().with_start(Start::At(slot))).await.unwrap());
        claim = proxy.hold_at(When::Before, move |method: &Method| {
            method.name == name && method.queue.ends_with(any_slot) && method.queue != claimed
        });
        proxy.resume();
    }
    // It found two free slots after two lost races. One of them is still free.
    claim.wait().await;
    assert_eq!(sent(&proxy, "basic.consume", "-W"), 1);
    proxy.resume();
    let permit = acquiring.await.unwrap();
    assert!(faster.iter().all(|faster| faster.slot() != permit.slot()), "{permit:?}");
    permit.release().await.unwrap();
}

/// Most slots are held by others. A search for more free slots would go through all of them.
async fn after_a_lost_race_one_free_slot_among_twenty_is_enough(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 30).await;
    let proxy = Proxy::start().await;
    let client = through(&proxy, &place, LONG);
    let permit = client.acquire(&any()).await.unwrap();
    assert_eq!(permit.slot(), Some(1));
    permit.release().await.unwrap();
    let faster = lock(&place);
    let mut held = Vec::new();
    for slot in 1..=20 {
        held.push(faster.try_acquire(&any().with_start(Start::At(slot))).await.unwrap());
    }
    proxy.reset();
    let permit = client.acquire(&any()).await.unwrap();
    assert_eq!(permit.slot(), Some(21));
    let (lock_name, methods) = (place.lock_name(), proxy.methods());
    let touched = |slot| methods.iter().any(|method| is_of(&lock_name, slot, &method.queue));
    assert!(touched(20), "{methods:?}");
    assert!(!touched(22), "{methods:?}");
    permit.release().await.unwrap();
}
