//! Runs one reconcile of one object of any kind: its concurrency limit, its task and its
//! finalizer. See `reconcile` and `cleanup` for what it runs.

use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::controller::Action;
use kube::runtime::finalizer::{Error as FinalizerError, Event, finalizer};
use tokio::task::JoinSet;
use tracing::{Instrument, debug, field, info_span, warn};

use super::cleanup::cleanup;
use super::error::ReconcileError;
use super::kind::Kind;
use super::kind_context::KindContext;
use super::reconcile::reconcile;
use crate::api::FINALIZER;

/// Reconciles an object in a separate task, because the runtime polls all reconciles of a
/// kind when one of them progresses, and only then the watch. Dropping the future aborts
/// the task.
pub async fn one<K: Kind>(
    object: Arc<K>,
    kind: Arc<KindContext<K>>,
) -> Result<Action, ReconcileError> {
    let mut task = JoinSet::new();
    let work = async move {
        // Before this, none of the reconcile's state exists: it is large, and thousands
        // may wait.
        let _turn = kind.shared.turns.take(object.connection()).await;
        at_work(object, Arc::clone(&kind)).await
    };
    task.spawn(work.in_current_span());
    match task.join_next().await {
        Some(Ok(result)) => result,
        Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The process is stopping.
        _ => Ok(Action::await_change()),
    }
}

/// Runs the reconcile itself, within the concurrency limit.
async fn at_work<K: Kind>(
    object: Arc<K>,
    kind: Arc<KindContext<K>>,
) -> Result<Action, ReconcileError> {
    let span = info_span!(
        "reconcile",
        controller = K::kind(&()).to_lowercase(),
        namespace = object.namespace(),
        name = object.name_any(),
        reconcileID = %format_args!("{:016x}", rand::random::<u64>()),
        otel.status_code = field::Empty,
    );
    let controllers = kind.shared.metrics.controllers.clone();
    // Each function that a future passes through would store it again.
    let work = Box::pin(async move {
        if !kind.shared.goes_on() {
            return Ok(Action::await_change());
        }
        let api = kind.shared.api_of(&*object);
        let done = finalizer(&api, FINALIZER, object, async |event| match event {
            Event::Apply(object) => reconcile(object, Arc::clone(&kind)).await,
            Event::Cleanup(object) => cleanup(object, Arc::clone(&kind)).await,
        })
        .await;
        let result = done.map_err(|error| match error {
            FinalizerError::ApplyFailed(error) | FinalizerError::CleanupFailed(error) => error,
            other => ReconcileError::Finalizer(Box::new(other)),
        });
        if matches!(result, Err(ReconcileError::Outdated)) {
            debug!("the object was changed concurrently, reconciling again");
        } else if let Err(error) = &result {
            let source = std::error::Error::source(error).map(ToString::to_string);
            warn!(%error, source, "to be tried again");
        }
        result
    });
    controllers.counted::<K>(work).instrument(span).await
}
