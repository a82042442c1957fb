//! Diagnoses a queue from successive observations, and decides whether it may be
//! repaired. See the crate `pressure` for the repair, and `plan` for the changes to a
//! healthy queue.
//!
//! The protocol does not distinguish a dead holder of a role from a waiting one: a
//! producer may wait for room for hours. But a holder needs its connection. Therefore the
//! server watches the role's keys from some moment on (a *guard*), and notices every
//! change. Only connections that were open after that moment can belong to the holder.
//! Once all of them are closed while the guard stands, no client is left that could
//! release the role.

mod symptoms;
mod values;

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use self::symptoms::is_same;
pub use self::symptoms::{needs_second_look, symptoms};
pub use self::values::{
    Against, Connection, Effort, Evidence, Finding, Guarded, Look, OWN_CONNECTIONS, Remedy, Repair,
    Subject,
};
use super::{ObservedQueue, QueueRole, Remark};

/// What happens to elements whose leases have ended.
const LEASES_ENDED: &str =
    "the next get of Lockkeeper returns them; clients of other origin do not";

/// The result of the observations so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    /// Damage.
    pub damage: Vec<Finding>,
    /// Taken roles, partial creations and partial deletions that are not proven to be
    /// damage yet. Their clients may be active.
    pub at_work: Vec<Finding>,
    /// Roles whose holders have a reason to be inactive: they wait for room or data. And
    /// elements whose leases have ended, which wait for the next get.
    pub waiting: Vec<Finding>,
    /// Whether a finding must be confirmed by a second observation.
    pub unsure: bool,
}

impl Diagnosis {
    /// The drift of the counters. `None` while a role is taken, because the counters may
    /// then legitimately differ.
    #[must_use]
    pub fn drift(seen: &ObservedQueue) -> Option<i64> {
        if !seen.is_idle() {
            return None;
        }
        Some(seen.drift())
    }
}

#[derive(Clone, Debug)]
struct Watch {
    subject: Subject,
    unchanged: ObservedQueue,
    at: Duration,
    since: Timestamp,
    looks: u32,
    guard: Option<Guard>,
    obstacle: Option<Against>,
}

/// The server watches the keys.
#[derive(Clone, Debug)]
struct Guard {
    number: u64,
    at: Duration,
    /// Connections that may belong to the holder: those that were open when they were
    /// first listed under this guard, and still are. `None` until the first list.
    suspects: Option<BTreeSet<u64>>,
    /// The connections of the last list.
    listed: Arc<[Connection]>,
}

/// Tracks the observations of one queue.
#[derive(Clone, Debug)]
pub struct Doctor {
    idle: Duration,
    database: i64,
    is_deletion_wanted: bool,
    last: ObservedQueue,
    watches: Vec<Watch>,
}

impl Doctor {
    /// Creates the state for a queue in this database. No role is released unless its
    /// keys were watched for `idle`.
    #[must_use]
    pub fn new(idle: Duration, database: i64) -> Self {
        let last = ObservedQueue::default();
        Self { idle, database, is_deletion_wanted: false, last, watches: Vec::new() }
    }

    /// Announces that the queue will be deleted with its elements. Keys without a
    /// `:bound` then belong to that deletion.
    pub fn expect_deletion(&mut self) {
        self.is_deletion_wanted = true;
    }

    /// Returns the subjects to guard before the next observation, given the current
    /// content of the keys.
    #[must_use]
    pub fn to_guard(&self, seen: &ObservedQueue, effort: Effort) -> Vec<Subject> {
        let was_so = |subject: Subject| {
            let unchanged = subject.part_of(seen);
            self.watches.iter().any(|w| w.subject == subject && w.unchanged == unchanged)
        };
        let is_due = |subject: &Subject| match (effort, subject) {
            (_, Subject::Deletion) if !self.has_deletion_begun(seen) => false,
            (Effort::Report, Subject::Role(role)) if is_waiting(*role, seen) => false,
            (Effort::Report | Effort::Repair, subject) => was_so(*subject),
            (Effort::Full, _) => true,
        };
        subjects(seen).into_iter().filter(is_due).collect()
    }

