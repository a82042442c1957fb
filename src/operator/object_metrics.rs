//! What the metrics read of the watched objects of any kind. See the kinds for their own
//! metrics, and their reconciles for how the status is determined.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::reflector::{ObjectRef, Store};
use lockkeeper_api::conditions::{BACKEND_REACHABLE, find};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType::{self, Counter};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::kind::{Kind, ReportedStatus};
use super::metrics::objects::Watched;

impl<K: Kind> Watched for Store<K> {
    fn kind(&self) -> String {
        K::kind(&()).into_owned()
    }

    fn has(&self, namespace: &str, name: &str) -> bool {
        self.get(&ObjectRef::new(name).within(namespace)).is_some()
    }

    fn backends(&self, up: &mut BTreeMap<String, bool>) {
        for object in self.state() {
            let Some(status) = object.status() else { continue };
            let answered = find(status.conditions(), BACKEND_REACHABLE).map(|c| c.status.as_str());
            if let (Some(backend), Some(answered @ ("True" | "False"))) =
                (status.backend(), answered)
            {
                *up.entry(backend.to_owned()).or_default() |= answered == "True";
            }
        }
    }

    fn tell(&self, encoder: &mut DescriptorEncoder) -> Result<(), Error> {
        K::tell(encoder, &self.state())
    }

    fn tell_conditions(&self, metric: &mut MetricEncoder) -> Result<(), Error> {
        let kind = K::kind(&());
        for object in self.state() {
            let (namespace, name) = place(&*object);
            let none = Vec::new();
            let conditions: &Vec<Condition> = object.status().map_or(&none, |s| s.conditions());
            for condition in conditions {
                let labels = [
                    ("kind", &*kind),
                    ("namespace", namespace),
                    ("name", name),
                    ("condition", &condition.type_),
                    ("status", &condition.status),
                    ("reason", &condition.reason),
                ];
                ConstGauge::new(1u32).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// Name, help and value of a metric of objects with status `S`.
pub type Told<S> = (&'static str, &'static str, fn(&S) -> Option<i64>);

/// Writes one metric of all objects of a kind. Objects without a value are omitted.
pub fn tell<K: Kind>(
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

/// Returns the namespace and the name, for labels.
pub fn place<K: Kind>(object: &K) -> (&str, &str) {
    let meta = object.meta();
    (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use kube::runtime::reflector;
    use kube::runtime::watcher::Event;
    use lockkeeper_api::Semaphore;
    use serde_json::json;

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
        let (store, mut writer) = reflector::store::<Semaphore>();
        metrics.read(Box::new(store));
        let few = metrics.text().unwrap().lines().count();
        for number in 0..MANY {
            writer.apply_watcher_event(&Event::Apply(semaphore(&format!("deploy-{number}"))));
        }
        let text = metrics.text().unwrap();
        // One more series is the server's.
        assert_eq!(text.lines().count() - few, 11 * MANY + 1);
        assert!(text.len() < 6_000_000, "{} bytes", text.len());
        assert!(text.contains(r#"backend_up{backend="rabbit:5672/prod"} 1"#));
        let since = r#"oldest_hold_since_seconds{namespace="team-a",name="deploy-7"} 1767323045"#;
        assert!(text.contains(since), "a time in seconds since 1970");
    }
}
