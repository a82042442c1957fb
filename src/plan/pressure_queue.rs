//! What should happen to a pressure queue: the wish, what Redis has and what
//! was last reported go in; the effects to apply and the remarks to report come
//! out. How a queue is read or changed is not here (see `crate::pressure`).

pub mod doctor;
mod remark;

use std::fmt;

pub use remark::Remark;

/// What stands for the data list where key suffixes are listed: the list itself
/// has no suffix.
pub const DATA_LABEL: &str = "(data)";

/// Whether a queue takes new elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedState {
    /// Elements may be put.
    Open,
    /// No element may be put any more; what is in the queue can still be got.
    /// The protocol knows no way back.
    Closed,
}

/// What a resource asks of its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueWish {
    /// Most elements the queue may hold; 0 means no limit.
    pub bound: u64,
    /// Open or closed.
    pub state: WantedState,
}

/// One of the two roles of a queue, as its keys tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// Who took the role last (kept after it was given back), cleaned and cut;
    /// absent while nobody ever took it.
    pub id: Option<String>,
    /// Whether the role is taken now: its `_free` list is empty.
    pub busy: bool,
}

/// One of a queue's two roles, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueRole {
    /// Who puts, or closes.
    Producer,
    /// Who gets, or deletes.
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

/// What a queue's twelve keys held at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSeen {
    /// The bound; 0 is no limit, absent means that the queue does not exist (the
    /// protocol: `:bound` "is the only way to tell").
    pub bound: Option<u64>,
    /// Elements in the queue.
    pub length: u64,
    /// Whether the queue is closed: `:closed` has an element.
    pub closed: bool,
    /// Elements of `:closed`: two after a close, one less for every client that
    /// the close woke.
    pub closed_tokens: u64,
    /// Elements of `:not_full`; 0 or 1 while the protocol is kept.
    pub not_full: u64,
    /// Who puts.
    pub producer: Role,
    /// Who gets.
    pub consumer: Role,
    /// Elements of `:producer_free`; 0 or 1 while the protocol is kept.
    pub producer_free: u64,
    /// Elements of `:consumer_free`; 0 or 1 while the protocol is kept.
    pub consumer_free: u64,
    /// Elements ever put, as the clients counted.
    pub produced_messages: u64,
    /// Bytes ever put; clients may leave this out.
    pub produced_bytes: u64,
    /// Elements ever got, as the clients counted.
    pub consumed_messages: u64,
    /// Bytes ever got; clients may leave this out.
    pub consumed_bytes: u64,
    /// Suffixes of the keys that exist although there is no `:bound`
    /// ([`DATA_LABEL`] for the data list); empty while the queue exists.
    pub leftovers: Vec<String>,
    /// Suffixes of the keys that hold what pressure never writes there: another
    /// type, or text where a number belongs.
    pub wrong_types: Vec<String>,
}

impl QueueSeen {
    /// Whether `bound` leaves room for another element.
    #[must_use]
    pub fn has_room(&self, bound: u64) -> bool {
        bound == 0 || self.length < bound
    }

    /// Whether the queue exists and nobody works on it.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.bound.is_some() && !self.producer.busy && !self.consumer.busy
    }

    /// Elements that were put and neither got nor are there, as the clients count:
    /// below 0 if there are more than were put. Off by right while somebody works.
    #[must_use]
    pub fn drift(&self) -> i64 {
        let number = |n: u64| i128::from(n);
        let by =
            number(self.produced_messages) - number(self.consumed_messages) - number(self.length);
        i64::try_from(by).unwrap_or(if by < 0 { i64::MIN } else { i64::MAX })
    }

    /// One of the two roles.
    #[must_use]
    pub fn role(&self, role: QueueRole) -> &Role {
        match role {
            QueueRole::Producer => &self.producer,
            QueueRole::Consumer => &self.consumer,
        }
    }

    /// Whether nothing was ever put, as far as the keys tell.
    fn is_unused(&self) -> bool {
        self.length == 0
            && self.produced_messages == 0
            && self.consumed_messages == 0
            && !self.closed
    }

    /// The keys that a creation has not written, or not yet: a role that is
    /// neither free nor was ever taken, a token that is missing before the first
    /// use.
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

