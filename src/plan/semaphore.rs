//! What should happen to a semaphore's slots: the wish and what the broker has
//! in, effects and things to report out. Pure. Names are `naming`'s, and how a
//! queue is probed, declared or deleted is the room `semaphore`'s.

use std::collections::{BTreeSet, HashSet};

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
}

impl SlotWish {
    /// This many slots, and the defaults otherwise.
    #[must_use]
    pub fn new(slots: u32) -> Self {
        Self { slots, overshoot: DEFAULT_OVERSHOOT, order: DeletionOrder::default() }
    }
}

/// What the broker was seen to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotsSeen {
    /// Slots 1 to this were looked at; nothing is known about higher ones.
    pub swept_to: u32,
    /// The slots whose slot queue `A[i]` exists.
    pub slots: BTreeSet<u32>,
    /// The slots whose holder queue `B[i]` exists.
    pub held: BTreeSet<u32>,
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

    /// The highest slot that has a slot queue or a holder queue; 0 if none has.
    #[must_use]
    pub fn highest(&self) -> u32 {
        let last = |set: &BTreeSet<u32>| set.last().copied().unwrap_or(0);
        last(&self.slots).max(last(&self.held))
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
}

impl SlotPlan {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.raise_mark_to.is_none() && self.declare.is_empty() && self.delete.is_empty()
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
    SlotPlan { raise_mark_to, declare, delete }
}

