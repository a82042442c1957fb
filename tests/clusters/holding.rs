//! Acquiring and holding while a node is down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_plan::naming::{LockName, Protocol};
use lockkeeper_plan::semaphore::DesiredSlots;
use lockkeeper_semaphore::{AcquireError, Client, ClientOptions, Lock, Moment, Verdict};
use lockkeeper_testkit::cluster::Cluster;
use lockkeeper_testkit::protocols::{name, with_protocols};
use lockkeeper_testkit::proxy::{Method, Proxy, When};
use lockkeeper_testkit::rabbitmq::eventually;
use tokio::task::JoinSet;

use crate::clusters::{broker, first, is_node_down, lock, lock_through, resize};

with_protocols! {
    every {
        a_lock_whose_node_is_down_is_reported_as_such_and_usable_afterwards,
        a_slot_is_free_once_its_holders_node_is_lost_unless_the_broker_keeps_its_queue,
    }
    slots {
        slots_on_live_nodes_are_acquired_past_one_whose_node_is_down,
    }
}

async fn a_lock_whose_node_is_down_is_reported_as_such_and_usable_afterwards(protocol: Protocol) {
    let cluster = Cluster::whole().await;
    let deploy = name().with_protocol(protocol);
    resize(&cluster, 2, &deploy, DesiredSlots::new(3)).await;
    let client = lock(&cluster, &deploy);
    client.try_acquire(&first()).await.unwrap().release().await.unwrap();
    cluster.lose(2).await;
    for _ in 0..2 {
        let failed = client.try_acquire(&first()).await;
        assert!(is_node_down(&failed), "{failed:?}");
    }
    cluster.regain(2).await;
    eventually("the lock is acquired", async || client.try_acquire(&first()).await.is_ok()).await;
}

async fn slots_on_live_nodes_are_acquired_past_one_whose_node_is_down(protocol: Protocol) {
    let cluster = Cluster::whole().await;
    let deploy = name().with_protocol(protocol);
    for (node, slots) in [(1, 1), (2, 2), (1, 3)] {
        resize(&cluster, node, &deploy, DesiredSlots::new(slots)).await;
    }
    cluster.lose(2).await;
    let client = lock(&cluster, &deploy);
    let one = client.try_acquire(&first()).await.unwrap();
    let three = client.try_acquire(&first()).await.unwrap();
    assert_eq!((one.slot(), three.slot()), (Some(1), Some(3)));
    let full = client.try_acquire(&first()).await;
    assert!(matches!(full, Err(AcquireError::Full { .. })), "{full:?}");
    cluster.regain(2).await;
    eventually("the slot that was down is acquired", async || {
        client.try_acquire(&first()).await.is_ok_and(|two| two.slot() == Some(2))
    })
    .await;
}

/// Khepri keeps the exclusive queue of a connection to a killed node until the node is back.
/// Mnesia deletes it, as both do with a consumer.
async fn a_slot_is_free_once_its_holders_node_is_lost_unless_the_broker_keeps_its_queue(
    protocol: Protocol,
) {
    let cluster = Cluster::whole().await;
    let deploy = name().with_protocol(protocol);
    resize(&cluster, 1, &deploy, DesiredSlots::new(1)).await;
    let permit = lock_through(&cluster, 3, &deploy).try_acquire(&first()).await.unwrap();
    cluster.lose(3).await;
    permit.lost().await;
    let next = lock(&cluster, &deploy);
    if protocol == Protocol::default() && cluster.has_khepri() {
        let failed = next.try_acquire(&first()).await;
        assert!(is_node_down(&failed), "{failed:?}");
        let nodes = cluster.vhost.nodes_of_queues().await;
        assert_eq!(nodes[&deploy.holder_queue(1)], cluster.down().await);
        cluster.regain(3).await;
        eventually("it is acquired", async || next.try_acquire(&first()).await.is_ok()).await;
    } else {
        eventually("it is acquired", async || next.try_acquire(&first()).await.is_ok()).await;
        cluster.regain(3).await;
    }
}

/// The slot would be acquired at once, without a fencing token and without the lock delay.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_is_not_acquired_without_its_record_whose_node_is_down() {
    let cluster = Cluster::whole().await;
    resize(&cluster, 1, &name(), DesiredSlots::new(1)).await;
    let with_records =
        DesiredSlots { records: Some(Duration::from_secs(1)), ..DesiredSlots::new(1) };
    resize(&cluster, 2, &name(), with_records).await;
    cluster.lose(2).await;
    let client = lock(&cluster, &name());
    let failed = client.try_acquire(&first()).await;
    assert!(is_node_down(&failed), "{failed:?}");
    cluster.regain(2).await;
    eventually("it is acquired with its record", async || {
        let acquired = client.try_acquire(&first()).await;
        assert!(acquired.as_ref().map_or(true, |permit| permit.fence().is_some()), "{acquired:?}");
        acquired.is_ok()
    })
    .await;
}

