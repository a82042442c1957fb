//! The types of a diagnosis: connections, findings, remedies, and obstacles to a repair.
//! See `doctor` for how they are determined.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::pressure_queue::{ObservedQueue, QueueRole, Remark, Role};

/// Name prefix of Lockkeeper's own connections. They never hold a role from one command
/// to the next.
pub const OWN_CONNECTIONS: &str = "lockkeeper/";

/// Maximum number of connections named in a text.
const MOST_NAMED: usize = 5;

/// A connection of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Its number, which a server does not reuse until it is restarted.
    pub id: u64,
    /// Its address, sanitized.
    pub address: String,
    /// The name set by its client, sanitized. Empty if it has no name.
    pub name: String,
    /// How long it has been open, in whole seconds.
    pub age: Duration,
    /// The selected database.
    pub database: i64,
    /// Whether it only receives: a replica's link, a monitor, a subscriber.
    pub only_listens: bool,
}

impl Connection {
    /// Whether its client may hold a role of a queue in `database`.
    #[must_use]
    pub fn may_hold_roles(&self, database: i64) -> bool {
        !self.only_listens && self.database == database && !self.name.starts_with(OWN_CONNECTIONS)
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)?;
        if !self.name.is_empty() {
            write!(f, " ({})", self.name)?;
        }
        Ok(())
    }
}

/// The subject of a guard, watched until its holder is proven to be dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A role that is taken.
    Role(QueueRole),
    /// A queue with only some of its keys, `:bound` among them.
    Creation,
    /// A queue with keys, but no `:bound`.
    Deletion,
}

/// For which subjects the server watches keys and lists its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// For subjects that are inactive although they could continue. Sufficient to report
    /// damage.
    Report,
    /// Also for roles whose holders wait for room or data. Required to repair.
    Repair,
    /// Like `Repair`, but from the first observation on instead of the second.
    Full,
}

/// The server's answer about the keys and the possible holders of a subject.
#[derive(Clone, Debug)]
pub enum Guarded {
    /// The ACL does not allow watching keys or listing connections.
    Forbidden,
    /// The keys are not watched yet, because too many others are.
    NotYet,
    /// The keys were changed, or the connection that watched them was closed.
    Touched,
    /// As far as known, the keys were not changed since this guard was set.
    Untouched {
        /// The guard's number. A different number means that the keys were unwatched for
        /// some time.
        guard: u64,
        /// The connections that were open at a moment after the guard was set.
        connections: Option<Arc<[Connection]>>,
    },
}

/// One observation of a queue.
#[derive(Clone, Debug)]
pub struct Look {
    /// Time on a monotonic clock.
    pub at: Duration,
    /// Time for display.
    pub time: Timestamp,
    /// The content of the queue's keys.
    pub seen: ObservedQueue,
    /// The state of each subject of [`Doctor::to_guard`](super::Doctor::to_guard).
    pub guarded: Vec<(Subject, Guarded)>,
}

/// A fault, or a possible one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The finding.
    pub remark: Remark,
    /// The possible remedy.
    pub remedy: Remedy,
}

/// The remedy for a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// It may be repaired now.
    Mend(Repair),
    /// It may be repaired once this obstacle is gone.
    Wait(Against),
    /// It is never repaired automatically. The text describes what a person can do.
    Leave(&'static str),
}

/// An obstacle to a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Against {
    /// The queue has not been unchanged for this long yet.
    Moved(Duration),
    /// These connections were open when the queue was first observed in this state. Each
    /// may belong to a living holder.
    Connected(Vec<Connection>),
    /// The ACL forbids a command that the diagnosis requires.
    NotTold,
    /// The limit of concurrently watched queues is reached.
    NotWatched,
}

impl fmt::Display for Against {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moved(idle) => {
                write!(f, "not before nothing has moved for {} s", idle.as_secs_f32())
            }
            Self::Connected(all) => {
                f.write_str("not while these connections are open, each of which may be its holder's (end those that are not): ")?;
                for (n, connection) in all.iter().take(MOST_NAMED).enumerate() {
                    write!(f, "{}{connection}", if n > 0 { ", " } else { "" })?;
                }
                match all.len().saturating_sub(MOST_NAMED) {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
            Self::NotTold => f.write_str(
                "never while the Redis user may not run CLIENT LIST, CLIENT SETNAME, WATCH, MULTI and EXEC: without them a dead client looks like one that waits",
            ),
            Self::NotWatched => f.write_str(
                "not before it can be watched: the limit of queues that are watched at the same time is reached, or Redis accepts no further connection",
            ),
        }
    }
}

/// A repair, with the evidence that must still be valid when it is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Release a dead client's role, and repair the token.
    GiveBack {
        /// The role.
        role: QueueRole,
        /// The evidence that must still be valid.
        evidence: Box<Evidence>,
    },
    /// Write the keys that a dead creator has not written.
    FinishCreation {
        /// The evidence that must still be valid.
        evidence: Box<Evidence>,
    },
    /// Remove the leftovers of a dead deleter.
    FinishDeletion {
        /// The evidence that must still be valid.
        evidence: Box<Evidence>,
    },
    /// Leave one token in each key that has more. If both roles are free, leave one in
    /// `:not_full` if there is room and none if not.
    SettleTokens,
}

/// The basis of a repair, which must not have changed when it is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The part of the queue that was observed unchanged. See [`Repair::still_fits`].
    pub unchanged: ObservedQueue,
    /// The number of the guard that has watched the keys since then.
    pub guard: u64,
}

impl Repair {
    /// Returns the subject and the evidence of the repair. `None` for a repair that is
    /// based on the content of the keys alone.
    #[must_use]
    pub fn evidence(&self) -> Option<(Subject, &Evidence)> {
        match self {
            Self::GiveBack { role, evidence } => Some((Subject::Role(*role), evidence)),
            Self::FinishCreation { evidence } => Some((Subject::Creation, evidence)),
            Self::FinishDeletion { evidence } => Some((Subject::Deletion, evidence)),
            Self::SettleTokens => None,
        }
    }

    /// Whether the queue is still in the state in which the repair was decided.
    #[must_use]
    pub fn still_fits(&self, now: &ObservedQueue) -> bool {
        self.evidence().is_none_or(|(subject, evidence)| evidence.unchanged == subject.part_of(now))
    }
}

impl Subject {
    /// Returns the part of a queue that must stay unchanged for the subject's holder to
    /// be considered dead.
    pub(super) fn part_of(self, seen: &ObservedQueue) -> ObservedQueue {
        match self {
            Self::Creation | Self::Deletion => ObservedQueue { leases_ended: 0, ..seen.clone() },
            Self::Role(role) => of_role(role, seen),
        }
    }
}

/// Returns the part of a queue that must stay unchanged for a role's holder to be
/// considered dead: the keys that only the holder changes, length and counters. The other
/// role may change hands, and elements in flight may be acknowledged.
fn of_role(role: QueueRole, seen: &ObservedQueue) -> ObservedQueue {
    let mut seen = ObservedQueue {
        closed_tokens: 0,
        not_full: 0,
        in_flight: 0,
        leases_ended: 0,
        ..seen.clone()
    };
    match role {
        QueueRole::Producer => (seen.consumer, seen.consumer_free) = (Role::default(), 0),
        QueueRole::Consumer => (seen.producer, seen.producer_free) = (Role::default(), 0),
    }
    seen
}
