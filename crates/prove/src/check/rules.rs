//! The *must* rules of docs/protocols: which there are, how each is judged, and the checks of
//! those that frames show. See `registry` for the list, `requests` for rules about a single
//! request, `holds` for rules about a hold, and `blame` for the other properties.

mod holds;
mod registry;
mod requests;

use std::collections::BTreeSet;

use lockkeeper_plan::naming::LockName;

use super::holds::Reported;
use super::ownership::Ownerships;
use super::register::Position;
use super::verdict::{Cause, Property, Violation};
use crate::history::{History, Rules};

pub use registry::all;

/// A sentence of docs/protocols about what clients or administrators must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The id: the initials of the document, and a number in the order of its text.
    pub id: &'static str,
    /// The name of the file in docs/protocols.
    pub document: &'static str,
    /// A part of the sentence that contains the word *must* once, and occurs once in the
    /// document. Line breaks are single spaces.
    pub quote: &'static str,
    /// How it is judged.
    pub judged: Judged,
}

/// How a rule is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// A violation is reported as [`Property::Rule`] with the id of the rule.
    Rule,
    /// This property covers the rule.
    Property(Property),
    /// A violation cannot be observed, for this reason.
    NotObservable(&'static str),
}

/// Returns the violations of rules, at most one for each rule and process: a client that breaks
/// a rule usually breaks it in every cycle.
pub(super) fn check(
    history: &History,
    lock: &LockName,
    reported: &Reported,
    ownerships: &Ownerships,
) -> Vec<Violation> {
    let (found, seen) = (Vec::new(), BTreeSet::new());
    let mut checker = Checker { history, lock, reported, ownerships, found, seen };
    checker.requests();
    checker.holds();
    checker.found
}

struct Checker<'a> {
    history: &'a History,
    lock: &'a LockName,
    reported: &'a Reported,
    ownerships: &'a Ownerships,
    found: Vec<Violation>,
    /// The rules that each process has violated.
    seen: BTreeSet<(&'static str, u32)>,
}

impl Checker<'_> {
    fn rules(&self) -> Rules {
        self.history.header.protocol
    }

    /// Returns whether a holder of this protocol declares a queue.
    fn by_queue(&self) -> bool {
        matches!(self.rules(), Rules::ExclusiveQueue | Rules::AmqpLocksPython)
    }

    /// Returns whether the process acts as an administrator at this position. An application
    /// without operations does so if it may own the admin mutex.
    fn administers(&self, process: u32, at: Position) -> bool {
        self.reported.administers(process, at) || self.ownerships.may_administer(process, at)
    }

    /// Records a violation. `did` completes a sentence about the process.
    fn violation(&mut self, id: &'static str, process: u32, at: Position, did: &str) {
        if !self.seen.insert((id, process)) {
            return;
        }
        let administers = self.administers(process, at);
        let cause = if administers { Cause::Administrator } else { Cause::Client };
        self.found.push(Violation {
            property: Property::Rule,
            cause,
            at: self.history.events.get(at).map_or(0, |event| event.at),
            event: at,
            processes: vec![process],
            what: format!("{id}: process {process} {did}"),
            rule: Some(id.to_owned()),
        });
    }
}

#[cfg(test)]
mod tests;
