//! The last step of a reconcile, and the only place that writes status and
//! events: an outcome becomes conditions, a status write where something
//! changed and it is time, and an event where the outcome changed.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::core::object::HasStatus;
use kube::runtime::events::{Event, EventType};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::{debug, info, warn};

use super::context::Context;
use super::error::{ReconcileError, StepError};
use super::memory::Memory;
use super::metrics::controller::failed;
use super::turns::Connection;
use crate::api::FIELD_MANAGER;
use crate::api::conditions::{
    BACKEND_REACHABLE, DAMAGED, READY, RECONCILING, STALLED, Say, find, merge, reason,
};
use crate::plan::{ErrorClass, clean_text};

/// A kind whose status this file can write.
pub trait Managed:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + HasStatus<Status: ReportedStatus>
    + Clone
    + Debug
    + DeserializeOwned
    + Serialize
    + Send
    + Sync
    + 'static
{
    /// Which connection it is reconciled over.
    fn connection(&self) -> Connection;
    /// What its server knows it by, as far as the spec says it: two of one kind that have
    /// it in common may stand for the same.
    fn server_name(&self) -> String;
}

/// What this file must know about a status.
pub trait ReportedStatus: Clone + PartialEq + Serialize + Default {
    /// Its conditions.
    fn conditions(&self) -> &Vec<Condition>;
    /// Completes it: the generation it is about, and its conditions.
    fn complete(&mut self, generation: Option<i64>, conditions: Vec<Condition>);
    /// The status without what changes all the time on a busy server and is
    /// written at most once a minute.
    fn without_counters(&self) -> Self;
}

/// What happened beside the outcome and deserves an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// A repair or a refusal, rather than what was asked for.
    pub warning: bool,
    /// CamelCase.
    pub reason: &'static str,
    /// What was done, CamelCase. Events of one object that differ only in their
    /// message are counted as repeats of the first and lose theirs, so what must
    /// stay apart has to differ here.
    pub action: String,
    /// For people.
    pub message: String,
}

impl Note {
    /// An event that says how things stand.
    pub fn new(warning: bool, reason: &'static str, message: impl Into<String>) -> Self {
        Self { warning, reason, action: "Reconcile".to_owned(), message: message.into() }
    }

    /// The same, about something that was done.
    #[must_use]
    pub fn action(self, action: impl Into<String>) -> Self {
        Self { action: action.into(), ..self }
    }
}

/// What Ready, Reconciling and Stalled say.
#[derive(Debug)]
pub enum Outcome {
    /// The server is as wished, or nothing more is wished.
    Ready {
        /// CamelCase.
        reason: &'static str,
        /// For people.
        message: String,
    },
    /// The server differs from the wish; work goes on or is awaited.
    Working {
        /// CamelCase.
        reason: &'static str,
        /// For people.
        message: String,
    },
    /// The server differs from the wish, and nothing will be done about it by
    /// itself.
    Blocked {
        /// CamelCase.
        reason: &'static str,
        /// For people.
        message: String,
    },
    /// A step failed.
    Failed(StepError),
}

impl Outcome {
    fn says(&self) -> (bool, &'static str, String) {
        match self {
            Self::Ready { reason, message } => (true, reason, message.clone()),
            Self::Working { reason, message } | Self::Blocked { reason, message } => {
                (false, reason, message.clone())
            }
            Self::Failed(error) => (false, error.reason(), error.to_string()),
        }
    }

    /// Ready, Reconciling and Stalled as kstatus reads them.
    fn conditions(&self) -> Vec<Say> {
        let (ready, reason, message) = self.says();
        let mut said = vec![Say::new(READY, ready, reason, message.clone())];
        let stalled = match self {
            Self::Ready { .. } => return said,
            Self::Working { .. } => false,
            Self::Blocked { .. } => true,
            Self::Failed(error) => error.class() == ErrorClass::Invalid,
        };
        said.push(Say::new(if stalled { STALLED } else { RECONCILING }, true, reason, message));
        said
    }

