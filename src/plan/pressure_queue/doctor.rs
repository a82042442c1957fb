//! What is wrong with a queue and whether it may be mended: successive looks go
//! in, a diagnosis comes out. Nothing is mended here (see `crate::pressure`),
//! and what a healthy queue should become is not decided here either.
//!
//! Nothing in the protocol tells a dead holder of a role from one that waits: a
//! producer may wait for room for hours. What tells is that a holder needs its
//! connection. Whoever held the role when the queue was first seen as it is was
//! connected then; once all of those connections are gone and nothing has moved,
//! nobody is left who could give the role back.

mod values;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use self::values::of_role;
pub use self::values::{
    Against, Connection, Connections, Evidence, Finding, Look, OWN_CONNECTIONS, Remedy, Repair,
};
use super::{QueueRole, QueueSeen, Remark};

/// What a look and those before it tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    /// What is wrong.
    pub damage: Vec<Finding>,
    /// Roles that are taken, half creations and half deletions that nothing shows
    /// to be damage yet: their clients may be at work.
    pub at_work: Vec<Finding>,
    /// Roles whose holders have reason to do nothing: they wait for room or data.
    pub waiting: Vec<Finding>,
    /// Whether something was seen that is believed only when it is seen again.
    pub unsure: bool,
}

impl Diagnosis {
    /// The counters' drift; absent while somebody works on the queue, when they
    /// may be ahead or behind by right.
    #[must_use]
    pub fn drift(seen: &QueueSeen) -> Option<i64> {
        if !seen.is_idle() {
            return None;
        }
        Some(seen.drift())
    }
}

/// What is watched until its holder shows to be dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Role(QueueRole),
    Creation,
    Deletion,
}

#[derive(Clone, Debug)]
struct Watch {
    subject: Subject,
    unchanged: QueueSeen,
    at: Duration,
    since: Timestamp,
    looks: u32,
    /// The connections that were there when the queue was first seen so, and
    /// still are; absent until they could be listed.
    suspects: Option<BTreeMap<u64, Connection>>,
    is_forbidden: bool,
}

/// Remembers the looks at one queue.
#[derive(Clone, Debug)]
pub struct Doctor {
    idle: Duration,
    database: i64,
    run_id: Option<String>,
    last: QueueSeen,
    watches: Vec<Watch>,
}

impl Doctor {
    /// A doctor for a queue in this database, who lets nothing be given back that
    /// was not seen unchanged for `idle`.
    #[must_use]
    pub fn new(idle: Duration, database: i64) -> Self {
        let last = QueueSeen::default();
        Self { idle, database, run_id: None, last, watches: Vec::new() }
    }

    /// Whether a look at the queue as it is now needs the server's connections:
    /// whether there is something that was so at the last look too.
    #[must_use]
    pub fn needs_connections(&self, seen: &QueueSeen) -> bool {
        subjects(seen).iter().any(|subject| {
            let unchanged = evidence(*subject, seen);
            self.watches.iter().any(|w| w.subject == *subject && w.unchanged == unchanged)
        })
    }

    /// Takes a look into account.
    pub fn look(&mut self, look: Look) -> Diagnosis {
        if look.run_id.is_some() && self.run_id != look.run_id {
            // Another start, or another server: what was seen there shows nothing
            // here, and numbers of connections are given again.
            self.watches.clear();
            self.last = QueueSeen::default();
            self.run_id.clone_from(&look.run_id);
        }
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
            // In the middle of a put or a get there may be a token too many; but
            // then the queue does not stay as it is.
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
        self.last = look.seen;
        diagnosis
    }

    /// Begins, goes on with and ends what is watched.
    fn watch(&mut self, look: &Look) {
        let mut kept = Vec::new();
        for subject in subjects(&look.seen) {
            let unchanged = evidence(subject, &look.seen);
            let known =
                self.watches.iter().find(|w| w.subject == subject && w.unchanged == unchanged);
            let mut watch = known.cloned().unwrap_or(Watch {
                subject,
                unchanged,
                at: look.at,
                since: look.time,
                looks: 0,
                suspects: None,
                is_forbidden: false,
            });
            watch.looks += 1;
            match &look.connections {
                Connections::NotAsked => {}
                Connections::Forbidden => watch.is_forbidden = true,
                Connections::Listed(all) => {
                    watch.is_forbidden = look.run_id.is_none();
                    let mut now: BTreeMap<u64, Connection> =
                        all.iter().map(|c| (c.id, c.clone())).collect();
                    match &watch.suspects {
                        None => now.retain(|_, c| c.may_hold_roles(self.database)),
                        Some(suspects) => now.retain(|id, _| suspects.contains_key(id)),
                    }
                    watch.suspects = Some(now);
                }
            }
            kept.push(watch);
        }
        self.watches = kept;
    }

