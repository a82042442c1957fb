//! Tests of the plan for slots.

use super::*;
use proptest::prelude::*;

fn desired(slots: u32) -> DesiredSlots {
    DesiredSlots::new(slots)
}

fn seen(
    slots: impl IntoIterator<Item = u32>,
    held: impl IntoIterator<Item = u32>,
) -> ObservedSlots {
    ObservedSlots {
        swept_to: 10_016,
        slots: slots.into_iter().collect(),
        held: held.into_iter().collect(),
        left_over: BTreeSet::new(),
    }
}

#[test]
fn growth_declares_every_missing_slot_ascending_not_only_the_last() {
    let plan = plan_slots(desired(5), &seen([1, 2], []), Some(2));
    assert_eq!(plan.declare, [3, 4, 5]);
    assert!(plan.delete.is_empty());
    assert_eq!(plan.raise_mark_to, None);
}

#[test]
fn holes_are_filled_and_everything_above_is_deleted_descending() {
    let plan = plan_slots(desired(3), &seen([1, 3, 4, 7], [7]), Some(7));
    assert_eq!(plan.declare, [2]);
    assert_eq!(plan.delete, [7, 4]);
}

#[test]
fn zero_slots_deletes_everything_in_the_requested_order() {
    let three = seen([1, 2, 3], []);
    assert_eq!(plan_slots(desired(0), &three, Some(3)).delete, [3, 2, 1]);
    let upwards = DesiredSlots { order: DeletionOrder::Ascending, ..desired(0) };
    assert_eq!(plan_slots(upwards, &three, Some(3)).delete, [1, 2, 3]);
    let upwards = DesiredSlots { slots: 2, ..upwards };
    assert_eq!(plan_slots(upwards, &seen([1, 3, 7, 9], []), Some(9)).delete, [3, 7, 9]);
}

#[test]
fn the_mark_is_raised_first_only_if_a_later_sweep_would_miss_a_slot() {
    let none = seen([], []);
    assert_eq!(plan_slots(desired(16), &none, None).raise_mark_to, None);
    assert_eq!(plan_slots(desired(17), &none, None).raise_mark_to, Some(17));
    assert_eq!(plan_slots(desired(21), &none, Some(5)).raise_mark_to, None);
    assert_eq!(plan_slots(desired(22), &none, Some(5)).raise_mark_to, Some(22));
    assert_eq!(plan_slots(desired(22), &seen(1..=22, []), Some(5)).raise_mark_to, None);
}

#[test]
fn a_broken_mark_can_not_ask_for_billions_of_probes() {
    assert_eq!(sweep_to(desired(1), u32::MAX), MAX_SLOTS + DEFAULT_OVERSHOOT);
    assert_eq!(sweep_to(DesiredSlots { overshoot: u32::MAX, ..desired(1) }, 1), MAX_SLOTS + 1);
}

#[test]
fn holders_above_the_count_are_draining_and_take_no_room() {
    let counts = seen(1..=2, [1, 4, 5]).counts(2);
    assert_eq!(counts, Counts { held: 1, draining: 2, free: 1 });
    assert_eq!(seen([], [1, 2]).counts(0), Counts { held: 0, draining: 2, free: 0 });
}

#[test]
fn a_set_with_a_gap_or_an_extra_slot_is_not_as_desired() {
    assert!(seen([1, 2, 3], []).has_exactly(3));
    assert!(!seen([1, 3], []).has_exactly(3));
    assert!(!seen([1, 2, 4], []).has_exactly(3));
    assert!(!seen([1, 2, 3, 4], []).has_exactly(3));
    assert!(seen([], [5]).has_exactly(0));
}

#[test]
fn the_mark_stays_up_while_a_holder_drains() {
    assert_eq!(settled_mark(2, &seen([1, 2], [9])), 9);
    assert_eq!(settled_mark(5, &seen([1, 2, 3, 4, 5], [])), 5);
}

#[test]
fn a_free_slot_wakes_one_waiter_and_no_more_are_woken_than_wait() {
    assert_eq!(wake_ups(1, Some(5)), 1);
    assert_eq!(wake_ups(5, Some(2)), 2);
    assert_eq!((wake_ups(0, Some(2)), wake_ups(3, None)), (0, 0));
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

    /// From any initial state, and wherever the plan is interrupted, the next sweep with
    /// the persisted mark reaches the desired state.
    #[test]
    fn a_plan_cut_short_anywhere_is_finished_by_the_next_sweep(
        before in proptest::collection::btree_set(1u32..40, 0..20),
        first in 0u32..40, second in 0u32..40, cut in 0usize..60, upwards: bool,
    ) {
        let order =
            if upwards { DeletionOrder::Ascending } else { DeletionOrder::Descending };
        let desired = |slots| DesiredSlots { order, ..desired(slots) };
        let mut mark = before.last().copied().unwrap_or(0);
        let mut slots = before;
        let look = |slots: &BTreeSet<u32>, to: u32| ObservedSlots {
            swept_to: to,
            slots: slots.range(..=to).copied().collect(),
            ..ObservedSlots::default()
        };
        for (wanted, stop) in [(first, cut), (second, usize::MAX)] {
            let desired = desired(wanted);
            let seen = look(&slots, sweep_to(desired, mark));
            let plan = plan_slots(desired, &seen, Some(mark));
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
        prop_assert!(look(&slots, 10_000).has_exactly(second));
        prop_assert!(super::plan_slots(desired(second), &look(&slots, 10_000), Some(mark)).is_empty());
    }
}

#[test]
fn tokens_are_only_counted_and_have_no_high_water_mark() {
    let planned =
        |total| plan(desired(5), &Observed::Counted(ObservedTokens { total, held: 0 }), None);
    assert_eq!(planned(2), Plan::Counted(TokenPlan { add: 3, remove: 0 }));
    assert_eq!(planned(9).changes(), (0, 4));
    assert!(planned(5).is_empty() && !planned(6).is_empty());
    assert_eq!(planned(0).raise_mark_to(), None);
}