/// What the last status said of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// The queue existed.
    pub existed: bool,
    /// The queue was closed, or asked to be.
    pub closed: bool,
}

/// One change on the server. Each is applied by one script, and is harmless when
/// it is applied again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueEffect {
    /// Make the queue, only where none of its keys exists.
    Create {
        /// Most elements; 0 for no limit.
        bound: u64,
    },
    /// Change the bound of the queue, and what follows from it for producers.
    SetBound {
        /// Most elements; 0 for no limit.
        bound: u64,
    },
    /// Close the queue, once its producer role is free.
    Close,
}

/// What to do and what to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueuePlan {
    /// To be applied in this order.
    pub effects: Vec<QueueEffect>,
    /// To be reported, whether or not the effects succeed.
    pub remarks: Vec<Remark>,
}

/// Decides. Total and without side effects; the rules are those of the source
/// document "pressure 0.15", and where it is silent: an existing queue is
/// adopted with its data, data is never removed, and what a client may do
/// (close, delete) is no drift.
#[must_use]
pub fn plan(wish: &QueueWish, seen: &QueueSeen, past: &Past) -> QueuePlan {
    if !seen.wrong_types.is_empty() {
        // Not a queue, or not only: every change could destroy somebody's data.
        let remarks =
            seen.wrong_types.iter().map(|key| Remark::WrongType { key: key.clone() }).collect();
        return QueuePlan { effects: Vec::new(), remarks };
    }
    match seen.bound {
        None => plan_absent(wish, seen, *past),
        Some(bound) => plan_existing(wish, seen, *past, bound),
    }
}

fn plan_absent(wish: &QueueWish, seen: &QueueSeen, past: Past) -> QueuePlan {
    let wants_closed = wish.state == WantedState::Closed;
    if !seen.leftovers.is_empty() {
        let residue = Remark::Residue { keys: seen.leftovers.clone() };
        return QueuePlan { effects: Vec::new(), remarks: vec![residue] };
    }
    // A queue that existed is not made only to be closed.
    if past.existed && (past.closed || wants_closed) {
        return QueuePlan { effects: Vec::new(), remarks: vec![Remark::Completed] };
    }
    let mut effects = vec![QueueEffect::Create { bound: wish.bound }];
    if wants_closed {
        effects.push(QueueEffect::Close);
    }
    let remarks = if past.existed { vec![Remark::Recreated] } else { Vec::new() };
    QueuePlan { effects, remarks }
}

fn plan_existing(wish: &QueueWish, seen: &QueueSeen, past: Past, bound: u64) -> QueuePlan {
    let mut plan = QueuePlan::default();
    let missing = seen.never_written();
    if !missing.is_empty() {
        // Its creator may be at it just now: whatever we wrote, it would write
        // again.
        plan.remarks.push(Remark::HalfCreated { missing });
        return plan;
    }
    if bound != wish.bound {
        plan.effects.push(QueueEffect::SetBound { bound: wish.bound });
    }
    match (wish.state, seen.closed) {
        (WantedState::Closed, false) => {
            plan.effects.push(QueueEffect::Close);
            if seen.producer.busy {
                let who = seen.producer.id.clone();
                plan.remarks.push(Remark::WaitingForProducer { who });
            }
        }
        (WantedState::Open, true) => plan.remarks.push(Remark::ClosedByClient),
        (WantedState::Open, false) | (WantedState::Closed, true) => {}
    }
    if past.existed && past.closed && !seen.closed && wish.state == WantedState::Open {
        plan.remarks.push(Remark::Reopened);
    }
    if wish.bound > 0 && seen.length > wish.bound {
        plan.remarks.push(Remark::Overfilled { length: seen.length, bound: wish.bound });
    }
    plan
}

#[cfg(test)]
mod tests;
