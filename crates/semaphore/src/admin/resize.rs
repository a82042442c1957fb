//! Changes a semaphore's number of slots relative to its current one, for administrators
//! without a resource that defines it. See `converge` for how slots are created and
//! deleted.

use lockkeeper_amqp::channel::Channel;
use lockkeeper_plan::naming::{LockName, MAX_SLOTS};
use lockkeeper_plan::semaphore::sweep_to;

use super::broker::Handle;
use crate::error::BrokerError;
use crate::session::change::{Change, Converged};

/// The new number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeTo {
    /// This number, for a semaphore that doesn't exist yet.
    Create(u32),
    /// This number, whether the semaphore exists or not.
    Exactly(u32),
    /// More slots by this number.
    Grow(u32),
    /// Fewer slots by this number. Holders of removed slots keep them until they release.
    Shrink(u32),
}

/// The result of a resize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resized {
    /// The highest slot before the change.
    pub before: u32,
    /// The number of slots after the change.
    pub after: u32,
    /// The changes made, and the observed state.
    pub done: Converged,
}

/// Why a semaphore was not resized. Except for [`ResizeError::Broker`], nothing was
/// changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// The semaphore to create already exists.
    #[error("the semaphore {lock} exists already, with {slots} slots: grow or shrink it")]
    Exists {
        /// The name of the semaphore.
        lock: LockName,
        /// Its highest slot.
        slots: u32,
    },
    /// The semaphore to grow or shrink does not exist.
    #[error("there is no semaphore {lock}: check its name, profile and virtual host, or create it")]
    Missing {
        /// The name of the semaphore.
        lock: LockName,
    },
    /// The result would be fewer than 0 slots, or more than [`MAX_SLOTS`].
    #[error("the semaphore {lock} has {slots} slots, and can have 0 to {MAX_SLOTS}")]
    OutOfRange {
        /// The name of the semaphore.
        lock: LockName,
        /// Its highest slot.
        slots: u32,
    },
    /// The existing slots have records, and the request does not mention records. New
    /// slots would be the only ones without fencing and lock delay.
    #[error(
        "the slots of the semaphore {lock} have records (fencing, lock delay), and new slots need them too: give a lock delay (--lock-delay, 0s for none)"
    )]
    Records {
        /// The name of the semaphore.
        lock: LockName,
    },
    /// The broker refused the request or did not answer.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// The outer error means that the outcome is unknown.
pub(super) async fn resize(
    handle: &Handle,
    change: &mut Change,
    channel: &mut Channel,
    to: ResizeTo,
) -> Result<Result<Resized, ResizeError>, BrokerError> {
    let lock = change.lock.clone();
    let protocol = handle.administered(&lock)?;
    let (mark, seen) = protocol.survey(change, channel).await?;
    let slots = seen.size();
    let exists = protocol.exists(change, channel, &seen).await?;
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
        && change.desired.records.is_none()
        && let Some(record) = lock.record_queue(1)
        && channel.all_exist(&[record]).await?
    {
        return Ok(Err(ResizeError::Records { lock }));
    }
    change.desired.slots = after;
    let done =
        protocol.apply(change, channel, sweep_to(change.desired, mark.unwrap_or(slots))).await?;
    Ok(Ok(Resized { before: slots, after, done }))
}
