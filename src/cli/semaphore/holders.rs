//! `lockkeeper semaphore holders`: lists the holders of slots or tokens.

use std::time::{Duration, Instant};

use lockkeeper_api::semaphore::HolderStatus;
use lockkeeper_plan::semaphore::{Holder, Observed};
use serde::Serialize;

use super::target::{Form, LockOnBroker, SemaphoreTarget};
use crate::cli::common::say;
use crate::cli::failure::Failure;
use crate::cli::output::{self, Format, or_dash};

/// Time that the management API may take to be complete. It reports a connection only
/// after some seconds.
const PATIENCE: Duration = Duration::from_secs(2);

/// Polling interval until then.
const PAUSE: Duration = Duration::from_millis(200);

/// Arguments of `lockkeeper semaphore holders`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: SemaphoreTarget,

    #[command(flatten)]
    form: Form,
}

/// A holder in the output.
#[derive(Serialize)]
pub(in crate::cli) struct Shown<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    identity: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<&'a str>,
    draining: bool,
}

impl<'a> From<&'a Holder> for Shown<'a> {
    fn from(holder: &'a Holder) -> Self {
        Self {
            id: &holder.id,
            slot: holder.slot,
            identity: holder.identity.as_deref(),
            reason: holder.reason.as_deref(),
            url: holder.url.as_deref(),
            since: holder.since.as_deref(),
            connection: holder.connection.as_deref(),
            draining: holder.draining,
        }
    }
}

impl<'a> From<&'a HolderStatus> for Shown<'a> {
    fn from(holder: &'a HolderStatus) -> Self {
        Self {
            id: &holder.id,
            slot: holder.slot.and_then(|slot| u32::try_from(slot).ok()),
            identity: holder.identity.as_deref(),
            reason: holder.reason.as_deref(),
            url: holder.url.as_deref(),
            since: holder.since.as_deref(),
            connection: holder.connection.as_deref(),
            draining: holder.draining,
        }
    }
}

impl Shown<'_> {
    fn row(&self) -> Vec<String> {
        let draining = if self.draining { "yes" } else { "-" };
        vec![
            or_dash(self.slot),
            or_dash(self.identity),
            or_dash(self.since),
            or_dash(self.reason),
            draining.to_owned(),
            or_dash(self.url),
            self.id.to_owned(),
            or_dash(self.connection),
        ]
    }
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let target = arguments.which.find().await?;
    target.must_exist().await?;
    show(arguments.form.output, &live(&target).await?)
}

/// Observes the holders on the broker.
pub(in crate::cli) async fn live(target: &LockOnBroker) -> Result<Vec<Holder>, Failure> {
    live_of(target, &target.look().await?).await
}

/// Returns the holders of the observed slots.
pub(in crate::cli) async fn live_of(
    target: &LockOnBroker,
    seen: &Observed,
) -> Result<Vec<Holder>, Failure> {
    let slots = seen.total();
    let name = &target.found.name;
    let started = Instant::now();
    let holders = loop {
        let holders = target.broker.holders(name, seen, slots, usize::MAX).await;
        if !holders.incomplete || started.elapsed() > PATIENCE {
            break holders;
        }
        tokio::time::sleep(PAUSE).await;
    };
    if let Some(error) = &holders.management_error {
        say(format!("who the holders are is not known: {error}"));
    } else if !target.broker.has_management() && !holders.list.is_empty() {
        say(
            "the identities of holders are only available from the management API: give --management-url",
        );
    }
    Ok(holders.list)
}

/// Prints holders from any source.
pub(in crate::cli) fn show<'a, H>(format: Format, holders: &'a [H]) -> Result<(), Failure>
where
    Shown<'a>: From<&'a H>,
{
    let shown: Vec<Shown> = holders.iter().map(Shown::from).collect();
    let rows: Vec<Vec<String>> = shown.iter().map(Shown::row).collect();
    let columns = [
        ("SLOT", false),
        ("IDENTITY", false),
        ("SINCE", false),
        ("REASON", false),
        ("DRAINING", true),
        ("URL", true),
        ("ID", true),
        ("CONNECTION", true),
    ];
    output::print(format, &shown, &columns, &rows, "ID")
}