    /// `BackendReachable`, where the outcome tells.
    fn backend(&self, reached: bool) -> Option<Say> {
        if reached {
            return Some(Say::new(
                BACKEND_REACHABLE,
                true,
                reason::CONNECTED,
                "The server answers",
            ));
        }
        let Self::Failed(error) = self else { return None };
        match error.cause() {
            error @ (StepError::Broker(_) | StepError::Store(_)) => {
                Some(Say::new(BACKEND_REACHABLE, false, error.reason(), error.to_string()))
            }
            error @ StepError::Fetch(_) => {
                Some(Say::unknown(BACKEND_REACHABLE, error.reason(), error.to_string()))
            }
            _ => None,
        }
    }
}

/// All that a reconcile has to say.
pub struct Report<S> {
    /// The status but for its conditions.
    pub status: S,
    /// Whether the server answered.
    pub reached: bool,
    /// What Ready, Reconciling and Stalled say.
    pub outcome: Outcome,
    /// The kind's own conditions.
    pub said: Vec<Say>,
    /// Events beside the outcome.
    pub notes: Vec<Note>,
}

/// A status is written at most this often, unless something urgent changed.
const WRITE_INTERVAL: Duration = Duration::from_secs(5);

/// Counters alone are written at most this often.
const COUNTER_INTERVAL: Duration = Duration::from_mins(1);

/// Longest note of an event, in bytes (the API's limit is 1,024).
const MAX_NOTE_BYTES: usize = 1000;

/// Writes what changed. Returns after how long a change that may not be written
/// yet wants to be written.
pub async fn report<K: Managed, D: Default>(
    ctx: &Context,
    object: &K,
    memory: &mut Memory<K::Status, D>,
    report: Report<K::Status>,
) -> Result<Option<Duration>, ReconcileError> {
    let old = memory.newest_status(object, object.status()).unwrap_or_default();
    tell(ctx, object, memory, &old, &report).await;
    let Report { mut status, reached, outcome, said, notes } = report;
    if let Outcome::Failed(error) = &outcome {
        failed(error.class());
    }
    let mut conditions = outcome.conditions();
    conditions.extend(outcome.backend(reached));
    conditions.extend(said);
    let generation = object.meta().generation;
    status.complete(generation, merge(old.conditions(), conditions, generation, &now()));
    let when = match when_to_write(&old, &status, memory.since_write()) {
        // What was told once must not be found to be new at the next look.
        Write::After(_) if !notes.is_empty() => Write::Now,
        when => when,
    };
    match when {
        Write::Never => Ok(None),
        Write::After(pause) => Ok(Some(pause)),
        Write::Now => {
            write(ctx, object, memory, status).await?;
            Ok(None)
        }
    }
}

/// The present time in whole seconds, as Kubernetes writes times.
pub fn now() -> Time {
    Time(Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default())
}

#[derive(Debug, PartialEq, Eq)]
enum Write {
    Never,
    Now,
    After(Duration),
}

/// A new outcome or generation is written at once, so that whoever applied a
/// change sees it; what comes from clients taking and leaving slots is spread.
fn when_to_write<S: ReportedStatus>(old: &S, new: &S, since: Option<Duration>) -> Write {
    if old == new {
        return Write::Never;
    }
    let gist = |status: &S| {
        [READY, RECONCILING, STALLED, BACKEND_REACHABLE, DAMAGED].map(|type_| {
            find(status.conditions(), type_)
                .map(|c| (c.status.clone(), c.reason.clone(), c.observed_generation))
        })
    };
    if gist(old) != gist(new) {
        return Write::Now;
    }
    let counters_only = old.without_counters() == new.without_counters();
    let interval = if counters_only { COUNTER_INTERVAL } else { WRITE_INTERVAL };
    // After a start it is not known when the last write was. Counters can wait.
    let since = since.unwrap_or(WRITE_INTERVAL);
    match interval.checked_sub(since) {
        None | Some(Duration::ZERO) => Write::Now,
        Some(left) => Write::After(left),
    }
}

