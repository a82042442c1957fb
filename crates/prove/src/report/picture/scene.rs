//! Selects the content of a picture: the processes and slots involved, the interval of the
//! violation, and the events nearest to it. See `lanes` for how they are drawn.

use std::collections::BTreeSet;

use super::drawing::Place;
use crate::check::Examined;
use crate::check::holds::{Grant, Key};
use crate::check::ownership::{Owned, SlotChange, Thing};
use crate::check::register::{NEVER, Position};
use crate::check::verdict::{Property, Violation};
use crate::history::{ConnectionState, History, Rules, What};

/// Maximum number of events in a picture.
pub(crate) const EVENTS: usize = 30;

/// Maximum number of lanes of processes, and of slots.
const LANES: usize = 6;

/// Weight of the distance of an event after the violation. Earlier events are preferred, because
/// they include the cause.
const BEFORE: usize = 2;

/// The subject of a lane of the broker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    /// A slot, or a token with an id.
    Held(Key),
    /// The tokens without unique ids that a process owns.
    Tokens(u32),
    /// The token queue.
    Queue,
    /// The admin mutex.
    Mutex,
}

/// The interval that violates the property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) from: Position,
    /// The end. [`NEVER`] if it did not end.
    pub(super) to: Position,
    /// The name of the interval in the label.
    pub(super) word: &'static str,
    /// The subject of the violation, unless it is the slot that the processes hold.
    subject: Option<Subject>,
}

/// The content of the picture of one violation.
pub(super) struct Scene<'a> {
    pub(super) history: &'a History,
    pub(super) examined: &'a Examined,
    /// The event with which the violation became certain.
    pub(super) at: Position,
    pub(super) claim: Claim,
    pub(super) processes: Vec<u32>,
    pub(super) subjects: Vec<Subject>,
    /// The events in the picture, in order. At most [`EVENTS`].
    pub(super) shown: Vec<Position>,
}

impl<'a> Scene<'a> {
    pub(super) fn new(
        history: &'a History,
        examined: &'a Examined,
        violation: &'a Violation,
    ) -> Self {
        let at = violation.event.min(history.events.len().saturating_sub(1));
        let claim = claim(history, examined, violation, at);
        let mut scene = Self {
            history,
            examined,
            at,
            claim,
            processes: violation.processes.clone(),
            subjects: Vec::new(),
            shown: Vec::new(),
        };
        scene.processes.truncate(LANES);
        scene.involve(violation.property);
        let needed = [scene.claim.from, at, scene.claim.to];
        scene.shown = nearest(&scene.candidates(), at, &needed);
        scene
    }

    /// Returns the time of an event in microseconds.
    pub(super) fn time(&self, at: Position) -> u64 {
        let events = &self.history.events;
        events.get(at).or(events.last()).map_or(0, |event| event.at)
    }

    /// Returns the position of an event, or the position that it would have if it were shown.
    pub(super) fn place(&self, at: Position) -> Place {
        let before = self.shown.partition_point(|&shown| shown < at);
        2 * before + usize::from(self.shown.get(before) == Some(&at))
    }

    /// Returns the positions of an interval, or `None` if no part of it is in the picture.
    pub(super) fn places(&self, from: Position, to: Position) -> Option<(Place, Place)> {
        let (from, to) = (self.place(from), self.place(to));
        (from < to).then_some((from, to))
    }

