//! Conditions of a queue and their texts. See `plan` and `doctor` for when they are
//! reported.

use std::fmt;

use jiff::Timestamp;

use super::{DATA_LABEL, QueueRole};

/// A condition to report. None of them is an error of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remark {
    /// The queue was deleted while it was open, and is created again.
    Recreated,
    /// The queue was deleted after it was closed: it has served its purpose.
    Completed,
    /// The queue contains more elements than the bound allows. Nothing is removed.
    Overfilled {
        /// Elements in the queue.
        length: u64,
        /// The current bound, or the one about to be set.
        bound: u64,
    },
    /// `:bound` exists, but other keys of a creation don't. This is the case for
    /// milliseconds of every creation by a client that sends individual commands, so a
    /// second observation must confirm it.
    HalfCreated {
        /// Suffixes of the missing keys.
        missing: Vec<String>,
    },
    /// There is no `:bound`, but other keys exist: a deletion in progress, an interrupted
    /// one, or a queue that lost its `:bound`, for example by an eviction. The queue is not
    /// created over it: it would be closed from the start, or have the old elements.
    Residue {
        /// Suffixes of the existing keys.
        keys: Vec<String>,
    },
    /// The queue can't be closed while a producer holds its role.
    WaitingForProducer {
        /// The holder of the role, if it set an id.
        who: Option<String>,
    },
    /// A client closed a queue whose desired state is open. Not drift: a producer may
    /// close the queue, and closing is irreversible.
    ClosedByClient,
    /// The queue was closed and is open again. Either it was deleted and created again,
    /// or the close woke more clients than the protocol allows.
    Reopened,
    /// A role is taken, and its holder is dead or inactive without a reason.
    RoleStuck {
        /// The role.
        role: QueueRole,
        /// The client that took it, if it set an id.
        who: Option<String>,
        /// When the queue was first observed in this state. The role has been taken since
        /// then or longer.
        since: Timestamp,
    },
    /// There is room and both roles are free, but `:not_full` is empty: the next producer
    /// would wait indefinitely.
    LostToken,
    /// A key has surplus elements: more than one, or one in `:not_full` while the queue
    /// is full. This is the case for an instant of every put and get by a client that
    /// sends individual commands, so a second observation must confirm it.
    SurplusToken {
        /// The key's suffix.
        key: &'static str,
        /// Its number of elements.
        count: u64,
    },
    /// Both roles are free, but the elements put, less those read, don't match the
    /// elements in the queue. Never corrected: the data is authoritative, and the
    /// counters belong to the clients.
    CounterDrift {
        /// The difference of the counters less the length.
        by: i64,
    },
    /// Elements were got with a lease and not acknowledged, and their leases have ended.
    /// No damage: the next get of a Lockkeeper client returns them.
    LeasesEnded {
        /// Number of these elements.
        count: u64,
    },
    /// A key has a value that pressure never writes there. Nothing is changed until that
    /// is resolved.
    WrongType {
        /// The key's suffix, or [`DATA_LABEL`](super::DATA_LABEL).
        key: String,
    },
}

impl Remark {
    /// Returns the condition or event reason.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Recreated => "Recreated",
            Self::Completed => "Completed",
            Self::Overfilled { .. } => "Overfilled",
            Self::HalfCreated { .. } => "HalfCreated",
            Self::Residue { .. } => "Residue",
            Self::WaitingForProducer { .. } => "WaitingForRole",
            Self::ClosedByClient => "ClosedByClient",
            Self::Reopened => "Reopened",
            Self::RoleStuck { .. } => "RoleStuck",
            Self::LostToken => "LostToken",
            Self::SurplusToken { .. } => "SurplusToken",
            Self::CounterDrift { .. } => "CounterDrift",
            Self::LeasesEnded { .. } => "LeasesEnded",
            Self::WrongType { .. } => "WrongType",
        }
    }

    /// Whether the queue cannot be changed until a user or a client acts.
    #[must_use]
    pub fn blocks(&self) -> bool {
        matches!(self, Self::HalfCreated { .. } | Self::Residue { .. } | Self::WrongType { .. })
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recreated => f.write_str("the queue was deleted while open: it is created again"),
            Self::Completed => f.write_str(
                "the queue was deleted after it was closed: it is done and is not created again",
            ),
            Self::Overfilled { length, bound } => write!(
                f,
                "the queue holds {length} elements, its bound is {bound}: no client may put until it is drained"
            ),
            Self::HalfCreated { missing } => write!(
                f,
                "the queue was only half created, {} never written: have its creator delete and create it",
                missing.join(" ")
            ),
            Self::Residue { keys } => f.write_str(&residue(keys)),
            Self::WaitingForProducer { who: Some(who) } => {
                write!(f, "the queue is closed as soon as its producer {who} is done")
            }
            Self::WaitingForProducer { who: None } => {
                f.write_str("the queue is closed as soon as its producer is done")
            }
            Self::ClosedByClient => {
                f.write_str("a client closed the queue; a closed queue can't be opened again")
            }
            Self::Reopened => f.write_str(
                "the queue was closed and is open now: a client created it again, or lost its closed marker",
            ),
            Self::LostToken => f.write_str(
                "the queue has room, but the token that says so is lost: producers would wait without end",
            ),
            Self::RoleStuck { role, who, since } => {
                let who = who.as_deref().unwrap_or("a client without a name");
                write!(
                    f,
                    "the {role} role is taken by {who}, and nothing has moved since {since:.0}: no other {role} gets in"
                )
            }
            // Without the number, which changes with every element of a client that does
            // not count. A status must not change that often.
            Self::CounterDrift { .. } => f.write_str(
                "the counters of elements put and got don't add up to the queue's length: a client died at work, or does not count as the protocol says",
            ),
            Self::SurplusToken { key, count: 1 } => {
                write!(f, "{key} has an element although the queue is full: the next put would exceed the bound")
            }
            Self::SurplusToken { key, count } => {
                write!(f, "{key} has {count} elements, and one is allowed: a client breaks the protocol")
            }
            Self::LeasesEnded { count } => write!(
                f,
                "elements got and not acknowledged, whose leases have ended: {count}"
            ),
            Self::WrongType { key } => write!(
                f,
                "the key {key} holds something that is not pressure's: choose another queueName or prefix, or remove the key"
            ),
        }
    }
}

/// Describes keys that exist without a `:bound`, and the way back. A deletion is only
/// named as their cause if there is nothing else that they could be: its first step pushes
/// to `:closed`, and the elements of a queue that lost its `:bound` are still there.
#[must_use]
pub fn residue(keys: &[String]) -> String {
    let has = |label: &str| keys.iter().any(|key| key == label);
    let has_elements = has(DATA_LABEL) || has(":in_flight") || has(":leases");
    let keys = keys.join(" ");
    if has(":closed") && !has_elements {
        return format!(
            "the queue does not exist, but {keys} left over from its deletion: finish it with `lockkeeper queue delete`"
        );
    }
    let elements = if has_elements { ", with its elements" } else { "" };
    format!(
        "the queue lost its :bound, or its deletion was interrupted: {keys} are still there{elements}. `lockkeeper queue create --adopt` restores the queue, `lockkeeper queue delete` removes the rest"
    )
}

/// Describes an eviction policy of the server that may remove keys of queues.
#[must_use]
pub fn eviction(policy: &str) -> String {
    format!(
        "the server's maxmemory-policy is {policy}: at its memory limit it removes keys of queues, with their elements. Set noeviction"
    )
}
