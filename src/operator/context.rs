//! The context of every reconcile, whatever its kind. See `kind` for what the objects of
//! one kind share.

use std::time::{Duration, Instant};

use kube::{Api, Client};
use lockkeeper_api::validate::DefaultRules;
use lockkeeper_plan::MayAct;
use tokio_util::sync::CancellationToken;

use super::events::Events;
use super::fetch::Connections;
use super::metrics::Metrics;
use super::reduced::Reduced;

/// Intervals of observation.
#[derive(Clone, Copy, Debug)]
pub struct Intervals {
    /// Maximum time between two observations of the holders of a semaphore, or of a
    /// queue.
    pub observe: Duration,
    /// Maximum time between two sweeps for missing and surplus slots.
    pub drift: Duration,
    /// Time without activity on a queue before damage left by a dead client is repaired.
    pub repair_idle: Duration,
}

impl Intervals {
    /// Returns the maximum age of the last sweep: a sweep runs if it is due before the
    /// next observation.
    #[must_use]
    pub fn sweep_age(&self) -> Duration {
        self.drift.saturating_sub(self.observe)
    }
}

/// The context of all reconciles.
pub struct Context {
    /// Client of the API server.
    pub client: Client,
    /// Publisher of events.
    pub events: Events,
    /// Connections to brokers and stores.
    pub connections: Connections,
    /// Intervals of observation.
    pub intervals: Intervals,
    /// Metrics of `/metrics`.
    pub metrics: Metrics,
    /// Start time of the operator, for durations of observation.
    pub started: Instant,
    /// Rules for the default connections.
    pub default_rules: DefaultRules,
    /// Cancelled when the process has to stop. A running resize then stops between two
    /// effects.
    pub stop: CancellationToken,
    /// Whether this replica is still the leader.
    pub may_act: MayAct,
}

impl Context {
    /// Returns whether the next effect may begin.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        !self.stop.is_cancelled() && self.may_act.now()
    }

    /// Returns the API for an object's kind and namespace. Its answers are reduced,
    /// because they contain the whole object.
    #[must_use]
    pub fn api_of<K>(&self, object: &K) -> Api<Reduced<K>>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        let namespace = object.meta().namespace.as_deref().unwrap_or_default();
        Api::namespaced(self.client.clone(), namespace)
    }
}