    /// Returns the ownerships in a lane of the broker, in the order in which they began.
    pub(super) fn owned<'s>(
        &'s self,
        subject: &'s Subject,
    ) -> impl Iterator<Item = &'a Owned> + use<'s, 'a> {
        let all = self.examined.ownerships.as_ref().map_or(&[][..], |ownerships| &ownerships.owned);
        all.iter().filter(move |owned| of(owned) == *subject)
    }

    /// Returns the changes in a lane of the broker.
    pub(super) fn changes<'s>(
        &'s self,
        subject: &'s Subject,
    ) -> impl Iterator<Item = &'a SlotChange> + use<'s, 'a> {
        let all =
            self.examined.ownerships.as_ref().map_or(&[][..], |ownerships| &ownerships.changes);
        all.iter().filter(move |change| changed(change) == *subject)
    }

    /// Adds the slots of the processes, and the other owners of these slots.
    fn involve(&mut self, property: Property) {
        let mut subjects = BTreeSet::new();
        subjects.extend(self.claim.subject.clone());
        for &process in &self.processes {
            let grant = self.examined.reported.grants.iter().rev();
            let mut grant = grant.filter(|one| one.process == process && one.granted <= self.at);
            subjects.extend(grant.next().and_then(|one| one.key.clone()).map(Subject::Held));
        }
        if let Some(ownerships) = &self.examined.ownerships {
            for &process in &self.processes {
                let mut latest = ownerships.of(process, 0, self.at);
                let of_slot = |owned: &&Owned| owned.thing != Thing::Mutex;
                subjects.extend(latest.find(of_slot).map(of));
            }
            let near =
                ownerships.changes.iter().filter(|one| one.at == self.at || one.done == self.at);
            subjects.extend(near.map(changed));
            if property == Property::S9 {
                subjects.insert(Subject::Mutex);
            }
            let from = self.claim.from.min(self.at);
            let in_force =
                |owned: &&Owned| owned.certain.from <= self.at && owned.possible.to >= from;
            let others = ownerships.owned.iter().filter(in_force);
            let others = others.filter(|owned| subjects.contains(&of(owned)));
            for process in others.map(|owned| owned.process) {
                if !self.processes.contains(&process) && self.processes.len() < LANES {
                    self.processes.push(process);
                }
            }
        }
        self.processes.sort_unstable();
        self.processes.dedup();
        // Without observation of the broker, nothing is known of the tokens and the mutex.
        if self.examined.ownerships.is_some() {
            self.subjects = subjects.into_iter().take(LANES).collect();
        }
    }

    /// Returns all events that the picture could show, in order.
    fn candidates(&self) -> BTreeSet<Position> {
        let shown = |process: &u32| self.processes.contains(process);
        let concerns = |what: &What| match what {
            What::Operation(operation) => shown(&operation.process),
            What::Lost { process, .. } | What::Process { process, .. } => shown(process),
            What::Connection { process, state, .. } => {
                *state != ConnectionState::Opened && shown(process)
            }
            What::Fault { process, .. } => process.as_ref().is_none_or(shown),
            What::Frame(_) => false,
        };
        let events = (0..).zip(&self.history.events);
        let mut candidates: BTreeSet<Position> =
            events.filter(|(_, event)| concerns(&event.what)).map(|(at, _)| at).collect();
        for subject in &self.subjects {
            for owned in self.owned(subject) {
                candidates.extend([owned.certain.from, owned.certain.to, owned.possible.to]);
            }
            candidates.extend(self.changes(subject).flat_map(|change| [change.at, change.done]));
        }
        candidates.extend([self.claim.from, self.at, self.claim.to]);
        candidates.retain(|&at| at < self.history.events.len());
        candidates
    }
}

/// Returns the subject of an ownership.
fn of(owned: &Owned) -> Subject {
    match &owned.thing {
        Thing::Held(key) => Subject::Held(key.clone()),
        Thing::Token => Subject::Tokens(owned.process),
        Thing::Mutex => Subject::Mutex,
    }
}

/// Returns the subject of a change.
fn changed(change: &SlotChange) -> Subject {
    if change.slot == 0 { Subject::Queue } else { Subject::Held(Key::Slot(change.slot)) }
}

