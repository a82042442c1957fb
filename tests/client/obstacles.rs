//! What else a waiting client meets besides other holders: a server that stays silent, a
//! limit on connections, and a lock that is deleted and created again.

use std::time::{Duration, Instant};

use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_plan::naming::Protocol;
use lockkeeper_plan::semaphore::DesiredSlots;
use lockkeeper_semaphore::{AcquireError, BrokerError, Client};
use lockkeeper_testkit::protocols::{At, TestLock, with_protocols};
use lockkeeper_testkit::proxy::{Proxy, Sender, When};
use lockkeeper_testkit::rabbitmq::eventually;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::client::{SOON, any, broker, lock, quick, resize};

with_protocols! {
    every {
        a_silent_server_ends_an_acquisition_at_its_limit,
        a_broker_that_stops_answering_ends_an_acquisition_soon_after_its_limit,
        a_connection_limit_is_waited_for_until_it_passes,
        clients_at_a_connection_limit_do_not_block_each_other,
        a_deleted_lock_is_waited_for_until_it_is_created_again,
        a_lock_that_never_existed_is_not_waited_for,
    }
    slots {
        a_queue_limit_ends_an_acquisition,
    }
    mutex {
        a_silent_server_ends_an_acquisition_at_its_limit,
        a_connection_limit_is_waited_for_until_it_passes,
    }
}

/// A limit of an acquisition that is long enough for a busy machine.
const LIMIT: Duration = Duration::from_secs(5);

/// Longer than an acquisition with [`LIMIT`] takes, and shorter than the client's own time
/// limits in these tests.
const LATE: Duration = Duration::from_secs(20);

/// Limits of connecting and of operations that the limit of the acquisition must overrule.
const LONG: Duration = Duration::from_mins(2);

fn is_unreachable(error: &AcquireError) -> bool {
    matches!(error, AcquireError::Broker(BrokerError::Unreachable { .. }))
}

async fn a_silent_server_ends_an_acquisition_at_its_limit(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    // The kernel accepts connections to it, and nothing answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let settings = RabbitmqSettings { port, ..place.settings() };
    let options = quick().with_connect_timeout(LONG);
    let client = Client::new(settings.clone(), options);
    let started = Instant::now();
    let limited = client.semaphore(place.lock_name()).acquire_timeout(&any(), LIMIT).await;
    let error = limited.unwrap_err();
    assert!(is_unreachable(&error), "{error:?}");
    assert!((LIMIT..LATE).contains(&started.elapsed()), "{:?}", started.elapsed());

    // Without waiting, the limit of connecting applies.
    let client = Client::new(settings, quick().with_connect_timeout(LIMIT));
    let started = Instant::now();
    let error = client.semaphore(place.lock_name()).try_acquire(&any()).await.unwrap_err();
    assert!(is_unreachable(&error), "{error:?}");
    assert!(started.elapsed() < LATE, "{:?}", started.elapsed());
}

async fn a_broker_that_stops_answering_ends_an_acquisition_soon_after_its_limit(
    protocol: Protocol,
) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let proxy = Proxy::start().await;
    let options = quick().with_operation_timeout(LONG).with_heartbeat(Duration::from_mins(5));
    let client = Client::new(proxy.settings(place.settings()), options);
    let opens = |method: &_| is_from_client(method, "channel.open");
    let stuck = proxy.hold_at(When::Before, opens);
    let started = Instant::now();
    let limited = client.semaphore(place.lock_name()).acquire_timeout(&any(), LIMIT).await;
    assert!((LIMIT..LATE).contains(&started.elapsed()), "{:?}", started.elapsed());
    stuck.wait().await;
    let error = limited.unwrap_err();
    assert!(matches!(error, AcquireError::Unavailable { .. }), "{error:?}");
    // Nothing is held by the acquisition that was given up.
    proxy.resume();
    drop(client);
    lock(&place).acquire_timeout(&any(), SOON).await.unwrap().release().await.unwrap();
}

fn is_from_client(method: &lockkeeper_prove::wire::Method, name: &str) -> bool {
    method.sender == Sender::Client && method.name == name
}

/// Sets the maximum number of connections to the virtual host.
async fn limit_connections(place: &TestLock, most: i64) {
    let limit = format!("vhost-limits/{}/max-connections", place.vhost().name);
    place.management.put(&limit, json!({"value": most})).await;
}

