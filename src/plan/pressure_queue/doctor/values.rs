//! The values of a diagnosis: who is connected, what was found, what may be done
//! about it and what speaks against that. How they come about is not here.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

use crate::plan::pressure_queue::{QueueRole, QueueSeen, Remark, Role};

/// What the names of Lockkeeper's own connections begin with. They never hold a
/// role from one command to the next.
pub const OWN_CONNECTIONS: &str = "lockkeeper/";

/// Most connections that a text names.
const MOST_NAMED: usize = 5;

/// A connection of the server's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Its number, which a server never gives twice until it is restarted.
    pub id: u64,
    /// Where it comes from, cleaned.
    pub address: String,
    /// What its client calls it, cleaned; empty where it has no name.
    pub name: String,
    /// For how long it is open, in whole seconds.
    pub age: Duration,
    /// The database that it has selected.
    pub database: i64,
    /// Whether it only listens: a replica's link, a monitor, a subscriber.
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

/// What is known of the server's connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connections {
    /// It was not asked this time.
    NotAsked,
    /// It may not be asked: nothing that hangs on connections is ever mended.
    Forbidden,
    /// These were there, after the queue was read.
    Listed(Vec<Connection>),
}

/// One look at a queue.
#[derive(Clone, Debug)]
pub struct Look {
    /// When, on a clock that only goes forward.
    pub at: Duration,
    /// When, for people.
    pub time: Timestamp,
    /// The start of the server that answered, if it tells.
    pub run_id: Option<String>,
    /// What the queue's keys held.
    pub seen: QueueSeen,
    /// Who was connected just after.
    pub connections: Connections,
}

/// Something that is wrong, or may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What.
    pub remark: Remark,
    /// What can be done about it.
    pub remedy: Remedy,
}

/// What can be done about a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// It may be mended now.
    Mend(Repair),
    /// It may be mended once this is no longer so.
    Wait(Against),
    /// Nothing is ever done about it; the text says what a person can do.
    Leave(&'static str),
}

/// What speaks against a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Against {
    /// The queue was not seen unchanged for so long yet.
    Moved(Duration),
    /// These connections were there when the queue was first seen as it is, and
    /// each may be that of a living holder.
    Connected(Vec<Connection>),
    /// The server does not tell its connections or its run id.
    NotTold,
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
                "never while the Redis user may not run CLIENT LIST and INFO: nobody can tell a dead client from one that waits",
            ),
        }
    }
}

/// One repair, with what must still be so when it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Give a dead client's role back, and put the token right.
    GiveBack {
        /// The role.
        role: QueueRole,
        /// What must still be so.
        evidence: Box<Evidence>,
    },
    /// Write what a dead creator has not.
    FinishCreation {
        /// What must still be so.
        evidence: Box<Evidence>,
    },
    /// Remove what a dead deleter has left.
    FinishDeletion {
        /// What must still be so.
        evidence: Box<Evidence>,
    },
    /// Leave one token in each key that has more, and, while nobody works on the
    /// queue, one in `:not_full` if there is room and none if not.
    SettleTokens,
}

/// What a repair rests on, and must not have changed when it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// What of the queue was seen unchanged; see [`Repair::still_fits`].
    pub unchanged: QueueSeen,
    /// The start of the server that was asked.
    pub run_id: String,
    /// For how long the queue had to be seen so.
    pub idle: Duration,
}

impl Repair {
    /// Whether the queue is still as it was when the repair was decided.
    #[must_use]
    pub fn still_fits(&self, now: &QueueSeen) -> bool {
        match self {
            Self::GiveBack { role, evidence } => evidence.unchanged == of_role(*role, now),
            Self::FinishCreation { evidence } | Self::FinishDeletion { evidence } => {
                evidence.unchanged == *now
            }
            Self::SettleTokens => true,
        }
    }
}

/// What of a queue must stay as it is for a role's holder to be believed dead: what
/// only the holder changes, and length and counters. The other role may come and go.
pub(super) fn of_role(role: QueueRole, seen: &QueueSeen) -> QueueSeen {
    let mut seen = QueueSeen { not_full: 0, closed_tokens: 0, ..seen.clone() };
    match role {
        QueueRole::Producer => (seen.consumer, seen.consumer_free) = (Role::default(), 0),
        QueueRole::Consumer => (seen.producer, seen.producer_free) = (Role::default(), 0),
    }
    seen
}
