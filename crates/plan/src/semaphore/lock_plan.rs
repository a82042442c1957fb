//! The plan for a whole lock: its slots or tokens, and its other queues. The operator and
//! `lockkeeper plan` share it.

use super::{DesiredSlots, Observed, Plan, SlotPlan, plan};
use crate::difference::Difference;
use crate::naming::{LockName, Protocol};

/// The queues of a lock other than those of slots, as observed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Auxiliary {
    /// Whether the lock exists. A lock without slots exists by its wait queue, and one
    /// without tokens by its token queue.
    pub exists: bool,
    /// Number of waiters, if it was read.
    pub waiting: Option<u32>,
    /// The missing queue that all clients of the lock share.
    pub shared: Option<&'static str>,
    /// Other parts that are missing.
    pub missing: Vec<&'static str>,
    /// Whether the slots have records although the lock must have none.
    pub has_surplus_records: bool,
}

impl Auxiliary {
    /// Whether all queues are as desired.
    fn is_complete(&self) -> bool {
        self.shared.is_none() && self.missing.is_empty() && !self.has_surplus_records
    }

    /// Describes the repairs, for an event.
    #[must_use]
    pub fn repairs(&self) -> Vec<String> {
        let shared = self.shared.iter().map(|queue| format!("the {queue} made again"));
        let missing = self.missing.iter().map(|part| format!("{part} made again"));
        let removed = self.has_surplus_records.then(|| "slot records removed".to_owned());
        shared.chain(missing).chain(removed).collect()
    }
}

/// The effects that converge a whole lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockPlan {
    /// The change of the slots or tokens.
    pub slots: Plan,
    /// The other queues, which the same change repairs.
    pub auxiliary: Auxiliary,
}

impl LockPlan {
    /// Plans the change of a lock. See [`plan_slots`](super::plan_slots) for `mark`.
    #[must_use]
    pub fn new(
        desired: DesiredSlots,
        seen: &Observed,
        auxiliary: Auxiliary,
        mark: Option<u32>,
    ) -> Self {
        Self { slots: plan(desired, seen, mark), auxiliary }
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.auxiliary.is_complete()
    }

    /// Number of held slots or tokens that would be removed. Their holders keep them until
    /// they release.
    #[must_use]
    pub fn draining(&self, desired: DesiredSlots, seen: &Observed) -> u32 {
        match (seen, &self.slots) {
            (Observed::Numbered(seen), Plan::Numbered(planned)) => {
                let held = planned.delete.iter().filter(|slot| seen.held.contains(slot)).count();
                u32::try_from(held).unwrap_or(u32::MAX)
            }
            // Free tokens are removed first.
            _ => seen.held().saturating_sub(desired.slots),
        }
    }

    /// Lists the differences between the lock and its desired state.
    #[must_use]
    pub fn differences(
        &self,
        lock: &LockName,
        desired: DesiredSlots,
        seen: &Observed,
    ) -> Vec<Difference> {
        let (what, before, after) = (lock.unit().many(), seen.total(), desired.slots);
        let Auxiliary { exists, shared, missing, has_surplus_records, .. } = &self.auxiliary;
        // A lock without slots is created only for its shared queue.
        let is_created = after > 0 || shared_queue(lock).is_some();
        if !exists && is_created {
            return vec![Difference::added(what, after)];
        }
        let mut found = Vec::new();
        if before != after {
            found.push(Difference::new(what, before, after));
        }
        if let Plan::Numbered(planned) = &self.slots {
            found.extend(by_slot(planned, before == after));
        }
        // The parts of new slots are missing too, and are no difference of their own.
        if *exists && self.slots.changes().0 == 0 {
            let parts = missing.iter().chain(shared);
            found.extend(parts.map(|part| Difference::added(part, "made again")));
        }
        if *has_surplus_records {
            found.push(Difference::removed("slot records", "fencing, lock delay"));
        }
        found
    }
}

/// Names the queue that all clients of a lock share, if its protocol has one.
#[must_use]
pub fn shared_queue(lock: &LockName) -> Option<&'static str> {
    match lock.protocol() {
        Protocol::Token(_) => Some("token queue"),
        _ => lock.wait_queue().map(|_| "wait queue"),
    }
}

