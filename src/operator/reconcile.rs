//! The reconcile of an object of any kind: validate, fetch, check for a conflict, then
//! the kind's own observation, plan and changes, and the report. See [`Kind`] for the
//! kind's part, and `cleanup` for deleted objects.

use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use lockkeeper_plan::ErrorClass;
use lockkeeper_semaphore::BrokerError;

use super::conflict;
use super::error::{ReconcileError, StepError, pause, rhythmic};
use super::kind::{Kind, ReportedStatus, Session, StateOf};
use super::kind_context::KindContext;
use super::outcome::{Applied, Outcome, Report};
use super::status_writer::report;

/// Reconciles the server with the spec and reports the result. Returns the pause until the
/// next reconcile. `None`: until the object changes.
pub async fn reconcile<K: Kind>(
    object: Arc<K>,
    kind: Arc<KindContext<K>>,
) -> Result<Option<Duration>, ReconcileError> {
    let ctx = &*kind.shared;
    let state = kind.states.of(&*object);
    let mut state = state.lock().await;
    if let Some(left) = state.skip_until(&*object) {
        return Ok(Some(left));
    }
    let old = state.newest_status(&*object, object.status()).unwrap_or_default();
    let (backend, applied) = match fetch(&kind, &*object, &old).await {
        Err(error) => {
            // An object without a connection owns nothing, and may be replaced.
            let is_spec_or_secret = matches!(error, StepError::Spec(_) | StepError::Fetch(_));
            if is_spec_or_secret && error.class() != ErrorClass::Transient {
                kind.states.decide(&*object, false);
            }
            (None, Applied::failed(error))
        }
        Ok(session) => {
            let backend = session.connected.backend.clone();
            state.connection = Some(Arc::clone(&session.connected.kept));
            (Some(backend), apply(&kind, session, &mut state).await)
        }
    };
    let next = match &applied.outcome {
        // The process is stopping. Its successor starts from the server's state.
        Outcome::Failed(StepError::Broker(BrokerError::Interrupted)) => {
            return Ok(None);
        }
        Outcome::Failed(StepError::Announce(error))
            if matches!(**error, ReconcileError::Outdated) =>
        {
            return Err(ReconcileError::Outdated);
        }
        Outcome::Failed(error) => {
            // A wait for something else is no failure of the server, and needs no backoff.
            if !matches!(error.class(), ErrorClass::Waiting(_)) {
                state.failures += 1;
            }
            K::after_failure(&mut state.detail);
            pause(error.class(), state.failures)
        }
        _ => {
            state.failures = 0;
            let observe = ctx.intervals.observe;
            rhythmic(applied.observation.as_ref().map_or(observe, |seen| K::pause(seen, observe)))
        }
    };
    let revisit_in = applied.observation.as_ref().and_then(K::revisit_in);

    let newest = state.newest_status(&*object, object.status()).unwrap_or_default();
    let result = describe(&*object, &newest, &state.detail, backend, applied);
    let again = report(ctx, &*object, &mut state, result).await?;
    state.unwritten = 0;
    object.after_report(ctx, &mut state, again.is_none()).await;
    let next = [again, revisit_in].into_iter().flatten().fold(next, Duration::min);
    state.schedule_next(&*object, next);
    Ok(Some(next))
}

/// Validates the spec and fetches its connection. Uses the API server only.
async fn fetch<'a, K: Kind>(
    kind: &'a KindContext<K>,
    object: &'a K,
    old: &'a K::Status,
) -> Result<Session<'a, K>, StepError> {
    let ctx = &*kind.shared;
    let valid = object.validate(ctx.default_rules)?;
    kind.quota.check(object)?;
    let namespace = object.namespace().unwrap_or_default();
    let connected = K::connect(&ctx.connections, &namespace, &valid).await?;
    Ok(Session { ctx, object, old, valid, connected })
}

/// Applies the spec to the server, unless the lock or queue belongs to another object.
async fn apply<K: Kind>(
    kind: &KindContext<K>,
    session: Session<'_, K>,
    state: &mut StateOf<K>,
) -> Applied<K::Observation> {
    let Session { object, valid, connected, .. } = &session;
    if let Some(owner) = conflict::claim(kind, *object, valid, connected).await {
        let what = format!("the {} {} on {}", K::THING, K::name_of(valid), connected.backend);
        return Applied::failed(StepError::Conflict { owner, what });
    }
    K::apply(session, state).await
}

/// Returns the report, with the observation even if a later step failed. Pure.
fn describe<K: Kind>(
    object: &K,
    newest: &K::Status,
    state: &K::State,
    backend: Option<String>,
    applied: Applied<K::Observation>,
) -> Report<K::Status> {
    let Applied { logged_in, observation, outcome, notes } = applied;
    let (mut status, said) = object.describe(newest, state, observation.as_ref());
    let connected = backend.or_else(|| newest.backend().map(str::to_owned));
    let last_reached = newest.reached_backend().map(str::to_owned);
    let reached = if logged_in { connected.clone() } else { last_reached };
    status.set_backends(connected, reached);
    Report { status, reached: observation.is_some(), outcome, said, notes }
}
