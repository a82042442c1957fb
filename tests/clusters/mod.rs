//! Locks on a cluster of three RabbitMQ nodes while one of them is down, hangs, restarts or
//! is separated from the others. See `lockkeeper_testkit::cluster` for the nodes and their faults.

mod administering;
mod faults;
mod holding;
mod partitions;
mod reporting;
mod rolling;

use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::{DesiredSlots, sweep_to};
use lockkeeper_semaphore::{
    AcquireError, AcquireOptions, Broker, BrokerError, BrokerOptions, Client, ClientOptions, Lock,
    Start,
};
use lockkeeper_testkit::cluster::Cluster;
use tokio_util::sync::CancellationToken;

/// Returns an administrator at this node.
fn broker(cluster: &Cluster, node: usize) -> Broker {
    Broker::new(cluster.settings(node), BrokerOptions::default())
}

/// Resizes a lock at this node, where queues that are missing are then created.
async fn resize(cluster: &Cluster, node: usize, lock: &LockName, desired: DesiredSlots) {
    let (to, cancel) = (sweep_to(desired, 20), CancellationToken::new());
    broker(cluster, node).converge(lock, desired, to, true, &cancel).await.unwrap();
}

/// Returns the lock, with a client of its own at node 1.
fn lock(cluster: &Cluster, name: &LockName) -> Lock {
    lock_through(cluster, 1, name)
}

/// Returns the lock, with a client of its own at this node.
fn lock_through(cluster: &Cluster, node: usize, name: &LockName) -> Lock {
    let options = ClientOptions::default().with_warm(0);
    Client::new(cluster.settings(node), options).semaphore(name.clone())
}

/// Returns options that try the lowest slot first.
fn first() -> AcquireOptions {
    AcquireOptions::default().with_start(Start::First)
}

fn is_node_down<T>(result: &Result<T, AcquireError>) -> bool {
    matches!(result, Err(AcquireError::Broker(BrokerError::NodeDown { .. })))
}