/// The publish of the new record is on its way when the node is lost. A publish that is not
/// mandatory would be confirmed, and lost (Mnesia), and the next holder would get the same
/// token.
#[tokio::test(flavor = "multi_thread")]
async fn no_token_is_given_whose_record_was_not_stored() {
    let cluster = Cluster::whole().await;
    resize(&cluster, 1, &name(), DesiredSlots::new(1)).await;
    let with_records = DesiredSlots { records: Some(Duration::ZERO), ..DesiredSlots::new(1) };
    resize(&cluster, 2, &name(), with_records).await;
    let proxy = Proxy::before(&cluster.settings(1)).await;
    // The publish is on its way until the node is lost.
    let limit = Duration::from_secs(25);
    let options = ClientOptions::default().with_warm(0).with_operation_timeout(limit);
    let through = Client::new(proxy.settings(cluster.settings(1)), options).semaphore(name());
    let queue = name().record_queue(1).unwrap();
    let on_its_way = proxy.hold_at(When::Before, move |method: &Method| {
        method.name == "basic.publish" && method.queue == queue
    });
    let acquiring = tokio::spawn(async move { through.try_acquire(&first()).await });
    on_its_way.wait().await;
    cluster.lose(2).await;
    proxy.resume();
    let failed = acquiring.await.unwrap();
    assert!(is_node_down(&failed), "{failed:?}");
    cluster.regain(2).await;
}

/// Its holder queue is the proof, and is on the holder's own node.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_keeps_its_slot_while_the_slots_node_is_down() {
    let cluster = Cluster::whole().await;
    resize(&cluster, 2, &name(), DesiredSlots::new(1)).await;
    let interval = Duration::from_millis(500);
    let options = ClientOptions::default().with_warm(0).with_verify_interval(interval);
    let client = Client::new(cluster.settings(1), options).semaphore(name());
    let permit = client.try_acquire(&first()).await.unwrap();
    cluster.lose(2).await;
    for _ in 0..3 {
        permit.proved_after(Moment::now()).await;
        assert_eq!(permit.verify().await, Ok(Verdict::Held));
    }
    assert!(permit.is_valid());
    cluster.regain(2).await;
    permit.release().await.unwrap();
    eventually("it is acquired again", async || client.try_acquire(&first()).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_wait_queue_is_on_a_node_that_is_down_acquires_by_polling() {
    let cluster = Cluster::whole().await;
    resize(&cluster, 2, &name(), DesiredSlots::new(0)).await;
    resize(&cluster, 1, &name(), DesiredSlots::new(1)).await;
    let permit = lock(&cluster, &name()).try_acquire(&first()).await.unwrap();
    cluster.lose(2).await;
    let waiter = lock(&cluster, &name());
    let waiting =
        tokio::spawn(async move { waiter.acquire_timeout(&first(), Duration::from_mins(3)).await });
    eventually("the waiter is connected", async || {
        cluster.vhost.management.get("connections?columns=name,vhost").await.is_some_and(|list| {
            let here = |c: &&serde_json::Value| c["vhost"] == cluster.vhost.name.as_str();
            list.as_array().unwrap().iter().filter(here).count() > 2
        })
    })
    .await;
    permit.release().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().slot(), Some(1));
    cluster.regain(2).await;
}

/// Returns the median time in which `healthy` is acquired and released, while other tasks of the
/// same client fail to acquire `other`, which is missing, or has three slots on a node that is
/// down.
async fn time_beside(
    cluster: &Cluster,
    client: &Client,
    healthy: &Lock,
    (other, is_down): (&LockName, bool),
) -> Duration {
    let failures = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..5 {
        let (lock, failures) = (client.semaphore(other.clone()), Arc::clone(&failures));
        tasks.spawn(async move {
            loop {
                let failed = lock.try_acquire(&first()).await;
                assert!(failed.is_err() && is_node_down(&failed) == is_down, "{failed:?}");
                failures.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
    }
    let (watching, watched) = (broker(cluster, 1), other.clone());
    tasks.spawn(async move {
        loop {
            let seen = watching.find_highest_slot(&watched, 16).await;
            assert!(!is_down || !matches!(seen, Ok(Some(0..3))), "{seen:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let mut times = Vec::new();
    while times.len() < 100 || failures.load(Ordering::Relaxed) < 10 {
        let start = Instant::now();
        healthy.try_acquire(&first()).await.unwrap().release().await.unwrap();
        times.push(start.elapsed());
    }
    tasks.abort_all();
    while let Some(ended) = tasks.join_next().await {
        assert!(ended.unwrap_err().is_cancelled());
    }
    times.sort();
    times[times.len() / 2]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_acquired_in_its_usual_time_while_another_locks_node_is_down() {
    let cluster = Cluster::whole().await;
    let [missing, sick] = ["ci.none", "ci.sick"].map(|name| LockName::new(name).unwrap());
    resize(&cluster, 2, &sick, DesiredSlots::new(3)).await;
    resize(&cluster, 1, &name(), DesiredSlots::new(1)).await;
    let client = Client::new(cluster.settings(1), ClientOptions::default().with_warm(0));
    let healthy = client.semaphore(name());
    let usual = time_beside(&cluster, &client, &healthy, (&missing, false)).await;
    cluster.lose(2).await;
    let during = time_beside(&cluster, &client, &healthy, (&sick, true)).await;
    println!("acquire and release: {usual:?}, with a lock whose node is down: {during:?}");
    assert!(during <= usual * 2, "{during:?} instead of {usual:?}");
    cluster.regain(2).await;
}
