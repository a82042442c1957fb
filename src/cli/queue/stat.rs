//! `lockkeeper queue stat`: prints the state of the queue from one atomic read of its
//! keys.

use lockkeeper_plan::pressure_queue::Role;
use serde::Serialize;

use super::common::{absent, failed};
use crate::cli::common::say;
use crate::cli::failure::Failure;
use crate::cli::output::{self, Format};
use crate::cli::target::QueueTarget;

/// Arguments of `lockkeeper queue stat`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: QueueTarget,

    /// Output format
    #[arg(long, short, value_enum, default_value_t, help_heading = None)]
    output: Format,
}

/// The output, with the field names of a resource's status.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'a> {
    name: &'a str,
    prefix: &'a str,
    length: u64,
    in_flight: u64,
    bound: u64,
    closed: bool,
    producer: ShownRole<'a>,
    consumer: ShownRole<'a>,
    produced_messages: u64,
    produced_bytes: u64,
    consumed_messages: u64,
    consumed_bytes: u64,
    drift: i64,
}

#[derive(Serialize)]
struct ShownRole<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    busy: bool,
}

impl<'a> From<&'a Role> for ShownRole<'a> {
    fn from(role: &'a Role) -> Self {
        Self { id: role.id.as_deref(), busy: role.busy }
    }
}

impl ShownRole<'_> {
    fn cell(&self) -> String {
        let who = output::or_dash(self.id);
        if self.busy { format!("{who} (busy)") } else { who }
    }
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let queue = arguments.which.find().await?;
    let seen = queue.stat().await.map_err(|error| failed(&queue, &error))?;
    for key in &seen.wrong_types {
        say(format!("the key {key} holds something that is not pressure's"));
    }
    let Some(bound) = seen.bound else { return Err(absent(&queue, &seen)) };
    let shown = Shown {
        name: queue.name().as_str(),
        prefix: queue.name().prefix(),
        length: seen.length,
        in_flight: seen.in_flight,
        bound,
        closed: seen.closed,
        producer: (&seen.producer).into(),
        consumer: (&seen.consumer).into(),
        produced_messages: seen.produced_messages,
        produced_bytes: seen.produced_bytes,
        consumed_messages: seen.consumed_messages,
        consumed_bytes: seen.consumed_bytes,
        drift: seen.drift(),
    };
    let columns = [
        ("NAME", false),
        ("LENGTH", false),
        ("BOUND", false),
        ("CLOSED", false),
        ("PRODUCED", false),
        ("CONSUMED", false),
        ("PRODUCER", false),
        ("CONSUMER", false),
        ("PRODUCED-BYTES", true),
        ("CONSUMED-BYTES", true),
        ("DRIFT", true),
        ("IN-FLIGHT", true),
        ("PREFIX", true),
    ];
    let row = vec![
        shown.name.to_owned(),
        shown.length.to_string(),
        shown.bound.to_string(),
        shown.closed.to_string(),
        shown.produced_messages.to_string(),
        shown.consumed_messages.to_string(),
        shown.producer.cell(),
        shown.consumer.cell(),
        shown.produced_bytes.to_string(),
        shown.consumed_bytes.to_string(),
        shown.drift.to_string(),
        shown.in_flight.to_string(),
        shown.prefix.to_owned(),
    ];
    output::print(arguments.output, &shown, &columns, &[row], "NAME")
}
