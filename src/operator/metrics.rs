//! What `/metrics` tells. Here: what is counted as it happens, about objects and their
//! servers. What is read at a scrape, reconciles and requests are the submodules'.
//! Labels are namespaces, names and reasons, never a client's words: who holds a lock
//! is endless.

pub mod controller;
mod objects;
mod process;
pub mod requests;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::runtime::reflector::Store;
use kube::{Resource, ResourceExt};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tracing::{Instrument, debug_span};

use self::controller::Controllers;
use self::objects::Objects;
use self::process::Process;
use self::requests::Requests;
use crate::api::{PressureQueue, Semaphore};

/// What the text of [`Metrics::text`] is.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfObject {
    kind: String,
    namespace: String,
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    kind: String,
    namespace: String,
}

type OfLease = [(&'static str, String); 1];
type OfBuild = [(&'static str, &'static str); 3];

/// A server and what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Asked {
    /// `rabbitmq` or `redis`.
    r#type: &'static str,
    /// Of a look or a change.
    operation: &'static str,
}

impl Asked {
    /// The broker, for this.
    pub const fn rabbitmq(operation: &'static str) -> Self {
        Self { r#type: "rabbitmq", operation }
    }

    /// The store, for this.
    pub const fn redis(operation: &'static str) -> Self {
        Self { r#type: "redis", operation }
    }
}

/// Buckets of what a server is asked for, and of waiting, in seconds.
const BUCKETS: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// The counters and gauges. Cheap to clone; the clones share them.
#[derive(Clone)]
pub struct Metrics {
    /// Counts reconciles.
    pub controllers: Controllers,
    /// Counts requests to the API server.
    pub requests: Requests,
    registry: Arc<Registry>,
    objects: Objects,
    damaged: Family<OfDamage, Gauge>,
    drift: Family<OfQueue, Gauge>,
    repairs: Family<OfDamage, Counter>,
    corrections: Family<OfObject, Counter>,
    left_behind: Family<OfKind, Counter>,
    asked: Family<Asked, Histogram>,
    mutex_wait: Histogram,
    leader: Family<OfLease, Gauge>,
    /// The label sets in use, so that those of an object can go with it.
    used: Arc<Mutex<HashMap<OfQueue, BTreeSet<&'static str>>>>,
    corrected: Arc<Mutex<HashSet<OfObject>>>,
}

impl Metrics {
    /// With `per_object`, also what is a series or more for each object.
    #[must_use]
    pub fn new(per_object: bool) -> Self {
        let mut registry = Registry::default();
        let controllers = Controllers::new(&mut registry);
        let requests = Requests::new(&mut registry);
        registry.register_collector(Box::new(Process::starting()));
        let objects = Objects { each: per_object, ..Objects::default() };
        let leader = Family::default();
        registry.register(
            "leader_election_master_status",
            "1 while this process has the lease, 0 while another may have it",
            Family::clone(&leader),
        );
        let ours = registry.sub_registry_with_prefix("lockkeeper");
        ours.register_collector(Box::new(objects.clone()));
        let build = Family::<OfBuild, Gauge>::default();
        build.get_or_create(&BUILD).set(1);
        ours.register("build_info", "1; the labels say what runs here", build);
        let (damaged, drift, repairs) = (Family::default(), Family::default(), Family::default());
        ours.register(
            "queue_damaged",
            "1 while something about the queue is broken; the reason is the condition's",
            Family::clone(&damaged),
        );
        ours.register(
            "queue_counter_drift",
            "Elements ever put, less those got, less those there, as last seen while nobody worked on the queue",
            Family::clone(&drift),
        );
        ours.register(
            "queue_repairs",
            "How often something about the queue was mended",
            Family::clone(&repairs),
        );
        let (corrections, left_behind) = (Family::default(), Family::default());
        ours.register(
            "drift_corrections",
            "How often what somebody else had changed on the server was put right",
            Family::clone(&corrections),
        );
        ours.register(
            "left_behind",
            "Objects that were let go although something of them may have stayed on its server",
            Family::clone(&left_behind),
        );
        let asked = Family::<Asked, Histogram>::new_with_constructor(|| Histogram::new(BUCKETS));
        ours.register(
            "backend_request_duration_seconds",
            "How long a look at a server or a change on it took, failed ones included, in seconds",
            Family::clone(&asked),
        );
        let mutex_wait = Histogram::new(BUCKETS);
        ours.register(
            "admin_mutex_wait_seconds",
            "How long a change to a semaphore waited for its turn and its admin mutex, in seconds",
            mutex_wait.clone(),
        );
        let (used, corrected) = (Arc::default(), Arc::default());
        let registry = Arc::new(registry);
        Self {
            controllers,
            requests,
            registry,
            objects,
            damaged,
            drift,
            repairs,
            corrections,
            left_behind,
            asked,
            mutex_wait,
            leader,
            used,
            corrected,
        }
    }

    /// Where to read the Semaphores from.
    pub fn read_semaphores(&self, all: Store<Semaphore>) {
        let _ = self.objects.semaphores.set(all);
    }

    /// Where to read the `PressureQueue`s from.
    pub fn read_queues(&self, all: Store<PressureQueue>) {
        let _ = self.objects.queues.set(all);
    }

    /// All of it, as Prometheus reads it.
    pub fn text(&self) -> Result<String, std::fmt::Error> {
        self.forget_who_is_gone();
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// Whether this process has the lease of this name.
    pub fn leader(&self, name: &str, is: bool) {
        self.leader.get_or_create(&[("name", name.to_owned())]).set(is.into());
    }

    /// Does something with a server, and notes how long that took.
    pub async fn timed<T>(&self, asked: Asked, work: impl Future<Output = T>) -> T {
        let Asked { r#type, operation } = asked;
        // Each operation is a step of its own to who reads traces.
        let span = debug_span!("backend", otel.name = operation, backend.r#type = r#type);
        let start = Instant::now();
        let result = work.instrument(span).await;
        self.asked.get_or_create(&asked).observe(start.elapsed().as_secs_f64());
        result
    }

    /// A change waited this long for the admin mutex.
    pub fn waited_for_mutex(&self, wait: Duration) {
        self.mutex_wait.observe(wait.as_secs_f64());
    }

    /// What somebody else had changed about the object was put right.
    pub fn corrected<K: Resource<DynamicType = ()>>(&self, object: &K) {
        let mut labels = OfObject {
            kind: K::kind(&()).into_owned(),
            namespace: String::new(),
            name: String::new(),
        };
        if self.objects.each {
            labels.namespace = object.namespace().unwrap_or_default();
            labels.name = object.name_any();
            locked(&self.corrected).insert(labels.clone());
        }
        self.corrections.get_or_create(&labels).inc();
    }

    /// The queue is damaged for these reasons, and for no other.
    pub fn damaged(&self, queue: &PressureQueue, reasons: &[&'static str]) {
        if !self.objects.each {
            return;
        }
        let of = of(queue);
        let known = locked(&self.used).get(&of).cloned().unwrap_or_default();
        for reason in known.iter().filter(|reason| !reasons.contains(reason)) {
            self.damaged.remove(&of.with(reason));
        }
        for reason in reasons {
            locked(&self.used).entry(of.clone()).or_default().insert(reason);
            self.damaged.get_or_create(&of.with(reason)).set(1);
        }
    }

    /// The queue's counters are off by so much.
    pub fn drifted(&self, queue: &PressureQueue, by: i64) {
        if self.objects.each {
            let of = of(queue);
            locked(&self.used).entry(of.clone()).or_default();
            self.drift.get_or_create(&of).set(by);
        }
    }

    /// What was damaged for this reason was mended.
    pub fn repaired(&self, queue: &PressureQueue, reason: &'static str) {
        if self.objects.each {
            let of = of(queue);
            locked(&self.used).entry(of.clone()).or_default().insert(reason);
            self.repairs.get_or_create(&of.with(reason)).inc();
        }
    }

    /// An object went before what it stands for did.
    pub fn left_behind(&self, kind: &str, namespace: &str) {
        let labels = OfKind { kind: kind.to_owned(), namespace: namespace.to_owned() };
        self.left_behind.get_or_create(&labels).inc();
    }

    /// What was told of an object goes with it, however it went.
    fn forget_who_is_gone(&self) {
        let gone = |q: &OfQueue| !self.objects.has("PressureQueue", &q.namespace, &q.name);
        for (queue, reasons) in locked(&self.used).extract_if(|queue, _| gone(queue)) {
            for reason in reasons {
                self.damaged.remove(&queue.with(reason));
                self.repairs.remove(&queue.with(reason));
            }
            self.drift.remove(&queue);
        }
        let gone = |o: &OfObject| !self.objects.has(&o.kind, &o.namespace, &o.name);
        for object in locked(&self.corrected).extract_if(gone) {
            self.corrections.remove(&object);
        }
    }
}

impl OfQueue {
    fn with(&self, reason: &'static str) -> OfDamage {
        OfDamage { namespace: self.namespace.clone(), name: self.name.clone(), reason }
    }
}

/// What was built: `LOCKKEEPER_COMMIT` is set by whoever builds from a checkout.
const BUILD: OfBuild = [
    ("version", env!("CARGO_PKG_VERSION")),
    (
        "commit",
        match option_env!("LOCKKEEPER_COMMIT") {
            Some(commit) => commit,
            None => "",
        },
    ),
    ("rustc", env!("LOCKKEEPER_RUSTC")),
];

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn of(queue: &PressureQueue) -> OfQueue {
    OfQueue { namespace: queue.namespace().unwrap_or_default(), name: queue.name_any() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::runtime::reflector;
    use kube::runtime::watcher::Event;

    fn queue(name: &str) -> PressureQueue {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "lockkeeper.dev/v1alpha1", "kind": "PressureQueue",
            "metadata": {"name": name, "namespace": "media"}, "spec": {},
        }))
        .unwrap()
    }

    #[test]
    fn damage_is_told_while_it_is_there_and_nothing_of_an_object_that_is_gone() {
        let metrics = Metrics::new(true);
        let (frames, other) = (queue("frames"), queue("other"));
        let (store, mut writer) = reflector::store();
        metrics.read_queues(store);
        for queue in [&frames, &other] {
            writer.apply_watcher_event(&Event::Apply(queue.clone()));
        }
        metrics.damaged(&frames, &["RoleStuck", "CounterDrift"]);
        metrics.damaged(&other, &["LostToken"]);
        metrics.drifted(&frames, -3);
        metrics.repaired(&frames, "RoleStuck");
        let text = metrics.text().unwrap();
        for line in [
            r#"lockkeeper_queue_damaged{namespace="media",name="frames",reason="RoleStuck"} 1"#,
            r#"lockkeeper_queue_damaged{namespace="media",name="frames",reason="CounterDrift"} 1"#,
            r#"lockkeeper_queue_damaged{namespace="media",name="other",reason="LostToken"} 1"#,
            r#"lockkeeper_queue_counter_drift{namespace="media",name="frames"} -3"#,
            r#"lockkeeper_queue_repairs_total{namespace="media",name="frames",reason="RoleStuck"} 1"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        metrics.damaged(&frames, &["CounterDrift"]);
        let text = metrics.text().unwrap();
        assert!(!text.contains(r#"damaged{namespace="media",name="frames",reason="RoleStuck"}"#));
        assert!(text.contains(r#"repairs_total{namespace="media",name="frames""#), "{text}");
        metrics.corrected(&frames);
        assert!(
            metrics.text().unwrap().contains(r#"_total{kind="PressureQueue",namespace="media""#)
        );
        writer.apply_watcher_event(&Event::Delete(frames));
        let text = metrics.text().unwrap();
        assert!(!text.contains("frames") && text.contains("other"), "{text}");
    }
}
