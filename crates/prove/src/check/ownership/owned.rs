//! The ownerships at the broker, and the changes of slots. See the parent module for how they are
//! read.

use std::collections::BTreeMap;

use lockkeeper_plan::naming::LockName;

use crate::check::holds::Key;
use crate::check::register::{NEVER, Position};

/// A resource that a connection owns at the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Thing {
    /// A slot, or a token with a unique id.
    Held(Key),
    /// A token without a unique id.
    Token,
    /// The admin mutex.
    Mutex,
}

/// The end of an ownership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It has not ended.
    Open,
    /// The owner requested the end: it deleted the queue, cancelled the consumer or returned the
    /// token.
    Released,
    /// The client closed the channel.
    ChannelClosed,
    /// The client closed the connection.
    Disconnected,
    /// The prover cut the connection.
    Cut,
    /// The broker ended the channel or the connection, or answered that the queue does not
    /// exist.
    Broker,
    /// The broker cancelled the consumer, because its queue was deleted.
    Cancelled,
}

impl Ended {
    /// Returns whether the owner itself ended it.
    pub fn by_owner(self) -> bool {
        matches!(self, Self::Released | Self::ChannelClosed | Self::Disconnected)
    }
}

/// A part of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Its first event.
    pub from: Position,
    /// Its last event, or [`NEVER`].
    pub to: Position,
}

/// A connection's ownership of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// The process.
    pub process: u32,
    /// The connection.
    pub connection: u32,
    /// The owned resource.
    pub thing: Thing,
    /// From the request to the known end: the answer to the request that ended it, or the end of
    /// the channel or connection. Outside of it, nothing was owned.
    pub possible: Interval,
    /// From the answer to the request that ended it, or to the last proof. Throughout it, the
    /// resource was owned.
    pub certain: Interval,
    /// How it ended.
    pub ended: Ended,
    /// The frame that ended it. If the owner sent it, the owner had released the resource by
    /// then. Unlike the end of `certain`, it is not limited by faults.
    pub end: Position,
    /// The channel, or 0 if the whole connection owns it.
    pub channel: u16,
    /// The tag of its consumer.
    pub(super) consumer: Option<String>,
    /// The delivery tag of its token.
    pub(super) delivery: Option<u64>,
    /// The request of the last answer that proves it.
    pub(super) proof: Position,
    /// The earliest deletion of the queue by another client.
    pub(super) limit: Position,
    /// Whether the broker answered the request that ended it. The answer proves that the broker
    /// had not ended it before.
    pub(super) answered: bool,
}

impl Owned {
    /// Returns the slot or token that is held, if it is known.
    pub fn key(&self) -> Option<&Key> {
        if let Thing::Held(key) = &self.thing { Some(key) } else { None }
    }

    /// Returns whether this ownership was certainly in force when `later`, of another
    /// connection, began.
    pub fn overlaps(&self, later: &Self) -> bool {
        let other = (self.process, self.connection) != (later.process, later.connection);
        let both = later.certain.to > later.certain.from || self.certain.from < later.possible.from;
        other
            && self.certain.from < later.certain.from
            && self.certain.to > later.certain.from
            && both
    }

    /// Limits the certain part of the ownership. During a fault, the broker may have ended it
    /// without a frame.
    pub(super) fn settle(&mut self, faults: &[(Position, Option<u32>)]) {
        let proven = self.proof.max(self.certain.from);
        if matches!(self.ended, Ended::Broker | Ended::Cancelled) {
            self.certain.to = proven;
        } else if !self.answered {
            let from = faults.partition_point(|&(at, _)| at <= proven);
            let mine = |process: Option<u32>| process.is_none_or(|one| one == self.process);
            let first = faults[from..].iter().find(|&&(_, process)| mine(process));
            self.certain.to = self.certain.to.min(first.map_or(NEVER, |&(at, _)| at));
        }
    }
}

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A slot's queue was declared.
    Declared,
    /// A slot's queue, or the token queue, was deleted.
    Deleted,
    /// A message was published to the token queue.
    Published,
    /// The queue C of a slot was deleted.
    DeletedHolder,
    /// The record of a slot was deleted, or its message.
    DeletedRecord,
    /// The wait queue was deleted, or its messages.
    DeletedWaiters,
}

/// Evidence of whether the queue of a slot existed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The request.
    pub invoked: Position,
    /// The answer, or [`NEVER`] if the request may have been executed at any later time.
    pub done: Position,
    /// Whether the queue existed when the broker executed the request, or since then.
    pub exists: bool,
    /// Whether the request only looked. Otherwise it created or deleted the queue.
    pub looked: bool,
}

