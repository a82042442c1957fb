//! What is told of each object, read at each scrape out of the objects themselves as
//! the API server knows them: right after a restart or a change of leader, and gone
//! with the object. How it came into their status is not here.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::{Arc, OnceLock};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::{ObjectRef, Store};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType::{self, Counter, Gauge};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::api::conditions::{BACKEND_REACHABLE, DRAINED, find};
use crate::api::pressure_queue::RoleStatus;
use crate::api::{PressureQueue, PressureQueueStatus, Semaphore, SemaphoreStatus};
use crate::operator::report::{Managed, ReportedStatus};

/// All objects that are watched, once they are.
#[derive(Clone, Default)]
pub struct Objects {
    pub(super) semaphores: Arc<OnceLock<Store<Semaphore>>>,
    pub(super) queues: Arc<OnceLock<Store<PressureQueue>>>,
    /// Also what would be a series or more for each object.
    pub(super) each: bool,
}

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Objects").field("each", &self.each).finish_non_exhaustive()
    }
}

impl Objects {
    /// Whether there is an object of this kind and name, as far as is known.
    pub(super) fn has(&self, kind: &str, namespace: &str, name: &str) -> bool {
        fn knows<K: Managed>(store: &OnceLock<Store<K>>, namespace: &str, name: &str) -> bool {
            let object = ObjectRef::new(name).within(namespace);
            store.get().is_none_or(|store| store.get(&object).is_some())
        }
        match kind {
            "Semaphore" => knows(&self.semaphores, namespace, name),
            _ => knows(&self.queues, namespace, name),
        }
    }
}

impl Collector for Objects {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let semaphores = self.semaphores.get().map(Store::state).unwrap_or_default();
        let queues = self.queues.get().map(Store::state).unwrap_or_default();
        tell_backends(&mut encoder, &semaphores, &queues)?;
        if !self.each {
            return Ok(());
        }
        tell_semaphores(&mut encoder, &semaphores)?;
        tell_queues(&mut encoder, &queues)?;
        let help = "1 for the status that the condition has: True, False or Unknown";
        let mut metric = encoder.encode_descriptor("status_condition", help, None, Gauge)?;
        tell_conditions(&mut metric, &semaphores)?;
        tell_conditions(&mut metric, &queues)
    }
}

