//! What should happen to a semaphore's slots: the wish and what the broker has
//! in, effects and things to report out. Pure. Names are `naming`'s, and how a
//! queue is probed, declared or deleted is the room `semaphore`'s.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use super::clean_text;
use super::naming::MAX_SLOTS;

/// How many slots beyond the highest that ever existed a sweep looks at, when a
/// resource doesn't say (`T` of the source document's "overshooting").
pub const DEFAULT_OVERSHOOT: u32 = 16;

/// In which order the slots above the count go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeletionOrder {
    /// From the highest down: at no moment is there a hole.
    #[default]
    Descending,
    /// From the lowest up, for clients that search from 1 and stop at the first
    /// missing slot: these keep out of all the others at once. Cut short, it
    /// leaves slots above a hole, which only a sweep finds: the overshoot must be
    /// at least 1.
    Ascending,
}

/// What slots a resource asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotWish {
    /// Slots that should exist, 0 to [`MAX_SLOTS`]; 0 means that nobody may
    /// acquire.
    pub slots: u32,
    /// How many slots beyond the highest known one are swept as well.
    pub overshoot: u32,
    /// How those go that are too many.
    pub order: DeletionOrder,
    /// Whether each slot has a record (fencing, lock delay), and the lock delay
    /// that a new record begins with.
    pub records: Option<Duration>,
}

impl SlotWish {
    /// This many slots, and the defaults otherwise.
    #[must_use]
    pub fn new(slots: u32) -> Self {
        let order = DeletionOrder::default();
        Self { slots, overshoot: DEFAULT_OVERSHOOT, order, records: None }
    }
}

/// What the broker was seen to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotsSeen {
    /// Slots 1 to this were looked at; nothing is known about higher ones.
    pub swept_to: u32,
    /// The slots whose slot queue `A[i]` exists.
    pub slots: BTreeSet<u32>,
    /// The slots that have a holder: by protocol, those whose holder queue `B[i]`
    /// exists or whose `C[i]` has a consumer.
    pub held: BTreeSet<u32>,
    /// The slots without slot queue whose `C[i]` nobody holds: it is only left over.
    pub left_over: BTreeSet<u32>,
}

/// Holders and room, as a status shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Holders on slots up to the count.
    pub held: u32,
    /// Holders on slots above the count: a shrink waits for them to leave.
    pub draining: u32,
    /// Slots up to the count that exist and are not held: what may be taken now.
    pub free: u32,
}

impl SlotsSeen {
    /// Counts for a semaphore that should have `slots` slots.
    #[must_use]
    pub fn counts(&self, slots: u32) -> Counts {
        let count = |holders: usize| u32::try_from(holders).unwrap_or(u32::MAX);
        let held = count(self.held.range(..=slots).count());
        let draining = count(self.held.len()).saturating_sub(held);
        let free = self.slots.range(..=slots).filter(|slot| !self.held.contains(slot)).count();
        Counts { held, draining, free: count(free) }
    }

    /// The highest slot that has a slot queue, a holder or something left over; 0 if
    /// none has.
    #[must_use]
    pub fn highest(&self) -> u32 {
        let last = |set: &BTreeSet<u32>| set.last().copied().unwrap_or(0);
        last(&self.slots).max(last(&self.held)).max(last(&self.left_over))
    }

    /// Whether exactly the slots 1 to `slots` exist, as far as was looked.
    #[must_use]
    pub fn is_as_wished(&self, slots: u32) -> bool {
        self.swept_to >= slots
            && self.slots.len() == slots as usize
            && self.slots.last().copied().unwrap_or(0) == slots
            && !self.slots.contains(&0)
    }
}

/// How far to sweep: `max(desired, mark) + overshoot`, each capped at
/// [`MAX_SLOTS`] so that a broken mark can't ask for four billion probes.
///
/// `mark` is the high-water mark (`status.highestSlot`): no slot above `mark +
/// overshoot` can have been declared. A sweep of this range, rather than "probe
/// until the first missing one", is what makes convergence certain: checked by
/// model, orphans stay for ever without it.
#[must_use]
pub fn sweep_to(wish: SlotWish, mark: u32) -> u32 {
    wish.slots.max(mark).min(MAX_SLOTS) + wish.overshoot.min(MAX_SLOTS)
}

/// Effects that make the slots as wished.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotPlan {
    /// The high-water mark must be written as this before the first declare:
    /// a declare that no later sweep would find might leave an orphan for ever.
    pub raise_mark_to: Option<u32>,
    /// Slots to declare, ascending: clients that search from 1 find no hole.
    pub declare: Vec<u32>,
    /// Slots to delete, in the wished order, each after the one before was
    /// confirmed.
    pub delete: Vec<u32>,
    /// Slots above the wish of which something is left over.
    pub tidy: Vec<u32>,
}

