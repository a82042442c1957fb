//! What can come of an operation on a queue, in the protocol's words; what can go
//! wrong with the server below it is [`StoreError`].

use std::fmt;
use std::time::Duration;

use crate::plan::pressure_queue::QueueRole;
use crate::pressure::StoreError;

/// What an operation was waiting for when its time was over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// Room in a full queue.
    Room,
    /// An element in an empty queue.
    Element,
    /// A role that another client holds.
    Role {
        /// Which.
        role: QueueRole,
        /// The other client, if it said who it is.
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

/// Why an operation on a queue did not do its work. The errors are those of the
/// source document "pressure 0.15" (`QueueDoesNotExistError` and so on); none of
/// them contains an element.
///
/// After all but [`Self::Store`] nothing has happened. After that one, what its
/// own text says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// Nobody created the queue, or somebody deleted it.
    #[error("the queue does not exist: create it first")]
    DoesNotExist,
    /// There is a queue of this name.
    #[error("the queue exists already: use it as it is, or delete it first")]
    AlreadyExists,
    /// There is no queue of this name, but keys of one whose deletion was given up
    /// or still goes on: a queue created over them would be born closed.
    #[error("the queue's last deletion has left {} behind: delete it again", .keys.join(" "))]
    Residue {
        /// Suffixes of the keys.
        keys: Vec<String>,
    },
    /// The queue is closed: nothing more can be put, or nothing is left to get.
    #[error("the queue is closed: delete it and create another to go on")]
    Closed,
    /// The queue holds as many elements as its bound allows.
    #[error("the queue is full: wait for room, or raise its bound")]
    Full,
    /// There is no element.
    #[error("the queue is empty: wait for an element")]
    Empty,
    /// Another client holds the role that the operation needs.
    #[error("{} is the queue's {role} now: wait, or see whether it still lives", Somebody(.who))]
    InUse {
        /// The role.
        role: QueueRole,
        /// The other client, if it said who it is.
        who: Option<String>,
    },
    /// The time was over before the operation could begin.
    #[error("it took too long: {awaited}")]
    TimedOut {
        /// What it waited for.
        awaited: Awaited,
    },
    /// An element is larger than Redis takes, which is 512 MiB. None of its batch
    /// was put.
    #[error("an element has {bytes} bytes, and Redis takes 512 MiB at most: split it")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Elements can't be given back, because another client got some since: in
    /// front of the queue they would be out of order.
    #[error("another client has got elements since: these can't go back to their place")]
    Overtaken,
    /// The server could not be reached or refused.
    #[error(transparent)]
    Store(#[from] StoreError),
}

struct Somebody<'a>(&'a Option<String>);

impl fmt::Display for Somebody<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or("another client"))
    }
}

/// A batch of which not all was put.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{put} elements were put, then: {error}")]
pub struct PutBatchError {
    /// So many of the elements, from the first on, are in the queue for certain.
    /// After a [`QueueError::Store`] some of the next ones may be there too.
    pub put: usize,
    /// Why not the others.
    #[source]
    pub error: QueueError,
}

/// Elements that could not be given back.
#[derive(Debug, thiserror::Error)]
#[error("{} elements could not be given back: {error}", .taken.len())]
pub struct GiveBackError {
    /// The elements: they are nowhere but here (or, after a
    /// [`QueueError::Store`] of a broken connection, perhaps in the queue).
    pub taken: super::Taken,
    /// Why not.
    #[source]
    pub error: QueueError,
}

/// How long an operation may wait for room, an element or a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: [`QueueError::Full`], [`QueueError::Empty`] and
    /// [`QueueError::InUse`] come at once.
    No,
    /// So long, then [`QueueError::TimedOut`].
    For(Duration),
    /// As long as it takes.
    Forever,
}
