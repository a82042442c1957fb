//! The methods that the client sends, and the effects of late or lost frames on a lock.

use std::time::Duration;

use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lockkeeper_plan::naming::Protocol;
use lockkeeper_plan::semaphore::{DesiredSlots, sweep_to};
use lockkeeper_semaphore::{
    AcquireError, AcquireOptions, Broker, BrokerError, BrokerOptions, Client, ClientOptions, Lock,
    Start, Verdict,
};
use lockkeeper_testkit::protocols::{At, TestLock, with_protocols};
use lockkeeper_testkit::proxy::{Awaited, Method, Proxy, Sender, When, nth};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::client::{any, held, lock, name, resize};

with_protocols! {
    every {
        a_release_whose_answer_is_lost_frees_the_slot_by_ending_its_connection,
        a_connection_cut_at_any_method_of_a_cycle_leaves_no_slot_taken,
    }
    slots {
        an_uncontended_acquire_sends_five_methods_at_most_and_opens_nothing,
        a_lost_race_costs_one_channel_and_no_connection,
        an_attempt_ends_after_as_many_lost_races_as_allowed,
        a_slot_removed_while_its_holder_queue_is_on_its_way_is_not_acquired,
    }
    mutex {
        a_release_whose_answer_is_lost_frees_the_slot_by_ending_its_connection,
    }
}

/// Longer than any answer takes that is not held back.
pub(super) const LONG: Duration = Duration::from_secs(15);

/// Returns the lock over the proxy, without background activity.
pub(super) fn through(proxy: &Proxy, place: &TestLock, operation_timeout: Duration) -> Lock {
    let quiet = Duration::from_mins(10);
    let options = ClientOptions::default()
        .with_heartbeat(quiet)
        .with_verify_interval(quiet)
        .with_operation_timeout(operation_timeout)
        .with_warm(0);
    Client::new(proxy.settings(place.settings()), options).semaphore(place.lock_name())
}

/// Returns the same after one acquisition: connected, with open channels.
async fn warm(proxy: &Proxy, place: &TestLock, operation_timeout: Duration) -> Lock {
    let lock = through(proxy, place, operation_timeout);
    let permit = lock.try_acquire(&any()).await.unwrap();
    assert_eq!(permit.verify().await, Ok(Verdict::Held));
    permit.release().await.unwrap();
    proxy.reset();
    lock
}

fn first() -> AcquireOptions {
    any().with_start(Start::First)
}

fn sent(proxy: &Proxy) -> Vec<String> {
    proxy.methods().into_iter().map(|method| method.name).collect()
}

/// Returns the method that acquires the first slot, and the suffix of the queue's name.
pub(super) fn taking(protocol: Protocol) -> (&'static str, &'static str) {
    match protocol {
        Protocol::ExclusiveQueue(_) => ("queue.declare", "-1-B"),
        Protocol::ExclusiveConsumer => ("basic.consume", "-1-C"),
        Protocol::Token(_) => ("basic.get", ".semaphore"),
        Protocol::TrueMutex => ("queue.declare", "ci.deploy"),
    }
}

/// Returns the method that releases it. Some of these name no queue.
pub(super) fn giving_back(protocol: Protocol) -> (&'static str, &'static str) {
    match protocol {
        Protocol::ExclusiveQueue(_) => ("queue.delete", "-1-B"),
        Protocol::ExclusiveConsumer => ("basic.cancel", ""),
        Protocol::Token(_) => ("basic.reject", ""),
        Protocol::TrueMutex => ("queue.delete", "ci.deploy"),
    }
}

/// Matches a method that a client sends about a queue with this suffix.
pub(super) fn about((name, suffix): (&'static str, &'static str)) -> impl Awaited {
    move |method: &Method| {
        method.sender == Sender::Client && method.name == name && method.queue.ends_with(suffix)
    }
}

async fn an_uncontended_acquire_sends_five_methods_at_most_and_opens_nothing(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 3).await;
    let proxy = Proxy::start().await;
    let lock = warm(&proxy, &place, LONG).await;
    for (options, most) in [(any(), 4), (first(), 5)] {
        proxy.reset();
        let permit = lock.acquire(&options).await.unwrap();
        let acquiring = sent(&proxy);
        assert!(acquiring.len() <= most, "{acquiring:?}");
        assert!(acquiring.iter().any(|name| name == taking(protocol).0), "{acquiring:?}");
        proxy.reset();
        assert_eq!(permit.verify().await, Ok(Verdict::Held));
        assert_eq!(sent(&proxy), ["queue.declare(passive)"; 2]);
        proxy.reset();
        permit.release().await.unwrap();
        // The other method wakes waiters.
        let mut releasing = sent(&proxy);
        releasing.sort();
        assert_eq!(releasing.iter().filter(|name| *name == giving_back(protocol).0).count(), 1);
        assert!(releasing.len() <= 2, "{releasing:?}");
        assert_eq!(proxy.connections_opened(), 0);
        assert_eq!(proxy.count("channel.open") + proxy.count("channel.close"), 0);
    }
}

