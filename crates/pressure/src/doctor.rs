//! Accesses a server for the diagnosis: guards over suspected keys, the list of
//! connections, and repairs that are applied only while their evidence is valid. See
//! [`lockkeeper_plan::pressure_queue::doctor`] for the diagnosis and the decision to repair.

mod guard;
mod keys;
mod listing;

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use lockkeeper_plan::naming::QueueName;
use lockkeeper_plan::pressure_queue::doctor::{
    Diagnosis, Doctor, Effort, Guarded, Look, Repair, Subject,
};
use lockkeeper_plan::pressure_queue::{ObservedQueue, QueueRole};

use self::guard::Guard;
use self::keys::{CONSUMER, CONSUMER_FREE, KEYS, NOT_FULL, PRODUCER, PRODUCER_FREE};
use super::reply::{Observation, Verdict, queue_seen};
use super::{Store, StoreError, scripts};

/// The result of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repaired {
    /// These changes were made.
    Done(Vec<RepairAction>),
    /// Nothing had to be changed.
    AlreadySo,
    /// Nothing was changed: a client touched the queue after the repair was decided, or
    /// the connection that watched it was closed. Observe again.
    Stale,
}

/// One change made by a repair, to the key with this suffix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepairAction {
    /// An element was pushed to the empty list.
    Pushed(String),
    /// The list was trimmed to one element.
    Trimmed(String),
    /// The key was removed.
    Removed(String),
}

impl fmt::Display for RepairAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pushed(key) => write!(f, "pushed an element to {key}"),
            Self::Trimmed(key) => write!(f, "left one element in {key}"),
            Self::Removed(key) => write!(f, "removed {key}"),
        }
    }
}

/// Examines one queue repeatedly, and repairs it.
///
/// Between two observations it may hold connections of its own that `WATCH` the queue's
/// keys. They are closed when it is dropped.
pub struct QueueDoctor {
    queue: QueueName,
    doctor: Doctor,
    guards: Vec<Guard>,
    lists_every: Duration,
}

impl fmt::Debug for QueueDoctor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueDoctor").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Store {
    /// Creates a doctor for a queue of this store. A repair that depends on a client's
    /// death requires that the server has watched the keys for `idle`. All doctors of the
    /// store share a list of the server's connections for `lists_every`.
    #[must_use]
    pub fn doctor(&self, queue: QueueName, idle: Duration, lists_every: Duration) -> QueueDoctor {
        let doctor = Doctor::new(idle, self.settings().database);
        QueueDoctor { queue, doctor, guards: Vec::new(), lists_every }
    }
}

impl QueueDoctor {
    /// Announces that the queue will be deleted with its elements.
    pub fn expect_deletion(&mut self) {
        self.doctor.expect_deletion();
    }

    /// Processes a new observation of the queue in `store`, made at `at` on the caller's
    /// monotonic clock.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if a request to the server fails. A command that the ACL forbids is
    /// not an error, but part of the diagnosis.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any time. Subjects may then be watched from now on.
    pub async fn look(
        &mut self,
        store: &Store,
        seen: ObservedQueue,
        at: Duration,
        effort: Effort,
    ) -> Result<Diagnosis, StoreError> {
        let subjects = self.doctor.to_guard(&seen, effort);
        self.guards.retain(|guard| subjects.contains(&guard.subject));
        let mut guarded = Vec::new();
        for subject in subjects {
            guarded.push((subject, self.guarded(store, subject).await?));
        }
        Ok(self.doctor.look(Look { at, time: Timestamp::now(), seen, guarded }))
    }

    /// Returns the server's state of a subject, and sets a guard on it if it has none.
    async fn guarded(&mut self, store: &Store, subject: Subject) -> Result<Guarded, StoreError> {
        if !self.guards.iter().any(|guard| guard.subject == subject) {
            match Guard::set(store, &self.queue, subject).await {
                Ok(guard) => self.guards.push(guard),
                Err(refusal) => return Ok(refusal),
            }
        }
        // Read the list after setting the guard, so that it includes the current holder
        // if it is alive.
        let listing = store.listing(&self.queue, self.lists_every).await?;
        let Some(guard) = self.guards.iter_mut().find(|guard| guard.subject == subject) else {
            return Ok(Guarded::Touched);
        };
        let state = guard.state(&listing).await;
        if matches!(state, Guarded::Touched) {
            self.guards.retain(|guard| guard.subject != subject);
        }
        Ok(state)
    }

