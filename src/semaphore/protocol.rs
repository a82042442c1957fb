//! What a protocol does in its own way, for clients and for administrators: the
//! interface that one file for each protocol implements, and which file that is.
//! What is the same for all of them is `client`'s and `converge`'s.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use lapin::types::FieldTable;

use super::broker::Inner;
use super::check::Fault;
use super::client::{AcquireError, AcquireOptions, Lock, Permit, Wait};
use super::connect::Conn;
use super::converge::{Change, Converged};
use super::error::BrokerError;
use super::exclusive_consumer::ExclusiveConsumer;
use super::exclusive_queue::ExclusiveQueue;
use super::holders::Holders;
use super::lane::{Lane, Standing};
use super::link::Link;
use super::probe::Prober;
use super::slots::Slots;
use super::token::Token;
use crate::plan::naming::{self, LockName};
use crate::plan::semaphore::{SlotWish, SlotsSeen};

/// How `lock` is held and administered.
pub(super) fn of(lock: &LockName) -> &'static dyn Protocol {
    match lock.protocol() {
        naming::Protocol::ExclusiveQueue(_) => &Slots(ExclusiveQueue),
        naming::Protocol::ExclusiveConsumer => &Slots(ExclusiveConsumer),
        naming::Protocol::Token(_) => &Token,
    }
}

/// One way to hold a lock that several may hold. Whatever waits is cancel safe as
/// the public operation is that calls it.
pub(super) trait Protocol: Sync {
    /// Acquires, from the first look to the permit.
    fn acquire<'a>(
        &'static self,
        lock: &'a Lock,
        options: &'a AcquireOptions,
        wait: Wait,
    ) -> BoxFuture<'a, Result<Permit, AcquireError>>;

    /// [`Broker::observe`](super::Broker::observe).
    fn observe<'a>(
        &'static self,
        broker: &'a Inner,
        lock: &'a LockName,
        slots_to: u32,
        holders_to: u32,
    ) -> BoxFuture<'a, Result<SlotsSeen, BrokerError>>;

    /// [`Broker::find_mark`](super::Broker::find_mark).
    fn find_mark<'a>(
        &'static self,
        broker: &'a Inner,
        lock: &'a LockName,
        overshoot: u32,
    ) -> BoxFuture<'a, Result<u32, BrokerError>>;

    /// The high-water mark, and which slots there are, for a change that is to depend
    /// on it.
    fn survey<'a>(
        &'static self,
        change: &'a Change,
        lane: &'a mut Lane,
    ) -> BoxFuture<'a, Result<(u32, SlotsSeen), BrokerError>>;

    /// [`Broker::waiting`](super::Broker::waiting).
    fn waiting<'a>(
        &'static self,
        broker: &'a Inner,
        lock: &'a LockName,
    ) -> BoxFuture<'a, Result<Option<u32>, BrokerError>>;

    /// [`Broker::lost_parts`](super::Broker::lost_parts).
    fn lost_parts<'a>(
        &'static self,
        broker: &'a Inner,
        lock: &'a LockName,
        wish: SlotWish,
    ) -> BoxFuture<'a, Result<Vec<&'static str>, BrokerError>>;

    /// [`Broker::holders`](super::Broker::holders).
    fn holders<'a>(
        &'static self,
        broker: &'a Inner,
        lock: &'a LockName,
        seen: &'a SlotsSeen,
        slots: u32,
        limit: usize,
    ) -> BoxFuture<'a, Holders>;

    /// Makes it as the change wishes, under the admin mutex, with a sweep that ends
    /// at `swept_to`.
    fn make<'a>(
        &'static self,
        change: &'a Change,
        lane: &'a mut Lane,
        swept_to: u32,
    ) -> BoxFuture<'a, Result<Converged, BrokerError>>;

    /// Whether it is there, given what was seen of it: it may be there without
    /// slots.
    fn exists<'a>(
        &'static self,
        change: &'a Change,
        lane: &'a mut Lane,
        seen: &'a SlotsSeen,
    ) -> BoxFuture<'a, Result<bool, BrokerError>>;

    /// What is wrong with it, under the admin mutex.
    fn check<'a>(
        &'static self,
        change: &'a Change,
        lane: &'a mut Lane,
        slots: Option<u32>,
    ) -> BoxFuture<'a, Result<Vec<Fault>, BrokerError>>;
}

/// One way to hold a numbered slot `i`, which may be taken while its slot queue
/// `A[i]` exists.
pub(super) trait Holding: Sync {
    /// Takes a slot. Nothing is left on the connection unless it is ours.
    fn claim<'a>(&'a self, claim: Claim<'a>) -> BoxFuture<'a, Result<Claimed, BrokerError>>;

