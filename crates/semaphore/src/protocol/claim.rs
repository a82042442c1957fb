//! The interface that each protocol implements for clients, except Token, whose broker
//! chooses for the client: take a slot, and look which ones are free. A true mutex is a
//! lock with the one slot 1. See `interface` for administrators.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use lapin::types::FieldTable;
use lockkeeper_amqp::connection::Connection;
use lockkeeper_amqp::lazy::LazyConnection;
use lockkeeper_amqp::probe::{ProbeContext, Seen};
use lockkeeper_plan::naming::LockName;

use crate::error::BrokerError;
use crate::protocol::hold::HeldClaim;

/// The one slot of a true mutex.
pub const MUTEX_SLOT: u32 = 1;

/// A protocol whose clients choose a slot and take it.
#[async_trait]
pub trait ClientProtocol: Send + Sync {
    /// Takes a slot. If the claim fails, nothing is left declared on the connection.
    async fn claim(&self, claim: Claim<'_>) -> Result<Claimed, BrokerError>;

    /// Observes which of `slots` exist and which of `holders` are held. Unless
    /// `draining`, holders of missing slots may be left out.
    async fn look(
        &self,
        context: ProbeContext<'_>,
        lock: &LockName,
        slots: RangeInclusive<u32>,
        holders: RangeInclusive<u32>,
        draining: bool,
    ) -> Result<SlotObservation, BrokerError>;

    /// Whether all of `slots` are held and the slot `missing` does not exist, in fewer requests
    /// than [`look`](Self::look). `false` if only that can answer it. Cancel safe.
    async fn all_held(
        &self,
        _context: ProbeContext<'_>,
        _lock: &LockName,
        _slots: RangeInclusive<u32>,
        _missing: Option<u32>,
    ) -> Result<bool, BrokerError> {
        Ok(false)
    }

    /// Returns the arguments with which a waiter declares the wait queue. `None` if the
    /// administrator declares it.
    fn wait_queue_arguments(&self) -> Option<FieldTable> {
        None
    }
}

/// The observed slots and holders, in the order of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotObservation {
    pub slots: Vec<Seen>,
    pub holders: Vec<HolderState>,
}

/// The observed state of a slot's holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderState {
    /// The holder queue does not exist, or was not probed.
    Absent,
    /// The holder queue exists without a holder.
    Unheld,
    /// The slot is held.
    Held,
    /// Unknown, because the holder queue's node is down.
    Unknown,
}

impl HolderState {
    /// Returns the state of the holder whose exclusive queue a probe has seen. Such a queue
    /// is gone with its node.
    pub fn of_exclusive_queue(seen: Seen) -> Self {
        match seen {
            Seen::Yes => Self::Held,
            Seen::No => Self::Absent,
            Seen::Unknown => Self::Unknown,
        }
    }
}

/// Parameters for taking one slot.
pub struct Claim<'a> {
    /// A connection that holds nothing.
    pub side: &'a Arc<LazyConnection>,
    /// The connection that will hold the slot.
    pub connection: &'a Arc<Connection>,
    pub lock: &'a LockName,
    pub slot: u32,
    /// True if a probe has just seen the slot.
    pub looked: bool,
    /// The id of this acquisition.
    pub id: &'a str,
    /// The holder's description of itself.
    pub facts: FieldTable,
    pub checked: &'a Checked,
}

/// The result of taking a slot.
pub enum Claimed {
    /// The slot is held by this connection, and still existed after it was taken.
    Yes(Box<dyn HeldClaim>),
    /// The slot does not exist, or no longer exists.
    NoSlot,
    /// Another client holds the slot.
    Locked,
}

/// Queues whose properties this client has already verified.
#[derive(Default)]
pub struct Checked(Mutex<HashSet<String>>);

impl Checked {
    /// Maximum number of names kept. Beyond it, the set is cleared.
    const MOST: usize = 16_384;

    pub fn contains(&self, queue: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(queue)
    }

    pub fn insert(&self, queue: String) {
        let mut checked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if checked.len() >= Self::MOST {
            checked.clear();
        }
        checked.insert(queue);
    }

    pub fn remove(&self, queue: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(queue);
    }
}
