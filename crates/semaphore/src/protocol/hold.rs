//! A held slot or token, on the connection that holds it: the interface between a permit
//! and the protocol. See `client` for permits.

use std::time::Duration;

use async_trait::async_trait;

use crate::error::BrokerError;
use crate::queues::ownership::Ownership;
use crate::queues::wait::Waiters;

/// The held object, on the connection that holds it.
#[async_trait]
pub trait HeldClaim: Send + Sync {
    /// Asks the broker whether the slot is still held by this connection. Waits at most
    /// `limit` for the answer. Cancel safe.
    async fn verify(&self, limit: Duration) -> Result<Ownership, BrokerError>;

    /// Releases the slot and waits for the broker's confirmation. After an error or a
    /// dropped future, only closing the connection releases it for certain.
    ///
    /// Returns whether `wait_queue` has consumers, as read after the release. A consumer
    /// that joins later searches for a free slot itself.
    async fn give_back(&self, wait_queue: Option<&str>) -> Result<Waiters, BrokerError>;

    /// Whether the channel that holds the slot is open.
    fn is_open(&self) -> bool {
        true
    }

    /// Resolves with the next unsolicited event about the slot. Cancel safe.
    async fn news(&self) -> News {
        std::future::pending().await
    }
}

/// An unsolicited event about a held slot.
#[derive(Debug)]
pub enum News {
    /// The holder should release soon.
    Drain,
    /// The state may have changed: verify it.
    Look,
    /// An administrator revoked the slot, with this reason.
    Revoked(String),
    /// The broker revoked the slot.
    Gone,
    /// Its channel or connection was closed, possibly with a reason.
    Ended(Option<lapin::Error>),
}
