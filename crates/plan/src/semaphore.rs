//! Decides what happens to a semaphore's slots: takes the desired and the observed state,
//! and returns effects and conditions. Pure logic. See `naming` for names, and the module
//! `semaphore` for probing, declaring and deleting queues.

mod lock_plan;
mod observed;
pub mod risk;

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

pub use self::lock_plan::{Auxiliary, LockPlan, shared_queue};
pub use self::observed::{Counts, Observed, ObservedSlots, ObservedTokens};
use super::clean_text;
use super::naming::MAX_SLOTS;

/// Default number of slots that a sweep probes beyond the highest that ever existed (`T`
/// of the amqp-locks guideline's "overshooting").
pub const DEFAULT_OVERSHOOT: u32 = 16;

/// The order in which surplus slots are deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeletionOrder {
    /// From the highest down, which never leaves a gap.
    #[default]
    Descending,
    /// From the lowest up, for clients that search from 1 and stop at the first missing
    /// slot. They then find none of the other surplus slots either. If interrupted, it
    /// leaves slots above a gap, which only a sweep finds. This order requires an
    /// overshoot of at least 1.
    Ascending,
}

/// The desired slots, from a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DesiredSlots {
    /// Number of slots that should exist, 0 to [`MAX_SLOTS`]. With 0, no client can
    /// acquire.
    pub slots: u32,
    /// Number of slots to sweep beyond the highest known one.
    pub overshoot: u32,
    /// Order in which surplus slots are deleted.
    pub order: DeletionOrder,
    /// Whether each slot has a record (fencing, lock delay), and the lock delay of a new
    /// record.
    pub records: Option<Duration>,
}

impl DesiredSlots {
    /// Returns this number of slots, with defaults for the rest.
    #[must_use]
    pub fn new(slots: u32) -> Self {
        let order = DeletionOrder::default();
        Self { slots, overshoot: DEFAULT_OVERSHOOT, order, records: None }
    }
}

/// Returns up to which slot to sweep: `max(desired, mark) + overshoot`. Both terms are
/// capped at [`MAX_SLOTS`], so that a corrupt mark can't cause four billion probes.
///
/// `mark` is the high-water mark (`status.highestSlot`): no slot above `mark + overshoot`
/// can have been declared. Sweeping this range guarantees convergence. A sweep that ends
/// at the first missing slot does not: a model check showed that orphans then stay
/// permanently.
#[must_use]
pub fn sweep_to(desired: DesiredSlots, mark: u32) -> u32 {
    desired.slots.max(mark).min(MAX_SLOTS) + desired.overshoot.min(MAX_SLOTS)
}

/// The effects that converge the slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotPlan {
    /// The value of the high-water mark to persist before the first declare. Otherwise a
    /// declare beyond the range of later sweeps might leave a permanent orphan.
    pub raise_mark_to: Option<u32>,
    /// Slots to declare, in ascending order, so that clients that search from 1 find no
    /// gap.
    pub declare: Vec<u32>,
    /// Slots to delete, in the desired order. Each delete waits for the confirmation of
    /// the previous one.
    pub delete: Vec<u32>,
    /// Slots above the desired count with leftovers.
    pub remove_orphans: Vec<u32>,
}

impl SlotPlan {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.raise_mark_to.is_none()
            && self.declare.is_empty()
            && self.delete.is_empty()
            && self.remove_orphans.is_empty()
    }
}

/// The effects that converge a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Of a protocol with numbered slots.
    Numbered(SlotPlan),
    /// Of a protocol with tokens.
    Counted(TokenPlan),
}

/// The effects that converge the number of tokens. At most one of the two is not 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenPlan {
    /// Number of tokens to publish.
    pub add: u32,
    /// Number of tokens to remove: free ones now, and held ones when they are released.
    pub remove: u32,
}

