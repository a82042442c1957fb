//! Cleanup when an object of any kind is deleted: implements the table of
//! docs/deletion.md. Never requires a valid spec, and never blocks a namespace because of
//! a Secret that was deleted before the resource (hazards K3, K4). See [`Kind::guard`] and
//! [`Kind::remove`] for the kind's part.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt};
use lockkeeper_api::conditions::reason;
use lockkeeper_api::{DeletionPolicy, FORCE_FINALIZE};
use lockkeeper_pressure::StoreError;
use lockkeeper_semaphore::BrokerError;
use tracing::{info, warn};

use super::api_error::explain;
use super::conflict;
use super::context::Context;
use super::error::{ReconcileError, StepError, growing, pause};
use super::fetch::FetchError;
use super::kind::{Ending, Kind, ReportedStatus, Session, StateOf};
use super::kind_context::KindContext;
use super::outcome::{EventRecord, Outcome, Removal, Report};
use super::status_writer::{publish, report};

/// Number of attempts on a server that responds but fails, if its settings are gone for
/// good. Several are needed because deleting a thousand objects together loads a broker.
const CLEANUP_TRIES: u32 = 5;

/// Removes the object from its server, then lets it go.
pub async fn cleanup<K: Kind>(
    object: Arc<K>,
    kind: Arc<KindContext<K>>,
) -> Result<(), ReconcileError> {
    let state = kind.states.of(&*object);
    let mut state = state.lock().await;
    let Ending { policy, is_guarded, suspend } = object.ending();
    let is_guarded = is_guarded
        && !is_forced(&*object)
        && !namespace_is_terminating(&kind.shared, &*object).await;
    let kept = untouched(&*object, policy, suspend);
    let removal = match kept {
        Some(removal) if !is_guarded => Ok(removal),
        kept => remove(&kind, &*object, &mut state, is_guarded, kept).await,
    };
    let status = object.status().cloned().unwrap_or_default();
    settle(&kind.shared, &*object, &mut state, status, removal).await
}

/// Removes the object from its server. With `kept`, only checks its guard.
async fn remove<K: Kind>(
    kind: &KindContext<K>,
    object: &K,
    state: &mut StateOf<K>,
    is_guarded: bool,
    kept: Option<Removal<K::Status>>,
) -> Result<Removal<K::Status>, StepError> {
    let ctx = &*kind.shared;
    let valid = match object.validate(ctx.default_rules) {
        Ok(valid) => valid,
        Err(error) => return Ok(Removal::NotOurs(error.to_string())),
    };
    let namespace = object.namespace().unwrap_or_default();
    let was_connected = object.status().is_some_and(|status| status.backend().is_some());
    if let (false, Err(over)) = (was_connected, kind.quota.check(object)) {
        return Ok(Removal::NotOurs(over.to_string()));
    }
    let (connected, fetch_error) = match K::connect(&ctx.connections, &namespace, &valid).await {
        Ok(connected) => (connected, None),
        Err(error) => match K::last_server(&state.detail).filter(|_| !error.forbids()) {
            Some(last) => (last.clone(), Some(error)),
            None => return without_connection(ctx, object, error, was_connected).await,
        },
    };
    if let Some(owner) = conflict::claim(kind, object, &valid, &connected).await {
        return Ok(Removal::NotOurs(format!("the {} belongs to {owner}", K::THING)));
    }
    let old = object.status().cloned().unwrap_or_default();
    let session = Session { ctx, object, old: &old, valid, connected };
    if is_guarded && let Some(guarded) = K::guard(&session, kept.is_none()).await? {
        return Ok(guarded);
    }
    if let Some(kept) = kept {
        return Ok(kept);
    }
    let tries = state.cleanups_failed + 1;
    match K::remove(&session, &mut state.detail, is_guarded).await {
        Err(error) => unreachable_server(ctx, object, fetch_error, error, tries).await,
        removal => removal,
    }
}