/// A server is up if any object's last look at it was answered: that another was not
/// has reasons of its own.
fn tell_backends(
    encoder: &mut DescriptorEncoder,
    semaphores: &[Arc<Semaphore>],
    queues: &[Arc<PressureQueue>],
) -> Result<(), Error> {
    let mut up: BTreeMap<&str, bool> = BTreeMap::new();
    let of_semaphores = semaphores
        .iter()
        .filter_map(|s| s.status.as_ref())
        .map(|status| (status.backend.as_deref(), &status.conditions));
    let of_queues = queues
        .iter()
        .filter_map(|q| q.status.as_ref())
        .map(|status| (status.backend.as_deref(), &status.conditions));
    for (backend, conditions) in of_semaphores.chain(of_queues) {
        let status = find(conditions, BACKEND_REACHABLE).map(|c| c.status.as_str());
        if let (Some(backend), Some(status @ ("True" | "False"))) = (backend, status) {
            *up.entry(backend).or_default() |= status == "True";
        }
    }
    let help = "1 if the server answered at the last look, 0 if not";
    let mut metric = encoder.encode_descriptor("backend_up", help, None, Gauge)?;
    for (backend, up) in up {
        let labels = [("backend", backend)];
        ConstGauge::new(u32::from(up)).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Name, help and value of a metric of an object with a status `S`.
type Told<S> = (&'static str, &'static str, fn(&S) -> Option<i64>);

const SEMAPHORE: [Told<SemaphoreStatus>; 6] = [
    ("semaphore_held", "Slots within the wanted count that are held", |s| s.held.map(Into::into)),
    ("semaphore_free", "Slots that may be taken now", |s| s.free.map(Into::into)),
    ("semaphore_draining", "Holders above the wanted count", |s| s.draining.map(Into::into)),
    ("semaphore_waiting", "Clients in the lock's wait queue", |s| s.waiting.map(Into::into)),
    (
        "semaphore_draining_since_seconds",
        "Since when there are holders above the wanted count, in seconds since 1970",
        |s| {
            let drained = find(&s.conditions, DRAINED).filter(|c| c.status == "False");
            drained.map(|c| c.last_transition_time.0.as_second())
        },
    ),
    (
        "semaphore_oldest_hold_since_seconds",
        "Since when the one who holds a slot for longest says that it does, in seconds since 1970",
        |s| {
            let since = s.holders.iter().filter_map(|h| h.since.as_deref()?.parse().ok());
            since.min().map(Timestamp::as_second)
        },
    ),
];

const QUEUE: [Told<PressureQueueStatus>; 5] = [
    ("queue_length", "Elements in the queue", |q| q.length),
    ("queue_bound", "Elements it may hold; 0 means no bound", |q| q.bound),
    ("queue_producer_busy", "1 while a producer has the role", |q| busy(q.producer.as_ref())),
    ("queue_consumer_busy", "1 while a consumer has the role", |q| busy(q.consumer.as_ref())),
    ("queue_closed", "1 if nothing more can be put", |q| q.closed.map(i64::from)),
];

const QUEUE_COUNTERS: [Told<PressureQueueStatus>; 4] = [
    ("queue_produced_messages", "Elements ever put, as the clients count", |q| q.produced_messages),
    ("queue_produced_bytes", "Bytes ever put, as the clients count", |q| q.produced_bytes),
    ("queue_consumed_messages", "Elements ever taken, as the clients count", |q| {
        q.consumed_messages
    }),
    ("queue_consumed_bytes", "Bytes ever taken, as the clients count", |q| q.consumed_bytes),
];

fn busy(role: Option<&RoleStatus>) -> Option<i64> {
    role.map(|role| role.busy.into())
}

fn tell_semaphores(encoder: &mut DescriptorEncoder, all: &[Arc<Semaphore>]) -> Result<(), Error> {
    let help = "Slots that are wanted, and those of them that exist";
    tell_slots(&mut encoder.encode_descriptor("semaphore_slots", help, None, Gauge)?, all)?;
    SEMAPHORE.iter().try_for_each(|told| tell(encoder, all, Gauge, told))
}

fn tell_slots(metric: &mut MetricEncoder, all: &[Arc<Semaphore>]) -> Result<(), Error> {
    for semaphore in all {
        let (namespace, name) = place(&**semaphore);
        let present = semaphore.status.as_ref().and_then(|status| status.slots);
        for (state, value) in [("desired", Some(semaphore.spec.slots)), ("present", present)] {
            let Some(value) = value else { continue };
            let labels = [("namespace", namespace), ("name", name), ("state", state)];
            ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn tell_queues(encoder: &mut DescriptorEncoder, all: &[Arc<PressureQueue>]) -> Result<(), Error> {
    QUEUE.iter().try_for_each(|told| tell(encoder, all, Gauge, told))?;
    QUEUE_COUNTERS.iter().try_for_each(|told| tell(encoder, all, Counter, told))
}

/// One metric of all objects of a kind; who does not know it is left out.
fn tell<K: Managed>(
    encoder: &mut DescriptorEncoder,
    all: &[Arc<K>],
    kind: MetricType,
    (name, help, value): &Told<K::Status>,
) -> Result<(), Error> {
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    for object in all {
        let Some(value) = object.status().and_then(value) else { continue };
        let (namespace, name) = place(&**object);
        let labels = [("namespace", namespace), ("name", name)];
        let one = metric.encode_family(&labels)?;
        match (kind, u64::try_from(value)) {
            (Counter, Ok(value)) => ConstCounter::new(value).encode(one)?,
            _ => ConstGauge::new(value).encode(one)?,
        }
    }
    Ok(())
}

fn tell_conditions<K: Managed>(metric: &mut MetricEncoder, all: &[Arc<K>]) -> Result<(), Error> {
    let kind = K::kind(&());
    for object in all {
        let (namespace, name) = place(&**object);
        let none = Vec::new();
        let conditions: &Vec<Condition> = object.status().map_or(&none, |s| s.conditions());
        for condition in conditions {
            let labels = [
                ("kind", &*kind),
                ("namespace", namespace),
                ("name", name),
                ("condition", &condition.type_),
                ("status", &condition.status),
            ];
            ConstGauge::new(1u32).encode(metric.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn place<K: Managed>(object: &K) -> (&str, &str) {
    let meta = object.meta();
    (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use kube::runtime::reflector;
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::operator::metrics::Metrics;

    fn semaphore(name: &str) -> Semaphore {
        let condition = |type_: &str, status: &str| {
            json!({
                "type": type_, "status": status, "reason": "InSync", "message": "",
                "lastTransitionTime": "2026-01-02T03:04:05Z",
            })
        };
        serde_json::from_value(json!({
            "apiVersion": "lockkeeper.dev/v1alpha1", "kind": "Semaphore",
            "metadata": {"name": name, "namespace": "team-a"}, "spec": {"slots": 5},
            "status": {
                "backend": "rabbit:5672/prod", "slots": 5, "held": 1, "free": 4, "draining": 0,
                "waiting": 0, "holders": [{"id": "x", "since": "2026-01-02T03:04:05Z"}],
                "conditions": [
                    condition("Ready", "True"), condition("BackendReachable", "True"),
                    condition("Drained", "True"), condition("Saturated", "False"),
                ],
            },
        }))
        .unwrap()
    }

    #[test]
    fn five_thousand_semaphores_are_eleven_series_each_and_six_megabytes_of_text() {
        const MANY: usize = 5000;
        let metrics = Metrics::new(true);
        let few = metrics.text().unwrap().lines().count();
        let (store, mut writer) = reflector::store();
        metrics.read_semaphores(store);
        for number in 0..MANY {
            writer.apply_watcher_event(&Event::Apply(semaphore(&format!("deploy-{number}"))));
        }
        let text = metrics.text().unwrap();
        // One more tells of the server.
        assert_eq!(text.lines().count() - few, 11 * MANY + 1);
        assert!(text.len() < 6_000_000, "{} bytes", text.len());
        assert!(text.contains(r#"backend_up{backend="rabbit:5672/prod"} 1"#));
        let since = r#"oldest_hold_since_seconds{namespace="team-a",name="deploy-7"} 1767323045"#;
        assert!(text.contains(since), "a time in seconds since 1970");
    }
}