/// Hazard A7.
async fn a_lost_race_costs_one_channel_and_no_connection(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 2).await;
    let proxy = Proxy::start().await;
    let lock = warm(&proxy, &place, LONG).await;
    let late = proxy.hold_at(When::Before, about(taking(protocol)));
    let racing = lock.clone();
    let acquiring = tokio::spawn(async move { racing.try_acquire(&first()).await });
    late.wait().await;
    let faster = crate::client::lock(&place).try_acquire(&first()).await.unwrap();
    assert_eq!(faster.slot(), Some(1));
    proxy.resume();
    let permit = acquiring.await.unwrap().unwrap();
    assert_eq!(permit.slot(), Some(2));
    // After a second, it looks for records again. That may end a channel of its other connection.
    let seen = proxy.seen();
    let mut is_claim = about(taking(protocol));
    let claiming = seen.iter().find(|method| is_claim(method)).unwrap().connection;
    let closed =
        |method: &&Method| (method.connection, method.name.as_str()) == (claiming, "channel.close");
    assert_eq!((proxy.connections_opened(), seen.iter().filter(closed).count()), (0, 1));
    assert_eq!(faster.verify().await, Ok(Verdict::Held));
}

/// Each time, another client takes the slot while the claim is on its way.
async fn an_attempt_ends_after_as_many_lost_races_as_allowed(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    let (method, suffix) = taking(protocol);
    let second = if suffix.ends_with('B') { "-2-B" } else { "-2-C" };
    for races in 1..=2 {
        resize(&place, 2).await;
        let proxy = Proxy::start().await;
        let slow = warm(&proxy, &place, LONG).await;
        let mut claims = [suffix, second]
            .map(|suffix| proxy.hold_at(When::Before, about((method, suffix))))
            .into_iter();
        let options = first().with_max_races(races);
        let acquiring = tokio::spawn(async move { slow.try_acquire(&options).await });
        let mut faster = Vec::new();
        for slot in 1..=races {
            claims.next().unwrap().wait().await;
            let permit = crate::client::lock(&place).try_acquire(&first()).await.unwrap();
            assert_eq!(permit.slot(), Some(slot));
            faster.push(permit);
            proxy.resume();
        }
        let error = acquiring.await.unwrap().unwrap_err();
        assert_eq!(error, AcquireError::Contended { lock: place.lock_name().to_string() });
        assert_eq!(held(&place).await, (1..=races).collect::<Vec<_>>());
        for permit in faster {
            permit.release().await.unwrap();
        }
    }
}

/// Hazard A8.
async fn a_slot_removed_while_its_holder_queue_is_on_its_way_is_not_acquired(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    let (_connection, channel) = place.channel().await;
    for options in [any(), first()] {
        resize(&place, 1).await;
        let proxy = Proxy::start().await;
        let lock = warm(&proxy, &place, LONG).await;
        let late = proxy.hold_at(When::Before, about(taking(protocol)));
        let acquiring = tokio::spawn(async move { lock.try_acquire(&options).await });
        late.wait().await;
        let slot = place.lock_name().slot_queue(1);
        channel.queue_delete(slot.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
        proxy.resume();
        let error = acquiring.await.unwrap().unwrap_err();
        let (name, lock) = (place.lock_name(), place.lock_name().to_string());
        // Without a wait queue, a lock without slots is like one that does not exist.
        let expected = match name.wait_queue() {
            Some(_) => AcquireError::NoSlots { lock },
            None => AcquireError::Missing { lock },
        };
        assert_eq!(error, expected);
        assert_eq!(held(&place).await, Vec::<u32>::new(), "left behind");
    }
}

/// Hazard A26.
async fn a_release_whose_answer_is_lost_frees_the_slot_by_ending_its_connection(
    protocol: Protocol,
) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let proxy = Proxy::start().await;
    let lock = warm(&proxy, &place, Duration::from_secs(3)).await;
    for when in [When::Before, When::After] {
        // The connection ends with the delete, or with its answer.
        let permit = lock.try_acquire(&any()).await.unwrap();
        let cut = proxy.cut_at(when, about(giving_back(protocol)));
        permit.release().await.unwrap();
        cut.wait().await;
        eventually("the slot is free", async || held(&place).await.is_empty()).await;
    }
    // The connection stays open but silent.
    let permit = lock.try_acquire(&any()).await.unwrap();
    let (connections, silent) =
        (proxy.connections(), proxy.hold_at(When::After, about(giving_back(protocol))));
    permit.release().await.unwrap();
    silent.wait().await;
    proxy.resume();
    eventually("its connection is ended", async || proxy.connections() < connections).await;
    assert_eq!(held(&place).await, Vec::<u32>::new());
    lock.try_acquire(&any()).await.unwrap().release().await.unwrap();
}

