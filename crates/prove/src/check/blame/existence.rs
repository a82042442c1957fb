//! Derives from the evidence in the frames when each slot may have existed, and when it may have
//! been missing. A request takes effect at one instant between its request and its answer, and a
//! look shows the state at such an instant. All orders that agree with every look are possible.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::ownership::{Evidence, Ownerships};
use crate::check::register::{NEVER, Position};
use crate::history::{History, Rules};

/// When the slots may have existed and may have been missing.
pub struct Existence {
    /// Number of slots before the first event.
    pub initial: u32,
    /// Whether the protocol is Token, which has no slots.
    pub tokens: bool,
    slots: BTreeMap<u32, Timeline>,
}

impl Existence {
    /// Reads the evidence.
    pub fn new(history: &History, ownerships: &Ownerships) -> Self {
        let initial = history.header.slots;
        let timeline = |(&slot, evidence): (&u32, &Vec<Evidence>)| {
            (slot, Timeline::new(slot <= initial, evidence))
        };
        let slots = ownerships.existence.iter().map(timeline).collect();
        Self { initial, tokens: history.header.protocol == Rules::Token, slots }
    }

    /// Returns whether the slot may have existed at an instant of this interval.
    pub fn possible(&self, slot: u32, from: Position, to: Position) -> bool {
        let seen = self.slots.get(&slot).map(|slot| slot.may_be(true, from, to));
        self.tokens || seen.unwrap_or(slot <= self.initial)
    }

    /// Returns whether the slot may have been missing at an instant of this interval.
    pub fn possibly_missing(&self, slot: u32, from: Position, to: Position) -> bool {
        let seen = self.slots.get(&slot).map(|slot| slot.may_be(false, from, to));
        self.tokens || seen.unwrap_or(slot > self.initial)
    }

    /// Returns a slot that contradicts this number of slots with certainty: a missing slot up to
    /// it, or an existing slot above it.
    pub fn wrong(&self, slots: u32, at: Position) -> Option<u32> {
        let missing = (1..=slots).find(|&slot| !self.possible(slot, at, at));
        let highest = self.slots.last_key_value().map_or(0, |(&slot, _)| slot);
        let surplus = slots + 1..=highest.max(self.initial);
        missing.or_else(|| surplus.into_iter().find(|&slot| !self.possibly_missing(slot, at, at)))
    }
}

/// A possible state of the broker: whether the queue exists, and what each open request has met.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    exists: bool,
    /// Of a look: whether the queue was missing, and whether it existed, at an instant since the
    /// request. Of a change: whether it has taken effect, twice.
    open: Vec<[bool; 2]>,
}

impl State {
    fn set(&mut self, exists: bool, open: &[Evidence]) {
        self.exists = exists;
        for (met, evidence) in self.open.iter_mut().zip(open) {
            met[usize::from(exists)] |= evidence.looked;
        }
    }
}

/// The possible states of one slot over time.
struct Timeline {
    /// The position at which each segment begins. The first is 0.
    starts: Vec<Position>,
    /// For missing and existing: the number of segments before each one in which that is possible.
    before: [Vec<usize>; 2],
}

impl Timeline {
    fn new(exists: bool, evidence: &[Evidence]) -> Self {
        let mut events: Vec<(Position, bool, Evidence)> = Vec::new();
        for &one in evidence {
            events.push((one.invoked, false, one));
            if one.done != NEVER {
                events.push((one.done, true, one));
            }
        }
        events.sort_unstable_by_key(|&(at, answered, _)| (at, answered));
        let mut segments = vec![(0, [!exists, exists])];
        let mut states = Possible::new(exists);
        for (at, answered, one) in events {
            if answered {
                states.answered(&one, &mut segments);
            } else {
                states.requested(one);
            }
            states.spread();
            let may = |exists| states.states.iter().any(|state| state.exists == exists);
            segments.push((at, [may(false), may(true)]));
        }
        let count = |value: usize| {
            let mut sum = 0;
            let each = segments.iter().map(|(_, may)| {
                sum += usize::from(may[value]);
                sum
            });
            std::iter::once(0).chain(each).collect()
        };
        let before = [count(0), count(1)];
        Self { starts: segments.into_iter().map(|(at, _)| at).collect(), before }
    }

    /// Returns whether the queue may have existed, or may have been missing, at an instant of this
    /// interval.
    fn may_be(&self, exists: bool, from: Position, to: Position) -> bool {
        let segment = |at| self.starts.partition_point(|&start| start <= at);
        let before = &self.before[usize::from(exists)];
        before[segment(to.max(from))] > before[segment(from).saturating_sub(1)]
    }
}

/// All states that are possible after the events so far.
struct Possible {
    states: BTreeSet<State>,
    /// The requests that are not answered yet.
    open: Vec<Evidence>,
    /// Whether a deletion, and whether a declaration, will never be answered.
    unanswered: [bool; 2],
}

