//! Checks exclusion (S2) and existence (S3) from the answers alone, in O(n log n). A history of
//! a semaphore is linearizable if and only if two conditions are true for each slot: its holds
//! are disjoint, and it may have existed at an instant between the previous hold and the grant.
//! Without slot numbers, the condition is that there are never more holds than slots. See
//! `blame` for the causes.

use std::collections::{BTreeMap, BTreeSet};

use super::holds::{Grant, Key};
use super::register::{Position, Register};

/// A violation, by indices of grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// S2: the second grant was answered while the first one held the same slot or token. Both
    /// may be of one process.
    Both {
        /// The earlier grant.
        first: usize,
        /// The later grant.
        second: usize,
    },
    /// S2: there were more holds than slots. The last hold in the list was granted last.
    TooMany {
        /// All holds at that instant, as indices of grants.
        holds: Vec<usize>,
        /// The largest possible number of slots.
        slots: u32,
    },
    /// S3: the slot of this grant did not exist between the previous hold, or the request, and the
    /// answer.
    Missing {
        /// The grant.
        grant: usize,
        /// The start of the interval in which the slot must have existed.
        from: Position,
    },
}

/// The violations, and the number of contended hand-overs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// The violations.
    pub found: Vec<Found>,
    /// Number of grants between whose request and answer another process held the slot, or all
    /// slots were held.
    pub contended: u64,
}

/// Judges the grants, which are in the order of their answers.
pub fn sweep(grants: &[Grant], slots: &Register) -> Swept {
    let mut found = by_key(grants, slots);
    found.extend(by_number(grants, slots));
    Swept { found, contended: contended(grants, slots) }
}

/// Judges the holds of each slot or token.
fn by_key(grants: &[Grant], slots: &Register) -> Vec<Found> {
    let mut found = Vec::new();
    let mut last: BTreeMap<&Key, usize> = BTreeMap::new();
    for (index, grant) in grants.iter().enumerate() {
        let Some(key) = &grant.key else { continue };
        let before = last.get(key).copied();
        let until = before.map_or(0, |before| grants[before].end);
        // If a hold ends with the next grant to the same process, the process never released it.
        if let Some(first) = before.filter(|_| until >= grant.granted) {
            found.push(Found::Both { first, second: index });
        }
        if let Key::Slot(slot) = key {
            // A hold that overlaps the grant did not delay it.
            let free_from = before.map_or(0, |before| grants[before].free_from());
            let free_from = if free_from < grant.granted { free_from } else { 0 };
            let from = grant.invoked.max(free_from);
            let missing = *slot == 0 || slots.max(from, grant.granted) < *slot;
            if missing && !grant.claimed {
                found.push(Found::Missing { grant: index, from });
            }
        }
        if until <= grant.end {
            last.insert(key, index);
        }
    }
    found
}

/// Checks the number of holds if their slot numbers are unknown. Exact while the number of slots
/// is constant. Otherwise the largest number since the earliest request counts, which may miss a
/// violation.
fn by_number(grants: &[Grant], slots: &Register) -> Vec<Found> {
    if grants.iter().all(|grant| matches!(grant.key, Some(Key::Slot(_)))) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut ends: BTreeSet<(Position, usize)> = BTreeSet::new();
    let mut requests: BTreeSet<(Position, usize)> = BTreeSet::new();
    for (index, grant) in grants.iter().enumerate() {
        while let Some(&(end, ended)) = ends.first()
            && end <= grant.granted
        {
            ends.pop_first();
            requests.remove(&(grants[ended].invoked, ended));
        }
        ends.insert((grant.end, index));
        requests.insert((grant.invoked, index));
        let first = requests.first().map_or(grant.invoked, |&(invoked, _)| invoked);
        let most = slots.max(first, grant.granted);
        if grant.key.is_none() && slots.max(grant.invoked, grant.granted) == 0 && !grant.claimed {
            found.push(Found::Missing { grant: index, from: grant.invoked });
        }
        if ends.len() > most as usize {
            let mut holds: Vec<usize> = ends.iter().map(|&(_, hold)| hold).collect();
            holds.sort_unstable();
            found.push(Found::TooMany { holds, slots: most });
        }
    }
    found
}

/// Counts the grants for which a process had to contend: another process held the same slot, or
/// all slots were held, between the request and the answer. The instant of the request alone
/// would not suffice: a process usually requests the slot that it has just released, which is
/// then often free.
fn contended(grants: &[Grant], slots: &Register) -> u64 {
    let full = full(grants, slots);
    let mut by_key: BTreeMap<&Key, Latest> = BTreeMap::new();
    let mut contended = 0;
    for grant in grants.iter().filter(|grant| !grant.claimed) {
        let waited = full.range(..=grant.invoked).next_back().is_some_and(|(_, full)| *full)
            || full.range(grant.invoked..grant.granted).any(|(_, full)| *full);
        let holders = grant.key.as_ref().map(|key| by_key.entry(key).or_default());
        let held = holders.is_some_and(|latest| {
            let held = latest.of_others(grant.process) > grant.invoked;
            latest.add(grant.process, grant.end);
            held
        });
        contended += u64::from(waited || held);
    }
    contended
}

/// The latest end of the holds of one slot, and the latest end of the holds by another process.
#[derive(Default)]
struct Latest {
    first: (u32, Position),
    second: Position,
}

impl Latest {
    fn add(&mut self, process: u32, end: Position) {
        let (latest, until) = self.first;
        if process == latest {
            self.first.1 = until.max(end);
        } else if end >= until {
            (self.first, self.second) = ((process, end), until);
        } else {
            self.second = self.second.max(end);
        }
    }

    fn of_others(&self, process: u32) -> Position {
        if self.first.0 == process { self.second } else { self.first.1 }
    }
}

/// Returns the positions at which the lock became full (true) or was no longer full (false).
fn full(grants: &[Grant], slots: &Register) -> BTreeMap<Position, bool> {
    let mut changes: Vec<(Position, bool)> = Vec::new();
    for grant in grants {
        changes.extend([(grant.granted, true), (grant.end, false)]);
    }
    changes.sort_unstable();
    let (mut held, mut full) = (0_usize, BTreeMap::new());
    for (at, begins) in changes {
        held = if begins { held + 1 } else { held.saturating_sub(1) };
        full.insert(at, held > 0 && held >= slots.max(at, at) as usize);
    }
    full
}

#[cfg(test)]
mod tests;