    /// Processes an observation.
    pub fn look(&mut self, look: Look) -> Diagnosis {
        self.watch(&look);
        let mut diagnosis = Diagnosis::default();
        for watch in &self.watches {
            self.judge(watch, &look, &mut diagnosis);
        }
        let before = symptoms(&self.last);
        for remark in symptoms(&look.seen) {
            if matches!(remark, Remark::HalfCreated { .. } | Remark::Residue { .. }) {
                continue;
            }
            let is_seen_twice = before.iter().any(|b| is_same(b, &remark));
            // During a put or a get there may be a surplus token, but then the queue does
            // not stay unchanged.
            let may_be_work = matches!(remark, Remark::SurplusToken { .. })
                && !look.seen.is_idle()
                && look.seen != self.last;
            if !needs_second_look(&remark) || is_seen_twice && !may_be_work {
                let remedy = remedy(&remark, &look.seen);
                diagnosis.damage.push(Finding { remark, remedy });
            } else {
                diagnosis.unsure = true;
            }
        }
        if let Some(count) = NonZeroU64::new(look.seen.leases_ended)
            && look.seen.bound.is_some()
        {
            let remark = Remark::LeasesEnded { count: count.get() };
            diagnosis.waiting.push(Finding { remark, remedy: Remedy::Leave(LEASES_ENDED) });
        }
        self.last = look.seen;
        diagnosis
    }

    /// Starts, continues and ends the watches.
    fn watch(&mut self, look: &Look) {
        let mut kept = Vec::new();
        for subject in subjects(&look.seen) {
            let unchanged = subject.part_of(&look.seen);
            let guarded = look.guarded.iter().find(|(of, _)| *of == subject).map(|(_, is)| is);
            let is_touched = matches!(guarded, Some(Guarded::Touched));
            let known = self
                .watches
                .iter()
                .find(|w| !is_touched && w.subject == subject && w.unchanged == unchanged);
            let mut watch = known.cloned().unwrap_or(Watch {
                subject,
                unchanged,
                at: look.at,
                since: look.time,
                looks: 0,
                guard: None,
                obstacle: None,
            });
            watch.looks += 1;
            watch.check(guarded, look.at, self.database);
            kept.push(watch);
        }
        self.watches = kept;
    }

    /// Whether the keys without a `:bound` certainly belong to a deletion, or contain no
    /// elements. Two elements in `:closed` remain after the deletion of an open queue and
    /// also after a close. Only the deletion of a closed queue leaves more. Missing keys
    /// prove nothing: a server at its memory limit may have evicted them.
    fn has_deletion_begun(&self, seen: &ObservedQueue) -> bool {
        self.is_deletion_wanted || seen.closed_tokens > 2 || seen.length == 0 && seen.in_flight == 0
    }

    fn judge(&self, watch: &Watch, look: &Look, diagnosis: &mut Diagnosis) {
        let seen = &look.seen;
        let idle_for = look.at.saturating_sub(watch.at);
        let connected = watch.guard.as_ref().and_then(Guard::connected);
        // One observation proves nothing, however short `idle` is.
        let proof = watch.guard.as_ref().filter(|guard| watch.looks > 1 && guard.has_no_suspects());
        let (remark, is_waiting) = match watch.subject {
            Subject::Role(role) => {
                let who = seen.role(role).id.clone();
                (Remark::RoleStuck { role, who, since: watch.since }, is_waiting(role, seen))
            }
            Subject::Creation => (Remark::HalfCreated { missing: seen.never_written() }, false),
            Subject::Deletion => (Remark::Residue { keys: seen.leftovers.clone() }, false),
        };
        let remedy = if watch.subject == Subject::Deletion && !self.has_deletion_begun(seen) {
            Remedy::Leave(
                "its elements are left alone, since they may be those of a queue that only lost its :bound: restore it with `lockkeeper queue create --adopt`, or remove it with `lockkeeper queue delete`",
            )
        } else if let Some(obstacle) = &watch.obstacle {
            Remedy::Wait(obstacle.clone())
        } else if let Some(connected) = connected.filter(|connected| !connected.is_empty()) {
            Remedy::Wait(Against::Connected(connected))
        } else if let Some(guard) =
            proof.filter(|guard| look.at.saturating_sub(guard.at) >= self.idle)
        {
            let evidence =
                Box::new(Evidence { unchanged: watch.unchanged.clone(), guard: guard.number });
            Remedy::Mend(match watch.subject {
                Subject::Role(role) => Repair::GiveBack { role, evidence },
                Subject::Creation => Repair::FinishCreation { evidence },
                Subject::Deletion => Repair::FinishDeletion { evidence },
            })
        } else {
            Remedy::Wait(Against::Moved(self.idle))
        };
        // A role may be held for some time. A creation and a deletion have no reason to
        // pause.
        let is_damage = watch.looks > 1
            && (proof.is_some()
                || !is_waiting && idle_for >= self.idle
                || !matches!(watch.subject, Subject::Role(_)));
        diagnosis.unsure |= watch.looks == 1 && !matches!(watch.subject, Subject::Role(_));
        let finding = Finding { remark, remedy };
        if is_damage {
            diagnosis.damage.push(finding);
        } else if is_waiting {
            diagnosis.waiting.push(finding);
        } else {
            diagnosis.at_work.push(finding);
        }
    }
}

