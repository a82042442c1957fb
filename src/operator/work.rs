//! One reconcile of one object, of whatever kind: its turn, its task, its finalizer,
//! and when to try again. What is done is the kinds' own.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use kube::runtime::controller::Action;
use kube::runtime::finalizer::{Error as FinalizerError, Event, finalizer};
use tokio::task::JoinSet;
use tracing::{Instrument, debug, field, info_span, warn};

use super::context::Context;
use super::error::{ReconcileError, jitter};
use super::report::Managed;
use crate::api::FINALIZER;

/// Reconciles an object in a task of its own: the runtime polls all reconciles of a kind
/// when one of them goes on, and only then looks at the watch. The task is aborted when
/// this future is dropped.
pub async fn one<K, R, C>(
    object: Arc<K>,
    ctx: Arc<Context>,
    reconcile: impl Fn(Arc<K>, Arc<Context>) -> R + Send + Sync + 'static,
    cleanup: impl Fn(Arc<K>, Arc<Context>) -> C + Send + Sync + 'static,
) -> Result<Action, ReconcileError>
where
    K: Managed,
    R: Future<Output = Result<Action, ReconcileError>> + Send + 'static,
    C: Future<Output = Result<Action, ReconcileError>> + Send + 'static,
{
    let mut task = JoinSet::new();
    let work = async move {
        // Nothing of the work is there before: it is large, and thousands may wait.
        let _turn = ctx.turns.take(object.connection()).await;
        Box::pin(at_work(object, Arc::clone(&ctx), reconcile, cleanup)).await
    };
    task.spawn(work.in_current_span());
    match task.join_next().await {
        Some(Ok(result)) => result,
        Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The process ends.
        _ => Ok(Action::await_change()),
    }
}

/// The reconcile itself, in its turn.
async fn at_work<K, R, C>(
    object: Arc<K>,
    ctx: Arc<Context>,
    reconcile: impl Fn(Arc<K>, Arc<Context>) -> R + Send,
    cleanup: impl Fn(Arc<K>, Arc<Context>) -> C + Send,
) -> Result<Action, ReconcileError>
where
    K: Managed,
    R: Future<Output = Result<Action, ReconcileError>> + Send,
    C: Future<Output = Result<Action, ReconcileError>> + Send,
{
    let span = info_span!(
        "reconcile",
        controller = K::kind(&()).to_lowercase(),
        namespace = object.namespace(),
        name = object.name_any(),
        reconcileID = %format_args!("{:016x}", rand::random::<u64>()),
        otel.status_code = field::Empty,
    );
    let controllers = ctx.metrics.controllers.clone();
    let work = async move {
        if !ctx.goes_on() {
            return Ok(Action::await_change());
        }
        let api = ctx.api_of(&*object);
        let done = finalizer(&api, FINALIZER, object, async |event| match event {
            Event::Apply(object) => reconcile(object, Arc::clone(&ctx)).await,
            Event::Cleanup(object) => cleanup(object, Arc::clone(&ctx)).await,
        })
        .await;
        let result = done.map_err(|error| match error {
            FinalizerError::ApplyFailed(error) | FinalizerError::CleanupFailed(error) => error,
            other => ReconcileError::Finalizer(Box::new(other)),
        });
        if matches!(result, Err(ReconcileError::Outdated)) {
            debug!("the object was changed meanwhile, looking again");
        } else if let Err(error) = &result {
            let source = std::error::Error::source(error).map(ToString::to_string);
            warn!(%error, source, "to be tried again");
        }
        result
    };
    controllers.counted::<K>(work).instrument(span).await
}

/// When to try again after an error that could not become a condition.
pub fn on_error<K>(_: Arc<K>, error: &ReconcileError, _: Arc<Context>) -> Action {
    match error {
        ReconcileError::CleanupPending { after, .. } => Action::requeue(*after),
        // The change itself causes the next reconcile, unless it is only another's
        // status.
        ReconcileError::Outdated => Action::requeue(jitter(Duration::from_millis(250))),
        ReconcileError::WriteStatus(_) | ReconcileError::Finalizer(_) => {
            Action::requeue(jitter(Duration::from_secs(2)))
        }
    }
}
