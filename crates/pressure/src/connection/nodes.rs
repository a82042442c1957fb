//! The servers of a store: the configured one and, in a cluster, the nodes to which it
//! redirected. Each shares one connection. This module chooses the server for a queue.
//! See `opening.rs` for opening connections.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkeeper_plan::naming::QueueName;
use redis::RedisError;
use tokio::time::Instant;

use super::flow::Connection;
use crate::StoreError;

/// A node's host and port, as named by the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

/// One server, and the shared connection to it.
#[derive(Default)]
pub(super) struct Node {
    /// `None`: the address in the settings.
    address: Option<Address>,
    shared: Mutex<Shared>,
    /// Held while connecting, so that a hundred queues that lose the server make one
    /// attempt.
    flight: tokio::sync::Mutex<()>,
}

/// The number of the last attempt that opened a shared connection.
static ATTEMPTS: AtomicU64 = AtomicU64::new(0);

/// The connection, if there is one, and the number of the attempt that opened it, from 1.
#[derive(Default)]
struct Shared {
    attempt: u64,
    open: Option<Connection>,
    failed: Option<(Instant, StoreError)>,
}

impl Node {
    pub(super) fn address(&self) -> Option<&Address> {
        self.address.as_ref()
    }

    /// Returns the shared connection with its attempt's number and whether it is new. A
    /// caller that waits for another's attempt shares its outcome.
    pub(super) async fn share<F>(
        &self,
        open: impl FnOnce() -> F,
    ) -> Result<(Connection, u64, bool), StoreError>
    where
        F: Future<Output = Result<Connection, StoreError>>,
    {
        if let Some((connection, attempt)) = self.present() {
            return Ok((connection, attempt, false));
        }
        let asked = Instant::now();
        let _flight = self.flight.lock().await;
        if let Some((connection, attempt)) = self.present() {
            return Ok((connection, attempt, false));
        }
        if let Some((at, err)) = &self.shared().failed
            && *at >= asked
        {
            return Err(err.clone());
        }
        let result = open().await;
        let mut shared = self.shared();
        match result {
            Ok(connection) => {
                shared.attempt = ATTEMPTS.fetch_add(1, Ordering::Relaxed) + 1;
                shared.open = Some(connection.clone());
                shared.failed = None;
                Ok((connection, shared.attempt, true))
            }
            Err(err) => {
                shared.failed = Some((Instant::now(), err.clone()));
                Err(err)
            }
        }
    }

    /// Returns the number of the attempt that opened the current connection, if there is
    /// one.
    pub(super) fn attempt(&self) -> Option<u64> {
        let shared = self.shared();
        shared.open.as_ref().map(|_| shared.attempt)
    }

    /// Returns when bytes last flowed over the open connection, if there is one.
    pub(super) fn last_flow(&self) -> Option<Instant> {
        self.shared().open.as_ref().map(Connection::last_flow)
    }

    /// Retires the connection of this attempt, unless another one has replaced it.
    pub(super) fn retire(&self, attempt: u64) {
        let mut shared = self.shared();
        if shared.attempt == attempt {
            shared.open = None;
        }
    }

    fn present(&self) -> Option<(Connection, u64)> {
        let shared = self.shared();
        Some((shared.open.clone()?, shared.attempt))
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        // A panic leaves no partial change here.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All known servers.
#[derive(Default)]
pub(super) struct Nodes {
    home: Arc<Node>,
    cluster: Mutex<Cluster>,
}

/// The redirections reported by the nodes of a cluster. Empty outside a cluster.
#[derive(Default)]
struct Cluster {
    nodes: HashMap<Address, Arc<Node>>,
    slots: HashMap<u16, Address>,
}

impl Nodes {
    /// Returns the server of the queue, as far as known.
    pub(super) fn of(&self, queue: Option<&QueueName>) -> Result<Arc<Node>, StoreError> {
        let cluster = self.cluster();
        let (Some(queue), false) = (queue, cluster.nodes.is_empty()) else {
            return Ok(Arc::clone(&self.home));
        };
        let Some(slot) = queue.cluster_slot() else {
            let detail = format!("{} has no hash tag", queue.data());
            return Err(StoreError::ClusterUnsafe { detail });
        };
        let node = cluster.slots.get(&slot).and_then(|address| cluster.nodes.get(address));
        Ok(Arc::clone(node.unwrap_or(&self.home)))
    }

    /// Returns the other servers, which may be asked after this one is lost, and forgets
    /// its assignments. Empty outside a cluster.
    pub(super) fn others_than(&self, gone: &Arc<Node>) -> Vec<Arc<Node>> {
        let mut cluster = self.cluster();
        cluster.slots.retain(|_, address| Some(&*address) != gone.address());
        let nodes = cluster.nodes.values();
        let all = nodes.chain((!cluster.nodes.is_empty()).then_some(&self.home));
        all.filter(|node| !Arc::ptr_eq(node, gone)).cloned().collect()
    }

    /// Records a redirection by `from`. Returns false if it contained no address.
    /// `home_host` is the host in the settings.
    pub(super) fn learn(&self, from: &Node, home_host: &str, moved: &RedisError) -> bool {
        let Some((address, slot)) = moved.redirect_node() else { return false };
        let from_host = from.address().map_or(home_host, |address| &address.host);
        let Some(address) = address_of(address, from_host) else { return false };
        let mut cluster = self.cluster();
        cluster.slots.insert(slot, address.clone());
        let node = || Arc::new(Node { address: Some(address.clone()), ..Node::default() });
        cluster.nodes.entry(address.clone()).or_insert_with(node);
        true
    }

    fn cluster(&self) -> MutexGuard<'_, Cluster> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Parses an address. An empty host is that of the node which answered. A node that does
/// not know its own name sends `?`.
fn address_of(text: &str, from_host: &str) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    let host = if host.is_empty() { from_host } else { host };
    let port = port.parse().ok().filter(|port| *port > 0)?;
    (host != "?").then(|| Address { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirection_names_a_node_or_the_port_of_the_same_host() {
        let address = |host: &str, port| Some(Address { host: host.to_owned(), port });
        assert_eq!(address_of("10.0.0.1:6379", "me"), address("10.0.0.1", 6379));
        assert_eq!(address_of("fe80::1:6379", "me"), address("fe80::1", 6379));
        assert_eq!(address_of(":6379", "me"), address("me", 6379));
        for unknown in ["?:6379", "host", "host:0", "host:x", ""] {
            assert_eq!(address_of(unknown, "me"), None, "{unknown}");
        }
    }
}
