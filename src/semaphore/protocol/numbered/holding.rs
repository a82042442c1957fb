//! How a slot is held: the interface that each protocol with numbered slots implements,
//! for clients and for administrators.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use lapin::types::FieldTable;

use crate::plan::naming::LockName;
use crate::plan::semaphore::ObservedSlots;
use crate::semaphore::amqp::connect::Conn;
use crate::semaphore::amqp::lane::Lane;
use crate::semaphore::amqp::probe::Eyes;
use crate::semaphore::error::BrokerError;
use crate::semaphore::protocol::fault::Fault;
use crate::semaphore::protocol::hold::Hold;
use crate::semaphore::protocol::revoke::{Revoke, RevokeError};
use crate::semaphore::session::access::Access;
use crate::semaphore::session::change::Change;

/// A protocol with numbered slots. A client may take slot `i` while its slot queue `A[i]`
/// exists.
#[async_trait]
pub trait Holding: Send + Sync {
    /// Takes a slot. If the claim fails, nothing is left declared on the connection.
    async fn claim(&self, claim: Claim<'_>) -> Result<Claimed, BrokerError>;

    /// Observes which of `slots` exist and which of `holders` are held. Unless
    /// `draining`, holders of missing slots may be left out.
    async fn look(
        &self,
        eyes: Eyes<'_>,
        lock: &LockName,
        slots: RangeInclusive<u32>,
        holders: RangeInclusive<u32>,
        draining: bool,
    ) -> Result<Looked, BrokerError>;

    /// Whether slots and holders can be observed apart: then the slots may come from a
    /// list of queues.
    fn has_separate_holders(&self) -> bool;

    /// Declares slot `i` or its missing parts. If the slot exists, verifies its
    /// properties.
    async fn declare_slot(
        &self,
        lane: &mut Lane,
        lock: &LockName,
        slot: u32,
    ) -> Result<(), BrokerError>;

    /// Reports a fault of the holder queue or its equivalent, under the admin mutex.
    /// Changes nothing.
    async fn check_holder(
        &self,
        lane: &mut Lane,
        lock: &LockName,
        slot: u32,
        seen: &ObservedSlots,
    ) -> Result<Option<Fault>, BrokerError>;

    /// Whether all queues exist that these slots need in order to be held.
    async fn can_be_held(
        &self,
        access: &Access,
        lock: &LockName,
        slots: RangeInclusive<u32>,
    ) -> Result<bool, BrokerError>;

    /// Removes unused holder queues of slots above the desired count, up to `to`, and
    /// notifies the remaining holders. Returns the number of remaining holders.
    async fn tidy(&self, change: &Change, lane: &mut Lane, to: u32) -> Result<u32, BrokerError>;

    /// Revokes a slot from its holder.
    async fn revoke(&self, revoke: &Revoke<'_>) -> Result<(), RevokeError>;
}

/// The observed slots and holders, in the order of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked {
    pub slots: Vec<bool>,
    pub holders: Vec<HolderSeen>,
}

/// The observed state of a slot's holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderSeen {
    /// The holder queue does not exist, or was not probed.
    Absent,
    /// The holder queue exists without a holder.
    Unheld,
    /// The slot is held.
    Held,
}

/// Parameters for taking one slot.
pub struct Claim<'a> {
    /// The connection that will hold the slot.
    pub conn: &'a Arc<Conn>,
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
    Yes(Box<dyn Hold>),
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
