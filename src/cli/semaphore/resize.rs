//! `lockkeeper semaphore create`, `grow` and `shrink`: change the number of slots.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::count;
use super::draining::Draining;
use super::target::{Form, SemaphoreTarget, failed};
use crate::cli::common::{duration, say};
use crate::cli::failure::Failure;
use crate::plan::naming::{LockName, Protocol, QueueType};
use crate::plan::semaphore::DesiredSlots;
use crate::semaphore::{ResizeError, ResizeTo};

/// Settings in the record of each slot.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Slot records")]
struct Records {
    /// Issue a token with every acquisition that is greater than all earlier tokens of
    /// that slot
    #[arg(long)]
    fencing: bool,

    /// Time that a slot stays unavailable after its holder ended without releasing it
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lock_delay: Option<Duration>,
}

impl Records {
    /// Returns the lock delay of the slots' records, or `None` for slots without records.
    fn desired(&self, name: &LockName) -> Result<Option<Duration>, Failure> {
        let delay = self.lock_delay.or(self.fencing.then_some(Duration::ZERO));
        let refused = match name.protocol() {
            // Quorum tokens are numbered without a record.
            Protocol::Token(QueueType::Quorum) if self.lock_delay.is_none() => return Ok(None),
            Protocol::Token(_) => {
                "with --protocol Token there is no --lock-delay, and --fencing only with --queue-type Quorum"
            }
            _ => {
                "--fencing and --lock-delay are not supported with this profile: its clients don't support the records that store them"
            }
        };
        if delay.is_some() && name.record_queue(1).is_none() {
            return Err(Failure::new(Failure::USAGE, refused));
        }
        Ok(delay)
    }
}

/// Arguments of `lockkeeper semaphore create`.
#[derive(Debug, clap::Args)]
pub struct CreateArguments {
    #[command(flatten)]
    which: SemaphoreTarget,

    #[command(flatten)]
    form: Form,

    /// Maximum number of clients that may hold it at the same time, 0 to 10000; 0 creates
    /// it closed
    #[arg(long, value_name = "NUMBER", help_heading = None, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    slots: u32,

    #[command(flatten)]
    records: Records,
}

/// Creates a semaphore.
pub(super) async fn create(arguments: CreateArguments) -> Result<(), Failure> {
    let (which, form) = (&arguments.which, &arguments.form);
    let to = ResizeTo::Create(arguments.slots);
    resize(which, form, to, &arguments.records, Draining::default()).await
}

/// Arguments of `lockkeeper semaphore grow`.
#[derive(Debug, clap::Args)]
pub struct GrowArguments {
    #[command(flatten)]
    which: SemaphoreTarget,

    /// Number of slots or tokens to add, 1 to 10000
    #[arg(value_name = "NUMBER", help_heading = None, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    by: u32,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    records: Records,
}

/// Adds slots or tokens.
pub(super) async fn grow(arguments: GrowArguments) -> Result<(), Failure> {
    let (which, form) = (&arguments.which, &arguments.form);
    let to = ResizeTo::Grow(arguments.by);
    resize(which, form, to, &arguments.records, Draining::default()).await
}

/// Arguments of `lockkeeper semaphore shrink`.
#[derive(Debug, clap::Args)]
pub struct ShrinkArguments {
    #[command(flatten)]
    which: SemaphoreTarget,

    /// Number of slots or tokens to remove, 1 to 10000. The highest slots are removed
    /// first; free tokens are removed before held ones, which are removed as they are
    /// released
    #[arg(value_name = "NUMBER", help_heading = None, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    by: u32,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    draining: Draining,
}

/// Removes slots or tokens.
pub(super) async fn shrink(arguments: ShrinkArguments) -> Result<(), Failure> {
    let (which, form) = (&arguments.which, &arguments.form);
    let to = ResizeTo::Shrink(arguments.by);
    resize(which, form, to, &Records::default(), arguments.draining).await
}

/// Changes the number of slots, reports the change, and prints the resulting counts.
async fn resize(
    which: &SemaphoreTarget,
    form: &Form,
    to: ResizeTo,
    records: &Records,
    draining: Draining,
) -> Result<(), Failure> {
    let target = which.find_to_change().await?;
    let name = &target.found.name;
    let desired = DesiredSlots { records: records.desired(name)?, ..DesiredSlots::new(0) };
    let resized =
        target.broker.resize(name, to, desired, &CancellationToken::new()).await.map_err(
            |error| match error {
                ResizeError::Broker(error) => failed(&error),
                error => Failure::new(Failure::USAGE, error.to_string()),
            },
        )?;
    let units = target.found.units();
    say(format!("{name} has {} {units}, before {}", resized.after, resized.before));
    let seen = draining.tokens(&target, resized.after, &resized.done).await?;
    count::print(form, &target, &seen).await
}
