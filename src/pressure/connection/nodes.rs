//! The servers that connections lead to: the one of the settings and, where that
//! is a cluster's, those nodes that it sent us to. Each shares one connection.
//! Which one to use for a queue is decided here; opening is not done here.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::RedisError;
use redis::aio::MultiplexedConnection;
use tokio::time::Instant;

use crate::plan::naming::QueueName;
use crate::pressure::StoreError;

/// A node's host and port as the cluster names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

/// One server, and the connection that is shared to it.
#[derive(Default)]
pub(super) struct Node {
    /// Absent: where the settings lead.
    address: Option<Address>,
    shared: Mutex<Shared>,
    /// Held while connecting: a hundred queues that find the server gone make
    /// one attempt, not a hundred.
    flight: tokio::sync::Mutex<()>,
}

/// The number of the last attempt that made a shared connection.
static ATTEMPTS: AtomicU64 = AtomicU64::new(0);

/// The connection, if there is one, and the number of the attempt that made it,
/// from 1.
#[derive(Default)]
struct Shared {
    attempt: u64,
    open: Option<MultiplexedConnection>,
    failed: Option<(Instant, StoreError)>,
}

impl Node {
    pub(super) fn address(&self) -> Option<&Address> {
        self.address.as_ref()
    }

    /// The shared connection with its attempt's number and whether it is new.
    /// Whoever waits for another's attempt shares its outcome.
    pub(super) async fn share<F>(
        &self,
        open: impl FnOnce() -> F,
    ) -> Result<(MultiplexedConnection, u64, bool), StoreError>
    where
        F: Future<Output = Result<MultiplexedConnection, StoreError>>,
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

    /// The number of the attempt that made the open connection, if there is one.
    pub(super) fn attempt(&self) -> Option<u64> {
        let shared = self.shared();
        shared.open.as_ref().map(|_| shared.attempt)
    }

    /// Gives the connection of this attempt up, unless another has taken its
    /// place already.
    pub(super) fn retire(&self, attempt: u64) {
        let mut shared = self.shared();
        if shared.attempt == attempt {
            shared.open = None;
        }
    }

    fn present(&self) -> Option<(MultiplexedConnection, u64)> {
        let shared = self.shared();
        Some((shared.open.clone()?, shared.attempt))
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        // Nothing in here is left half-changed by a panic.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All servers that we know.
#[derive(Default)]
pub(super) struct Nodes {
    home: Arc<Node>,
    cluster: Mutex<Cluster>,
}

/// What the nodes of a cluster told us; empty while none did.
#[derive(Default)]
struct Cluster {
    nodes: HashMap<Address, Arc<Node>>,
    slots: HashMap<u16, Address>,
}

impl Nodes {
    /// The server that has the queue, as far as we know.
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

    /// The other servers, which may be asked when this one is gone; what it was
    /// known to have is forgotten. None outside a cluster.
    pub(super) fn others_than(&self, gone: &Arc<Node>) -> Vec<Arc<Node>> {
        let mut cluster = self.cluster();
        cluster.slots.retain(|_, address| Some(&*address) != gone.address());
        let nodes = cluster.nodes.values();
        let all = nodes.chain((!cluster.nodes.is_empty()).then_some(&self.home));
        all.filter(|node| !Arc::ptr_eq(node, gone)).cloned().collect()
    }

    /// Remembers where `from` sent us; false if it did not say where. `home_host`
    /// is the host that the settings name.
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

/// An empty host is that of the node which answered; a node that does not know
/// its own name says `?`.
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
