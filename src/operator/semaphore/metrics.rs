//! Metrics of each Semaphore. See `metrics::objects` for when they are read.

use std::fmt::Error;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use lockkeeper_api::conditions::{DRAINED, find};
use lockkeeper_api::{Semaphore, SemaphoreStatus};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType::Gauge;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::operator::object_metrics::{Told, place, tell};

const GAUGES: [Told<SemaphoreStatus>; 6] = [
    ("semaphore_held", "Held slots within the desired count", |s| s.held.map(Into::into)),
    ("semaphore_free", "Slots that are available", |s| s.free.map(Into::into)),
    ("semaphore_draining", "Holders above the desired count", |s| s.draining.map(Into::into)),
    ("semaphore_waiting", "Clients in the wait queue", |s| s.waiting.map(Into::into)),
    (
        "semaphore_draining_since_seconds",
        "Time since which there have been holders above the count, in seconds since 1970",
        |s| {
            let drained = find(&s.conditions, DRAINED).filter(|c| c.status == "False");
            drained.map(|c| c.last_transition_time.0.as_second())
        },
    ),
    (
        "semaphore_oldest_hold_since_seconds",
        "Earliest acquisition time reported by the listed holders, in seconds since 1970",
        |s| {
            let since = s.holders.iter().filter_map(|h| h.since.as_deref()?.parse().ok());
            since.min().map(Timestamp::as_second)
        },
    ),
];

/// Writes the metrics of all Semaphores.
pub(super) fn tell_all(
    encoder: &mut DescriptorEncoder,
    all: &[Arc<Semaphore>],
) -> Result<(), Error> {
    let help = "Desired slots, and present ones of them";
    tell_slots(&mut encoder.encode_descriptor("semaphore_slots", help, None, Gauge)?, all)?;
    GAUGES.iter().try_for_each(|told| tell(encoder, all, Gauge, told))
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
