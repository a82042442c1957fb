//! A pressure queue as values: the desired state, the observed keys in Redis, the effects
//! on them and their results. See `plan` for the decisions, and the crate `pressure` for
//! reading and changing a queue.

pub mod doctor;
mod plan;
mod remark;

use std::fmt;

pub use self::plan::{QueuePlan, plan};
pub use self::remark::{Remark, eviction, residue};

/// Label of the data list in lists of key suffixes, because the list itself has no
/// suffix.
pub const DATA_LABEL: &str = "(data)";

/// Whether a queue accepts new elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DesiredState {
    /// Elements may be put.
    Open,
    /// No element may be put any more. Elements in the queue can still be read. The
    /// protocol cannot reopen a queue.
    Closed,
}

/// The desired state of a queue, from its resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredQueue {
    /// Maximum number of elements. 0 means no limit.
    pub bound: u64,
    /// Open or closed.
    pub state: DesiredState,
}

/// The state of one role of a queue, according to its keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// The client that took the role last, sanitized and truncated. It is kept after a
    /// release. `None` if the role was never taken.
    pub id: Option<String>,
    /// Whether the role is taken now: its `_free` list is empty.
    pub busy: bool,
}

/// One of the two roles of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueRole {
    /// The client that puts or closes.
    Producer,
    /// The client that gets or deletes.
    Consumer,
}

impl fmt::Display for QueueRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Producer => "producer",
            Self::Consumer => "consumer",
        })
    }
}

/// The content of a queue's keys at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedQueue {
    /// The bound. 0 means no limit. `None` means that the queue does not exist (the
    /// protocol: `:bound` "is the only way to tell").
    pub bound: Option<u64>,
    /// Number of elements in the queue.
    pub length: u64,
    /// Whether the queue is closed: `:closed` has an element.
    pub closed: bool,
    /// Number of elements of `:closed`: two after a close, one less for every client that
    /// the close woke.
    pub closed_tokens: u64,
    /// Number of elements of `:not_full`. 0 or 1 if all clients follow the protocol.
    pub not_full: u64,
    /// The producer role.
    pub producer: Role,
    /// The consumer role.
    pub consumer: Role,
    /// Number of elements of `:producer_free`. 0 or 1 if all clients follow the protocol.
    pub producer_free: u64,
    /// Number of elements of `:consumer_free`. 0 or 1 if all clients follow the protocol.
    pub consumer_free: u64,
    /// Number of elements ever put, as counted by the clients.
    pub produced_messages: u64,
    /// Number of bytes ever put. Clients may omit this.
    pub produced_bytes: u64,
    /// Number of elements ever read, as counted by the clients.
    pub consumed_messages: u64,
    /// Number of bytes ever read. Clients may omit this.
    pub consumed_bytes: u64,
    /// Number of elements that were got with a lease and not acknowledged. They no longer
    /// count as elements in the queue.
    pub in_flight: u64,
    /// Number of those whose lease has ended: the next get of a Lockkeeper client returns
    /// them first.
    pub leases_ended: u64,
    /// Suffixes of existing keys if `:bound` is missing ([`DATA_LABEL`] for the data
    /// list). Empty if the queue exists.
    pub leftovers: Vec<String>,
    /// Suffixes of keys with a value that pressure never writes there: another type, or
    /// text instead of a number.
    pub wrong_types: Vec<String>,
}

impl ObservedQueue {
    /// Whether `bound` allows another element.
    #[must_use]
    pub fn has_room(&self, bound: u64) -> bool {
        bound == 0 || self.length < bound
    }

    /// Whether the queue exists and both roles are free.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.bound.is_some() && !self.producer.busy && !self.consumer.busy
    }

    /// Returns the elements put, less those read, less those in the queue, according to
    /// the clients' counters. Negative if the queue contains more than were put. While a
    /// role is taken, a difference is legitimate.
    #[must_use]
    pub fn drift(&self) -> i64 {
        let number = |n: u64| i128::from(n);
        let by =
            number(self.produced_messages) - number(self.consumed_messages) - number(self.length);
        i64::try_from(by).unwrap_or(if by < 0 { i64::MIN } else { i64::MAX })
    }

    /// Returns one of the two roles.
    #[must_use]
    pub fn role(&self, role: QueueRole) -> &Role {
        match role {
            QueueRole::Producer => &self.producer,
            QueueRole::Consumer => &self.consumer,
        }
    }

    /// Whether no element was ever put, according to the keys.
    fn is_unused(&self) -> bool {
        self.length == 0
            && self.produced_messages == 0
            && self.consumed_messages == 0
            && !self.closed
    }

    /// Returns keys that a creation has not written, or not yet: a role that is neither
    /// free nor was ever taken, or a token that is missing before the first use.
    fn never_written(&self) -> Vec<String> {
        let mut missing = Vec::new();
        if self.is_unused() {
            if self.producer_free == 0 && self.producer.id.is_none() {
                missing.push(":producer_free".to_owned());
            }
            if self.consumer_free == 0 && self.consumer.id.is_none() {
                missing.push(":consumer_free".to_owned());
            }
            // A producer writes its id before it takes the token.
            if self.not_full == 0 && self.producer.id.is_none() {
                missing.push(":not_full".to_owned());
            }
        }
        missing
    }
}

/// The last reported state of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PreviousStatus {
    /// The queue existed.
    pub existed: bool,
    /// The queue was closed, or its closing was requested.
    pub closed: bool,
}

/// A change on the server. One script applies it, and applying it again is harmless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueEffect {
    /// Create the queue, only if none of its keys exists.
    Create {
        /// Maximum number of elements. 0 means no limit.
        bound: u64,
    },
    /// Change the bound of the queue, and its consequences for producers.
    SetBound {
        /// Maximum number of elements. 0 means no limit.
        bound: u64,
    },
    /// Close the queue, once its producer role is free.
    Close,
}

/// The result of an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It was applied.
    Done,
    /// Nothing was left to do.
    AlreadySo,
    /// The queue does not exist, or no longer exists: observe again.
    Absent,
    /// Not created, because keys exist of an unfinished deletion, or of a queue that lost
    /// its `:bound`. `lockkeeper queue create --adopt` restores it.
    Residue {
        /// Suffixes of the existing keys.
        keys: Vec<String>,
    },
    /// Not closed, because a producer holds its role. Nothing was changed.
    ProducerBusy {
        /// The producer's id, if it set one.
        who: Option<String>,
    },
}

#[cfg(test)]
mod tests;