/// Returns why the server must not be changed, or `None` if it may be.
fn untouched<K: Kind>(
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

/// Decides the removal without a connection, neither a current nor an earlier one.
async fn without_connection<K: Kind>(
    ctx: &Context,
    object: &K,
    error: FetchError,
    was_connected: bool,
) -> Result<Removal<K::Status>, StepError> {
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

/// Handles a server that cannot be cleaned up. Gives up if its cluster is gone, or if
/// both the Secret and the namespace are, because no later attempt could succeed.
async fn unreachable_server<K: Kind>(
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

pub(super) async fn namespace_is_terminating<K: Kind>(ctx: &Context, object: &K) -> bool {
    let namespaces: Api<Namespace> = Api::all(ctx.client.clone());
    match namespaces.get_opt(&object.namespace().unwrap_or_default()).await {
        Ok(Some(namespace)) => namespace.metadata.deletion_timestamp.is_some(),
        Ok(None) => true,
        Err(error) => {
            warn!(error = explain(&error), "could not read the namespace");
            false
        }
    }
}

/// Returns whether to give up a server whose settings are gone: immediately if it is
/// unreachable, and after [`CLEANUP_TRIES`] attempts if it is only slow.
fn is_hopeless(error: &StepError, tries: u32) -> bool {
    match error {
        // The process is stopping. The request to the server was not completed.
        StepError::Broker(BrokerError::Interrupted) => false,
        StepError::Broker(BrokerError::Unreachable { .. })
        | StepError::Store(StoreError::Unreachable { .. }) => true,
        _ => tries >= CLEANUP_TRIES,
    }
}

/// Removes the finalizer, or reports why that has to wait.
async fn settle<K: Kind>(
    ctx: &Context,
    object: &K,
    memory: &mut StateOf<K>,
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
            warn!(why, "the object is removed, and the rest of it stays on the server");
            ctx.metrics.left_behind(&K::kind(&()), &object.namespace().unwrap_or_default());
            if is_forced(object) {
                let message =
                    format!("Removed the finalizer without cleaning up the server: {why}");
                publish(ctx, object, &EventRecord::new(true, "ForceFinalized", message)).await;
            }
            return Ok(());
        }
        Ok(Removal::Waiting(message, first)) => {
            let after = growing(first, memory.waits_for(&message));
            let outcome = Outcome::Working { reason: reason::CLEANING_UP, message };
            (outcome, reason::CLEANING_UP, after)
        }
        Ok(Removal::Guarded(said, reason, after)) => {
            memory.failures = 0;
            report(ctx, object, memory, *said).await?;
            return Err(ReconcileError::CleanupPending { reason, after });
        }
        // The process is stopping. Its successor continues.
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
    use std::time::Duration;

    use super::*;
    use crate::operator::state::ObjectState;

    #[test]
    fn a_deletion_that_waits_looks_less_and_less_often_until_something_changes() {
        let soon = Duration::from_millis(250);
        let mut memory = ObjectState::<(), ()>::default();
        let mut pauses =
            |what: &str| (0..10).map(|_| growing(soon, memory.waits_for(what))).collect::<Vec<_>>();
        for what in ["the producer a and the consumer b", "the consumer b"] {
            let pauses = pauses(what);
            assert!(pauses[0] <= soon, "{what}: {pauses:?}");
            assert!(pauses.iter().sum::<Duration>() > Duration::from_secs(50), "{pauses:?}");
            assert!(pauses.iter().all(|pause| *pause <= Duration::from_secs(15)), "{pauses:?}");
        }
    }

    #[test]
    fn a_slow_server_is_given_up_after_some_attempts_an_absent_one_at_once() {
        let after = Duration::from_secs(2);
        let slow = StepError::Broker(BrokerError::Timeout { what: "probes", after });
        assert!(!is_hopeless(&slow, 1) && !is_hopeless(&slow, CLEANUP_TRIES - 1));
        assert!(is_hopeless(&slow, CLEANUP_TRIES));
        let stopping = StepError::Broker(BrokerError::Interrupted);
        assert!(!is_hopeless(&stopping, CLEANUP_TRIES));
    }
}
