//! Judges a history: which properties it violates, and which side caused each violation. The
//! submodules read the processes' answers (`holds`) and the state of the broker (`ownership`),
//! and draw the conclusions (`sweep`, `blame`, `rules`). See `history` for the input, and `report` for
//! the output.

pub mod rules;
pub mod verdict;

mod blame;
pub(crate) mod holds;
pub(crate) mod ownership;
mod refused;
pub(crate) mod register;
mod sweep;

use crate::history::{History, Rules};
use holds::{Key, Reported};
use lockkeeper_plan::naming::NameError;
use ownership::{Ownerships, Thing};
use register::Register;
use verdict::{Property, Verdict};

/// Properties that compare answers with the state of the broker.
const NEED_FRAMES: [Property; 7] = [
    Property::S1,
    Property::S4,
    Property::S5,
    Property::S6,
    Property::TokensConserved,
    Property::S9,
    Property::Rule,
];

/// The properties of the answers of processes.
const NEED_OPERATIONS: [Property; 6] =
    [Property::S2, Property::S3, Property::S4, Property::S5, Property::S6, Property::S10];

/// Count of the acquires that may wait long enough to be judged by S10, and that were granted or
/// violate it.
pub(crate) const LONG_WAITS: &str = "long waits";

/// The header of the history cannot be judged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JudgeError {
    /// The broker does not support a lock with this name.
    #[error("the lock's name in the history is invalid: {0}")]
    Name(#[from] NameError),
}

/// A verdict and its evidence.
pub(crate) struct Examined {
    /// The verdict.
    pub(crate) verdict: Verdict,
    /// The holds and resizes that the processes reported.
    pub(crate) reported: Reported,
    /// The ownership at the broker. `None` if the broker was not observed.
    pub(crate) ownerships: Option<Ownerships>,
}

/// Judges a history. A property for which the history contains too little data is listed as not
/// judged, with the reason.
///
/// # Errors
///
/// [`JudgeError`] if the name of the lock is invalid, because its queues are then unknown.
pub fn judge(history: &History) -> Result<Verdict, JudgeError> {
    Ok(examine(history)?.verdict)
}

/// Judges the events so far of a history that continues: a process may still give back a slot.
///
/// # Errors
///
/// As [`judge`].
pub(crate) fn judge_so_far(history: &History) -> Result<Verdict, JudgeError> {
    Ok(examine_until(history, true)?.verdict)
}

/// Judges a history and also returns the evidence.
///
/// # Errors
///
/// As [`judge`].
pub(crate) fn examine(history: &History) -> Result<Examined, JudgeError> {
    examine_until(history, false)
}

/// Examines a history. `continues`: whether it is the beginning of a longer one.
fn examine_until(history: &History, continues: bool) -> Result<Examined, JudgeError> {
    let lock = history.header.lock_name()?;
    let mut reported = holds::read(history);
    let ownerships = lock.as_ref().and_then(|lock| ownership::read(history, lock));
    if let Some(ownerships) = &ownerships {
        name_holds(&mut reported, ownerships);
        free_holds(&mut reported, ownerships);
    }
    let mut verdict = Verdict::default();
    let slots = Register::new(history.header.slots, &reported.resizes);
    let swept = sweep::sweep(&reported.grants, &slots);
    let waits = refused::waits(history, &reported, ownerships.as_ref());
    if history.has_operations() {
        count(&mut verdict, &reported, swept.contended);
        verdict.counts.insert(LONG_WAITS.to_owned(), waits.granted + length(waits.refused.len()));
    }
    if let Some(ownerships) = &ownerships {
        let holds = ownerships.owned.iter().filter(|owned| owned.thing != Thing::Mutex).count();
        verdict.counts.insert("holds at the broker".to_owned(), length(holds));
    }
    not_judged(&mut verdict, history, &reported, ownerships.is_some());
    let found = blame::Found { swept: &swept.found, waits: &waits, continues };
    blame::blame(history, &reported, ownerships.as_ref(), &found, &mut verdict);
    if let (Some(lock), Some(ownerships)) = (&lock, &ownerships) {
        verdict.violations.extend(rules::check(history, lock, &reported, ownerships));
    }
    verdict.violations.sort_by_key(|violation| violation.at);
    Ok(Examined { verdict, reported, ownerships })
}

/// Completes grants without a slot number: a grant gets the slot that the process owned at the
/// broker when it reported the grant.
fn name_holds(reported: &mut Reported, ownerships: &Ownerships) {
    for grant in reported.grants.iter_mut().filter(|grant| grant.key.is_none()) {
        let owned = ownerships.of(grant.process, grant.granted, grant.granted);
        let mut owned = owned.filter(|owned| owned.thing != Thing::Mutex);
        if let (Some(one), None) = (owned.next(), owned.next()) {
            grant.key = one.key().cloned();
        }
    }
}

/// Notes when the broker freed the slots of holds that their processes ended later.
fn free_holds(reported: &mut Reported, ownerships: &Ownerships) {
    for grant in reported.grants.iter_mut().filter(|grant| !grant.claimed) {
        let mut owned = ownerships.of(grant.process, grant.invoked, grant.granted);
        let owned = owned.find(|owned| owned.key() == grant.key.as_ref());
        grant.freed = Some(owned.map_or(grant.granted, |owned| owned.certain.to));
    }
}

fn length(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

fn count(verdict: &mut Verdict, reported: &Reported, contended: u64) {
    verdict.counts.extend(
        [
            ("grants", length(reported.grants.iter().filter(|one| !one.claimed).count())),
            ("contended hand-overs", contended),
            ("refusals", reported.refusals),
            ("verifications", reported.verifications),
            ("releases", length(reported.released.len())),
            ("resizes", reported.resized),
        ]
        .map(|(name, count)| (name.to_owned(), count)),
    );
}

fn not_judged(verdict: &mut Verdict, history: &History, reported: &Reported, observed: bool) {
    let mut because = |property, why: &str| {
        verdict.not_judged.entry(property).or_insert_with(|| why.to_owned());
    };
    let rules = history.header.protocol;
    if !observed {
        let why = if rules == Rules::None {
            "the broker was not observed"
        } else {
            "the history has no frames, so the implementation did not connect through the proxy"
        };
        for property in NEED_FRAMES {
            because(property, why);
        }
    }
    if observed && !history.has_operations() {
        for property in NEED_OPERATIONS {
            because(property, "the history has no operations, so the answers are unknown");
        }
    }
    let numbered = |key: &Option<Key>| matches!(key, Some(Key::Slot(_)));
    if register::overlap(&reported.resizes) {
        because(
            Property::S3,
            "resizes overlapped, or their results are unknown: only violations that are certain \
             in any order of the resizes are reported",
        );
    } else if !reported.resizes.is_empty()
        && !reported.grants.iter().all(|grant| grant.claimed || numbered(&grant.key))
    {
        because(
            Property::S3,
            "the number of slots changed and some grants have no slot number: only violations \
             that are certain are reported",
        );
    }
}

#[cfg(test)]
mod handmade;
#[cfg(test)]
mod stories;
#[cfg(test)]
pub(crate) mod tests;
