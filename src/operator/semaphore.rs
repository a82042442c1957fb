//! The kind Semaphore: what the drivers ask of it. See `apply` and `remove` for the work on
//! the broker, and `status` for the report.

mod apply;
mod holding;
mod metrics;
mod remove;
mod revoking;
mod state;
mod status;
mod waiters;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use lockkeeper_api::conditions::ConditionUpdate;
use lockkeeper_api::semaphore::SemaphoreGuard;
use lockkeeper_api::validate::{self, DefaultRules, SpecError, ValidSemaphore};
use lockkeeper_api::{Semaphore, SemaphoreStatus};
use lockkeeper_plan::ErrorClass;
use lockkeeper_plan::quota::Demand;
use lockkeeper_semaphore::Broker;
use prometheus_client::encoding::DescriptorEncoder;

use self::state::{FACTS_INTERVAL, Observation, SemaphoreState, State};
use super::concurrency::Connection;
use super::context::Context;
use super::error::StepError;
use super::fetch::{Connected, Connections, FetchError};
use super::kind::{Ending, Kind, ReportedStatus, Session};
use super::outcome::{Applied, Removal};

impl Kind for Semaphore {
    const THING: &'static str = "lock";

    type Valid = ValidSemaphore;
    type Server = Broker;
    type State = State;
    type Observation = Observation;

    fn connection(&self) -> Connection {
        let reference = self.spec.rabbitmq_cluster_reference.as_ref();
        let namespace = reference.and(self.metadata.namespace.as_ref());
        Connection::new(format!("broker {:?}", (namespace, reference, &self.spec.vhost)))
    }

    fn server_name(&self) -> String {
        validate::lock_name(self)
    }

    fn is_native(&self) -> bool {
        self.spec.broker().is_none() && validate::is_own_name(self, &validate::lock_name(self))
    }

    fn demand(&self) -> Demand {
        let count = |number: i32| u32::try_from(number).unwrap_or(0);
        let made = self.status.as_ref().and_then(|status| status.highest_slot);
        let stands = self.status.as_ref().is_some_and(ReportedStatus::stands);
        Demand { slots: count(self.spec.slots), made: made.map_or(0, count), stands }
    }

    fn ending(&self) -> Ending {
        let is_guarded = self.spec.deletion_guard == SemaphoreGuard::Unused;
        Ending { policy: self.spec.deletion_policy, is_guarded, suspend: self.spec.suspend }
    }

    fn validate(&self, rules: DefaultRules) -> Result<ValidSemaphore, SpecError> {
        validate::semaphore(self, rules)
    }

    fn name_of(valid: &ValidSemaphore) -> String {
        valid.lock.to_string()
    }

    async fn connect(
        connections: &Connections,
        namespace: &str,
        valid: &ValidSemaphore,
    ) -> Result<Connected<Broker>, FetchError> {
        connections.broker(namespace, valid.broker.as_ref(), valid.vhost.as_deref()).await
    }

    async fn is_same_server(
        valid: &ValidSemaphore,
        ours: &Broker,
        theirs: &Broker,
    ) -> Result<bool, ErrorClass> {
        ours.is_same_as(theirs, &valid.lock).await.map_err(|error| error.class())
    }

    fn last_server(state: &State) -> Option<&Connected<Broker>> {
        state.broker.as_ref()
    }

    async fn apply(session: Session<'_, Self>, state: &mut SemaphoreState) -> Applied<Observation> {
        apply::converge(session, state).await
    }

    fn pause(observation: &Observation, observe: Duration) -> Duration {
        let incomplete = observation.holders.as_ref().is_some_and(|holders| holders.incomplete);
        if incomplete { FACTS_INTERVAL } else { observe }
    }

    fn revisit_in(observation: &Observation) -> Option<Duration> {
        observation.revoke_again
    }

    fn describe(
        &self,
        old: &SemaphoreStatus,
        state: &State,
        observation: Option<&Observation>,
    ) -> (SemaphoreStatus, Vec<ConditionUpdate>) {
        let Some(observation) = observation else {
            return (status::unobserved(self, old, state), Vec::new());
        };
        status::describe(self, observation)
    }

    fn after_failure(state: &mut State) {
        state.swept = None;
    }

    async fn after_report(&self, ctx: &Context, state: &mut SemaphoreState, is_written: bool) {
        if is_written {
            state.detail.reaches = 0;
        }
        // Must come after the event.
        revoking::clear(ctx, self, state).await;
    }

    async fn guard(
        session: &Session<'_, Self>,
        _removes: bool,
    ) -> Result<Option<Removal<SemaphoreStatus>>, StepError> {
        Ok(remove::in_use(session).await?)
    }

    async fn remove(
        session: &Session<'_, Self>,
        _state: &mut State,
        _is_guarded: bool,
    ) -> Result<Removal<SemaphoreStatus>, StepError> {
        Ok(remove::destroy(session).await?)
    }

    fn tell(encoder: &mut DescriptorEncoder, all: &[Arc<Self>]) -> Result<(), fmt::Error> {
        metrics::tell_all(encoder, all)
    }
}

impl ReportedStatus for SemaphoreStatus {
    fn conditions(&self) -> &Vec<Condition> {
        &self.conditions
    }

    fn set_backends(&mut self, connected: Option<String>, reached: Option<String>) {
        self.backend = connected;
        self.reached_backend = reached;
    }

    fn complete(&mut self, generation: Option<i64>, conditions: Vec<Condition>) {
        self.observed_generation = generation;
        self.conditions = conditions;
    }

    fn without_counters(&self) -> Self {
        self.clone()
    }

    fn backend(&self) -> Option<&str> {
        self.backend.as_deref()
    }

    fn reached_backend(&self) -> Option<&str> {
        self.reached_backend.as_deref()
    }
}
