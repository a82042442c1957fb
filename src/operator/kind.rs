//! What the operator needs to know of a kind of resource: the trait that each kind
//! implements in a folder of its own. See `reconcile` and `cleanup` for the two drivers
//! that call it.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::core::object::HasStatus;
use kube::{Resource, ResourceExt};
use lockkeeper_api::DeletionPolicy;
use lockkeeper_api::conditions::reason::CONFLICT;
use lockkeeper_api::conditions::{ConditionUpdate, STALLED, find};
use lockkeeper_api::validate::{DefaultRules, SpecError};
use lockkeeper_plan::ErrorClass;
use lockkeeper_plan::quota::Demand;
use prometheus_client::encoding::DescriptorEncoder;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::concurrency::Connection;
use super::context::Context;
use super::error::StepError;
use super::fetch::{Connected, Connections, FetchError};
use super::outcome::{Applied, Removal};
use super::state::ObjectState;

/// State of one object of a kind between two reconciles.
pub type StateOf<K> = ObjectState<<K as HasStatus>::Status, <K as Kind>::State>;

/// A kind of resource that the operator reconciles into a server.
pub trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + HasStatus<Status: ReportedStatus>
    + Clone
    + Debug
    + DeserializeOwned
    + Serialize
    + Send
    + Sync
    + 'static
{
    /// What an object stands for on its server, in messages: a lock, a queue.
    const THING: &'static str;

    /// The spec, validated.
    type Valid: Send + Sync;
    /// A handle on the server.
    type Server: Clone + Send + Sync;
    /// State of one object that only this kind needs.
    type State: Default + Send + 'static;
    /// The lock or queue on its server, as observed by a reconcile.
    type Observation: Send;

    /// Returns the connection that the object is reconciled over, according to the spec.
    fn connection(&self) -> Connection;

    /// Returns the name of the object on its server, according to the spec. Objects of
    /// one kind with the same name may be for the same lock or queue.
    fn server_name(&self) -> String;

    /// Returns whether the object is on the default connection and its name belongs to
    /// its own namespace. Such an object precedes those on other connections, regardless
    /// of age.
    fn is_native(&self) -> bool;

    /// Returns the object's demand on the quotas of its namespace.
    fn demand(&self) -> Demand;

    /// Returns what the spec says about the object's deletion.
    fn ending(&self) -> Ending;

    /// Validates the spec. Pure.
    fn validate(&self, rules: DefaultRules) -> Result<Self::Valid, SpecError>;

    /// Returns the name of the lock or queue, for messages.
    fn name_of(valid: &Self::Valid) -> String;

    /// Returns a handle on the server, without a login. Uses the API server only.
    fn connect(
        connections: &Connections,
        namespace: &str,
        valid: &Self::Valid,
    ) -> impl Future<Output = Result<Connected<Self::Server>, FetchError>> + Send;

    /// Returns whether two handles lead to the same server.
    fn is_same_server(
        valid: &Self::Valid,
        ours: &Self::Server,
        theirs: &Self::Server,
    ) -> impl Future<Output = Result<bool, ErrorClass>> + Send;

    /// Returns the last server that answered, for a cleanup after its Secret is gone.
    fn last_server(state: &Self::State) -> Option<&Connected<Self::Server>>;

    /// Observes the server, plans the changes and applies them.
    fn apply(
        session: Session<'_, Self>,
        state: &mut StateOf<Self>,
    ) -> impl Future<Output = Applied<Self::Observation>> + Send;

    /// Returns the time until the next observation after a reconcile without a failure, if
    /// it must come before `observe` has passed.
    fn pause(observation: &Self::Observation, observe: Duration) -> Duration;

    /// Returns the time until the next observation for a reason that a failure does not
    /// change.
    fn revisit_in(_observation: &Self::Observation) -> Option<Duration> {
        None
    }

    /// Returns the status, without the fields of all kinds, and this kind's conditions.
    /// Pure. `old` is the newest status, and the observation is `None` if the server did
    /// not answer.
    fn describe(
        &self,
        old: &Self::Status,
        state: &Self::State,
        observation: Option<&Self::Observation>,
    ) -> (Self::Status, Vec<ConditionUpdate>);

    /// Drops what must be observed again after a failure.
    fn after_failure(_state: &mut Self::State) {}

    /// Runs after the report. `is_written` is false if a status write was delayed.
    fn after_report(
        &self,
        _ctx: &Context,
        _state: &mut StateOf<Self>,
        _is_written: bool,
    ) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Checks whether the object's deletion guard delays its removal, without changing
    /// the server. `Some` is a [`Removal::Guarded`]. `removes` is false if the server
    /// will not be changed afterwards either.
    fn guard(
        session: &Session<'_, Self>,
        removes: bool,
    ) -> impl Future<Output = Result<Option<Removal<Self::Status>>, StepError>> + Send;

    /// Removes the object from the server, or a part of it that may go now. `is_guarded`
    /// is true if the object has a deletion guard.
    fn remove(
        session: &Session<'_, Self>,
        state: &mut Self::State,
        is_guarded: bool,
    ) -> impl Future<Output = Result<Removal<Self::Status>, StepError>> + Send;

    /// Writes the metrics of each object, at a scrape.
    fn tell(encoder: &mut DescriptorEncoder, all: &[Arc<Self>]) -> Result<(), fmt::Error>;
}

/// A status that the operator can write.
pub trait ReportedStatus: Clone + PartialEq + Serialize + Default + Send + Sync {
    /// Returns the conditions.
    fn conditions(&self) -> &Vec<Condition>;
    /// Sets the server that the object is connected to, and the one of its last successful
    /// login.
    fn set_backends(&mut self, connected: Option<String>, reached: Option<String>);
    /// Sets the observed generation and the conditions.
    fn complete(&mut self, generation: Option<i64>, conditions: Vec<Condition>);
    /// Returns the status without counters that change constantly on a busy server. They
    /// are written at most once a minute.
    fn without_counters(&self) -> Self;
    /// Returns the server that the object was connected to, if any.
    fn backend(&self) -> Option<&str>;
    /// Returns the server of the object's last successful login.
    fn reached_backend(&self) -> Option<&str>;
    /// Returns whether the object stood for its lock or queue when the status was written:
    /// it has logged in, which only the owner does, and no other object has replaced it
    /// since.
    fn stands(&self) -> bool {
        let is_replaced = find(self.conditions(), STALLED).is_some_and(|c| c.reason == CONFLICT);
        self.reached_backend().is_some() && !is_replaced
    }
}

/// Sort key by age. The oldest object is the least.
pub type Age = (Option<Time>, Option<String>);

/// Returns the sort key of an object by age.
pub fn age<K: ResourceExt>(object: &K) -> Age {
    (object.creation_timestamp(), object.uid())
}

/// What a spec says about the deletion of its object.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    /// Whether the lock or queue is deleted with the object.
    pub policy: DeletionPolicy,
    /// Whether the object must not be in use.
    pub is_guarded: bool,
    /// Whether the server must not be changed.
    pub suspend: bool,
}

/// Input of the steps that use the server.
pub struct Session<'a, K: Kind> {
    /// The operator's context.
    pub ctx: &'a Context,
    /// The object.
    pub object: &'a K,
    /// Its last status.
    pub old: &'a K::Status,
    /// Its spec, validated.
    pub valid: K::Valid,
    /// Its server.
    pub connected: Connected<K::Server>,
}
