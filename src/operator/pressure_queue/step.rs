//! Input of the steps of a reconcile that use the server. See `apply` and `doctor` for the
//! steps.

use lockkeeper_api::validate::ValidQueue;
use lockkeeper_api::{PressureQueue, PressureQueueStatus};
use lockkeeper_plan::pressure_queue::ObservedQueue;
use lockkeeper_pressure::{Store, StoreError};

use crate::operator::context::Context;
use crate::operator::metrics::Asked;

/// Input of the steps that use the server.
pub(super) struct Step<'a> {
    pub ctx: &'a Context,
    pub queue: &'a PressureQueue,
    pub old: &'a PressureQueueStatus,
    pub valid: ValidQueue,
    pub store: Store,
    pub backend: String,
}

impl Step<'_> {
    /// Observes the queue, by one read of all keys.
    pub async fn look(&self) -> Result<ObservedQueue, StoreError> {
        let seen = self.store.observe(&self.valid.queue);
        self.ctx.metrics.timed(Asked::redis("observe"), seen).await
    }
}
