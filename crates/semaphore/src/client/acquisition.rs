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
