//! What there is to say of a queue, and in which words. When it is said is decided
//! elsewhere.

use std::fmt;

use jiff::Timestamp;

use super::QueueRole;

/// Something to report: none of these is an error of the operator's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remark {
    /// The queue was deleted while it was open: it is created again.
    Recreated,
    /// The queue was deleted after it was closed: it has served its purpose.
    Completed,
    /// There are more elements than the bound allows. Nothing is removed.
    Overfilled {
        /// Elements in the queue.
        length: u64,
        /// What the bound is, or is about to be.
        bound: u64,
    },
    /// `:bound` is there, but a creation's other keys are not. True for
    /// milliseconds of every creation by a client that sends command by
    /// command: believe it when it is seen twice.
    HalfCreated {
        /// Suffixes of the missing keys.
        missing: Vec<String>,
    },
    /// There is no `:bound`, but other keys are there: a deletion under way or
    /// given up. Not created over: the next queue would be born closed.
    Residue {
        /// Suffixes of the keys.
        keys: Vec<String>,
    },
    /// The queue can't be closed while a producer holds its role.
    WaitingForProducer {
        /// Who holds the role, if it said so.
        who: Option<String>,
    },
    /// A client closed the queue that is wanted open. Not drift: closing is the
    /// producer's right and can't be taken back.
    ClosedByClient,
    /// The queue was closed and is open again: it was deleted and created anew,
    /// or more clients were woken by the close than the protocol allows.
    Reopened,
    /// A role is taken, and its holder is dead or does nothing although it could.
    RoleStuck {
        /// The role.
        role: QueueRole,
        /// Who took it, if it said so.
        who: Option<String>,
        /// When the queue was first seen as it is: the role is taken since then or
        /// longer.
        since: Timestamp,
    },
    /// There is room and nobody works on the queue, but `:not_full` is empty:
    /// the next producer would wait for ever.
    LostToken,
    /// A key has more elements than it may have: more than one, or one in
    /// `:not_full` while the queue is full. True for an instant of every put and
    /// get by a client that sends command by command: believe it when it is seen
    /// twice.
    SurplusToken {
        /// The key's suffix.
        key: &'static str,
        /// How many elements it has.
        count: u64,
    },
    /// Nobody works on the queue, and yet the elements that were put, less those
    /// that were got, are not those that are there. Never corrected: the data is
    /// right, and the count is the clients'.
    CounterDrift {
        /// What the counters tell less the length.
        by: i64,
    },
    /// A key holds what pressure never writes there. Nothing is changed while
    /// that is so.
    WrongType {
        /// The key's suffix, or [`DATA_LABEL`](super::DATA_LABEL).
        key: String,
    },
}

impl Remark {
    /// The remark's name as a condition or an event shows it.
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
            Self::WrongType { .. } => "WrongType",
        }
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
                "the queue holds {length} elements, its bound is {bound}: nobody may put until it is drained"
            ),
            Self::HalfCreated { missing } => write!(
                f,
                "the queue was only half created, {} never written: have its creator delete and create it",
                missing.join(" ")
            ),
            Self::Residue { keys } => write!(
                f,
                "the queue does not exist, but {} left over from its deletion: finish the deletion or remove the keys",
                keys.join(" ")
            ),
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
                "the queue was closed and is open now: a client created it anew, or lost what marked it as closed",
            ),
            Self::LostToken => f.write_str(
                "the queue has room, but the token that says so is lost: producers would wait for ever",
            ),
            Self::RoleStuck { role, who, since } => {
                let who = who.as_deref().unwrap_or("somebody who gave no name");
                write!(
                    f,
                    "the {role} role is taken by {who}, and nothing has moved since {since:.0}: no other {role} gets in"
                )
            }
            // Without the number, which changes with every element of a client that
            // does not count: a status must not.
            Self::CounterDrift { .. } => f.write_str(
                "the counters of what was put and got don't add up to what is there: a client died at work, or does not count as the protocol says",
            ),
            Self::SurplusToken { key, count: 1 } => {
                write!(f, "{key} has an element although the queue is full: the next put would exceed the bound")
            }
            Self::SurplusToken { key, count } => {
                write!(f, "{key} has {count} elements, and one is allowed: a client breaks the protocol")
            }
            Self::WrongType { key } => write!(
                f,
                "the key {key} holds something that is not pressure's: choose another queueName or prefix, or remove the key"
            ),
        }
    }
}