/// A change of the slots by a client of the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotChange {
    /// The process.
    pub process: u32,
    /// The connection.
    pub connection: u32,
    /// The request.
    pub at: Position,
    /// The answer, or [`NEVER`].
    pub done: Position,
    /// The slot. 0 in protocol Token, and for the wait queue.
    pub slot: u32,
    /// The kind of the change.
    pub change: Change,
}

/// The deletion, by another client, of the queue with which a connection certainly held a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Takeover {
    /// The process that deleted it.
    pub process: u32,
    /// The request.
    pub at: Position,
    /// The answer.
    pub done: Position,
    /// The slot.
    pub slot: u32,
    /// The holder's ownership, as an index.
    pub victim: usize,
}

/// The destruction of a token by a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destroyed {
    /// The process.
    pub process: u32,
    /// The time.
    pub at: Position,
    /// The method that destroyed it, as the end of a sentence.
    pub how: &'static str,
}

/// The index of an ownership, and the latest end of all ownerships up to it.
pub(super) type Indexed = (usize, Position);

/// The ownerships and changes that the frames show.
#[derive(Clone, Debug, Default)]
pub struct Ownerships {
    /// The ownerships, in the order in which they began.
    pub owned: Vec<Owned>,
    /// The ownerships of each process, as indices, each with the latest end up to it.
    pub(super) by_process: BTreeMap<u32, Vec<Indexed>>,
    /// Evidence of the existence of each slot's queue.
    pub existence: BTreeMap<u32, Vec<Evidence>>,
    /// Changes that were or may have been applied.
    pub changes: Vec<SlotChange>,
    /// Deletions of queues that other connections held.
    pub takeovers: Vec<Takeover>,
    /// Tokens that were destroyed.
    pub destroyed: Vec<Destroyed>,
}

impl Ownerships {
    /// Returns the ownerships of a process that may have been in force at an instant of this
    /// interval, the newest first.
    pub fn of(&self, process: u32, from: Position, to: Position) -> impl Iterator<Item = &Owned> {
        let (begun, _) = self.split(process, to);
        let recent = begun.iter().rev().take_while(move |&&(_, latest)| latest >= from);
        recent.map(|&(index, _)| &self.owned[index]).filter(move |owned| owned.possible.to >= from)
    }

    /// Returns whether a connection of the process may have owned the admin mutex at this
    /// position.
    pub fn may_administer(&self, process: u32, at: Position) -> bool {
        self.may_own_mutex(process, at, |_| true)
    }

    /// Returns whether the connection of a change may have owned the admin mutex at its request.
    pub fn may_change(&self, change: &SlotChange) -> bool {
        let same = |owned: &Owned| owned.connection == change.connection;
        self.may_own_mutex(change.process, change.at, same)
    }

    fn may_own_mutex(&self, process: u32, at: Position, by: impl Fn(&Owned) -> bool) -> bool {
        let mutex =
            |owned: &Owned| owned.thing == Thing::Mutex && owned.possible.from < at && by(owned);
        // The answer to the declare of the mutex may arrive after the request of the change.
        let (before, after) = self.split(process, at);
        let pending = after.iter().map(|&(index, _)| &self.owned[index]);
        let mut pending = pending.take_while(|owned| owned.possible.from < at);
        let recent = before.iter().rev().take_while(|&&(_, latest)| latest >= at);
        let mut recent = recent.map(|&(index, _)| &self.owned[index]);
        recent.any(|owned| mutex(owned) && owned.possible.to >= at) || pending.any(mutex)
    }

    /// Returns when the broker ended the last ownership of the admin mutex by the connection of
    /// a change, if it did so before the change.
    pub fn lost_mutex(&self, change: &SlotChange) -> Option<Position> {
        let (before, _) = self.split(change.process, change.at);
        let mut before = before.iter().rev().map(|&(index, _)| &self.owned[index]);
        let last = before
            .find(|owned| owned.thing == Thing::Mutex && owned.connection == change.connection)?;
        (!last.ended.by_owner() && last.possible.to < change.at).then_some(last.possible.to)
    }

    /// Splits the ownerships of a process into those that began up to a position, and later
    /// ones.
    fn split(&self, process: u32, at: Position) -> (&[Indexed], &[Indexed]) {
        let all = self.by_process.get(&process).map_or(&[][..], Vec::as_slice);
        all.split_at(all.partition_point(|&(index, _)| self.owned[index].certain.from <= at))
    }
}

/// Returns the slot number if `queue` is the record of one of the lock's slots.
pub fn slot_of_record(lock: &LockName, queue: &str) -> Option<u32> {
    let slot = queue.strip_suffix("-F")?.rsplit('-').next()?.parse().ok()?;
    (lock.record_queue(slot)? == queue).then_some(slot)
}
