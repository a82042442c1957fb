//! Runs one reconcile of one object of any kind, and keeps its finalizer. See `reconcile`
//! and `cleanup` for what it runs, and `runner` for when.

use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use kube::runtime::controller::Action;
use kube::runtime::finalizer::{Error as FinalizerError, Event, finalizer};
use kube::runtime::reflector::ObjectRef;
use lockkeeper_api::FINALIZER;
use tracing::{Instrument, debug, field, info_span, warn};

use super::api_error::explain;
use super::cleanup::cleanup;
use super::concurrency::Connection;
use super::error::{ReconcileError, pause_after};
use super::kind::Kind;
use super::kind_context::KindContext;
use super::reconcile::reconcile;
use super::reduced::Reduced;
use super::runner::Reconciler;
use super::state::Place;

impl<K: Kind> Reconciler for Arc<KindContext<K>> {
    type Object = Arc<K>;

    fn find(&self, (namespace, name): &Place) -> Option<(Arc<K>, Connection)> {
        let object = self.cache.get(&ObjectRef::new(name).within(namespace))?;
        let connection = object.connection();
        Some((object, connection))
    }

    async fn reconcile(self, object: Arc<K>) -> Option<Duration> {
        let kind = Arc::clone(&self);
        match one(Arc::clone(&object), self).await {
            Ok(pause) => pause,
            Err(error) => {
                let state = kind.states.of(&*object);
                Some(pause_after(&error, &mut state.lock().await.unwritten))
            }
        }
    }

    fn record_waiting(&self, count: usize) {
        self.shared.metrics.controllers.waiting::<K>(count);
    }
}

async fn one<K: Kind>(
    object: Arc<K>,
    kind: Arc<KindContext<K>>,
) -> Result<Option<Duration>, ReconcileError> {
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
            return Ok(None);
        }
        let api = kind.shared.api_of(&*object);
        let (mut pause, mut removed) = (None, None);
        let of = Arc::new(Reduced(Ok((*object).clone())));
        let done = finalizer(&api, FINALIZER, of, async |event| {
            match event {
                Event::Apply(_) => pause = reconcile(object, Arc::clone(&kind)).await?,
                Event::Cleanup(_) => {
                    removed = object.uid();
                    cleanup(object, Arc::clone(&kind)).await?;
                }
            }
            Ok(Action::await_change())
        })
        .await;
        if let (Ok(_), Some(uid)) = (&done, removed) {
            kind.states.forget(&uid);
            kind.shared.connections.close_unused();
        }
        let result = done.map(|_| pause).map_err(|error| match error {
            FinalizerError::ApplyFailed(error) | FinalizerError::CleanupFailed(error) => error,
            other => ReconcileError::Finalizer(Box::new(other)),
        });
        if matches!(result, Err(ReconcileError::Outdated)) {
            debug!("the object was changed concurrently, reconciling again");
        } else if let Err(error) = &result {
            let source = std::error::Error::source(error).map(explain);
            warn!(%error, source, "to be tried again");
        }
        result
    });
    controllers.counted::<K>(work).instrument(span).await
}
