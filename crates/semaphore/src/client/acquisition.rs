//! What all parts of one acquisition of a slot share. See `attempt` for one attempt, `choice`
//! for the slot that it tries, `fairness` for the order among clients, and `acquire` for the
//! steps between attempts.

use lockkeeper_net::clock::Moment;
use lockkeeper_plan::naming::LockName;

use super::error::AcquireError;
use super::memory::Memory;
use super::options::AcquireOptions;
use super::shared::Shared;
use crate::protocol::claim::{ClientProtocol, MUTEX_SLOT};

/// Which slots to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Any slot, according to the options, without a probe where that pays.
    Any,
    /// The same for a client that can wait instead. After a lost race for one of few free
    /// slots, it lets the waiters have them.
    OrWait {
        /// Number of races that this acquisition has lost before.
        lost: u32,
    },
    /// Any free slot found by a search, if more than `others` slots are free. Otherwise
    /// the client waits to be woken.
    Search {
        /// Number of other waiters, each of which may be about to take a slot.
        others: u32,
    },
    /// Only this slot, for which the client was woken. It is taken without a probe,
    /// because another client is rarely faster.
    Slot(u32),
}

/// One acquisition of a slot.
pub struct Acquisition<'a> {
    pub client: &'a Shared,
    pub lock: &'a LockName,
    /// How a client of the lock's protocol takes a slot.
    pub protocol: &'a dyn ClientProtocol,
    pub options: &'a AcquireOptions,
    /// Its id, which the holder's facts contain.
    pub id: String,
    /// When it gives up. `None`: never.
    pub until: Option<Moment>,
}

impl Acquisition<'_> {
    /// Returns what the client remembers of the lock.
    pub fn recall(&self) -> Memory {
        self.client.recall(self.lock)
    }

    /// Changes what the client remembers of the lock.
    pub fn remember(&self, change: impl FnOnce(&mut Memory)) {
        self.client.remember(self.lock, change);
    }

    /// Whether the limit has passed.
    pub fn is_late(&self) -> bool {
        self.until.is_some_and(|until| until.left().is_zero())
    }

    /// Returns the error for the case that all known slots are held.
    pub fn full(&self) -> AcquireError {
        let slots = if self.lock.has_slots() { self.recall().slots } else { MUTEX_SLOT };
        AcquireError::Full { lock: self.lock.to_string(), slots }
    }

    /// Returns the error for the case that other clients were faster.
    pub fn contended(&self) -> AcquireError {
        AcquireError::Contended { lock: self.lock.to_string() }
    }
}
