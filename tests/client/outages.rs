//! Outages of the broker, and suspended clients: waiting continues, and a hold that was
//! not certain throughout is reported as lost.

use std::time::Duration;

use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_plan::naming::Protocol;
use lockkeeper_semaphore::{AcquireError, BrokerError, Client, LostReason, Permit, RunError};
use lockkeeper_testkit::protocols::{At, TestLock, with_protocols};
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::rabbitmq::eventually;

use crate::client::{any, brief, lock, quick, resize};

with_protocols! {
    every {
        waiting_survives_the_end_of_its_connections,
        a_waiter_that_the_broker_refuses_gives_up,
        a_process_suspended_for_too_long_reports_the_loss,
    }
    mutex {
        waiting_survives_the_end_of_its_connections,
    }
}

/// Returns the number of clients that wait, or hold a token that they waited for.
async fn consumers(place: &TestLock) -> usize {
    // The first waiter of a mutex declares it.
    let Some(queue) = place.queue(&place.wait_queue()).await else { return 0 };
    queue["consumer_details"].as_array().map_or(0, Vec::len)
}

async fn waiting_survives_the_end_of_its_connections(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let holder = lock(&place).try_acquire(&any()).await.unwrap();
    let proxy = Proxy::start().await;
    let client = Client::new(proxy.settings(place.settings()), quick());
    let waiter = client.semaphore(place.lock_name());
    let waiting = tokio::spawn({
        let waiter = waiter.clone();
        async move { waiter.acquire(&any()).await }
    });
    let mut seen = 0;
    for _ in 0..3 {
        let answers = || proxy.count("basic.consume-ok");
        eventually("it waits again", async || answers() > seen).await;
        seen = answers();
        proxy.cut();
    }
    holder.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();

    // The timeout ends during the outage, for a client that was connected before.
    drop(proxy);
    let error = waiter.acquire_timeout(&any(), Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(error, AcquireError::Unavailable { .. }), "{error:?}");
    let error = waiter.try_acquire(&any()).await.unwrap_err();
    assert!(matches!(error, AcquireError::Broker(_)), "{error:?}");
    // A client that never connected has the wrong address.
    let settings = RabbitmqSettings { port: 1, ..place.settings() };
    let stranger = Client::new(settings, quick()).semaphore(place.lock_name());
    let asked = stranger.acquire_timeout(&any(), Duration::from_secs(15)).await;
    let error = asked.unwrap_err();
    let unreachable = matches!(error, AcquireError::Broker(BrokerError::Unreachable { .. }));
    assert!(unreachable, "{error:?}");
}

async fn a_waiter_that_the_broker_refuses_gives_up(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let _holder = lock(&place).try_acquire(&any()).await.unwrap();
    let (username, password) = place.user(Some([".*", ".*", ".*"])).await;
    let user = format!("users/{username}");
    let settings = RabbitmqSettings { username, password: password.into(), ..place.settings() };
    let proxy = Proxy::start().await;
    let waiter = Client::new(proxy.settings(settings), quick()).semaphore(place.lock_name());
    let waiting = tokio::spawn(async move { waiter.acquire(&any()).await });
    eventually("it waits", async || consumers(&place).await == 1).await;
    place.management.delete(&user).await;
    proxy.cut();
    let ended = tokio::time::timeout(Duration::from_secs(30), waiting).await;
    let error = ended.expect("it gives up").unwrap().unwrap_err();
    let refused = matches!(error, AcquireError::Broker(BrokerError::AuthenticationFailed { .. }));
    assert!(refused, "{error:?}");
}

/// Blocks this thread's runtime until the slot is no longer certainly held.
fn suspend(permit: &Permit) {
    while !permit.valid_until().left().is_zero() {
        std::thread::sleep(Duration::from_millis(10));
    }
}

async fn a_process_suspended_for_too_long_reports_the_loss(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 2).await;
    let (settings, name) = (place.settings(), place.lock_name());
    let suspended = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let lock = Client::new(settings, brief()).semaphore(name);
            let ran = lock.run(&any(), None, async |permit| suspend(permit)).await;
            let permit = lock.acquire(&any()).await.unwrap();
            suspend(&permit);
            (ran, permit.release().await)
        })
    });
    let (ran, released) = suspended.await.unwrap();
    assert_eq!(ran, Err(RunError::Lost(LostReason::HeartbeatMissed)));
    assert_eq!(released, Err(LostReason::HeartbeatMissed));
}