/// Writes a status as it is. Server-side apply: what is no longer said goes away.
///
/// Only over the object that it was computed from: whoever acts on an old copy (one
/// of two operators, or one that was asleep) would else take back what the status
/// must remember, above all the high-water mark.
pub async fn write<K: Managed, D: Default>(
    ctx: &Context,
    object: &K,
    memory: &mut Memory<K::Status, D>,
    status: K::Status,
) -> Result<(), ReconcileError> {
    // The uid keeps a status from landing on an object recreated under this name.
    let version = memory.newest_version(object);
    let body = serde_json::json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": { "name": object.name_any(), "uid": object.uid(), "resourceVersion": version },
        "status": status,
    });
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let written =
        ctx.api_of(object).patch_status(&object.name_any(), &params, &Patch::Apply(body)).await;
    match written {
        Ok(now) => {
            memory.wrote(object, now.resource_version(), status);
            Ok(())
        }
        // It was deleted meanwhile: there is nothing left to report to.
        Err(kube::Error::Api(answer)) if answer.is_not_found() => Ok(()),
        Err(kube::Error::Api(answer)) if answer.is_conflict() => Err(ReconcileError::Outdated),
        Err(error) => Err(ReconcileError::WriteStatus(error)),
    }
}

/// One event for each note, and one if the outcome is another than last time.
async fn tell<K: Managed, D: Default>(
    ctx: &Context,
    object: &K,
    memory: &mut Memory<K::Status, D>,
    old: &K::Status,
    report: &Report<K::Status>,
) {
    let (ready, reason, message) = report.outcome.says();
    let before = memory
        .told
        .clone()
        .or_else(|| find(old.conditions(), READY).map(|c| (c.status == "True", c.reason.clone())));
    let same = before.is_some_and(|(was, because)| was == ready && because == reason);
    memory.told = Some((ready, reason.to_owned()));
    for note in &report.notes {
        publish(ctx, object, note).await;
    }
    if same {
        debug!(reason, message, "nothing new");
        return;
    }
    if ready {
        info!(reason, message, "in sync");
    } else {
        warn!(reason, message, "not in sync");
    }
    // What a note says already needs no second event; work in progress is no
    // outcome.
    let working = matches!(report.outcome, Outcome::Working { .. });
    if !(working || ready && !report.notes.is_empty()) {
        publish(ctx, object, &Note::new(!ready, reason, message)).await;
    }
}

/// Publishes one event.
pub async fn publish<K: Managed>(ctx: &Context, object: &K, note: &Note) {
    let event = Event {
        type_: if note.warning { EventType::Warning } else { EventType::Normal },
        reason: note.reason.to_owned(),
        note: Some(clean_text(&note.message, MAX_NOTE_BYTES)),
        action: note.action.clone(),
        secondary: None,
    };
    info!(reason = note.reason, note = note.message, "event");
    ctx.events.publish(event, object.object_ref(&())).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::SemaphoreStatus;

    fn status(held: i32, ready: bool) -> SemaphoreStatus {
        let said = vec![Say::new(READY, ready, reason::IN_SYNC, "")];
        SemaphoreStatus {
            held: Some(held),
            conditions: merge(&[], said, Some(1), &Time(Timestamp::UNIX_EPOCH)),
            ..Default::default()
        }
    }

    #[test]
    fn an_equal_status_is_never_written() {
        let since = Some(Duration::from_secs(100));
        assert_eq!(when_to_write(&status(1, true), &status(1, true), since), Write::Never);
    }

    #[test]
    fn holders_that_come_and_go_are_written_at_most_every_five_seconds() {
        let (old, new) = (status(1, true), status(2, true));
        let after = |seconds| when_to_write(&old, &new, Some(Duration::from_secs(seconds)));
        assert_eq!(after(5), Write::Now);
        assert_eq!(after(2), Write::After(Duration::from_secs(3)));
        assert_eq!(when_to_write(&old, &new, None), Write::Now);
    }

    #[test]
    fn a_changed_outcome_is_written_at_once() {
        let since = Some(Duration::ZERO);
        assert_eq!(when_to_write(&status(1, true), &status(1, false), since), Write::Now);
    }

    #[test]
    fn counters_alone_are_written_at_most_once_a_minute() {
        let of = |produced| crate::api::PressureQueueStatus {
            produced_messages: Some(produced),
            ..Default::default()
        };
        let after = |seconds| when_to_write(&of(1), &of(2), Some(Duration::from_secs(seconds)));
        assert_eq!(after(60), Write::Now);
        assert_eq!(after(10), Write::After(Duration::from_secs(50)));
    }
}
