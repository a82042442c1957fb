//! The last step of a reconcile, and the only one that writes status and events. Converts an
//! outcome into conditions, writes a changed status when it is due, and publishes an
//! event when the outcome changed.

use std::fmt::Display;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::{Event, EventType};
use lockkeeper_api::FIELD_MANAGER;
use lockkeeper_api::conditions::reason::CLAIMING;
use lockkeeper_api::conditions::{
    BACKEND_REACHABLE, ConditionUpdate, DAMAGED, READY, RECONCILING, STALLED, find, merge,
};
use lockkeeper_plan::clean_text;
use tracing::{debug, info, warn};

use super::context::Context;
use super::error::{ReconcileError, StepError};
use super::kind::{Kind, ReportedStatus, StateOf};
use super::metrics::controller::failed;
use super::outcome::{EventRecord, Outcome, Report};

/// Minimum interval between status writes, except for urgent changes.
const WRITE_INTERVAL: Duration = Duration::from_secs(5);

/// Minimum interval between writes that only change counters.
const COUNTER_INTERVAL: Duration = Duration::from_mins(1);

/// Maximum length of an event's note, in bytes (the API's limit is 1,024).
pub const MAX_NOTE_BYTES: usize = 1000;

/// Writes changes. Returns the time until a delayed change is due to be written.
pub async fn report<K: Kind>(
    ctx: &Context,
    object: &K,
    memory: &mut StateOf<K>,
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
        // An event that was published must not be considered new at the next observation.
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

/// Returns the current time in whole seconds, as used by Kubernetes.
pub fn now() -> Time {
    Time(Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default())
}

#[derive(Debug, PartialEq, Eq)]
enum Write {
    Never,
    Now,
    After(Duration),
}

/// Returns when to write. A new outcome or generation is written immediately, so that the
/// user who applied a change sees its result. Changes by clients that acquire and release
/// slots are delayed.
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
    // After a start the time of the last write is unknown. Counters can wait.
    let since = since.unwrap_or(WRITE_INTERVAL);
    match interval.checked_sub(since) {
        None | Some(Duration::ZERO) => Write::Now,
        Some(left) => Write::After(left),
    }
}

/// Writes a status by server-side apply, which removes fields that are no longer set.
///
/// The write only succeeds on the object that the status was computed from. Otherwise a
/// process with a stale copy (one of two operators, or one that was suspended) would
/// revert state that the status must keep, above all the high-water mark.
pub async fn write<K: Kind>(
    ctx: &Context,
    object: &K,
    memory: &mut StateOf<K>,
    status: K::Status,
) -> Result<(), ReconcileError> {
    // The uid prevents writing the status to an object recreated under the same name.
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
        // The object was deleted. There is nothing to report to.
        Err(kube::Error::Api(answer)) if answer.is_not_found() => Ok(()),
        Err(kube::Error::Api(answer)) if answer.is_conflict() => Err(ReconcileError::Outdated),
        Err(error) => Err(ReconcileError::WriteStatus(error)),
    }
}

/// Writes, before the first effect of an object that did not stand for its lock or queue
/// until now, that it does. After a restart it then remains the owner, even if another
/// object was created in the same second. `status` may contain more that must be stored
/// before an effect.
pub async fn announce<K: Kind>(
    session: (&Context, &K, &str),
    memory: &mut StateOf<K>,
    mut status: K::Status,
    observed_generation: Option<i64>,
    said: ConditionUpdate,
) -> Result<(), StepError> {
    let (ctx, object, backend) = session;
    status.set_backends(status.backend().map(str::to_owned), Some(backend.to_owned()));
    let mut conditions = status.conditions().clone();
    let said = merge(&conditions, vec![said], observed_generation, &now());
    // The reason for Stalled no longer applies.
    conditions.retain(|c| ![RECONCILING, STALLED].contains(&c.type_.as_str()));
    conditions.extend(said);
    status.complete(observed_generation, conditions);
    let written = write(ctx, object, memory, status).await;
    written.map_err(|source| StepError::Announce(Box::new(source)))
}

/// Returns the condition of an object that is about to stand for its lock or queue.
pub fn claiming<K: Kind>(name: &impl Display) -> ConditionUpdate {
    let message = format!("Becoming the owner of the {} {name}", K::THING);
    ConditionUpdate::new(RECONCILING, true, CLAIMING, message)
}

/// Publishes one event for each note, and one if the outcome has changed.
async fn tell<K: Kind>(
    ctx: &Context,
    object: &K,
    memory: &mut StateOf<K>,
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
    // A note needs no second event for the same change. Work in progress is not an
    // outcome.
    let working = matches!(report.outcome, Outcome::Working { .. });
    if !(working || ready && !report.notes.is_empty()) {
        publish(ctx, object, &EventRecord::new(!ready, reason, message)).await;
    }
}

/// Publishes one event.
pub async fn publish<K: Kind>(ctx: &Context, object: &K, note: &EventRecord) {
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
    use lockkeeper_api::SemaphoreStatus;
    use lockkeeper_api::conditions::reason;

    use super::*;

    fn status(held: i32, ready: bool) -> SemaphoreStatus {
        let said = vec![ConditionUpdate::new(READY, ready, reason::IN_SYNC, "")];
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
        let of = |produced| lockkeeper_api::PressureQueueStatus {
            produced_messages: Some(produced),
            ..Default::default()
        };
        let after = |seconds| when_to_write(&of(1), &of(2), Some(Duration::from_secs(seconds)));
        assert_eq!(after(60), Write::Now);
        assert_eq!(after(10), Write::After(Duration::from_secs(50)));
    }
}
