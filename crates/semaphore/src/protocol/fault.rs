//! The faults of a semaphore that a check can find. See `admin` for the check, and the
//! protocols for how each is found.

use std::fmt;

use crate::error::BrokerError;

/// The expected state of a semaphore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// Expected number of slots or tokens. `None`: as many as the highest existing slot.
    pub slots: Option<u32>,
    /// If true, each slot must have a record (fencing, lock delay). If false, each must
    /// have one only if any has.
    pub records: bool,
}

/// A fault of a semaphore.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The semaphore does not exist.
    Absent,
    /// A slot is missing.
    Missing {
        /// The slot.
        slot: u32,
    },
    /// A slot exists that should not.
    Stray {
        /// The slot.
        slot: u32,
    },
    /// The slot has no record, but should have one.
    WithoutRecord {
        /// The slot.
        slot: u32,
    },
    /// The slot's record queue has lost its record.
    EmptiedRecord {
        /// The slot.
        slot: u32,
    },
    /// The wait queue is missing.
    WithoutWaitQueue,
    /// The wait queue is not as Lockkeeper declares it.
    ForeignWaitQueue {
        /// The difference, as reported by the broker.
        why: String,
    },
    /// No client can hold the slot, because its holder queue is missing.
    WithoutHolderQueue {
        /// The slot.
        slot: u32,
    },
    /// No client can hold the slot, because an ordinary queue has the name of the
    /// holder's exclusive queue.
    ForeignHolderQueue {
        /// The slot.
        slot: u32,
        /// The queue's name.
        queue: String,
    },
    /// A queue of the slot is not as Lockkeeper declares it.
    Foreign {
        /// The slot.
        slot: u32,
        /// The difference, as reported by the broker.
        why: String,
    },
    /// The number of tokens is not the expected one.
    TokenCount {
        /// Number of missing tokens.
        missing: u32,
        /// Number of tokens that should not exist.
        surplus: u32,
    },
    /// The token queue is not as Lockkeeper declares it.
    ForeignTokenQueue {
        /// The difference, as reported by the broker.
        why: String,
    },
    /// The slots belong to another protocol.
    OtherProtocol {
        /// The evidence, as text.
        why: String,
    },
}

impl Fault {
    /// Returns the fault that a check for queues of other protocols has found.
    pub(super) fn of_protocol(
        checked: Result<(), BrokerError>,
    ) -> Result<Option<Self>, BrokerError> {
        match checked {
            Ok(()) => Ok(None),
            Err(error @ BrokerError::ProtocolMismatch { .. }) => {
                Ok(Some(Self::OtherProtocol { why: error.to_string() }))
            }
            Err(error) => Err(error),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => write!(
                f,
                "the semaphore does not exist: check its name, protocol, profile and virtual host"
            ),
            Self::Missing { slot } => write!(f, "slot {slot} is missing"),
            Self::Stray { slot } => write!(f, "slot {slot} should not exist"),
            Self::WithoutRecord { slot } => {
                write!(f, "slot {slot} has no record (fencing, lock delay)")
            }
            Self::WithoutWaitQueue => {
                write!(f, "the wait queue is missing, so waiting clients are not notified")
            }
            Self::ForeignWaitQueue { why } => {
                write!(f, "the wait queue is not Lockkeeper's: {why}")
            }
            Self::EmptiedRecord { slot } => write!(
                f,
                "slot {slot} has lost its record (fencing, lock delay); check that no policy with message-ttl applies to it"
            ),
            Self::WithoutHolderQueue { slot } => {
                write!(f, "slot {slot} has no holder queue, so no client can hold it")
            }
            Self::ForeignHolderQueue { slot, queue } => write!(
                f,
                "slot {slot} can't be held, because {queue:?} is an ordinary queue: delete it"
            ),
            Self::Foreign { slot, why } => write!(f, "slot {slot} is a foreign queue: {why}"),
            Self::TokenCount { missing: 0, surplus } => write!(f, "{surplus} tokens are too many"),
            Self::TokenCount { missing, .. } => write!(f, "{missing} tokens are missing"),
            Self::ForeignTokenQueue { why } => write!(f, "the token queue is foreign: {why}"),
            Self::OtherProtocol { why } => f.write_str(why),
        }
    }
}