async fn a_connection_cut_at_any_method_of_a_cycle_leaves_no_slot_taken(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 2).await;
    let (mut acquired, mut failed) = (0, 0);
    for when in [When::Before, When::After] {
        for method in 1..=8 {
            let proxy = Proxy::start().await;
            let lock = warm(&proxy, &place, LONG).await;
            drop(proxy.cut_at(when, nth(method)));
            match lock.try_acquire(&first()).await {
                Ok(permit) => {
                    acquired += 1;
                    // Whether it was lost or not, it is released.
                    let _ = permit.release().await;
                }
                Err(_) => failed += 1,
            }
            // With the client still connected, if it is.
            let what = format!("nothing stays held, cut {when:?} method {method}");
            eventually(&what, async || held(&place).await.is_empty()).await;
        }
    }
    // A token is acquired by one method, so later ones cannot fail the acquisition.
    let least = if place.slot(1).is_some() { 5 } else { 1 };
    assert!(acquired > 0 && failed > least, "{acquired} acquired, {failed} failed");
}

/// Hazard A16.
#[tokio::test(flavor = "multi_thread")]
async fn commands_sent_before_an_administrator_lost_its_mutex_do_not_take_effect_later() {
    let vhost = Vhost::create().await;
    resize(&vhost, 1).await;
    let proxy = Proxy::start().await;
    let options = BrokerOptions::default().with_operation_timeout(LONG);
    let slow = Broker::new(proxy.settings(vhost.settings()), options);
    let late = proxy.hold_at(When::Before, about(("queue.declare", "-12-A")));
    let desired = DesiredSlots::new(40);
    let growing = tokio::spawn(async move {
        slow.converge(&name(), desired, sweep_to(desired, 1), false, &CancellationToken::new())
            .await
    });
    late.wait().await;
    // The broker frees its mutex, and the next administrator sets 3 slots.
    eventually("the connection is shown", async || !vhost.connections("admin").await.is_empty())
        .await;
    for connection in vhost.connections("admin").await {
        vhost.management.close_connection(&connection, "test").await;
    }
    resize(&vhost, 3).await;
    proxy.resume();
    let error = growing.await.unwrap().unwrap_err();
    // Depending on which one it noticed first.
    assert!(
        matches!(error, BrokerError::MutexLost { .. } | BrokerError::Timeout { .. }),
        "{error}"
    );
    let there: Vec<String> =
        vhost.queues().await.into_iter().filter(|queue| queue.ends_with("-A")).collect();
    assert_eq!(there, (1..=3).map(|slot| name().slot_queue(slot)).collect::<Vec<_>>());
}

/// Hazard A12.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_queue_of_another_connection_is_no_proof_for_us() {
    let vhost = Vhost::create().await;
    resize(&vhost, 1).await;
    let permit = lock(&vhost).try_acquire(&any()).await.unwrap();
    // The queue expires under its holder. Then another client declares it, so that a
    // publish to it would still succeed.
    let policy = format!("policies/{}/gone", vhost.name);
    let definition = json!({"pattern": "-B$", "definition": {"expires": 1}, "apply-to": "queues"});
    vhost.management.put(&policy, definition).await;
    let holder = name().holder_queue(1);
    eventually("it is gone", async || vhost.queue(&holder).await.is_none()).await;
    vhost.management.delete(&policy).await;
    let (_connection, channel) = vhost.channel().await;
    let exclusive = QueueDeclareOptions::exclusive();
    channel.queue_declare(holder.as_str().into(), exclusive, FieldTable::default()).await.unwrap();
    assert_eq!(permit.verify().await, Ok(Verdict::Lost));
}
