//! Determines the cause of each violation by comparing the processes' answers (`holds`, `sweep`)
//! with the state of the broker (`ownership`). Without frames the cause is unknown. See
//! `exclusion` for S1 to S3, `backing` for grants, `answers` for verifications and releases,
//! `left` for leftovers, `waiting` for refusals, `administrator` for changes of the slots, and
//! `existence` for when slots existed.

mod administrator;
mod answers;
mod backing;
mod exclusion;
mod existence;
mod left;
mod waiting;

use std::collections::BTreeSet;

use super::holds::{Grant, Key, Reported};
use super::ownership::{Owned, Ownerships, SlotChange, Thing};
use super::refused::Waits;
use super::register::Position;
use super::sweep;
use super::verdict::{Cause, Property, Verdict, Violation};
use crate::history::History;
use existence::Existence;

/// Time within which a program must react to the end of its connection, in microseconds. A hold
/// that ends within this time after the loss is not a violation.
pub const NOTICE_US: u64 = 1_000_000;

/// The history, as the other parts of the check see it.
pub struct Found<'a> {
    /// Violations of S2 and S3.
    pub swept: &'a [sweep::Found],
    /// The judged requests to acquire, with violations of S10.
    pub waits: &'a Waits,
    /// Whether the history is the beginning of a longer one.
    pub continues: bool,
}

/// Adds all violations to the verdict, in any order.
pub fn blame(
    history: &History,
    reported: &Reported,
    ownerships: Option<&Ownerships>,
    found: &Found,
    verdict: &mut Verdict,
) {
    let (unauthorised, leftovers) = (Vec::new(), BTreeSet::new());
    let continues = found.continues;
    let mut judge = Judge { history, continues, reported, verdict, unauthorised, leftovers };
    let existence = ownerships.map(|ownerships| Existence::new(history, ownerships));
    if let Some(ownerships) = ownerships {
        judge.unauthorised = judge.unauthorised(ownerships);
    }
    judge.exclusion(ownerships, existence.as_ref(), found.swept);
    if let (Some(ownerships), Some(existence)) = (ownerships, &existence) {
        judge.disjoint(ownerships);
        judge.backing(ownerships, existence);
        judge.verified(ownerships, existence);
        judge.believed(ownerships);
        judge.released(ownerships);
        judge.left(ownerships);
        judge.resumed(ownerships);
        judge.administrator(ownerships);
        judge.at_rest(existence);
    }
    judge.waiting(ownerships, existence.as_ref(), found.waits);
}

/// A change of the slots without the admin mutex.
#[derive(Clone, Copy)]
struct Unauthorised {
    /// The change.
    change: SlotChange,
    /// The side that made it.
    cause: Cause,
}

struct Judge<'a> {
    history: &'a History,
    continues: bool,
    reported: &'a Reported,
    verdict: &'a mut Verdict,
    /// The changes of slots without the admin mutex.
    unauthorised: Vec<Unauthorised>,
    /// The ownerships that were reported as leftovers: their processes, and when they began.
    leftovers: BTreeSet<(u32, Position)>,
}

impl Judge<'_> {
    fn at(&self, position: Position) -> u64 {
        let events = &self.history.events;
        events.get(position).or(events.last()).map_or(0, |event| event.at)
    }

    fn violation(
        &mut self,
        (property, cause): (Property, Cause),
        at: Position,
        processes: &[u32],
        what: String,
    ) {
        self.violation_of(None, (property, cause), at, processes, what);
    }

    /// Adds a violation, of a rule if there is one.
    fn violation_of(
        &mut self,
        rule: Option<&str>,
        (property, cause): (Property, Cause),
        at: Position,
        processes: &[u32],
        what: String,
    ) {
        let mut processes = processes.to_vec();
        processes.dedup();
        let event = at.min(self.history.events.len().saturating_sub(1));
        let at = self.at(at);
        let rule = rule.map(str::to_owned);
        self.verdict.violations.push(Violation {
            property,
            cause,
            at,
            event,
            processes,
            what,
            rule,
        });
    }

    fn count(&mut self, name: &str) {
        *self.verdict.counts.entry(name.to_owned()).or_default() += 1;
    }
}

/// Returns whether the ownership is of the slot or token that the grant names.
fn is_of(owned: &Owned, key: Option<&Key>) -> bool {
    match key {
        Some(key) => owned.key() == Some(key),
        None => owned.thing != Thing::Mutex,
    }
}

/// Returns the newest ownership that may have been in force between the request and the
/// answer of the grant.
fn backing_of<'a>(ownerships: &'a Ownerships, grant: &Grant) -> Option<&'a Owned> {
    ownerships
        .of(grant.process, grant.invoked, grant.granted)
        .find(|owned| is_of(owned, grant.key.as_ref()))
}

/// Returns the name of the slot or token of a grant.
fn name(key: Option<&Key>) -> String {
    key.map_or_else(|| "a slot".to_owned(), ToString::to_string)
}

#[cfg(test)]
mod tests;
