//! Finding what is wrong with a semaphore, without mending it. Mending is
//! `converge`'s.

use std::fmt;

use tokio_util::sync::CancellationToken;

use super::broker::Broker;
use super::converge::Change;
use super::error::BrokerError;
use super::lane::Lane;
use super::protocol::{self, Holding};
use crate::plan::naming::LockName;
use crate::plan::semaphore::{SlotWish, sweep_to};

/// Something that is wrong with a semaphore.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A slot is not there.
    Missing {
        /// The slot.
        slot: u32,
    },
    /// A slot is there that should not be.
    Stray {
        /// The slot.
        slot: u32,
    },
    /// The first slot has a record, and this one has none.
    WithoutRecord {
        /// The slot.
        slot: u32,
    },
    /// Nobody can hold the slot, because the queue is missing that it is held by.
    WithoutHolderQueue {
        /// The slot.
        slot: u32,
    },
    /// A slot's queue is not one that we would make.
    Foreign {
        /// The slot.
        slot: u32,
        /// How it differs, in the broker's words.
        why: String,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { slot } => write!(f, "slot {slot} is missing"),
            Self::Stray { slot } => write!(f, "slot {slot} should not exist"),
            Self::WithoutRecord { slot } => {
                write!(f, "slot {slot} has no record (fencing, lock delay), but others have")
            }
            Self::WithoutHolderQueue { slot } => {
                write!(f, "slot {slot} has no holder queue, so nobody can hold it")
            }
            Self::Foreign { slot, why } => write!(f, "slot {slot} is somebody else's queue: {why}"),
        }
    }
}

impl Broker {
    /// What is wrong with `lock`, lowest slot first: slots 1 to `slots` (absent, to
    /// the highest) should exist, and no other, each as we would make it. Looks
    /// under the admin mutex, so that nobody's half-done change is taken for a
    /// fault; changes nothing. Errors and cancel safety are those of
    /// [`Broker::converge`].
    pub async fn check(
        &self,
        lock: &LockName,
        slots: Option<u32>,
        cancel: &CancellationToken,
    ) -> Result<Vec<Fault>, BrokerError> {
        let change = self.change(lock, SlotWish::new(slots.unwrap_or(0)), cancel);
        change.run(move |change, lane| protocol::of(&change.lock).check(change, lane, slots)).await
    }
}

impl Change {
    pub(super) async fn check_slots(
        &self,
        how: &dyn Holding,
        lane: &mut Lane,
        slots: Option<u32>,
    ) -> Result<Vec<Fault>, BrokerError> {
        let mark = self.broker.find_mark(&self.lock, self.wish.overshoot).await?;
        let seen = self.broker.observe(&self.lock, sweep_to(self.wish, mark), 0).await?;
        let slots = slots.or_else(|| seen.slots.last().copied()).unwrap_or(0);
        let mut faults = Vec::new();
        let has_records = self.has_record(lane, 1).await?;
        for slot in 1..=slots.max(seen.highest()) {
            if !seen.slots.contains(&slot) {
                faults.extend((slot <= slots).then_some(Fault::Missing { slot }));
                continue;
            }
            if slot > slots {
                faults.push(Fault::Stray { slot });
            }
            if !how.can_be_held(&self.broker, &self.lock, slot..=slot).await? {
                faults.push(Fault::WithoutHolderQueue { slot });
                continue;
            }
            // It exists, and under the mutex nobody removes it: nothing is declared.
            match how.declare_slot(lane, &self.lock, slot).await {
                Ok(()) => {}
                Err(BrokerError::IncompatibleQueue { why, .. }) => {
                    faults.push(Fault::Foreign { slot, why });
                }
                Err(error) => return Err(error),
            }
            if has_records && !self.has_record(lane, slot).await? {
                faults.push(Fault::WithoutRecord { slot });
            }
        }
        Ok(faults)
    }

    async fn has_record(&self, lane: &mut Lane, slot: u32) -> Result<bool, BrokerError> {
        match self.lock.record_queue(slot) {
            Some(record) => lane.all_exist(&[record]).await,
            None => Ok(false),
        }
    }
}
