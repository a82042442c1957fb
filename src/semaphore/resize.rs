//! Changing how many slots a semaphore has by what it has now, for administrators
//! without a resource that says it. How the slots are made is `converge`'s.

use futures::FutureExt;
use tokio_util::sync::CancellationToken;

use super::broker::Broker;
use super::converge::{Change, Converged};
use super::error::BrokerError;
use super::lane::Lane;
use super::protocol;
use crate::plan::naming::{LockName, MAX_SLOTS};
use crate::plan::semaphore::{SlotWish, sweep_to};

/// How many slots there should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeTo {
    /// This many, of a semaphore that doesn't exist yet.
    Create(u32),
    /// This many, whether it exists or not.
    Exactly(u32),
    /// This many more.
    Grow(u32),
    /// This many fewer; holders of those that go keep them until they release.
    Shrink(u32),
}

/// What a resize came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resized {
    /// The highest slot before.
    pub before: u32,
    /// How many slots there are now.
    pub after: u32,
    /// What was done for that, and what is there.
    pub done: Converged,
}

/// Why a semaphore was not resized. But for [`ResizeError::Broker`], nothing was
/// changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// It was to be created, and is there.
    #[error("the semaphore {lock} exists already, with {slots} slots: grow or shrink it")]
    Exists {
        /// Its name.
        lock: LockName,
        /// The highest slot that it has.
        slots: u32,
    },
    /// It was to grow or shrink, and is not there.
    #[error("there is no semaphore {lock}: check its name, profile and virtual host, or create it")]
    Missing {
        /// Its name.
        lock: LockName,
    },
    /// There would be fewer than 0 slots, or more than [`MAX_SLOTS`].
    #[error("the semaphore {lock} has {slots} slots, and can have 0 to {MAX_SLOTS}")]
    OutOfRange {
        /// Its name.
        lock: LockName,
        /// The highest slot that it has.
        slots: u32,
    },
    /// Its slots have records, and the wish says nothing of them: new slots would
    /// be the only ones without fencing and lock delay.
    #[error(
        "the slots of the semaphore {lock} have records (fencing, lock delay), and new slots need them too: say with which lock delay"
    )]
    Records {
        /// Its name.
        lock: LockName,
    },
    /// The broker said no, or nothing.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

impl Broker {
    /// Gives `lock` as many slots as `to` says. How many it has is found out under
    /// the admin mutex, so that two administrators who each add one add two.
    ///
    /// Of `wish` everything counts but its number of slots. Without records in it,
    /// those that exist stay. Waiters are woken, and cancel safety is, as with
    /// [`Broker::converge`].
    pub async fn resize(
        &self,
        lock: &LockName,
        to: ResizeTo,
        wish: SlotWish,
        cancel: &CancellationToken,
    ) -> Result<Resized, ResizeError> {
        let change = self.change(lock, wish, cancel);
        let resized = change.run(move |change, lane| change.resize(lane, to).boxed()).await??;
        self.tell_waiters(lock, &resized.done).await;
        Ok(resized)
    }
}

impl Change {
    /// The outer error leaves unknown what was done.
    async fn resize(
        &mut self,
        lane: &mut Lane,
        to: ResizeTo,
    ) -> Result<Result<Resized, ResizeError>, BrokerError> {
        let lock = self.lock.clone();
        let (mark, seen) = protocol::of(&lock).survey(self, lane).await?;
        let slots = seen.slots.last().copied().unwrap_or(0);
        let exists = protocol::of(&lock).exists(self, lane, &seen).await?;
        let after = match to {
            ResizeTo::Create(_) if exists => return Ok(Err(ResizeError::Exists { lock, slots })),
            ResizeTo::Grow(_) | ResizeTo::Shrink(_) if !exists => {
                return Ok(Err(ResizeError::Missing { lock }));
            }
            ResizeTo::Create(slots) | ResizeTo::Exactly(slots) => Some(slots),
            ResizeTo::Grow(more) => slots.checked_add(more),
            ResizeTo::Shrink(fewer) => slots.checked_sub(fewer),
        };
        let Some(after) = after.filter(|after| *after <= MAX_SLOTS) else {
            return Ok(Err(ResizeError::OutOfRange { lock, slots }));
        };
        if after > slots
            && self.wish.records.is_none()
            && let Some(record) = lock.record_queue(1)
            && lane.all_exist(&[record]).await?
        {
            return Ok(Err(ResizeError::Records { lock }));
        }
        self.wish.slots = after;
        let done = self.make(lane, sweep_to(self.wish, mark)).await?;
        Ok(Ok(Resized { before: slots, after, done }))
    }
}