/// What the high-water mark may be written as after a clean sweep: everything
/// above the wish and above what was seen is known not to exist.
#[must_use]
pub fn settled_mark(slots: u32, seen: &SlotsSeen) -> u32 {
    slots.max(seen.highest())
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wish(slots: u32) -> SlotWish {
        SlotWish::new(slots)
    }

    fn seen(
        slots: impl IntoIterator<Item = u32>,
        held: impl IntoIterator<Item = u32>,
    ) -> SlotsSeen {
        SlotsSeen {
            swept_to: 10_016,
            slots: slots.into_iter().collect(),
            held: held.into_iter().collect(),
        }
    }

    #[test]
    fn growth_declares_every_missing_slot_ascending_not_only_the_last() {
        let plan = plan(wish(5), &seen([1, 2], []), Some(2));
        assert_eq!(plan.declare, [3, 4, 5]);
        assert!(plan.delete.is_empty());
        assert_eq!(plan.raise_mark_to, None);
    }

    #[test]
    fn holes_are_filled_and_everything_above_is_deleted_descending() {
        let plan = plan(wish(3), &seen([1, 3, 4, 7], [7]), Some(7));
        assert_eq!(plan.declare, [2]);
        assert_eq!(plan.delete, [7, 4]);
    }

    #[test]
    fn no_wish_deletes_everything_in_the_wished_order() {
        let three = seen([1, 2, 3], []);
        assert_eq!(plan(wish(0), &three, Some(3)).delete, [3, 2, 1]);
        let upwards = SlotWish { order: DeletionOrder::Ascending, ..wish(0) };
        assert_eq!(plan(upwards, &three, Some(3)).delete, [1, 2, 3]);
        let upwards = SlotWish { slots: 2, ..upwards };
        assert_eq!(plan(upwards, &seen([1, 3, 7, 9], []), Some(9)).delete, [3, 7, 9]);
    }

    #[test]
    fn the_mark_is_raised_first_only_if_a_later_sweep_would_miss_a_slot() {
        let none = seen([], []);
        assert_eq!(plan(wish(16), &none, None).raise_mark_to, None);
        assert_eq!(plan(wish(17), &none, None).raise_mark_to, Some(17));
        assert_eq!(plan(wish(21), &none, Some(5)).raise_mark_to, None);
        assert_eq!(plan(wish(22), &none, Some(5)).raise_mark_to, Some(22));
        assert_eq!(plan(wish(22), &seen(1..=22, []), Some(5)).raise_mark_to, None);
    }

    #[test]
    fn a_broken_mark_can_not_ask_for_billions_of_probes() {
        assert_eq!(sweep_to(wish(1), u32::MAX), MAX_SLOTS + DEFAULT_OVERSHOOT);
        assert_eq!(sweep_to(SlotWish { overshoot: u32::MAX, ..wish(1) }, 1), MAX_SLOTS + 1);
    }

    #[test]
    fn holders_above_the_count_are_draining_and_take_no_room() {
        let counts = seen(1..=2, [1, 4, 5]).counts(2);
        assert_eq!(counts, Counts { held: 1, draining: 2, free: 1 });
        assert_eq!(seen([], [1, 2]).counts(0), Counts { held: 0, draining: 2, free: 0 });
    }

    #[test]
    fn a_set_with_a_hole_or_an_extra_slot_is_not_as_wished() {
        assert!(seen([1, 2, 3], []).is_as_wished(3));
        assert!(!seen([1, 3], []).is_as_wished(3));
        assert!(!seen([1, 2, 4], []).is_as_wished(3));
        assert!(!seen([1, 2, 3, 4], []).is_as_wished(3));
        assert!(seen([], [5]).is_as_wished(0));
    }

    #[test]
    fn the_mark_stays_up_while_a_holder_drains() {
        assert_eq!(settled_mark(2, &seen([1, 2], [9])), 9);
        assert_eq!(settled_mark(5, &seen([1, 2, 3, 4, 5], [])), 5);
    }

    #[test]
    fn a_holder_is_known_by_its_own_id_else_its_connection_else_its_slot() {
        let holders = describe_holders(&BTreeSet::from([1, 2, 3]), 2, 50, |slot| match slot {
            1 => HolderFacts {
                id: Some("4fz".to_owned()),
                identity: Some("ci\u{1b}[31m".to_owned()),
                ..HolderFacts::default()
            },
            2 => HolderFacts {
                connection: Some("a -> b".to_owned()),
                user: Some("app".to_owned()),
                ..HolderFacts::default()
            },
            _ => HolderFacts::default(),
        });
        let ids: Vec<_> = holders.iter().map(|h| h.id.as_str()).collect();
        assert_eq!(ids, ["4fz", "a -> b#2", "slot-3"]);
        assert_eq!(holders[0].identity.as_deref(), Some("ci [31m"));
        assert_eq!(holders[1].identity.as_deref(), Some("app"));
        assert_eq!(holders.iter().map(|h| h.draining).collect::<Vec<_>>(), [false, false, true]);
    }

    proptest! {
        #[test]
        fn two_holders_never_share_an_id(ids in proptest::collection::vec("[a#12]{0,4}", 1..12)) {
            let held: BTreeSet<u32> = (1..=u32::try_from(ids.len()).unwrap()).collect();
            let holders = describe_holders(&held, 5, 50, |slot| HolderFacts {
                id: Some(ids[slot as usize - 1].clone()),
                ..HolderFacts::default()
            });
            let distinct: HashSet<_> = holders.iter().map(|h| h.id.as_str()).collect();
            prop_assert_eq!(distinct.len(), held.len());
        }

        /// Whatever was there, and wherever applying the plan was cut short,
        /// the next sweep with the mark as it was written ends as wished.
        #[test]
        fn a_plan_cut_short_anywhere_is_finished_by_the_next_sweep(
            before in proptest::collection::btree_set(1u32..40, 0..20),
            first in 0u32..40, second in 0u32..40, cut in 0usize..60, upwards: bool,
        ) {
            let order =
                if upwards { DeletionOrder::Ascending } else { DeletionOrder::Descending };
            let wish = |slots| SlotWish { order, ..wish(slots) };
            let mut mark = before.last().copied().unwrap_or(0);
            let mut slots = before;
            let look = |slots: &BTreeSet<u32>, to: u32| SlotsSeen {
                swept_to: to,
                slots: slots.range(..=to).copied().collect(),
                held: BTreeSet::new(),
            };
            for (wanted, stop) in [(first, cut), (second, usize::MAX)] {
                let wish = wish(wanted);
                let seen = look(&slots, sweep_to(wish, mark));
                let plan = plan(wish, &seen, Some(mark));
                if let Some(higher) = plan.raise_mark_to {
                    mark = higher;
                }
                for slot in plan.declare.iter().take(stop) {
                    slots.insert(*slot);
                }
                for slot in plan.delete.iter().take(stop.saturating_sub(plan.declare.len())) {
                    slots.remove(slot);
                }
            }
            prop_assert!(look(&slots, 10_000).is_as_wished(second));
            prop_assert!(super::plan(wish(second), &look(&slots, 10_000), Some(mark)).is_empty());
        }
    }
}