async fn a_connection_limit_is_waited_for_until_it_passes(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let holder = lock(&place).try_acquire(&any()).await.unwrap();
    let proxy = Proxy::start().await;
    let client = Client::new(proxy.settings(place.settings()), quick());
    let waiter = client.semaphore(place.lock_name());
    let waiting = tokio::spawn(async move {
        waiter.acquire(&any()).await.unwrap().release().await.unwrap();
    });
    eventually("it waits", async || proxy.count("basic.consume-ok") > 0).await;
    limit_connections(&place, 0).await;
    proxy.reset();
    proxy.cut();
    // Neither a client that waits without a limit nor a new one gives up.
    let newcomer = Client::new(proxy.settings(place.settings()), quick());
    let newcomer = newcomer.semaphore(place.lock_name());
    let coming = tokio::spawn(async move {
        newcomer.acquire_timeout(&any(), LONG).await.unwrap().release().await.unwrap();
    });
    let refusals = || {
        let seen = proxy.seen();
        seen.iter().filter(|m| m.name == "connection.close" && m.sender == Sender::Broker).count()
    };
    eventually("both were refused several times", async || refusals() >= 6).await;
    assert!(!waiting.is_finished() && !coming.is_finished());
    let error = lock(&place).try_acquire(&any()).await.unwrap_err();
    assert!(matches!(error, AcquireError::Broker(BrokerError::QuotaExceeded { .. })), "{error:?}");
    let error = lock(&place).acquire_timeout(&any(), Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(error, AcquireError::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("limit"), "{error}");
    limit_connections(&place, -1).await;
    holder.release().await.unwrap();
    for acquired in [waiting, coming] {
        tokio::time::timeout(LONG, acquired).await.expect("it is acquired").unwrap();
    }
}

/// Each needs two connections. If each kept the one that it has, none would get a second.
async fn clients_at_a_connection_limit_do_not_block_each_other(protocol: Protocol) {
    const CLIENTS: usize = 4;
    let place = TestLock::create(protocol).await;
    resize(&place, 4).await;
    limit_connections(&place, 4).await;
    let acquire = || {
        let client = Client::new(place.settings(), quick());
        let lock = client.semaphore(place.lock_name());
        async move {
            lock.acquire_timeout(&any(), LONG).await.unwrap().release().await.unwrap();
            client.close().await;
        }
    };
    futures::future::join_all((0..CLIENTS).map(|_| acquire())).await;
}

async fn a_queue_limit_ends_an_acquisition(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    // A mutex needs a queue for its holder, and one for its waiters.
    let lock = Client::new(place.settings(), quick()).mutex(place.lock_name());
    let limit = format!("vhost-limits/{}/max-queues", place.vhost().name);
    place.management.put(&limit, json!({"value": 0})).await;
    let options = any();
    let ended = tokio::time::timeout(SOON, lock.acquire(&options)).await.expect("it ends");
    let error = ended.unwrap_err();
    assert!(matches!(error, AcquireError::Broker(BrokerError::QuotaExceeded { .. })), "{error:?}");
}

/// Deletes the lock, although it is held.
async fn delete(place: &TestLock) {
    if place.lock_name().has_slots() {
        let stop = CancellationToken::new();
        let lock = place.lock_name();
        broker(place).destroy(&lock, DesiredSlots::new(1), Some(1), &stop).await.unwrap();
    } else {
        place.delete(&place.lock_name().token_queue()).await;
    }
}

async fn a_deleted_lock_is_waited_for_until_it_is_created_again(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let holder = lock(&place).try_acquire(&any()).await.unwrap();
    let (proxy, limited_proxy) = (Proxy::start().await, Proxy::start().await);
    let waiter = |proxy: &Proxy| {
        Client::new(proxy.settings(place.settings()), quick()).semaphore(place.lock_name())
    };
    let (forever, limited) = (waiter(&proxy), waiter(&limited_proxy));
    let waiting = tokio::spawn(async move { forever.acquire(&any()).await });
    let limit = Duration::from_secs(10);
    let (started, limited) =
        (Instant::now(), tokio::spawn(async move { limited.acquire_timeout(&any(), limit).await }));
    for proxy in [&proxy, &limited_proxy] {
        eventually("it waits", async || proxy.count("basic.consume-ok") > 0).await;
    }
    delete(&place).await;
    let looks = if place.lock_name().has_slots() { "queue.declare(passive)" } else { "basic.get" };
    proxy.reset();
    eventually("it looks for the lock again and again", async || proxy.count(looks) >= 4).await;
    let error = limited.await.unwrap().unwrap_err();
    assert!(matches!(error, AcquireError::NoSlots { .. }), "{error:?}");
    assert!(started.elapsed() >= limit, "{:?}", started.elapsed());
    assert!(!waiting.is_finished());
    // It is lost with the token queue.
    let _ = holder.release().await;
    resize(&place, 1).await;
    let permit = tokio::time::timeout(SOON, waiting).await.expect("it is acquired");
    permit.unwrap().unwrap().release().await.unwrap();
}

async fn a_lock_that_never_existed_is_not_waited_for(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    let (forever, limited) = (lock(&place), lock(&place));
    let both =
        async { (forever.acquire(&any()).await, limited.acquire_timeout(&any(), LONG).await) };
    let (forever, limited) = tokio::time::timeout(SOON, both).await.expect("both end");
    for error in [forever.unwrap_err(), limited.unwrap_err()] {
        assert!(matches!(error, AcquireError::Missing { .. }), "{error:?}");
    }
}
