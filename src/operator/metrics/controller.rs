//! Metrics of reconciles, with the names and labels of controller-runtime, so that
//! dashboards for its operators work. See `runner` for the reconciles that wait.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::Error;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube::Resource;
use lockkeeper_plan::ErrorClass;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tracing::Span;

use crate::operator::error::ReconcileError;

type OfController = [(&'static str, String); 1];
type OfResult = [(&'static str, String); 2];
/// Labels of the work queue metrics: the controller's name under two keys, as in
/// controller-runtime.
type OfWork = [(&'static str, String); 2];

/// The buckets of controller-runtime's reconcile times, in seconds.
const RECONCILE_BUCKETS: [f64; 36] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9,
    1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 30.0,
    60.0,
];

/// The buckets of controller-runtime's work durations, in seconds.
const WORK_BUCKETS: [f64; 12] =
    [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0];

tokio::task_local! {
    /// The failure that the running reconcile has reported in a condition.
    static FAILED: Cell<Option<ErrorClass>>;
}

/// Records that the running reconcile failed and reported it in the object's status.
pub fn failed(class: ErrorClass) {
    // Fails only outside of a reconcile, where no failure is counted.
    let _ = FAILED.try_with(|failed| failed.set(Some(class)));
}

/// Metrics of reconciles.
#[derive(Clone)]
pub struct Controllers {
    total: Family<OfResult, Counter>,
    errors: Family<OfController, Counter>,
    terminal: Family<OfController, Counter>,
    retries: Family<OfWork, Counter>,
    active: Family<OfController, Gauge>,
    depth: Family<OfWork, Gauge>,
    time: Family<OfController, Histogram>,
    work: Family<OfWork, Histogram>,
    running: Running,
}

impl Controllers {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let it = Self {
            total: Family::default(),
            errors: Family::default(),
            terminal: Family::default(),
            retries: Family::default(),
            active: Family::default(),
            depth: Family::default(),
            time: Family::new_with_constructor(|| Histogram::new(RECONCILE_BUCKETS)),
            work: Family::new_with_constructor(|| Histogram::new(WORK_BUCKETS)),
            running: Running::default(),
        };
        let runtime = registry.sub_registry_with_prefix("controller_runtime");
        runtime.register("reconcile", "Reconciles by result", it.total.clone());
        runtime.register("reconcile_errors", "Reconciles that ended with error", it.errors.clone());
        runtime.register(
            "terminal_reconcile_errors",
            "Errors that only a change of the object, its Secret or the server can fix",
            it.terminal.clone(),
        );
        runtime.register("active_workers", "Running reconciles", it.active.clone());
        runtime.register("reconcile_time_seconds", "Duration of a reconcile", it.time.clone());
        let queue = registry.sub_registry_with_prefix("workqueue");
        queue.register("depth", "Objects that wait for their reconcile", it.depth.clone());
        queue.register("retries", "Objects requeued after a failure", it.retries.clone());
        queue.register("work_duration_seconds", "Duration of a reconcile", it.work.clone());
        queue.register_collector(Box::new(it.running.clone()));
        it
    }

    /// Initializes the counters of `K` with 0, so that their first increment is visible.
    pub fn begin<K: Resource<DynamicType = ()>>(&self) {
        let name = K::kind(&()).to_lowercase();
        let controller: OfController = [("controller", name.clone())];
        drop(self.errors.get_or_create(&controller));
        drop(self.terminal.get_or_create(&controller));
        drop(self.active.get_or_create(&controller));
        let queue: OfWork = [("controller", name.clone()), ("name", name.clone())];
        drop(self.depth.get_or_create(&queue));
        drop(self.retries.get_or_create(&queue));
        for result in ["success", "error", "requeue", "requeue_after"] {
            let labels = [("controller", name.clone()), ("result", result.to_owned())];
            drop(self.total.get_or_create(&labels));
        }
    }

    /// Records how many objects of kind `K` wait for their reconcile.
    pub fn waiting<K: Resource<DynamicType = ()>>(&self, count: usize) {
        let name = K::kind(&()).to_lowercase();
        let queue: OfWork = [("controller", name.clone()), ("name", name)];
        self.depth.get_or_create(&queue).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Runs and counts one reconcile of a `K`.
    pub async fn counted<K: Resource<DynamicType = ()>>(
        &self,
        reconcile: impl Future<Output = Result<Option<Duration>, ReconcileError>>,
    ) -> Result<Option<Duration>, ReconcileError> {
        let name = K::kind(&()).to_lowercase();
        let controller: OfController = [("controller", name.clone())];
        let queue: OfWork = [("controller", name.clone()), ("name", name.clone())];
        let at_work = AtWork::begin(self, name, controller.clone());
        let (result, failed) = FAILED
            .scope(Cell::new(None), async {
                let result = reconcile.await;
                (result, FAILED.with(Cell::get))
            })
            .await;
        let took = at_work.since.elapsed().as_secs_f64();
        let class = match &result {
            // Another writer was faster. This is not a failure, and the object is
            // requeued soon.
            Err(ReconcileError::Outdated) => None,
            Err(_) => Some(ErrorClass::Transient),
            Ok(_) => failed,
        };
        let ended = match (&result, class) {
            (_, Some(_)) => "error",
            (Err(_), None) => "requeue",
            (Ok(None), None) => "success",
            (Ok(Some(_)), None) => "requeue_after",
        };
        if let Some(class) = class {
            Span::current().record("otel.status_code", "ERROR");
            self.errors.get_or_create(&controller).inc();
            if class == ErrorClass::Invalid {
                self.terminal.get_or_create(&controller).inc();
            } else {
                self.retries.get_or_create(&queue).inc();
            }
        }
        self.time.get_or_create(&controller).observe(took);
        self.work.get_or_create(&queue).observe(took);
        let [controller] = controller;
        self.total.get_or_create(&[controller, ("result", ended.to_owned())]).inc();
        result
    }
}

/// A running reconcile. Its drop also records reconciles that are cancelled.
struct AtWork<'a> {
    controllers: &'a Controllers,
    name: String,
    controller: OfController,
    number: u64,
    since: Instant,
}

impl<'a> AtWork<'a> {
    fn begin(controllers: &'a Controllers, name: String, controller: OfController) -> Self {
        let since = Instant::now();
        let number = controllers.running.begin(&name, since);
        controllers.active.get_or_create(&controller).inc();
        Self { controllers, name, controller, number, since }
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.controllers.active.get_or_create(&self.controller).dec();
        self.controllers.running.end(&self.name, self.number);
    }
}

/// Start times of the running reconciles, by controller.
#[derive(Clone, Debug, Default)]
struct Running(Arc<Mutex<HashMap<String, Begun>>>);

#[derive(Debug, Default)]
struct Begun {
    next: u64,
    at: HashMap<u64, Instant>,
}

impl Running {
    fn begin(&self, name: &str, since: Instant) -> u64 {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = all.entry(name.to_owned()).or_default();
        begun.next += 1;
        begun.at.insert(begun.next, since);
        begun.next
    }

    fn end(&self, name: &str, number: u64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(begun) = all.get_mut(name) {
            begun.at.remove(&number);
        }
    }
}

impl Collector for Running {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let all: Vec<(String, f64, f64)> = {
            let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let of = |(name, begun): (&String, &Begun)| {
                let ages = || begun.at.values().map(|at| at.elapsed().as_secs_f64());
                (name.clone(), ages().sum(), ages().fold(0.0, f64::max))
            };
            all.iter().map(of).collect()
        };
        let mut tell = |metric: &str, help: &str, value: fn(&(String, f64, f64)) -> f64| {
            let mut metric = encoder.encode_descriptor(metric, help, None, MetricType::Gauge)?;
            for one in &all {
                let labels = [("controller", one.0.as_str()), ("name", one.0.as_str())];
                ConstGauge::new(value(one)).encode(metric.encode_family(&labels)?)?;
            }
            Ok(())
        };
        tell(
            "unfinished_work_seconds",
            "Total duration of the running reconciles so far",
            |one| one.1,
        )?;
        tell(
            "longest_running_processor_seconds",
            "Duration of the longest running reconcile",
            |one| one.2,
        )
    }
}
