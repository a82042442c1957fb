//! Why a lock was not acquired.

use std::time::Duration;

use lockkeeper_amqp::error::AmqpError;

use super::heartbeat::LostReason;
use crate::error::BrokerError;

/// Why no slot was acquired. Nothing is held in this case.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The semaphore does not exist. One of profile `AmqpLocksPython` with 0 slots is no
    /// different.
    #[error("there is no semaphore {lock}: check its name, profile and virtual host, or create it")]
    Missing {
        /// The lock.
        lock: String,
    },
    /// The semaphore has 0 slots, or is being created or removed. A client that waits for a
    /// lock which is deleted then gets this error only when its limit has passed.
    #[error("the lock {lock:?} has no slots: wait longer, or give it slots")]
    NoSlots {
        /// The lock.
        lock: String,
    },
    /// All slots are held.
    #[error("{}", full(lock, *slots))]
    Full {
        /// The lock.
        lock: String,
        /// Number of slots found, and 1 for a true mutex. In protocol Token it is 0: a
        /// client can't count tokens, nor distinguish no tokens from no free tokens.
        slots: u32,
    },
    /// Other clients were faster in every race.
    #[error("others took each free slot of the lock {lock:?} first: try again")]
    Contended {
        /// The lock.
        lock: String,
    },
    /// The last holder ended uncleanly, and the lock delay did not pass within the limit.
    /// The elapsed part is saved: the next client waits only for the remainder.
    #[error(
        "slot {slot} of the lock {lock:?} must rest for another {rest:.1?} because its last holder ended without releasing it: try again, or wait longer"
    )]
    Resting {
        /// The lock.
        lock: String,
        /// The slot.
        slot: u32,
        /// The remaining lock delay.
        rest: Duration,
    },
    /// The slot was lost during the lock delay.
    #[error("a slot was acquired and lost again ({reason}): try again")]
    Lost {
        /// The cause of the loss.
        reason: LostReason,
    },
    /// The broker was not reachable at the end of the limit, after this client had been
    /// connected.
    #[error("no slot of the lock {lock:?} could be acquired in time: {error}")]
    Unavailable {
        /// The lock.
        lock: String,
        /// The error of the last connection attempt.
        error: BrokerError,
    },
    /// A request to the broker failed.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

fn full(lock: &str, slots: u32) -> String {
    match slots {
        0 => format!(
            "no token of the lock {lock:?} is free: try again later, wait longer, or give it more tokens"
        ),
        1 => format!("the lock {lock:?} is held: try again later, or wait longer"),
        slots => format!(
            "every slot of the lock {lock:?} is held ({slots} of {slots}): try again later, wait longer, or give it more slots"
        ),
    }
}

/// Why [`Lock::run`](super::Lock::run) has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// No slot was acquired. The body did not run.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The slot was lost while the body ran, and the body was dropped. Or it was lost
    /// just after the body ended.
    #[error("the slot was lost: {0}")]
    Lost(#[from] LostReason),
}
impl From<AmqpError> for AcquireError {
    fn from(error: AmqpError) -> Self {
        BrokerError::from(error).into()
    }
}