/// Returns the interval that violates the property.
fn claim(history: &History, examined: &Examined, violation: &Violation, at: Position) -> Claim {
    let found = match violation.property {
        Property::S1 => both_owned(examined, at),
        Property::S2 => both_hold(examined, violation, at),
        Property::S5 => {
            let mut answers = examined.reported.verified.iter().rev();
            let answer = answers.find(|answer| answer.done == at);
            answer.map(|one| Claim { from: one.invoked, to: at, word: "claim", subject: None })
        }
        Property::S6 => left(history, examined, violation, at),
        _ => None,
    };
    let granted = || {
        let grants = &examined.reported.grants;
        let index = grants.partition_point(|grant| grant.granted < at);
        let grant = grants.get(index).filter(|grant| grant.granted == at)?;
        Some(Claim { from: at, to: grant.end, word: "claim", subject: None })
    };
    let instant = Claim { from: at, to: at, word: "wrong", subject: None };
    found.or_else(granted).unwrap_or(instant)
}

/// S1: two connections own the same resource.
fn both_owned(examined: &Examined, at: Position) -> Option<Claim> {
    let owned = &examined.ownerships.as_ref()?.owned;
    let later = owned.iter().find(|owned| owned.certain.from == at)?;
    let mut earlier = owned.iter().filter(|owned| owned.thing == later.thing);
    let earlier = earlier.find(|owned| owned.overlaps(later))?;
    let to = earlier.certain.to.min(later.certain.to).max(at);
    Some(Claim { from: at, to, word: "overlap", subject: Some(of(later)) })
}

/// S2: the holds of two or more processes overlap.
fn both_hold(examined: &Examined, violation: &Violation, at: Position) -> Option<Claim> {
    let involved = |grant: &&Grant| violation.processes.contains(&grant.process);
    let now = |grant: &&Grant| grant.granted <= at && grant.end > at;
    let holds: Vec<&Grant> = examined.reported.grants.iter().filter(involved).filter(now).collect();
    let distinct: BTreeSet<u32> = holds.iter().map(|grant| grant.process).collect();
    let to = holds.iter().map(|grant| grant.end).min()?;
    (distinct.len() > 1).then_some(Claim { from: at, to, word: "overlap", subject: None })
}

/// S6: the hold remains after a release. A token may also arrive after it.
fn left(
    history: &History,
    examined: &Examined,
    violation: &Violation,
    at: Position,
) -> Option<Claim> {
    let reported = &examined.reported;
    let released = reported.released.iter().find(|answer| answer.done == at)?;
    let process = *violation.processes.first()?;
    let key = released.grant.and_then(|grant| reported.grants.get(grant)?.key.as_ref());
    let tokens = history.header.protocol == Rules::Token;
    let until = if tokens { reported.next_request(process, at).saturating_sub(1) } else { at };
    let mut owned = examined.ownerships.as_ref()?.of(process, at, until);
    let left = owned.find(|owned| {
        let same = tokens || key.is_none_or(|key| owned.key() == Some(key));
        same && owned.certain.to > at && owned.thing != Thing::Mutex
    })?;
    let from = left.certain.from.max(at);
    Some(Claim { from, to: left.certain.to, word: "left for", subject: Some(of(left)) })
}

/// Returns the candidates that are nearest to the violation. The needed events are always
/// included.
pub(super) fn nearest(
    candidates: &BTreeSet<Position>,
    at: Position,
    needed: &[Position],
) -> Vec<Position> {
    let rank = candidates.range(..at).count();
    let distance = |index: usize| {
        if index < rank { rank - index } else { BEFORE * (index - rank) }
    };
    let mut ordered: Vec<(bool, usize, Position)> = (0..)
        .zip(candidates)
        .map(|(index, &one)| (!needed.contains(&one), distance(index), one))
        .collect();
    ordered.sort_unstable();
    ordered.truncate(EVENTS);
    let shown: BTreeSet<Position> =
        ordered.into_iter().map(|(.., one)| one).filter(|&one| one != NEVER).collect();
    shown.into_iter().collect()
}