impl Possible {
    fn new(exists: bool) -> Self {
        let states = BTreeSet::from([State { exists, open: Vec::new() }]);
        Self { states, open: Vec::new(), unanswered: [false; 2] }
    }

    fn change(&mut self, with: impl Fn(&mut State)) {
        let changed = std::mem::take(&mut self.states).into_iter().map(|mut state| {
            with(&mut state);
            state
        });
        self.states = changed.collect();
    }

    fn requested(&mut self, evidence: Evidence) {
        if evidence.done == NEVER {
            self.unanswered[usize::from(evidence.exists)] |= !evidence.looked;
            return;
        }
        self.open.push(evidence);
        self.change(|state| {
            let met = [evidence.looked && !state.exists, evidence.looked && state.exists];
            state.open.push(met);
        });
    }

    /// Keeps the states that agree with the answer. If there are none, a program that was not
    /// observed has changed the slot since the request.
    fn answered(&mut self, evidence: &Evidence, segments: &mut [(Position, [bool; 2])]) {
        let value = usize::from(evidence.exists);
        let Some(index) = self.open.iter().position(|open| open == evidence) else { return };
        if self.states.iter().any(|state| state.open[index][value]) {
            self.states.retain(|state| state.open[index][value]);
        } else {
            let open = self.open.clone();
            self.change(|state| state.set(evidence.exists, &open));
            let since = segments.partition_point(|&(at, _)| at <= evidence.invoked);
            for (_, may) in &mut segments[since.saturating_sub(1)..] {
                may[value] = true;
            }
        }
        self.open.remove(index);
        self.change(|state| {
            state.open.remove(index);
        });
    }

    /// Adds the states that follow when open changes take effect.
    fn spread(&mut self) {
        let mut new: Vec<State> = self.states.iter().cloned().collect();
        while let Some(state) = new.pop() {
            let changes = self.open.iter().enumerate().filter(|(_, one)| !one.looked);
            let pending = changes.filter(|&(index, _)| state.open[index] == [false; 2]);
            let mut next: Vec<State> = Vec::new();
            for (index, change) in pending {
                let mut after = state.clone();
                after.set(change.exists, &self.open);
                after.open[index] = [true; 2];
                next.push(after);
            }
            for exists in [false, true] {
                if self.unanswered[usize::from(exists)] {
                    let mut after = state.clone();
                    after.set(exists, &self.open);
                    next.push(after);
                }
            }
            for after in next {
                if self.states.insert(after.clone()) {
                    new.push(after);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(invoked: Position, done: Position, exists: bool, looked: bool) -> Evidence {
        Evidence { invoked, done, exists, looked }
    }

    fn may(timeline: &Timeline, at: Position) -> (bool, bool) {
        (timeline.may_be(true, at, at), timeline.may_be(false, at, at))
    }

    #[test]
    fn a_slot_exists_from_the_request_of_its_declaration_until_the_answer_to_its_deletion() {
        let timeline =
            Timeline::new(false, &[evidence(10, 20, true, false), evidence(30, 40, false, false)]);
        let at = [9, 10, 20, 29, 30, 39, 40].map(|at| may(&timeline, at));
        let (yes, no, both) = ((true, false), (false, true), (true, true));
        assert_eq!(at, [no, both, yes, yes, both, both, no]);
        assert!(timeline.may_be(true, 0, 10) && !timeline.may_be(true, 0, 9));
    }

    #[test]
    fn a_look_during_a_deletion_orders_both() {
        let deletion = evidence(14, 17, false, false);
        let found = Timeline::new(true, &[deletion, evidence(15, 16, true, true)]);
        assert_eq!([16, 17].map(|at| may(&found, at)), [(true, true), (false, true)]);
        let missing = Timeline::new(true, &[deletion, evidence(15, 16, false, true)]);
        assert_eq!([15, 16].map(|at| may(&missing, at)), [(true, true), (false, true)]);
    }

    #[test]
    fn an_unanswered_change_may_happen_until_a_look_shows_that_it_has() {
        let lost = evidence(10, NEVER, false, false);
        let looks = [lost, evidence(20, 21, true, true), evidence(30, 31, false, true)];
        let timeline = Timeline::new(true, &looks);
        let at = [9, 10, 21, 29, 31, 99].map(|at| may(&timeline, at));
        let (yes, no, both) = ((true, false), (false, true), (true, true));
        assert_eq!(at, [yes, both, both, both, no, no]);
    }

    #[test]
    fn a_look_shows_changes_by_programs_that_are_not_observed() {
        let looks = [evidence(10, 11, false, true), evidence(20, 21, true, true)];
        let timeline = Timeline::new(true, &looks);
        let at = [9, 10, 11, 19, 20, 21].map(|at| may(&timeline, at));
        let (yes, no, both) = ((true, false), (false, true), (true, true));
        assert_eq!(at, [yes, both, no, no, both, yes]);
    }
}
