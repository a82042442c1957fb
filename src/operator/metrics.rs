//! Metrics of `/metrics`. This file has the metrics of objects and their servers that are
//! counted as events occur. See the submodules for metrics that are read at a scrape, and
//! for those of reconciles and requests. Labels are namespaces, names and reasons, never
//! values chosen by clients, which are unbounded.

pub mod controller;
mod damage;
pub mod objects;
mod process;
pub mod requests;

use std::collections::HashSet;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kube::{Resource, ResourceExt};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};
use tracing::{Instrument, debug_span};

use self::controller::Controllers;
use self::damage::{Damage, locked};
use self::objects::{Objects, Watched};
use self::process::Process;
use self::requests::Requests;

/// Content type of [`Metrics::text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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

/// An operation on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Asked {
    /// `rabbitmq` or `redis`.
    r#type: &'static str,
    /// The operation, an observation or a change.
    operation: &'static str,
}

impl Asked {
    /// Returns an operation on a broker.
    pub const fn rabbitmq(operation: &'static str) -> Self {
        Self { r#type: "rabbitmq", operation }
    }

    /// Returns an operation on a store.
    pub const fn redis(operation: &'static str) -> Self {
        Self { r#type: "redis", operation }
    }
}

/// Buckets of the durations of requests to servers and of waiting, in seconds.
const BUCKETS: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// Counters and gauges. Cheap to clone; clones share their values.
#[derive(Clone)]
pub struct Metrics {
    /// Counts reconciles.
    pub controllers: Controllers,
    /// Counts requests to the API server.
    pub requests: Requests,
    /// Counts damage and repairs.
    pub damage: Damage,
    registry: Arc<Registry>,
    objects: Objects,
    corrections: Family<OfObject, Counter>,
    left_behind: Family<OfKind, Counter>,
    unreadable: Family<OfKind, Gauge>,
    watch_failures: Family<OfKind, Counter>,
    asked: Family<Asked, Histogram>,
    mutex_wait: Histogram,
    leader: Family<OfLease, Gauge>,
    /// The label sets in use, so that they can be removed together with the object.
    corrected: Arc<Mutex<HashSet<OfObject>>>,
}

impl Metrics {
    /// Creates the metrics, with series for each object if `per_object`.
    #[must_use]
    pub fn new(per_object: bool) -> Self {
        let mut registry = Registry::default();
        let controllers = Controllers::new(&mut registry);
        let requests = Requests::new(&mut registry);
        registry.register_collector(Box::new(Process::starting()));
        let objects = Objects::new(per_object);
        let leader = registered(
            &mut registry,
            "leader_election_master_status",
            "1 if this replica is the leader, 0 if it is on standby",
        );
        let ours = registry.sub_registry_with_prefix("lockkeeper");
        ours.register_collector(Box::new(objects.clone()));
        let build: Family<OfBuild, Gauge> =
            registered(ours, "build_info", "1; the labels identify the build");
        build.get_or_create(&BUILD).set(1);
        let asked = Family::<Asked, Histogram>::new_with_constructor(|| Histogram::new(BUCKETS));
        let mutex_wait = Histogram::new(BUCKETS);
        let metrics = Self {
            controllers,
            requests,
            damage: Damage::new(ours, per_object),
            corrections: registered(
                ours,
                "drift_corrections",
                "Number of repairs of out-of-band changes on the server",
            ),
            left_behind: registered(
                ours,
                "left_behind",
                "Objects whose finalizer was removed although something of them may remain on their server",
            ),
            unreadable: registered(
                ours,
                "unreadable_objects",
                "Objects that this version of the operator cannot read, and leaves alone",
            ),
            watch_failures: registered(
                ours,
                "watch_failures",
                "Number of failures to list or watch the objects of a namespace",
            ),
            registry: Arc::default(),
            objects,
            asked: asked.clone(),
            mutex_wait: mutex_wait.clone(),
            leader,
            corrected: Arc::default(),
        };
        ours.register(
            "backend_request_duration_seconds",
            "Duration of an observation of a server or a change on it, including failed ones",
            asked,
        );
        ours.register(
            "admin_mutex_wait_seconds",
            "Time that a change to a semaphore waited for the concurrency limit and for the admin mutex",
            mutex_wait,
        );
        Self { registry: Arc::new(registry), ..metrics }
    }

    /// Adds the metrics of the objects of a kind.
    pub fn read(&self, all: Box<dyn Watched>) {
        self.objects.add(all);
    }

    /// Returns all metrics in the format of Prometheus.
    pub fn text(&self) -> Result<String, std::fmt::Error> {
        self.forget_who_is_gone();
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// Records whether this process holds the Lease of this name.
    pub fn leader(&self, name: &str, is: bool) {
        self.leader.get_or_create(&[("name", name.to_owned())]).set(is.into());
    }

    /// Runs an operation on a server, and records its duration.
    pub async fn timed<T>(&self, asked: Asked, work: impl Future<Output = T>) -> T {
        let Asked { r#type, operation } = asked;
        // In traces, each operation is a span.
        let span = debug_span!("backend", otel.name = operation, backend.r#type = r#type);
        let start = Instant::now();
        let result = work.instrument(span).await;
        self.asked.get_or_create(&asked).observe(start.elapsed().as_secs_f64());
        result
    }

    /// Records the time that a change waited for the admin mutex.
    pub fn waited_for_mutex(&self, wait: Duration) {
        self.mutex_wait.observe(wait.as_secs_f64());
    }

    /// Records that drift of the object was repaired.
    pub fn corrected<K: Resource<DynamicType = ()>>(&self, object: &K) {
        let mut labels = OfObject {
            kind: K::kind(&()).into_owned(),
            namespace: String::new(),
            name: String::new(),
        };
        if self.objects.each() {
            labels.namespace = object.namespace().unwrap_or_default();
            labels.name = object.name_any();
            locked(&self.corrected).insert(labels.clone());
        }
        self.corrections.get_or_create(&labels).inc();
    }

    /// Sets the number of unreadable objects of a kind in a namespace.
    pub fn unreadable(&self, kind: &str, namespace: &str, count: usize) {
        let labels = OfKind { kind: kind.to_owned(), namespace: namespace.to_owned() };
        if count == 0 {
            self.unreadable.remove(&labels);
        } else {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.unreadable.get_or_create(&labels).set(count);
        }
    }

    /// Records that a kind could not be listed or watched in a namespace, or in all
    /// (empty).
    pub fn watch_failed(&self, kind: &str, namespace: &str) {
        let labels = OfKind { kind: kind.to_owned(), namespace: namespace.to_owned() };
        self.watch_failures.get_or_create(&labels).inc();
    }

    /// Records that an object was removed before its lock or queue.
    pub fn left_behind(&self, kind: &str, namespace: &str) {
        let labels = OfKind { kind: kind.to_owned(), namespace: namespace.to_owned() };
        self.left_behind.get_or_create(&labels).inc();
    }

    /// Removes the metrics of objects that no longer exist, for whatever reason.
    fn forget_who_is_gone(&self) {
        self.damage.forget_missing(|kind, namespace, name| self.objects.has(kind, namespace, name));
        let gone = |o: &OfObject| !self.objects.has(&o.kind, &o.namespace, &o.name);
        for object in locked(&self.corrected).extract_if(gone) {
            self.corrections.remove(&object);
        }
    }
}

/// Build information. `LOCKKEEPER_COMMIT` must be set at build time, from the checkout.
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

/// Registers metrics, and returns them.
fn registered<T: Default + Clone + Metric>(registry: &mut Registry, name: &str, help: &str) -> T {
    let metrics = T::default();
    registry.register(name, help, metrics.clone());
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::runtime::reflector;
    use kube::runtime::watcher::Event;
    use lockkeeper_api::PressureQueue;

    fn queue(name: &str) -> PressureQueue {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "lockkeeper.dev/v1alpha1", "kind": "PressureQueue",
            "metadata": {"name": name, "namespace": "media"}, "spec": {},
        }))
        .unwrap()
    }

    #[test]
    fn damage_is_exported_while_it_lasts_and_removed_with_its_object() {
        let metrics = Metrics::new(true);
        let (frames, other) = (queue("frames"), queue("other"));
        let (store, mut writer) = reflector::store::<PressureQueue>();
        metrics.read(Box::new(store));
        for queue in [&frames, &other] {
            writer.apply_watcher_event(&Event::Apply(queue.clone()));
        }
        metrics.damage.found(&frames, &["RoleStuck", "CounterDrift"]);
        metrics.damage.found(&other, &["LostToken"]);
        metrics.damage.drifted(&frames, -3);
        metrics.damage.repaired(&frames, "RoleStuck");
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
        metrics.damage.found(&frames, &["CounterDrift"]);
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
