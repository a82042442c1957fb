//! What `/metrics` tells: of the queues, and of what was left behind. Labels are
//! namespaces, names and reasons, never a client's words: who holds a lock is endless.
//! What is damage is decided in [`plan`](crate::plan::pressure_queue::doctor).

use std::sync::{Arc, Mutex, PoisonError};

use kube::ResourceExt;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::api::PressureQueue;

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
struct OfKind {
    kind: String,
    namespace: String,
}

/// The counters and gauges. Cheap to clone; the clones share them.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    damaged: Family<OfDamage, Gauge>,
    drift: Family<OfQueue, Gauge>,
    repairs: Family<OfDamage, Counter>,
    left_behind: Family<OfKind, Counter>,
    /// Every label set in use, so that those of an object can go with it.
    used: Arc<Mutex<Vec<OfDamage>>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("lockkeeper");
        let (damaged, drift, repairs) = (Family::default(), Family::default(), Family::default());
        registry.register(
            "queue_damaged",
            "1 while something about the queue is broken; the reason is the condition's",
            Family::clone(&damaged),
        );
        registry.register(
            "queue_counter_drift",
            "Elements ever put, less those got, less those there, as last seen while nobody worked on the queue",
            Family::clone(&drift),
        );
        registry.register(
            "queue_repairs",
            "How often something about the queue was mended",
            Family::clone(&repairs),
        );
        let left_behind = Family::default();
        registry.register(
            "left_behind",
            "Objects that were let go although something of them may have stayed on its server",
            Family::clone(&left_behind),
        );
        let (registry, used) = (Arc::new(registry), Arc::default());
        Self { registry, damaged, drift, repairs, left_behind, used }
    }
}

impl Metrics {
    /// All of it, as Prometheus reads it.
    pub fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// The queue is damaged for these reasons, and for no other.
    pub fn damaged(&self, queue: &PressureQueue, reasons: &[&'static str]) {
        for labels in self.used_by(queue).iter().filter(|l| !reasons.contains(&l.reason)) {
            self.damaged.remove(labels);
        }
        for reason in reasons {
            self.damaged.get_or_create(&self.label(queue, reason)).set(1);
        }
    }

    /// The queue's counters are off by so much.
    pub fn drifted(&self, queue: &PressureQueue, by: i64) {
        self.drift.get_or_create(&of(queue)).set(by);
    }

    /// What was damaged for this reason was mended.
    pub fn repaired(&self, queue: &PressureQueue, reason: &'static str) {
        self.repairs.get_or_create(&self.label(queue, reason)).inc();
    }

    /// An object went before what it stands for did.
    pub fn left_behind(&self, kind: &str, namespace: &str) {
        let labels = OfKind { kind: kind.to_owned(), namespace: namespace.to_owned() };
        self.left_behind.get_or_create(&labels).inc();
    }

    /// The object is gone, and all that was told of it goes.
    pub fn forget(&self, queue: &PressureQueue) {
        for labels in self.used_by(queue) {
            self.damaged.remove(&labels);
            self.repairs.remove(&labels);
        }
        let gone = of(queue);
        self.drift.remove(&gone);
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.retain(|l| l.namespace != gone.namespace || l.name != gone.name);
    }

    fn label(&self, queue: &PressureQueue, reason: &'static str) -> OfDamage {
        let OfQueue { namespace, name } = of(queue);
        let labels = OfDamage { namespace, name, reason };
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if !used.contains(&labels) {
            used.push(labels.clone());
        }
        labels
    }

    fn used_by(&self, queue: &PressureQueue) -> Vec<OfDamage> {
        let of = of(queue);
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let its = used.iter().filter(|l| l.namespace == of.namespace && l.name == of.name);
        its.cloned().collect()
    }
}

fn of(queue: &PressureQueue) -> OfQueue {
    OfQueue { namespace: queue.namespace().unwrap_or_default(), name: queue.name_any() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str) -> PressureQueue {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "lockkeeper.dev/v1alpha1", "kind": "PressureQueue",
            "metadata": {"name": name, "namespace": "media"}, "spec": {},
        }))
        .unwrap()
    }

    #[test]
    fn damage_is_told_while_it_is_there_and_nothing_of_an_object_that_is_gone() {
        let metrics = Metrics::default();
        let (frames, other) = (queue("frames"), queue("other"));
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
        metrics.forget(&frames);
        let text = metrics.text().unwrap();
        assert!(!text.contains("frames") && text.contains("other"), "{text}");
    }
}