impl Plan {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Numbered(plan) => plan.is_empty(),
            Self::Counted(plan) => *plan == TokenPlan::default(),
        }
    }

    /// Returns how many slots or tokens are to be added and removed.
    #[must_use]
    pub fn changes(&self) -> (usize, usize) {
        match self {
            Self::Numbered(plan) => (plan.declare.len(), plan.delete.len()),
            Self::Counted(plan) => (plan.add as usize, plan.remove as usize),
        }
    }

    /// Returns [`SlotPlan::raise_mark_to`]. Tokens have no high-water mark.
    #[must_use]
    pub fn raise_mark_to(&self) -> Option<u32> {
        match self {
            Self::Numbered(plan) => plan.raise_mark_to,
            Self::Counted(_) => None,
        }
    }
}

/// Plans the change of a lock. See [`plan_slots`] for `mark`.
#[must_use]
pub fn plan(desired: DesiredSlots, seen: &Observed, mark: Option<u32>) -> Plan {
    match seen {
        Observed::Numbered(seen) => Plan::Numbered(plan_slots(desired, seen, mark)),
        Observed::Counted(seen) => Plan::Counted(plan_tokens(desired.slots, seen.total)),
    }
}

/// Plans the change of `total` tokens.
#[must_use]
pub fn plan_tokens(desired: u32, total: u32) -> TokenPlan {
    TokenPlan { add: desired.saturating_sub(total), remove: total.saturating_sub(desired) }
}

/// Plans the change of numbered slots. `mark` is the last persisted high-water mark. `None` counts as 0: a
/// change that reaches beyond the overshoot must then persist the mark first. A small
/// semaphore needs no write before its creation.
#[must_use]
pub fn plan_slots(desired: DesiredSlots, seen: &ObservedSlots, mark: Option<u32>) -> SlotPlan {
    let declare: Vec<u32> = (1..=desired.slots).filter(|slot| !seen.slots.contains(slot)).collect();
    let mut delete: Vec<u32> =
        seen.slots.range(desired.slots.saturating_add(1)..).copied().collect();
    if desired.order == DeletionOrder::Descending {
        delete.reverse();
    }
    let found_anyway = mark.unwrap_or(0).saturating_add(desired.overshoot);
    let raise_mark_to =
        declare.last().is_some_and(|highest| *highest > found_anyway).then_some(desired.slots);
    let remove_orphans = seen.left_over.range(desired.slots.saturating_add(1)..).copied().collect();
    SlotPlan { raise_mark_to, declare, delete, remove_orphans }
}

/// Returns the high-water mark to persist after a clean sweep. No slot above the desired
/// count and above the observed ones exists. (Records may exist up to the highest slot
/// ever. Their deletion does not rely on this mark.)
#[must_use]
pub fn settled_mark(slots: u32, seen: &ObservedSlots) -> u32 {
    slots.max(seen.highest())
}

/// Returns how many waiters to wake for this number of free slots. No surplus waiter is
/// woken, because it would find no slot.
#[must_use]
pub fn wake_ups(free: u32, waiting: Option<u32>) -> u32 {
    free.min(waiting.unwrap_or(0))
}

/// The holder of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Identifies this holder, unique in its list. The id that the client generated for
    /// this acquisition, else its connection's name with the slot, else `slot-<i>`.
    pub id: String,
    /// The slot, from 1. `None` if the protocol has no numbered slots.
    pub slot: Option<u32>,
    /// The identity given by the client, or else its user on the broker.
    pub identity: Option<String>,
    /// The reason given by the client.
    pub reason: Option<String>,
    /// URL of more information, given by the client.
    pub url: Option<String>,
    /// Start time given by the client (RFC 3339).
    pub since: Option<String>,
    /// The broker's name for the connection that holds the slot.
    pub connection: Option<String>,
    /// Whether the slot is above the desired count.
    pub draining: bool,
}

/// The raw facts about the holder of one slot: foreign text.
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

/// Maximum length of a displayed id, identity, time or connection name, in bytes.
const MAX_SHORT: usize = 128;
/// Maximum length of a displayed reason or URL, in bytes.
const MAX_LONG: usize = 512;

/// Returns the holders for display: those of the lowest slots, at most `limit`. Every
/// text is sanitized. Every id is unique even if clients chose the same one, because a
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
                // Another client chose the same id, perhaps even with this suffix. The
                // suffix grows until the id is unique.
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