impl SlotPlan {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.raise_mark_to.is_none()
            && self.declare.is_empty()
            && self.delete.is_empty()
            && self.tidy.is_empty()
    }
}

/// What to do. `mark` is the high-water mark as it was last written; absent, it
/// counts as 0, so that whatever reaches further than the overshoot writes it
/// first, and a small semaphore needs no write before it is made.
#[must_use]
pub fn plan(wish: SlotWish, seen: &SlotsSeen, mark: Option<u32>) -> SlotPlan {
    let declare: Vec<u32> = (1..=wish.slots).filter(|slot| !seen.slots.contains(slot)).collect();
    let mut delete: Vec<u32> = seen.slots.range(wish.slots.saturating_add(1)..).copied().collect();
    if wish.order == DeletionOrder::Descending {
        delete.reverse();
    }
    let found_anyway = mark.unwrap_or(0).saturating_add(wish.overshoot);
    let raise_mark_to =
        declare.last().is_some_and(|highest| *highest > found_anyway).then_some(wish.slots);
    let tidy = seen.left_over.range(wish.slots.saturating_add(1)..).copied().collect();
    SlotPlan { raise_mark_to, declare, delete, tidy }
}

/// What the high-water mark may be written as after a clean sweep: everything
/// above the wish and above what was seen is known not to exist. (Records reach
/// as far as there ever were slots; whoever deletes them finds them without it.)
#[must_use]
pub fn settled_mark(slots: u32, seen: &SlotsSeen) -> u32 {
    slots.max(seen.highest())
}

/// How many waiters to wake for so many free slots: none for nothing, since a
/// waiter that finds no slot has been woken in vain.
#[must_use]
pub fn wake_ups(free: u32, waiting: Option<u32>) -> u32 {
    free.min(waiting.unwrap_or(0))
}

/// Who holds a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// What tells this holder from the others, unique in its list: the id that
    /// the client made for this acquisition, else its connection's name with
    /// the slot, else `slot-<i>`.
    pub id: String,
    /// The slot, from 1; absent where a protocol has none.
    pub slot: Option<u32>,
    /// Who, in the client's words, else its user on the broker.
    pub identity: Option<String>,
    /// Why, in the client's words.
    pub reason: Option<String>,
    /// Where to read more, in the client's words.
    pub url: Option<String>,
    /// Since when, in the client's words (RFC 3339).
    pub since: Option<String>,
    /// The broker's name for the connection that holds it.
    pub connection: Option<String>,
    /// Whether the slot is above the count.
    pub draining: bool,
}

/// What is known about the holder of one slot, as it was read: foreign text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HolderFacts {
    /// `x-lockkeeper-id`.
    pub id: Option<String>,
    /// `x-lockkeeper-identity`.
    pub identity: Option<String>,
    /// `x-lockkeeper-reason`.
    pub reason: Option<String>,
    /// `x-lockkeeper-url`.
    pub url: Option<String>,
    /// `x-lockkeeper-since`.
    pub since: Option<String>,
    /// The broker's name for the owning connection.
    pub connection: Option<String>,
    /// That connection's user.
    pub user: Option<String>,
}

/// Longest id, identity, time or connection name shown, in bytes.
const MAX_SHORT: usize = 128;
/// Longest reason or URL shown, in bytes.
const MAX_LONG: usize = 512;

/// The holders to show: those of the lowest slots, at most `limit`. Every text
/// is cleaned, and every id is unique even if clients chose the same one: a
/// duplicate key would make a whole status write fail.
#[must_use]
pub fn describe_holders(
    held: &BTreeSet<u32>,
    slots: u32,
    limit: usize,
    mut facts: impl FnMut(u32) -> HolderFacts,
) -> Vec<Holder> {
    let mut taken = HashSet::new();
    held.iter()
        .take(limit)
        .map(|&slot| {
            let HolderFacts { id, identity, reason, url, since, connection, user } = facts(slot);
            let clean = |text: Option<String>, max| {
                text.map(|t| clean_text(t.trim(), max)).filter(|t| !t.is_empty())
            };
            let connection = clean(connection, MAX_SHORT);
            let chosen = clean(id, MAX_SHORT)
                .or_else(|| connection.as_ref().map(|name| format!("{name}#{slot}")))
                .unwrap_or_else(|| format!("slot-{slot}"));
            let mut id = chosen.clone();
            while !taken.insert(id.clone()) {
                // Another client calls itself the same, perhaps even with this
                // suffix: it grows until it is nobody's.
                id = if id == chosen { format!("{chosen}#{slot}") } else { format!("{id}#{slot}") };
            }
            Holder {
                id,
                slot: Some(slot),
                identity: clean(identity, MAX_SHORT).or_else(|| clean(user, MAX_SHORT)),
                reason: clean(reason, MAX_LONG),
                url: clean(url, MAX_LONG),
                since: clean(since, MAX_SHORT),
                connection,
                draining: slot > slots,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests;
