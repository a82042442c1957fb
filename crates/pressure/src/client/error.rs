//! Errors of operations on a queue, in the protocol's terms. See [`StoreError`] for
//! errors of the server.

use std::fmt;
use std::time::Duration;

use lockkeeper_plan::pressure_queue::{QueueRole, residue};

use crate::StoreError;

/// The condition for which an operation waited when its time limit passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// Room in a full queue.
    Room,
    /// An element in an empty queue.
    Element,
    /// A role that another client holds.
    Role {
        /// The role.
        role: QueueRole,
        /// The other client's id, if it set one.
        who: Option<String>,
    },
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Room => f.write_str("there was no room"),
            Self::Element => f.write_str("no element came"),
            Self::Role { role, who: Some(who) } => write!(f, "{who} held the {role} role"),
            Self::Role { role, who: None } => write!(f, "another client held the {role} role"),
        }
    }
}

/// Why an operation on a queue failed. The errors are those of pressure 0.15
/// (`QueueDoesNotExistError` and so on). None of them contains an element.
///
/// After every error except [`Self::Store`], the operation had no effect, unless its
/// method states otherwise. For that one, see [`Self::ends_unknown`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The queue was never created, or was deleted.
    #[error(
        "the queue does not exist: create it first; that of a PressureQueue exists once `kubectl get pq` shows it as ready"
    )]
    DoesNotExist,
    /// A queue of this name exists.
    #[error("the queue exists already: use it as it is, or delete it first")]
    AlreadyExists,
    /// No queue of this name exists, but keys of one whose deletion was abandoned or is
    /// in progress, or that lost its `:bound`. A queue created over them would be closed
    /// from the start, or have their elements: see [`Queue::adopt`](super::Queue::adopt).
    #[error("{}", residue(keys))]
    Residue {
        /// Suffixes of the existing keys.
        keys: Vec<String>,
    },
    /// The queue is closed: no element can be put, or no element is left to get.
    #[error("the queue is closed: delete it and create another to go on")]
    Closed,
    /// The queue contains as many elements as its bound allows.
    #[error("the queue is full: wait for room, or raise its bound")]
    Full,
    /// The queue is empty.
    #[error("the queue is empty: wait for an element")]
    Empty,
    /// Another client holds the role that the operation requires.
    #[error("{} is the queue's {role} now: wait, or see whether it still lives", Somebody(.who))]
    InUse {
        /// The role.
        role: QueueRole,
        /// The other client's id, if it set one.
        who: Option<String>,
    },
    /// The time limit passed before the operation could start.
    #[error("it took too long: {awaited}")]
    TimedOut {
        /// The condition for which it waited.
        awaited: Awaited,
    },
    /// An element exceeds the maximum size of Redis, 512 MiB. No element of its batch was
    /// put.
    #[error("an element has {bytes} bytes, and Redis takes 512 MiB at most: split it")]
    TooLarge {
        /// Size of the element.
        bytes: usize,
    },
    /// Elements can't be given back, because another client has read some since. At the
    /// front of the queue they would be out of order.
    #[error(
        "another client has got elements since, or the counter of elements is unusable: these can't go back to their place"
    )]
    Overtaken,
    /// The lease of an element in flight has ended: it was settled already, or another get
    /// returned it. The element may be processed twice.
    #[error("the lease of the element has ended: another client may process it again")]
    LeaseEnded,
    /// The server was not reachable, or refused.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl QueueError {
    /// Whether the operation may have succeeded although it failed. This is the case if
    /// the command was sent, and its answer never arrived or was not understood. This
    /// crate never retries such an operation.
    #[must_use]
    pub fn ends_unknown(&self) -> bool {
        matches!(self, Self::Store(StoreError::Unanswered { .. } | StoreError::Protocol { .. }))
    }
}

struct Somebody<'a>(&'a Option<String>);

impl fmt::Display for Somebody<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or("another client"))
    }
}

/// A batch that was not put completely.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{put} elements were put, then: {error}")]
pub struct PutBatchError {
    /// Number of elements, from the first on, that are in the queue for certain.
    pub put: usize,
    /// Number of following elements that may be in the queue too. The rest is not.
    pub uncertain: usize,
    /// Why the remaining elements were not put.
    #[source]
    pub error: QueueError,
}

/// Elements that could not be given back.
#[derive(Debug, thiserror::Error)]
#[error("{} elements could not be given back: {error}", .taken.len())]
pub struct GiveBackError {
    /// The elements. They exist only here, or perhaps in the queue if
    /// [`QueueError::ends_unknown`].
    pub taken: super::Taken,
    /// The cause.
    #[source]
    pub error: QueueError,
}

/// How long an operation may wait for room, an element or a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Do not wait: [`QueueError::Full`], [`QueueError::Empty`] and [`QueueError::InUse`]
    /// are returned immediately.
    No,
    /// Wait for this time, then return [`QueueError::TimedOut`].
    For(Duration),
    /// Wait without a limit.
    Forever,
}
