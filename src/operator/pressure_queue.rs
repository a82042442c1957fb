//! The kind `PressureQueue`: what the drivers ask of it. See `apply`, `doctor` and `remove`
//! for the work on the server, and `status` for the report.

mod apply;
mod doctor;
mod metrics;
mod remove;
mod state;
mod status;
mod step;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::conditions::ConditionUpdate;
use lockkeeper_api::pressure_queue::QueueGuard;
use lockkeeper_api::validate::{self, DefaultRules, SpecError, ValidQueue};
use lockkeeper_api::{PressureQueue, PressureQueueStatus};
use lockkeeper_plan::ErrorClass;
use lockkeeper_plan::naming::DEFAULT_PREFIX;
use lockkeeper_plan::quota::Demand;
use lockkeeper_pressure::Store;
use prometheus_client::encoding::DescriptorEncoder;

use self::state::{Observation, QueueState, SOON, State};
use super::concurrency::Connection;
use super::error::StepError;
use super::fetch::{Connected, Connections, FetchError};
use super::kind::{Ending, Kind, ReportedStatus, Session};
use super::outcome::{Applied, Removal};

impl Kind for PressureQueue {
    const THING: &'static str = "queue";

    type Valid = ValidQueue;
    type Server = Store;
    type State = State;
    type Observation = Observation;

    fn connection(&self) -> Connection {
        let reference = self.spec.redis_reference.as_ref();
        let secret = reference.and_then(|reference| reference.connection_secret.as_ref());
        let namespace = secret.and(self.metadata.namespace.as_ref());
        let database = reference.and_then(|reference| reference.database);
        Connection::new(format!("store {:?}", (namespace, secret, database)))
    }

    /// Uses the name of the keys, because different prefixes and names can result in the
    /// same keys.
    fn server_name(&self) -> String {
        let reference = self.spec.redis_reference.as_ref();
        let prefix = reference.map_or(DEFAULT_PREFIX, |reference| &reference.prefix);
        format!("{prefix}:{}", validate::queue_name(self))
    }

    fn is_native(&self) -> bool {
        let reference = self.spec.redis_reference.as_ref();
        reference.is_none_or(|reference| reference.connection_secret.is_none())
            && validate::is_own_name(self, &validate::queue_name(self))
    }

    fn demand(&self) -> Demand {
        let stands = self.status.as_ref().is_some_and(ReportedStatus::stands);
        Demand { stands, ..Demand::default() }
    }

    fn ending(&self) -> Ending {
        let is_guarded = self.spec.deletion_guard == QueueGuard::Empty;
        Ending { policy: self.spec.deletion_policy, is_guarded, suspend: self.spec.suspend }
    }

    fn validate(&self, rules: DefaultRules) -> Result<ValidQueue, SpecError> {
        validate::pressure_queue(self, rules)
    }

    fn name_of(valid: &ValidQueue) -> String {
        valid.queue.to_string()
    }

    async fn connect(
        connections: &Connections,
        namespace: &str,
        valid: &ValidQueue,
    ) -> Result<Connected<Store>, FetchError> {
        connections.store(namespace, valid.secret.as_deref(), valid.database).await
    }

    async fn is_same_server(
        valid: &ValidQueue,
        ours: &Store,
        theirs: &Store,
    ) -> Result<bool, ErrorClass> {
        ours.is_same_as(theirs, &valid.queue).await.map_err(|error| error.class())
    }

    fn last_server(state: &State) -> Option<&Connected<Store>> {
        state.store.as_ref()
    }

    async fn apply(session: Session<'_, Self>, state: &mut QueueState) -> Applied<Observation> {
        apply::converge(session, state).await
    }

    fn pause(observation: &Observation, observe: Duration) -> Duration {
        let is_unsure = observation.diagnosed.as_ref().is_some_and(|found| found.is_unsure);
        let soon = !observation.unconfirmed.is_empty()
            || is_unsure
            || status::waits_for(&observation.remarks).is_some();
        if soon { SOON.min(observe) } else { observe }
    }

    fn describe(
        &self,
        old: &PressureQueueStatus,
        _state: &State,
        observation: Option<&Observation>,
    ) -> (PressureQueueStatus, Vec<ConditionUpdate>) {
        status::describe(self, old, observation)
    }

    /// Before a deletion, the protocol's own check suffices.
    async fn guard(
        session: &Session<'_, Self>,
        removes: bool,
    ) -> Result<Option<Removal<PressureQueueStatus>>, StepError> {
        Ok(if removes { None } else { remove::not_empty_yet(session).await? })
    }

    async fn remove(
        session: &Session<'_, Self>,
        state: &mut State,
        is_guarded: bool,
    ) -> Result<Removal<PressureQueueStatus>, StepError> {
        remove::delete(session, state, is_guarded).await
    }

    fn tell(encoder: &mut DescriptorEncoder, all: &[Arc<Self>]) -> Result<(), fmt::Error> {
        metrics::tell_all(encoder, all)
    }
}
