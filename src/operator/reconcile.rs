//! The reconcile of an object of any kind: validate, fetch, check for a conflict, then
//! the kind's own observation, plan and changes, and the report. See [`Kind`] for the
//! kind's part, and `cleanup` for deleted objects.

use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use kube::runtime::controller::Action;

use super::error::{ReconcileError, StepError, pause, rhythmic};
use super::kind::{Kind, Session, StateOf};
use super::kind_context::KindContext;
use super::outcome::Outcome;
use super::owners;
use super::report::report;
use crate::semaphore::BrokerError;

/// Reconciles the server with the spec and reports the result.
pub async fn reconcile<K: Kind>(
    object: Arc<K>,
    kind: Arc<KindContext<K>>,
) -> Result<Action, ReconcileError> {
    let ctx = &*kind.shared;
    let state = kind.states.of(&*object);
    let mut state = state.lock().await;
    if let Some(left) = state.quiet_for(&*object) {
        return Ok(Action::requeue(left));
    }
    let old = state.newest_status(&*object, object.status()).unwrap_or_default();
    let mut found = object.findings(&old);
    let outcome = match steps(&kind, &*object, &old, &mut state, &mut found).await {
        Ok(outcome) => outcome,
        // The process is stopping. Its successor starts from the server's state.
        Err(StepError::Broker(BrokerError::Interrupted)) => return Ok(Action::await_change()),
        Err(StepError::Announce(error)) if matches!(*error, ReconcileError::Outdated) => {
            return Err(*error);
        }
        Err(error) => Outcome::Failed(error),
    };
    let next = if let Outcome::Failed(error) = &outcome {
        state.failures += 1;
        K::after_failure(&mut state.detail);
        pause(error.class(), state.failures)
    } else {
        state.failures = 0;
        rhythmic(K::pause(&found, ctx.rhythm.observe))
    };
    let again = report(ctx, &*object, &mut state, K::report(&found, outcome)).await?;
    object.after_report(ctx, &mut state, again.is_none()).await;
    let next = [again, K::revisit_in(&found)].into_iter().flatten().fold(next, Duration::min);
    state.be_quiet(&*object, next);
    Ok(Action::requeue(next))
}

async fn steps<K: Kind>(
    kind: &KindContext<K>,
    object: &K,
    old: &K::Status,
    state: &mut StateOf<K>,
    found: &mut K::Findings,
) -> Result<Outcome, StepError> {
    // validate: pure.
    let ctx = &*kind.shared;
    let valid = object.validate(ctx.default_rules)?;
    kind.demands.check(object)?;

    // fetch: the API server only.
    let namespace = object.namespace().unwrap_or_default();
    let connected = K::connect(&ctx.connections, &namespace, &valid).await?;
    K::found_backend(found, &connected.backend);
    if let Some(owner) = owners::of(kind, object, &valid, &connected).await {
        let what = format!("the {} {} on {}", K::THING, K::name_of(&valid), connected.backend);
        return Err(StepError::Conflict { owner, what });
    }

    // observe, plan, apply: the server.
    K::apply(Session { ctx, object, old, valid, connected }, state, found).await
}
