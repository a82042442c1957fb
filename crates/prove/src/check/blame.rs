//! Determines the cause of each violation by comparing the processes' answers (`holds`, `sweep`)
//! with the state of the broker (`ownership`). Without frames the cause is unknown. See
//! `exclusion` for S1 to S3, `backing` for grants, `answers` for verifications and releases, and
//! `waiting` for refusals, and
//! `administrator` for changes of the slots.

mod administrator;
mod answers;
mod backing;
mod exclusion;
mod waiting;

use std::collections::BTreeMap;

use super::holds::{Grant, Key, Reported};
use super::ownership::{Owned, Ownerships, Thing};
use super::refused::Refused;
use super::register::{Position, Register, Write};
use super::sweep;
use super::verdict::{Cause, Property, Verdict, Violation};
use crate::history::{History, Rules};

/// The violations that the answers alone show.
pub struct Found<'a> {
    /// Violations of S2 and S3.
    pub swept: &'a [sweep::Found],
    /// Violations of S10.
    pub refused: &'a [Refused],
}

/// Adds all violations to the verdict, in any order.
pub fn blame(
    history: &History,
    reported: &Reported,
    ownerships: Option<&Ownerships>,
    found: &Found,
    verdict: &mut Verdict,
) {
    let mut judge = Judge { history, reported, verdict };
    let existence = ownerships.map(|ownerships| Existence::new(history, ownerships));
    judge.exclusion(ownerships, existence.as_ref(), found.swept);
    judge.waiting(ownerships, existence.as_ref(), found.refused);
    let (Some(ownerships), Some(existence)) = (ownerships, existence) else { return };
    judge.disjoint(ownerships);
    judge.backing(ownerships, &existence);
    judge.verified(ownerships, &existence);
    judge.released(ownerships);
    judge.resumed(ownerships);
    judge.administrator(ownerships);
    judge.order(ownerships, &existence);
    judge.at_rest(&existence);
}

struct Judge<'a> {
    history: &'a History,
    reported: &'a Reported,
    verdict: &'a mut Verdict,
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
        let mut processes = processes.to_vec();
        processes.dedup();
        let event = at.min(self.history.events.len().saturating_sub(1));
        let at = self.at(at);
        let rule = None;
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

/// The slots that may have existed, and that may have been missing, over time.
struct Existence {
    initial: u32,
    /// Whether the protocol is Token, which has no slots.
    tokens: bool,
    slots: BTreeMap<u32, (Register, Register)>,
}

impl Existence {
    fn new(history: &History, ownerships: &Ownerships) -> Self {
        let initial = history.header.slots;
        let registers = |(&slot, writes): (&u32, &Vec<Write>)| {
            let first = u32::from(slot <= initial);
            let mut missing = writes.clone();
            for write in &mut missing {
                write.value = 1 - write.value;
            }
            (slot, (Register::new(first, writes), Register::new(1 - first, &missing)))
        };
        let slots = ownerships.existence.iter().map(registers).collect();
        Self { initial, tokens: history.header.protocol == Rules::Token, slots }
    }

    /// Returns whether the slot may have existed at an instant of this interval.
    fn possible(&self, slot: u32, from: Position, to: Position) -> bool {
        let changed = self.slots.get(&slot).map(|(exists, _)| exists.max(from, to) > 0);
        self.tokens || changed.unwrap_or(slot <= self.initial)
    }

    /// Returns whether the slot may have been missing at an instant of this interval.
    fn possibly_missing(&self, slot: u32, from: Position, to: Position) -> bool {
        let changed = self.slots.get(&slot).map(|(_, missing)| missing.max(from, to) > 0);
        self.tokens || changed.unwrap_or(slot > self.initial)
    }

    /// Returns a slot that contradicts this number of slots with certainty: a missing slot up to
    /// it, or an existing slot above it.
    fn wrong(&self, slots: u32, at: Position) -> Option<u32> {
        let missing = (1..=slots).find(|&slot| !self.possible(slot, at, at));
        let highest = self.slots.last_key_value().map_or(0, |(&slot, _)| slot);
        let surplus = slots + 1..=highest.max(self.initial);
        missing.or_else(|| surplus.into_iter().find(|&slot| !self.possibly_missing(slot, at, at)))
    }
}

#[cfg(test)]
mod tests;