    fn judge(&self, watch: &Watch, look: &Look, diagnosis: &mut Diagnosis) {
        let seen = &look.seen;
        let idle_for = look.at.saturating_sub(watch.at);
        let connected: Option<Vec<Connection>> =
            watch.suspects.as_ref().map(|suspects| suspects.values().cloned().collect());
        // One look shows nothing, however much time is wanted.
        let is_proven =
            watch.looks > 1 && !watch.is_forbidden && connected.as_ref().is_some_and(Vec::is_empty);
        let (remark, is_waiting) = match watch.subject {
            Subject::Role(role) => {
                let who = seen.role(role).id.clone();
                (Remark::RoleStuck { role, who, since: watch.since }, is_waiting(role, seen))
            }
            Subject::Creation => (Remark::HalfCreated { missing: seen.never_written() }, false),
            Subject::Deletion => (Remark::Residue { keys: seen.leftovers.clone() }, false),
        };
        let run_id = self.run_id.clone();
        let remedy = if watch.subject == Subject::Deletion && !has_deletion_begun(seen) {
            Remedy::Leave(
                "nothing shows that a deletion had begun, so its data is left alone: write its :bound again, or remove its keys",
            )
        } else if watch.is_forbidden {
            Remedy::Wait(Against::NotTold)
        } else if let Some(connected) = connected.filter(|connected| !connected.is_empty()) {
            Remedy::Wait(Against::Connected(connected))
        } else if let Some(run_id) = run_id.filter(|_| is_proven && idle_for >= self.idle) {
            let evidence =
                Box::new(Evidence { unchanged: watch.unchanged.clone(), run_id, idle: self.idle });
            Remedy::Mend(match watch.subject {
                Subject::Role(role) => Repair::GiveBack { role, evidence },
                Subject::Creation => Repair::FinishCreation { evidence },
                Subject::Deletion => Repair::FinishDeletion { evidence },
            })
        } else {
            Remedy::Wait(Against::Moved(self.idle))
        };
        // A role may be held for a while; a creation and a deletion have no reason
        // to rest.
        let is_damage = watch.looks > 1
            && (is_proven
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

/// What the keys alone show to be wrong; some of it may be a client's work under
/// way.
#[must_use]
pub fn symptoms(seen: &QueueSeen) -> Vec<Remark> {
    if !seen.wrong_types.is_empty() {
        return seen.wrong_types.iter().map(|key| Remark::WrongType { key: key.clone() }).collect();
    }
    let Some(bound) = seen.bound else {
        let keys = seen.leftovers.clone();
        return if keys.is_empty() { Vec::new() } else { vec![Remark::Residue { keys }] };
    };
    let mut remarks = Vec::new();
    let missing = seen.never_written();
    let is_whole = missing.is_empty();
    if !is_whole {
        remarks.push(Remark::HalfCreated { missing });
    }
    if bound > 0 && seen.length > bound {
        remarks.push(Remark::Overfilled { length: seen.length, bound });
    }
    let has_room = seen.has_room(bound);
    // While somebody works on the queue the token may be in their hands.
    if is_whole && seen.is_idle() && seen.not_full == 0 && !seen.closed && has_room {
        remarks.push(Remark::LostToken);
    }
    let is_token_wrong = seen.is_idle() && bound == seen.length && !has_room && seen.not_full == 1;
    for (key, count) in [
        (":not_full", seen.not_full),
        (":producer_free", seen.producer_free),
        (":consumer_free", seen.consumer_free),
    ] {
        if count > 1 || key == ":not_full" && is_token_wrong {
            remarks.push(Remark::SurplusToken { key, count });
        }
    }
    if let Some(by) = Diagnosis::drift(seen).filter(|by| *by != 0) {
        remarks.push(Remark::CounterDrift { by });
    }
    remarks
}

/// Whether a remark may be true for an instant of every foreign client's work,
/// and is believed only when it is seen twice.
#[must_use]
pub fn needs_second_look(remark: &Remark) -> bool {
    match remark {
        Remark::HalfCreated { .. }
        | Remark::Residue { .. }
        | Remark::SurplusToken { .. }
        | Remark::CounterDrift { .. }
        | Remark::RoleStuck { .. }
        | Remark::LostToken => true,
        Remark::Recreated
        | Remark::Completed
        | Remark::Overfilled { .. }
        | Remark::WaitingForProducer { .. }
        | Remark::ClosedByClient
        | Remark::Reopened
        | Remark::WrongType { .. } => false,
    }
}

fn is_same(one: &Remark, other: &Remark) -> bool {
    match (one, other) {
        (Remark::SurplusToken { key: a, .. }, Remark::SurplusToken { key: b, .. }) => a == b,
        _ => std::mem::discriminant(one) == std::mem::discriminant(other),
    }
}

/// What can be done about a symptom that needs no watching.
fn remedy(remark: &Remark, seen: &QueueSeen) -> Remedy {
    match remark {
        Remark::LostToken | Remark::SurplusToken { .. } => Remedy::Mend(Repair::SettleTokens),
        // The elements stay; only who comes next must not put another one.
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

/// What of a queue must be watched.
fn subjects(seen: &QueueSeen) -> Vec<Subject> {
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

fn evidence(subject: Subject, seen: &QueueSeen) -> QueueSeen {
    match subject {
        Subject::Creation | Subject::Deletion => seen.clone(),
        Subject::Role(role) => of_role(role, seen),
    }
}

/// Whether the holder of a role has something to wait for: room, or data.
fn is_waiting(role: QueueRole, seen: &QueueSeen) -> bool {
    match role {
        QueueRole::Producer => {
            seen.not_full == 0 && !seen.closed && !seen.has_room(seen.bound.unwrap_or(0))
        }
        QueueRole::Consumer => seen.length == 0 && !seen.closed,
    }
}

/// Whether the keys without a `:bound` show a deletion, rather than a queue that
/// lost it: only then is anything removed, unless there is no data to lose.
fn has_deletion_begun(seen: &QueueSeen) -> bool {
    const ROLES: [&str; 4] = [":producer", ":consumer", ":producer_free", ":consumer_free"];
    let has_role = seen.leftovers.iter().any(|key| ROLES.contains(&key.as_str()));
    seen.closed || !has_role || seen.length == 0
}

#[cfg(test)]
mod tests;