    /// Looks which of `slots` exist, and who holds of `holders`; if not `draining`,
    /// holders of slots that don't exist need not be told.
    fn look<'a>(
        &'a self,
        eyes: Eyes<'a>,
        lock: &'a LockName,
        slots: RangeInclusive<u32>,
        holders: RangeInclusive<u32>,
        draining: bool,
    ) -> BoxFuture<'a, Result<Looked, BrokerError>>;

    /// Makes slot `i`, or what is lacking of it; if it is there, makes sure that it
    /// is as it should be.
    fn declare_slot<'a>(
        &'a self,
        lane: &'a mut Lane,
        lock: &'a LockName,
        slot: u32,
    ) -> BoxFuture<'a, Result<(), BrokerError>>;

    /// Whether all that should be there for these slots to be held is there.
    fn can_be_held<'a>(
        &'a self,
        broker: &'a Inner,
        lock: &'a LockName,
        slots: RangeInclusive<u32>,
    ) -> BoxFuture<'a, Result<bool, BrokerError>>;

    /// Removes what slots above the wish, up to `to`, were held by and nobody holds
    /// any more, and tells those who do; returns how many that are.
    fn tidy<'a>(
        &'a self,
        change: &'a Change,
        lane: &'a mut Lane,
        to: u32,
    ) -> BoxFuture<'a, Result<u32, BrokerError>>;
}

/// How to look without changing anything.
#[derive(Clone, Copy)]
pub(super) struct Eyes<'a> {
    pub prober: &'a Prober,
    /// The connection that the prober uses.
    pub link: &'a Link,
}

/// What was looked at, in that order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Looked {
    pub slots: Vec<bool>,
    pub holders: Vec<HolderSeen>,
}

/// What there is of a slot's holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HolderSeen {
    /// No holder queue, or none that was looked at.
    Absent,
    /// A holder queue that nobody holds.
    Unheld,
    /// A holder.
    Held,
}

/// Whose slot to take, and how.
pub(super) struct Claim<'a> {
    /// The connection that is to hold.
    pub conn: &'a Arc<Conn>,
    pub lock: &'a LockName,
    pub slot: u32,
    /// Somebody just looked that the slot exists.
    pub looked: bool,
    /// This acquisition's.
    pub id: &'a str,
    /// What the holder says of itself.
    pub facts: FieldTable,
    pub checked: &'a Checked,
}

/// How taking a slot ended.
pub(super) enum Claimed {
    /// It is ours, and the slot existed after it was.
    Yes(Box<dyn Hold>),
    /// There is no such slot (any more).
    NoSlot,
    /// Somebody else has it.
    Locked,
}

/// Queues that this client knows to be what they should be.
#[derive(Default)]
pub(super) struct Checked(Mutex<HashSet<String>>);

impl Checked {
    /// Names kept at most; beyond that, memory starts anew.
    const MOST: usize = 16_384;

    pub fn contains(&self, queue: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(queue)
    }

    pub fn insert(&self, queue: String) {
        let mut checked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if checked.len() >= Self::MOST {
            checked.clear();
        }
        checked.insert(queue);
    }

    pub fn remove(&self, queue: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(queue);
    }
}

/// What is held, on the connection that holds it.
pub(super) trait Hold: Send + Sync {
    /// Asks the broker whether it is still ours. Waits for the answer no longer than
    /// `limit`. Cancel safe.
    fn verify(&self, limit: Duration) -> BoxFuture<'_, Result<Standing, BrokerError>>;

    /// Gives it back, and waits until the broker has confirmed that. After an error,
    /// or dropped, only ending the connection does it for certain.
    ///
    /// Tells whether somebody consumes from `wait_queue`, asked after it was given back:
    /// whoever begins to later looks for itself whether something is free.
    fn give_back<'a>(
        &'a self,
        wait_queue: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Waiters, BrokerError>>;

    /// Whether the channel is open without which it is not held.
    fn is_open(&self) -> bool {
        true
    }

    /// What is said about it without having been asked. Cancel safe.
    fn news(&self) -> BoxFuture<'_, News> {
        Box::pin(std::future::pending())
    }
}

/// Who waits for what was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiters {
    /// Nobody asked.
    Unknown,
    /// The lock has no wait queue.
    NoQueue,
    /// So many.
    Count(u32),
}

impl From<Option<u32>> for Waiters {
    fn from(consumers: Option<u32>) -> Self {
        consumers.map_or(Self::NoQueue, Self::Count)
    }
}

/// What is said about something held without having been asked.
#[derive(Debug)]
pub(super) enum News {
    /// It should be given back soon.
    Drain,
    /// Something may have changed: look.
    Look,
    /// An administrator took it away, in these words.
    Revoked(String),
    /// The broker took it away.
    Gone,
    /// Its channel or connection ended, perhaps with a reason.
    Ended(Option<lapin::Error>),
}