impl Watch {
    /// Processes the server's answer.
    fn check(&mut self, guarded: Option<&Guarded>, at: Duration, database: i64) {
        let last = self.guard.take();
        self.obstacle = match guarded {
            Some(Guarded::Forbidden) => Some(Against::NotTold),
            Some(Guarded::NotYet) => Some(Against::NotWatched),
            None | Some(Guarded::Touched | Guarded::Untouched { .. }) => None,
        };
        let Some(Guarded::Untouched { guard, connections }) = guarded else { return };
        let mut now = last.filter(|last| last.number == *guard).unwrap_or_else(|| Guard {
            number: *guard,
            at,
            suspects: None,
            listed: Arc::default(),
        });
        if let Some(all) = connections {
            let may_hold = |c: &&Connection| match &now.suspects {
                None => c.may_hold_roles(database),
                Some(suspects) => suspects.contains(&c.id),
            };
            now.suspects = Some(all.iter().filter(may_hold).map(|c| c.id).collect());
            now.listed = Arc::clone(all);
        }
        self.guard = Some(now);
    }
}

impl Guard {
    /// Returns the connections that may belong to the holder. `None` while they are
    /// unknown.
    fn connected(&self) -> Option<Vec<Connection>> {
        let suspects = self.suspects.as_ref()?;
        Some(self.listed.iter().filter(|c| suspects.contains(&c.id)).cloned().collect())
    }

    fn has_no_suspects(&self) -> bool {
        self.suspects.as_ref().is_some_and(BTreeSet::is_empty)
    }
}

/// Returns the remedy for a symptom that needs no guard.
fn remedy(remark: &Remark, seen: &ObservedQueue) -> Remedy {
    match remark {
        Remark::LostToken | Remark::SurplusToken { .. } => Remedy::Mend(Repair::SettleTokens),
        // The elements stay. Only the next producer must not put another one.
        Remark::Overfilled { .. } if seen.not_full > 0 && seen.is_idle() => {
            Remedy::Mend(Repair::SettleTokens)
        }
        Remark::Overfilled { .. } => {
            Remedy::Leave("nothing is removed: let its consumer drain it, or raise the bound")
        }
        Remark::CounterDrift { .. } => Remedy::Leave(
            "it is never corrected: the elements are right, the count is the clients'",
        ),
        _ => Remedy::Leave("nothing is changed while that is so"),
    }
}

/// Returns the subjects of a queue that must be watched.
fn subjects(seen: &ObservedQueue) -> Vec<Subject> {
    if !seen.wrong_types.is_empty() {
        return Vec::new();
    }
    if seen.bound.is_none() {
        return if seen.leftovers.is_empty() { Vec::new() } else { vec![Subject::Deletion] };
    }
    let missing = seen.never_written();
    let mut subjects = Vec::new();
    if !missing.is_empty() {
        subjects.push(Subject::Creation);
    }
    for (role, key) in
        [(QueueRole::Producer, ":producer_free"), (QueueRole::Consumer, ":consumer_free")]
    {
        if seen.role(role).busy && !missing.iter().any(|missing| missing == key) {
            subjects.push(Subject::Role(role));
        }
    }
    subjects
}

/// Whether the holder of a role has something to wait for: room, or data.
fn is_waiting(role: QueueRole, seen: &ObservedQueue) -> bool {
    match role {
        QueueRole::Producer => {
            seen.not_full == 0 && !seen.closed && !seen.has_room(seen.bound.unwrap_or(0))
        }
        QueueRole::Consumer => seen.length == 0 && !seen.closed,
    }
}

#[cfg(test)]
mod tests;
