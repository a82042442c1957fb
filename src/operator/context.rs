//! What every reconcile may use.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use kube::runtime::reflector::Store as Cache;
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use super::events::Events;
use super::fetch::Connections;
use super::memory::Memories;
use super::metrics::Metrics;
use super::names::Names;
use super::turns::Turns;
use super::{pressure_queue, semaphore};
use crate::api::validate::DefaultNames;
use crate::api::{PressureQueue, PressureQueueStatus, Semaphore, SemaphoreStatus};
use crate::plan::MayAct;
use crate::plan::quota::Limits;

/// How often the servers are looked at.
#[derive(Clone, Copy, Debug)]
pub struct Rhythm {
    /// Longest time between two looks at the holders of a semaphore, or at a queue.
    pub observe: Duration,
    /// Longest time between two sweeps for slots that are missing or too many.
    pub drift: Duration,
    /// For how long nothing of a queue must have moved before what a dead client
    /// has left is mended.
    pub repair_idle: Duration,
}

impl Rhythm {
    /// How old the last sweep may become: one is done when it is due before the next
    /// look.
    #[must_use]
    pub fn sweep_age(&self) -> Duration {
        self.drift.saturating_sub(self.observe)
    }
}

/// The surroundings of all reconciles.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// Where events go.
    pub events: Events,
    /// Where brokers and stores come from.
    pub connections: Connections,
    /// Whose reconcile may begin.
    pub turns: Turns,
    /// How often to look.
    pub rhythm: Rhythm,
    /// What `/metrics` tells.
    pub metrics: Metrics,
    /// When the clock of all that is watched for a while began.
    pub started: Instant,
    /// Which names are allowed on the default connection.
    pub default_names: DefaultNames,
    /// How much each namespace may have.
    pub limits: Limits,
    /// Cancelled when the process was asked to stop: a running resize then stops
    /// between two effects.
    pub stop: CancellationToken,
    /// Whether this replica is still the leader.
    pub may_act: MayAct,
    /// What is remembered of each Semaphore.
    pub semaphores: Memories<SemaphoreStatus, semaphore::Detail>,
    /// What is remembered of each `PressureQueue`.
    pub pressure_queues: Memories<PressureQueueStatus, pressure_queue::Detail>,
    /// Every Semaphore that is watched, to find two that name the same lock.
    pub all_semaphores: OnceLock<Cache<Semaphore>>,
    /// Every `PressureQueue` that is watched.
    pub all_pressure_queues: OnceLock<Cache<PressureQueue>>,
    /// The watched Semaphores by the names of their locks.
    pub semaphore_names: Arc<Names>,
    /// The watched `PressureQueue`s by their keys.
    pub pressure_queue_names: Arc<Names>,
}

impl Context {
    /// Whether the next effect may begin.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        !self.stop.is_cancelled() && self.may_act.now()
    }

    /// The API for an object's kind and namespace.
    #[must_use]
    pub fn api_of<K>(&self, object: &K) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        let namespace = object.meta().namespace.as_deref().unwrap_or_default();
        Api::namespaced(self.client.clone(), namespace)
    }
}
