//! Metrics of the damage and the repairs of queues. They are counted as they occur, and
//! removed together with the object.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::{Resource, ResourceExt};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfQueue {
    namespace: String,
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfDamage {
    namespace: String,
    name: String,
    reason: &'static str,
}

/// The label sets in use, by kind and object.
type Used = HashMap<(String, OfQueue), BTreeSet<&'static str>>;

/// Counters and gauges of damage. Cheap to clone; clones share their values.
#[derive(Clone)]
pub struct Damage {
    damaged: Family<OfDamage, Gauge>,
    drift: Family<OfQueue, Gauge>,
    repairs: Family<OfDamage, Counter>,
    used: Arc<Mutex<Used>>,
    /// Whether there are series for each object.
    each: bool,
}

impl Damage {
    /// Creates the metrics, with series for each object if `each`.
    pub(super) fn new(registry: &mut Registry, each: bool) -> Self {
        let (damaged, drift, repairs) = (Family::default(), Family::default(), Family::default());
        registry.register(
            "queue_damaged",
            "1 while the queue is damaged; the reason is that of the condition Damaged",
            Family::clone(&damaged),
        );
        registry.register(
            "queue_counter_drift",
            "Elements put, minus elements taken, minus the length, as last observed while both roles were free",
            Family::clone(&drift),
        );
        registry.register("queue_repairs", "Number of repairs", Family::clone(&repairs));
        Self { damaged, drift, repairs, used: Arc::default(), each }
    }

    /// Sets the reasons of a queue's damage.
    pub fn found<K: Resource<DynamicType = ()>>(&self, queue: &K, reasons: &[&'static str]) {
        if !self.each {
            return;
        }
        let of = of(queue);
        let mut used = locked(&self.used);
        let known = used.entry((kind::<K>(), of.clone())).or_default();
        for reason in known.iter().filter(|reason| !reasons.contains(reason)) {
            self.damaged.remove(&of.with(reason));
        }
        for reason in reasons {
            known.insert(reason);
            self.damaged.get_or_create(&of.with(reason)).set(1);
        }
    }

    /// Sets the drift of the queue's counters.
    pub fn drifted<K: Resource<DynamicType = ()>>(&self, queue: &K, by: i64) {
        if self.each {
            let of = of(queue);
            locked(&self.used).entry((kind::<K>(), of.clone())).or_default();
            self.drift.get_or_create(&of).set(by);
        }
    }

    /// Records that damage with this reason was repaired.
    pub fn repaired<K: Resource<DynamicType = ()>>(&self, queue: &K, reason: &'static str) {
        if self.each {
            let of = of(queue);
            locked(&self.used).entry((kind::<K>(), of.clone())).or_default().insert(reason);
            self.repairs.get_or_create(&of.with(reason)).inc();
        }
    }

    /// Removes the metrics of objects that no longer exist, according to `exists` with
    /// their kind, namespace and name.
    pub(super) fn forget_missing(&self, exists: impl Fn(&str, &str, &str) -> bool) {
        let mut used = locked(&self.used);
        let missing = used.extract_if(|(kind, of), _| !exists(kind, &of.namespace, &of.name));
        for ((_, queue), reasons) in missing {
            for reason in reasons {
                self.damaged.remove(&queue.with(reason));
                self.repairs.remove(&queue.with(reason));
            }
            self.drift.remove(&queue);
        }
    }
}

impl OfQueue {
    fn with(&self, reason: &'static str) -> OfDamage {
        OfDamage { namespace: self.namespace.clone(), name: self.name.clone(), reason }
    }
}

fn kind<K: Resource<DynamicType = ()>>() -> String {
    K::kind(&()).into_owned()
}

fn of<K: Resource>(queue: &K) -> OfQueue {
    OfQueue { namespace: queue.namespace().unwrap_or_default(), name: queue.name_any() }
}

/// Locks a mutex, also one whose last holder panicked.
pub(super) fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