    /// Applies one repair. A repair with evidence runs as a transaction on the connection
    /// that has watched the keys. The server refuses it if any client has touched them
    /// since then.
    ///
    /// # Errors
    ///
    /// [`StoreError`]. Whether the repair was applied is then unknown, and the next
    /// observation shows it.
    ///
    /// # Cancel safety
    ///
    /// A dropped repair may have been applied or not. It may be repeated.
    pub async fn repair(&mut self, store: &Store, repair: &Repair) -> Result<Repaired, StoreError> {
        let mut call = scripts::REPAIR.prepare();
        call.key(scripts::keys(&self.queue)).arg(what(repair));
        let verdict = match repair.evidence() {
            None => Some(store.ask(&self.queue, call.arg(vec!["*"; KEYS])).await?),
            Some((subject, evidence)) => {
                let is_it = |guard: &Guard| guard.is(subject, evidence.guard);
                let Some(index) = self.guards.iter().position(is_it) else {
                    return Ok(Repaired::Stale);
                };
                let guard = self.guards.swap_remove(index);
                let raw = store.observation(&self.queue).await?;
                let expected = expected(&raw, subject);
                if !repair.still_fits(&queue_seen(raw)?) {
                    return Ok(Repaired::Stale);
                }
                guard.run(call.arg(expected)).await?
            }
        };
        let Some(verdict) = verdict else { return Ok(Repaired::Stale) };
        match verdict.word.as_str() {
            "done" => Ok(Repaired::Done(actions(&verdict)?)),
            "already" => Ok(Repaired::AlreadySo),
            "stale" => Ok(Repaired::Stale),
            _ => Err(verdict.into_error(&self.queue.data())),
        }
    }
}

/// Returns the name of the repair in `repair.lua`.
fn what(repair: &Repair) -> &'static str {
    match repair {
        Repair::GiveBack { role: QueueRole::Producer, .. } => "producer",
        Repair::GiveBack { role: QueueRole::Consumer, .. } => "consumer",
        Repair::FinishCreation { .. } => "creation",
        Repair::FinishDeletion { .. } => "deletion",
        Repair::SettleTokens => "tokens",
    }
}

/// Converts an observation to the arguments of `repair.lua`: the content of each key, or
/// `*` if the subject does not depend on it.
fn expected((_, _, numbers, ids, lengths): &Observation, subject: Subject) -> Vec<Vec<u8>> {
    let string = |text: Option<&Option<Vec<u8>>>| match text {
        Some(Some(text)) => [b"=", text.as_slice()].concat(),
        _ => b"-".to_vec(),
    };
    let length = |n: usize| lengths.get(n).copied().unwrap_or_default().to_string().into_bytes();
    let mut all = vec![
        length(0),
        string(numbers.first()),
        string(ids.first()),
        string(ids.get(1)),
        length(1),
        length(2),
        string(numbers.get(1)),
        string(numbers.get(2)),
        string(numbers.get(3)),
        string(numbers.get(4)),
        length(3),
        length(4),
        // Where a repair depends on them, its guard watches them.
        b"*".to_vec(),
        b"*".to_vec(),
    ];
    let ignored: &[usize] = match subject {
        Subject::Role(QueueRole::Producer) => &[CONSUMER, CONSUMER_FREE, NOT_FULL],
        Subject::Role(QueueRole::Consumer) => &[PRODUCER, PRODUCER_FREE, NOT_FULL],
        Subject::Creation | Subject::Deletion => &[],
    };
    for (number, expected) in (1..).zip(&mut all) {
        if ignored.contains(&number) {
            *expected = b"*".to_vec();
        }
    }
    all
}

fn actions(verdict: &Verdict) -> Result<Vec<RepairAction>, StoreError> {
    let keys = verdict.labels();
    let words = (0..keys.len()).map(|n| verdict.text(2 * n));
    words
        .zip(keys)
        .map(|(word, key)| match word.as_deref() {
            Some("pushed") => Ok(RepairAction::Pushed(key)),
            Some("trimmed") => Ok(RepairAction::Trimmed(key)),
            Some("removed") => Ok(RepairAction::Removed(key)),
            _ => Err(StoreError::unexpected("a repair of another kind")),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use redis::FromRedisValue;

    use super::*;

    #[test]
    fn a_repair_reply_lists_each_action_with_its_key() {
        let word = |text: &str| redis::Value::BulkString(text.as_bytes().to_vec());
        let reply = [word("done"), word("pushed"), redis::Value::Int(5), word("removed")];
        let reply = reply.into_iter().chain([redis::Value::Int(1)]).collect();
        let verdict = Verdict::from_redis_value(redis::Value::Array(reply)).unwrap();
        let texts: Vec<String> =
            actions(&verdict).unwrap().iter().map(RepairAction::to_string).collect();
        assert_eq!(texts, ["pushed an element to :producer_free", "removed (data)"]);
    }
}
