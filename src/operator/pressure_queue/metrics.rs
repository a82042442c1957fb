//! Metrics of each `PressureQueue`. See `metrics::objects` for when they are read, and
//! `metrics::damage` for those of damage.

use std::fmt::Error;
use std::sync::Arc;

use lockkeeper_api::pressure_queue::RoleStatus;
use lockkeeper_api::{PressureQueue, PressureQueueStatus};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType::{Counter, Gauge};

use crate::operator::object_metrics::{Told, tell};

const GAUGES: [Told<PressureQueueStatus>; 6] = [
    ("queue_length", "Elements in the queue", |q| q.length),
    (
        "queue_in_flight",
        "Elements that consumers got with a lease and have not acknowledged",
        |q| q.in_flight,
    ),
    ("queue_bound", "Maximum number of elements; 0 means no bound", |q| q.bound),
    ("queue_producer_busy", "1 while a producer has the role", |q| busy(q.producer.as_ref())),
    ("queue_consumer_busy", "1 while a consumer has the role", |q| busy(q.consumer.as_ref())),
    ("queue_closed", "1 if the queue is closed for producers", |q| q.closed.map(i64::from)),
];

const COUNTERS: [Told<PressureQueueStatus>; 4] = [
    ("queue_produced_messages", "Elements ever put, as the clients count", |q| q.produced_messages),
    ("queue_produced_bytes", "Bytes ever put, as far as clients count them", |q| q.produced_bytes),
    ("queue_consumed_messages", "Elements ever taken", |q| q.consumed_messages),
    ("queue_consumed_bytes", "Bytes ever taken", |q| q.consumed_bytes),
];

fn busy(role: Option<&RoleStatus>) -> Option<i64> {
    role.map(|role| role.busy.into())
}

/// Writes the metrics of all `PressureQueue`s.
pub(super) fn tell_all(
    encoder: &mut DescriptorEncoder,
    all: &[Arc<PressureQueue>],
) -> Result<(), Error> {
    GAUGES.iter().try_for_each(|told| tell(encoder, all, Gauge, told))?;
    COUNTERS.iter().try_for_each(|told| tell(encoder, all, Counter, told))
}
