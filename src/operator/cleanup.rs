//! What happens when a resource is deleted: the finalizer table of
//! docs/deletion.md. Never needs a valid spec, and never leaves a namespace
//! hanging on a Secret that went before the resource did (hazards K3, K4).

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt};
use tracing::{info, warn};

use super::context::Context;
use super::error::{ReconcileError, StepError, jitter, pause};
use super::fetch::FetchError;
use super::memory::Memory;
use super::report::{Managed, Note, Outcome, Report, publish, report};
use super::{limits, owners, pressure_queue, semaphore};
use crate::api::conditions::reason;
use crate::api::pressure_queue::QueueGuard;
use crate::api::semaphore::SemaphoreGuard;
use crate::api::{
    DeletionPolicy, FORCE_FINALIZE, PressureQueue, PressureQueueStatus, Semaphore, SemaphoreStatus,
    validate,
};
use crate::pressure::{Deletion, Holder, StoreError};
use crate::semaphore::BrokerError;

/// How far the removal from a server is, of a resource with status `S`.
enum Removal<S> {
    /// Nothing of the resource is left there.
    Gone,
    /// Nothing is to be removed; why.
    NotOurs(String),
    /// Something of it may be there, and stays; why.
    LeftBehind(String),
    /// It goes on; what it waits for, and when to look again.
    Waiting(String, Duration),
    /// It has not begun, because of the resource's guard; what was seen, and when to
    /// look again.
    Guarded(Box<Report<S>>, &'static str, Duration),
}

/// While a client is to give its role back, look this often.
const SOON: Duration = Duration::from_millis(250);

/// How often a server is asked that answers, but does not do it, where nobody will come
/// to mend that: a thousand objects that go at once are much for a broker.
const CLEANUP_TRIES: u32 = 5;

/// While clients hold slots, look this often: each look takes the admin mutex.
const HELD: Duration = Duration::from_secs(2);

/// Removes a Semaphore's slots. Its holders keep theirs until they release.
pub async fn semaphore(
    object: Arc<Semaphore>,
    ctx: Arc<Context>,
) -> Result<Action, ReconcileError> {
    let memory = ctx.semaphores.of(&*object);
    let mut memory = memory.lock().await;
    let guarded = object.spec.deletion_guard == SemaphoreGuard::Unused
        && !is_forced(&*object)
        && !namespace_is_terminating(&ctx, &*object).await;
    let kept = untouched(&*object, object.spec.deletion_policy, object.spec.suspend);
    let removal = match kept {
        Some(removal) if !guarded => Ok(removal),
        kept => remove_slots(&object, &ctx, &memory, guarded, kept).await,
    };
    let status = object.status.clone().unwrap_or_default();
    settle(&ctx, &*object, &mut memory, status, removal).await?;
    ctx.semaphores.forget(&*object);
    Ok(Action::await_change())
}

async fn remove_slots(
    object: &Semaphore,
    ctx: &Context,
    memory: &Memory<SemaphoreStatus, semaphore::Detail>,
    guarded: bool,
    kept: Option<Removal<SemaphoreStatus>>,
) -> Result<Removal<SemaphoreStatus>, StepError> {
    let valid = match validate::semaphore(object, ctx.default_names) {
        Ok(valid) => valid,
        Err(error) => return Ok(Removal::NotOurs(error.to_string())),
    };
    let namespace = object.namespace().unwrap_or_default();
    let was_connected = object.status.as_ref().is_some_and(|status| status.backend.is_some());
    if let (false, Err(over)) = (was_connected, limits::of_semaphore(ctx, object)) {
        return Ok(Removal::NotOurs(over.to_string()));
    }
    let fetched =
        ctx.connections.broker(&namespace, valid.broker.as_ref(), valid.vhost.as_deref()).await;
    let may_not = fetched.as_ref().err().is_some_and(FetchError::forbids);
    let last = memory.detail.broker.as_ref().filter(|_| !may_not);
    let ((Ok(connected), _) | (Err(_), Some(connected))) = (&fetched, last) else {
        return without_connection(ctx, object, fetched.err(), was_connected).await;
    };
    let broker = &connected.handle;
    if let Some(owner) = owners::of_lock(ctx, object, connected, &valid.lock).await {
        return Ok(Removal::NotOurs(format!("the lock belongs to {owner}")));
    }
    let known = object.status.as_ref().and_then(|status| status.highest_slot);
    // The spec's count too: a resize may have begun that no status tells of.
    let mark =
        known.and_then(|mark| u32::try_from(mark).ok()).map(|mark| mark.max(valid.wish.slots));
    if guarded {
        match semaphore::in_use(ctx, object, &valid, connected, mark).await {
            Ok(None) => {}
            Ok(Some((report, after))) => {
                return Ok(Removal::Guarded(Box::new(report), reason::IN_USE, after));
            }
            Err(error) => return Err(StepError::Broker(error)),
        }
    }
    if let Some(kept) = kept {
        return Ok(kept);
    }
    match broker.destroy(&valid.lock, valid.wish, mark, &ctx.stop).await {
        Ok(done) if done.left == 0 => Ok(Removal::Gone),
        Ok(_) if namespace_is_terminating(ctx, object).await => Ok(Removal::LeftBehind(
            "its namespace goes, and clients still hold what is left of it".to_owned(),
        )),
        Ok(done) => Ok(Removal::Waiting(still_held(done.left, valid.lock.has_slots()), HELD)),
        Err(error) => {
            let tries = memory.cleanups_failed + 1;
            unreachable_server(ctx, object, fetched.err(), error.into(), tries).await
        }
    }
}

/// What of a semaphore outlives its holders, and so has to be waited for.
fn still_held(left: u32, has_slots: bool) -> String {
    let unit = if has_slots { "slots" } else { "tokens" };
    format!(
        "Nobody can acquire it any more; {left} of its {unit} are still held, and what they are held by goes when they are released. To let the object go before, set the annotation {FORCE_FINALIZE}=true"
    )
}

/// Removes a queue in the two steps of the protocol, so that blocked clients end.
pub async fn pressure_queue(
    object: Arc<PressureQueue>,
    ctx: Arc<Context>,
) -> Result<Action, ReconcileError> {
    let memory = ctx.pressure_queues.of(&*object);
    let mut memory = memory.lock().await;
    let guarded = object.spec.deletion_guard == QueueGuard::Empty
        && !is_forced(&*object)
        && !namespace_is_terminating(&ctx, &*object).await;
    let kept = untouched(&*object, object.spec.deletion_policy, object.spec.suspend);
    let removal = match kept {
        Some(removal) if !guarded => Ok(removal),
        kept => remove_queue(&object, &ctx, &mut memory, guarded, kept).await,
    };
    let status = object.status.clone().unwrap_or_default();
    settle(&ctx, &*object, &mut memory, status, removal).await?;
    ctx.pressure_queues.forget(&*object);
    Ok(Action::await_change())
}

async fn remove_queue(
    object: &PressureQueue,
    ctx: &Context,
    memory: &mut Memory<PressureQueueStatus, pressure_queue::Detail>,
    guarded: bool,
    kept: Option<Removal<PressureQueueStatus>>,
) -> Result<Removal<PressureQueueStatus>, StepError> {
    let valid = match validate::pressure_queue(object, ctx.default_names) {
        Ok(valid) => valid,
        Err(error) => return Ok(Removal::NotOurs(error.to_string())),
    };
    let tries = memory.cleanups_failed + 1;
    let detail = &mut memory.detail;
    let namespace = object.namespace().unwrap_or_default();
    let was_connected = object.status.as_ref().is_some_and(|status| status.backend.is_some());
    if let (false, Err(over)) = (was_connected, limits::of_queue(ctx, object)) {
        return Ok(Removal::NotOurs(over.to_string()));
    }
    let fetched = ctx.connections.store(&namespace, valid.secret.as_deref(), valid.database).await;
    let ((Ok(connected), _) | (Err(_), Some(connected))) = (&fetched, &detail.store) else {
        return without_connection(ctx, object, fetched.err(), was_connected).await;
    };
    let store = connected.handle.clone();
    if let Some(owner) = owners::of_queue(ctx, object, connected, &valid.queue).await {
        return Ok(Removal::NotOurs(format!("the queue belongs to {owner}")));
    }
    if let Some(kept) = kept {
        // Only looked at: nothing of it is ever deleted.
        let length = store.observe(&valid.queue).await?.length;
        return Ok(if length > 0 { not_empty(ctx, object, length) } else { kept });
    }
    let deleted = if guarded {
        store.delete_if_empty(&valid.queue).await
    } else {
        store.delete(&valid.queue, false).await
    };
    match deleted {
        Ok(Deletion::Gone) => Ok(Removal::Gone),
        Ok(Deletion::WaitingFor { .. })
            if pressure_queue::finish_deletion(ctx, object, &valid, &store, detail).await? =>
        {
            Ok(Removal::Gone)
        }
        Ok(Deletion::WaitingFor { producer, consumer }) => {
            let who = |role: &str, holder: Option<Holder>| {
                holder.map(|holder| match holder.id {
                    Some(id) => format!("the {role} {id}"),
                    None => format!("the {role}"),
                })
            };
            let who: Vec<String> = [who("producer", producer), who("consumer", consumer)]
                .into_iter()
                .flatten()
                .collect();
            let message = format!(
                "The queue goes once {} gives the role back; if that client is dead, repairPolicy: Repair removes the queue, or set the annotation {FORCE_FINALIZE}=true and remove the keys by hand",
                who.join(" and ")
            );
            Ok(Removal::Waiting(message, SOON))
        }
        Ok(Deletion::NotEmpty { length }) => Ok(not_empty(ctx, object, length)),
        Err(error) => unreachable_server(ctx, object, fetched.err(), error.into(), tries).await,
    }
}

/// What the guard of a queue says that has elements.
fn not_empty(ctx: &Context, object: &PressureQueue, length: u64) -> Removal<PressureQueueStatus> {
    let elements = if length == 1 { "element" } else { "elements" };
    let message = format!(
        "deletionGuard is Empty, and the queue has {length} {elements}: nothing is removed before all are taken. To let the object go before, set deletionGuard to None, or the annotation {FORCE_FINALIZE}=true to leave Redis as it is"
    );
    let status = object.status.clone().unwrap_or_default();
    let status = PressureQueueStatus { length: i64::try_from(length).ok(), ..status };
    let outcome = Outcome::Working { reason: reason::NOT_EMPTY, message };
    let report = Report { status, reached: true, outcome, said: Vec::new(), notes: Vec::new() };
    Removal::Guarded(Box::new(report), reason::NOT_EMPTY, jitter(ctx.rhythm.observe))
}

/// Whether the server is to be left alone whatever is there, and why.
fn untouched<K: Managed>(
    object: &K,
    policy: DeletionPolicy,
    suspend: bool,
) -> Option<Removal<K::Status>> {
    if is_forced(object) {
        return Some(Removal::LeftBehind(format!("{FORCE_FINALIZE} is true")));
    }
    if policy == DeletionPolicy::Retain {
        return Some(Removal::NotOurs("deletionPolicy is Retain".to_owned()));
    }
    suspend.then(|| Removal::NotOurs("suspend is true".to_owned()))
}

fn is_forced<K: ResourceExt>(object: &K) -> bool {
    object.annotations().get(FORCE_FINALIZE).is_some_and(|value| value == "true")
}

/// There is no connection, and none that worked is remembered.
async fn without_connection<K: Managed>(
    ctx: &Context,
    object: &K,
    error: Option<FetchError>,
    was_connected: bool,
) -> Result<Removal<K::Status>, StepError> {
    let Some(error) = error else { return Ok(Removal::Gone) };
    if !was_connected {
        return Ok(Removal::NotOurs("it never had a connection".to_owned()));
    }
    if error.is_cluster_gone() {
        return Ok(Removal::LeftBehind(error.to_string()));
    }
    if error.is_secret_gone() && namespace_is_terminating(ctx, object).await {
        return Ok(Removal::LeftBehind(
            "its Secret went before it with the namespace, and no connection is left".to_owned(),
        ));
    }
    Err(error.into())
}

/// The server can't be cleaned. Where its cluster is gone, or the Secret, and the
/// namespace is going too, nobody could ever mend that: let go.
async fn unreachable_server<K: Managed>(
    ctx: &Context,
    object: &K,
    fetch_error: Option<FetchError>,
    error: StepError,
    tries: u32,
) -> Result<Removal<K::Status>, StepError> {
    let gone = match fetch_error {
        Some(gone) if is_hopeless(&error, tries) => gone,
        _ => return Err(error),
    };
    let why = if gone.is_cluster_gone() {
        gone.to_string()
    } else if gone.is_secret_gone() && namespace_is_terminating(ctx, object).await {
        "its Secret went with the namespace".to_owned()
    } else {
        return Err(error);
    };
    Ok(Removal::LeftBehind(format!("{why}; and over the last connection: {error}")))
}

async fn namespace_is_terminating<K: Managed>(ctx: &Context, object: &K) -> bool {
    let namespaces: Api<Namespace> = Api::all(ctx.client.clone());
    match namespaces.get_opt(&object.namespace().unwrap_or_default()).await {
        Ok(Some(namespace)) => namespace.metadata.deletion_timestamp.is_some(),
        Ok(None) => true,
        Err(error) => {
            warn!(%error, "could not read the namespace");
            false
        }
    }
}

/// Whether a server that nobody will mend is given up: at once where there is none, and
/// after some attempts where it is only slow.
fn is_hopeless(error: &StepError, tries: u32) -> bool {
    match error {
        // The server was not even asked to the end: the process is stopping.
        StepError::Broker(BrokerError::Interrupted) => false,
        StepError::Broker(BrokerError::Unreachable { .. })
        | StepError::Store(StoreError::Unreachable { .. }) => true,
        _ => tries >= CLEANUP_TRIES,
    }
}

/// Lets the resource go, or says why not yet.
async fn settle<K: Managed, D: Default>(
    ctx: &Context,
    object: &K,
    memory: &mut Memory<K::Status, D>,
    status: K::Status,
    removal: Result<Removal<K::Status>, StepError>,
) -> Result<(), ReconcileError> {
    let (outcome, reason, after) = match removal {
        Ok(Removal::Gone) => {
            info!("nothing is left on the server");
            return Ok(());
        }
        Ok(Removal::NotOurs(why)) => {
            info!(why, "the server is left as it is");
            return Ok(());
        }
        Ok(Removal::LeftBehind(why)) => {
            warn!(why, "the object goes, and what is left of it on the server stays there");
            ctx.metrics.left_behind(&K::kind(&()), &object.namespace().unwrap_or_default());
            if is_forced(object) {
                let message = format!("Let go without touching the server: {why}");
                publish(ctx, object, &Note::new(true, "ForceFinalized", message)).await;
            }
            return Ok(());
        }
        Ok(Removal::Waiting(message, after)) => {
            let outcome = Outcome::Working { reason: reason::CLEANING_UP, message };
            (outcome, reason::CLEANING_UP, after)
        }
        Ok(Removal::Guarded(said, reason, after)) => {
            memory.failures = 0;
            report(ctx, object, memory, *said).await?;
            return Err(ReconcileError::CleanupPending { reason, after });
        }
        // The process is stopping: whoever comes next goes on.
        Err(error @ StepError::Broker(BrokerError::Interrupted)) => {
            let (reason, after) = (error.reason(), pause(error.class(), 1));
            return Err(ReconcileError::CleanupPending { reason, after });
        }
        Err(error) => {
            memory.failures += 1;
            memory.cleanups_failed += 1;
            let (reason, after) = (error.reason(), pause(error.class(), memory.cleanups_failed));
            (Outcome::Failed(StepError::Cleanup(Box::new(error))), reason, after)
        }
    };
    let said = Report { status, reached: false, outcome, said: Vec::new(), notes: Vec::new() };
    report(ctx, object, memory, said).await?;
    Err(ReconcileError::CleanupPending { reason, after })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_server_is_given_up_after_some_attempts_an_absent_one_at_once() {
        let slow = StepError::Broker(BrokerError::Timeout { what: "probes", after: HELD });
        assert!(!is_hopeless(&slow, 1) && !is_hopeless(&slow, CLEANUP_TRIES - 1));
        assert!(is_hopeless(&slow, CLEANUP_TRIES));
        let stopping = StepError::Broker(BrokerError::Interrupted);
        assert!(!is_hopeless(&stopping, CLEANUP_TRIES));
    }
}
