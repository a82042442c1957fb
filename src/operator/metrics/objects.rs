//! Metrics of each object, read at each scrape from the watched objects. They are
//! available right after a restart or a change of the leader, and disappear with the
//! object. See `object_metrics` for what is read of each object.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::{Arc, PoisonError, RwLock};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType::Gauge;
use prometheus_client::metrics::gauge::ConstGauge;

/// All watched objects, of the kinds whose watch is established.
#[derive(Clone)]
pub struct Objects {
    kinds: Arc<RwLock<Vec<Box<dyn Watched>>>>,
    /// Whether to include metrics with one or more series for each object.
    each: bool,
}

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Objects").field("each", &self.each).finish_non_exhaustive()
    }
}

impl Objects {
    pub fn new(each: bool) -> Self {
        Self { kinds: Arc::default(), each }
    }

    pub fn each(&self) -> bool {
        self.each
    }

    /// Adds the objects of a kind.
    pub fn add(&self, all: Box<dyn Watched>) {
        self.kinds.write().unwrap_or_else(PoisonError::into_inner).push(all);
    }

    /// Returns whether this object exists. True if that is not yet known.
    pub fn has(&self, kind: &str, namespace: &str, name: &str) -> bool {
        let kinds = self.kinds.read().unwrap_or_else(PoisonError::into_inner);
        let mut of_kind = kinds.iter().filter(|watched| watched.kind() == kind);
        of_kind.all(|watched| watched.has(namespace, name))
    }
}

impl Collector for Objects {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let kinds = self.kinds.read().unwrap_or_else(PoisonError::into_inner);
        let mut up = BTreeMap::new();
        kinds.iter().for_each(|watched| watched.backends(&mut up));
        let help = "1 if the server answered any object's last observation, 0 if it answered none";
        let mut metric = encoder.encode_descriptor("backend_up", help, None, Gauge)?;
        for (backend, up) in up {
            let labels = [("backend", backend)];
            ConstGauge::new(u32::from(up)).encode(metric.encode_family(&labels)?)?;
        }
        if !self.each {
            return Ok(());
        }
        kinds.iter().try_for_each(|watched| watched.tell(&mut encoder))?;
        let help = "1 for the current status of the condition: True, False or Unknown";
        let mut metric = encoder.encode_descriptor("status_condition", help, None, Gauge)?;
        kinds.iter().try_for_each(|watched| watched.tell_conditions(&mut metric))
    }
}

/// The watched objects of any kind.
pub trait Watched: Send + Sync {
    fn kind(&self) -> String;
    fn has(&self, namespace: &str, name: &str) -> bool;
    /// Adds the servers. A server is up if the last observation of any of its objects
    /// succeeded, because failures of other objects can have causes of their own.
    fn backends(&self, up: &mut BTreeMap<String, bool>);
    fn tell(&self, encoder: &mut DescriptorEncoder) -> Result<(), Error>;
    fn tell_conditions(&self, metric: &mut MetricEncoder) -> Result<(), Error>;
}