/// Lists the changes to single slots. Those to their number are listed if it stays.
fn by_slot(planned: &SlotPlan, is_count_kept: bool) -> Vec<Difference> {
    let SlotPlan { declare, delete, remove_orphans, .. } = planned;
    let mut found = Vec::new();
    if is_count_kept && !declare.is_empty() {
        found.push(Difference::added("missing slots", declare.clone()));
    }
    if is_count_kept && !delete.is_empty() {
        found.push(Difference::removed("stray slots", delete.clone()));
    }
    if !remove_orphans.is_empty() {
        found.push(Difference::removed("left over of slots", remove_orphans.clone()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naming::{Profile, QueueType};
    use crate::semaphore::{ObservedSlots, ObservedTokens};

    const QUEUE: Protocol = Protocol::ExclusiveQueue(Profile::Guideline);
    const PYTHON: Protocol = Protocol::ExclusiveQueue(Profile::AmqpLocksPython);
    const TOKEN: Protocol = Protocol::Token(QueueType::Classic);

    fn slots(slots: &[u32], held: &[u32]) -> Observed {
        let of = |slots: &[u32]| slots.iter().copied().collect();
        let (slots, held) = (of(slots), of(held));
        Observed::Numbered(ObservedSlots { swept_to: 99, slots, held, ..ObservedSlots::default() })
    }

    fn tokens(total: u32, held: u32) -> Observed {
        Observed::Counted(ObservedTokens { total, held })
    }

    fn existing() -> Auxiliary {
        Auxiliary { exists: true, ..Auxiliary::default() }
    }

    fn lines(protocol: Protocol, desired: u32, seen: &Observed, found: Auxiliary) -> Vec<String> {
        let lock = LockName::new("a").unwrap().with_protocol(protocol);
        let desired = DesiredSlots::new(desired);
        let planned = LockPlan::new(desired, seen, found, None);
        let differences = planned.differences(&lock, desired, seen);
        assert_eq!(planned.is_empty() && planned.auxiliary.exists, differences.is_empty());
        differences.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_missing_lock_is_created_with_all_its_parts_as_one_difference() {
        let nothing = || Auxiliary {
            shared: Some("wait queue"),
            missing: vec!["slot records"],
            ..Auxiliary::default()
        };
        assert_eq!(lines(QUEUE, 3, &slots(&[], &[]), nothing()), ["+ slots: 3"]);
        assert_eq!(lines(QUEUE, 0, &slots(&[], &[]), nothing()), ["+ slots: 0"]);
        assert_eq!(lines(TOKEN, 0, &tokens(0, 0), Auxiliary::default()), ["+ tokens: 0"]);
        assert_eq!(lines(PYTHON, 2, &slots(&[], &[]), Auxiliary::default()), ["+ slots: 2"]);
    }

    #[test]
    fn a_lock_that_differs_shows_its_count_its_slots_and_its_other_queues() {
        let two = || slots(&[1, 3], &[]);
        assert_eq!(lines(QUEUE, 3, &two(), existing()), ["~ slots: 2 -> 3"]);
        let swapped = ["+ missing slots: [2]", "- stray slots: [3]"];
        assert_eq!(lines(QUEUE, 2, &two(), existing()), swapped);
        assert_eq!(lines(TOKEN, 2, &tokens(3, 0), existing()), ["~ tokens: 3 -> 2"]);

        let incomplete = || Auxiliary {
            shared: Some("wait queue"),
            missing: vec!["slot records"],
            ..existing()
        };
        let again = ["+ slot records: made again", "+ wait queue: made again"];
        assert_eq!(lines(QUEUE, 2, &slots(&[1, 2], &[]), incomplete()), again);
        let grown = lines(QUEUE, 3, &slots(&[1, 2], &[]), incomplete());
        assert_eq!(grown, ["~ slots: 2 -> 3"], "a new slot has no record yet");
        let surplus = Auxiliary { has_surplus_records: true, ..existing() };
        let removed = ["- slot records: fencing, lock delay"];
        assert_eq!(lines(QUEUE, 2, &slots(&[1, 2], &[]), surplus), removed);
        assert_eq!(lines(QUEUE, 2, &slots(&[1, 2], &[2]), existing()), [""; 0]);
    }

    #[test]
    fn only_held_slots_that_the_plan_removes_are_draining() {
        let draining = |desired, seen: &Observed| {
            let desired = DesiredSlots::new(desired);
            LockPlan::new(desired, seen, existing(), None).draining(desired, seen)
        };
        assert_eq!(draining(1, &slots(&[1, 2, 3], &[1, 3])), 1);
        assert_eq!(draining(1, &slots(&[1], &[1, 3])), 0, "slot 3 was removed before");
        assert_eq!(draining(2, &tokens(5, 3)), 1);
        assert_eq!(draining(2, &tokens(5, 1)), 0, "free tokens are removed first");
    }

    #[test]
    fn repairs_are_described_for_an_event() {
        let found = Auxiliary {
            shared: Some("wait queue"),
            missing: vec!["slot records"],
            has_surplus_records: true,
            ..existing()
        };
        let all = ["the wait queue made again", "slot records made again", "slot records removed"];
        assert_eq!(found.repairs(), all);
        assert_eq!(existing().repairs(), [""; 0]);
    }
}
