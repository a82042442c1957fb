//! The *sometimes* tables: the situations that must have occurred for a grade. For example, a
//! run without kills does not show that the lock survives a kill. 4 clients on 2 idle
//! cores reach the required numbers in 60 s. See `situations` for how situations are counted.

use serde::{Deserialize, Serialize};

use super::scheduled::Scheduled;
use super::situations::{
    CUT_HOLDING, CUT_RESIZING, Hits, KILL_ACQUIRING, KILL_COMMAND, KILL_HOLDING, KILL_RESIZING,
    Situations,
};
use crate::check::LONG_WAITS;
use crate::check::verdict::Verdict;
use crate::history::{Header, Rules, Verb};
use crate::run::aims::{AIMED, is_usual};

/// Grants of a slot that another process held, or while all slots were held.
const CONTENDED: u64 = 500;
/// Acquires that found no free slot.
const REFUSALS: u64 = 10;
/// Random schedules in which the prover decides the order of the requests.
const SCHEDULES: u64 = 10;
/// Acquires of a process that already holds.
const AGAIN: u64 = 10;
/// Acquires whose time limit ended, and acquires with the longest time limit.
const WAITS: u64 = 5;
/// Resizes to fewer slots, of each kind.
const SHRINKS: u64 = 3;
/// Requests that the broker refused because another connection had acquired the slot first.
const LOST_RACES: u64 = 5;
/// Faults of each kind, except cuts at a method.
const FAULTS: u64 = 10;
/// Commands that are killed without their work.
const ALONE: u64 = 3;
/// Holders that are asked more than 1 s after a cut.
const LATE: u64 = 3;
/// Faults of the administrator, of each kind.
const STRUCK: u64 = 2;
/// Cuts before each method, and after it.
const CUTS: u64 = 1;

/// The situations that the course of a workload does not cause, but its end, or another part of
/// the run.
pub(super) const OUTSIDE: [&str; 3] = [LONG, ALIVE, SCHEDULED];
const SCHEDULED: &str = "random schedules of requests";
const LONG: &str = "acquires that may wait 2 s or more";
const ALIVE: &str = "clients alive at the last acquire";

/// A row of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sometimes {
    /// The situation.
    pub situation: String,
    /// Number of occurrences.
    pub seen: u64,
    /// Required number of occurrences.
    pub needed: u64,
}

impl Sometimes {
    fn new(situation: impl Into<String>, seen: u64, needed: u64) -> Self {
        Self { situation: situation.into(), seen, needed }
    }

    /// Returns whether it occurred often enough.
    pub fn is_met(&self) -> bool {
        self.seen >= self.needed
    }
}

/// Returns the table of grade 0: the lock excludes.
pub(super) fn excludes(
    header: &Header,
    verdict: &Verdict,
    situations: &Situations,
    scheduled: Option<&Scheduled>,
) -> Vec<Sometimes> {
    let rules = header.protocol;
    let count = |name: &str| verdict.counts.get(name).copied().unwrap_or_default();
    let mut table = vec![
        Sometimes::new("contended hand-overs", count("contended hand-overs"), CONTENDED),
        Sometimes::new("refusals", count("refusals"), REFUSALS),
        Sometimes::new("refusals at the end of a wait", situations.timed_out, WAITS),
    ];
    // A command that runs another one cannot be asked, and a driver need not offer it.
    let [again, unsupported] = situations.acquired_again;
    let is_command = is_command(header);
    if !is_command && (again == 0 || again > unsupported) {
        table.push(Sometimes::new("acquires of a holder", again - unsupported, AGAIN));
    }
    // The requests of a command that runs another one are not controlled.
    if !is_command && rules != Rules::None {
        let executions = scheduled.map_or(0, |scheduled| scheduled.executions);
        table.push(Sometimes::new(SCHEDULED, executions, SCHEDULES));
    }
    // Resizes are not required if no program resizes the lock.
    if rules != Rules::None || count("resizes") > 0 {
        let (held, acquired) = (situations.shrunk_while_held, situations.shrunk_while_acquired);
        table.push(Sometimes::new("resizes that removed a held slot", held, SHRINKS));
        table.push(Sometimes::new("resizes to fewer slots during an acquire", acquired, SHRINKS));
    }
    // In protocol Token, the broker chooses the next holder, so no client loses a race.
    if !matches!(rules, Rules::None | Rules::Token) {
        table.push(Sometimes::new("lost races", situations.lost_races, LOST_RACES));
    }
    table
}

/// Returns the table of grade 1: the lock survives crashes.
pub(super) fn survives(
    header: &Header,
    verdict: &Verdict,
    situations: &Situations,
) -> Vec<Sometimes> {
    let rules = header.protocol;
    let fault = |name: &str| {
        let seen = situations.faults.get(name).copied().unwrap_or_default();
        Sometimes::new(name, seen, FAULTS)
    };
    let long = verdict.counts.get(LONG_WAITS).copied().unwrap_or_default();
    let very_long = situations.very_long_waits;
    let mut table = vec![
        fault(KILL_HOLDING),
        fault(KILL_ACQUIRING),
        Sometimes::new("acquires that may wait 6 s", very_long, WAITS),
        Sometimes::new(LONG, long, 1),
        Sometimes::new(ALIVE, situations.alive_at_end, 1),
    ];
    if is_command(header) {
        let seen = situations.faults.get(KILL_COMMAND).copied().unwrap_or_default();
        table.push(Sometimes::new(KILL_COMMAND, seen, ALONE));
    }
    if rules == Rules::None {
        return table;
    }
    table.push(fault(CUT_HOLDING));
    // Tokens have no slot number, and a command that runs another one does not verify.
    if rules != Rules::Token && situations.shrunk_while_held > 0 && verifies(situations) {
        let removed = situations.verified_removed;
        table.push(Sometimes::new("verifications of a removed slot", removed, SHRINKS));
    }
    if verdict.counts.get("resizes").is_some_and(|&resizes| resizes > 1) {
        for name in [CUT_RESIZING, KILL_RESIZING] {
            let seen = situations.faults.get(name).copied().unwrap_or_default();
            table.push(Sometimes::new(name, seen, STRUCK));
        }
    }
    let late = situations.long_after_cut;
    table.push(Sometimes::new("holders asked more than 1 s after a cut", late, LATE));
    let survived = situations.granted_after_failure;
    table.push(Sometimes::new("grants to a process after a loss or an error", survived, FAULTS));
    // A rarely sent method need not be hit.
    let aimed = |hits: &&Hits| AIMED.contains(&hits.verb) && is_usual(hits.sent, hits.operations);
    for hits in situations.methods.iter().filter(aimed) {
        let Hits { verb, method, before, after, .. } = hits;
        for (side, seen) in [("before", before), ("after", after)] {
            let situation = format!("cut {side} {method} in {}", verb.name());
            table.push(Sometimes::new(situation, *seen, CUTS));
        }
    }
    table
}

/// Returns whether the implementation is a command that runs another one under the lock.
fn is_command(header: &Header) -> bool {
    header.played.as_ref().is_some_and(|played| played.exec.is_some())
}

/// Returns whether verifications sent requests.
fn verifies(situations: &Situations) -> bool {
    situations.methods.iter().any(|hits| hits.verb == Verb::Verify && hits.sent > 0)
}
