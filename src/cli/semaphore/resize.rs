//! `lockkeeper semaphore create`, `set`, `grow` and `shrink`: change the number of slots.

use std::time::Duration;

use lockkeeper_plan::naming::{LockName, Protocol, QueueType};
use lockkeeper_plan::semaphore::{DEFAULT_OVERSHOOT, DeletionOrder, DesiredSlots};
use lockkeeper_semaphore::{ResizeError, ResizeTo};
use tokio_util::sync::CancellationToken;

use super::count;
use super::draining::Draining;
use super::target::{Form, SemaphoreTarget, failed, missing};
use crate::cli::common::{duration, say};
use crate::cli::failure::Failure;

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

/// The semaphore to resize, and how its slots are removed.
#[derive(Debug, clap::Args)]
struct Change {
    #[command(flatten)]
    which: SemaphoreTarget,

    #[command(flatten)]
    form: Form,

    /// Number of slot numbers above the highest known slot that are checked for stray
    /// slots, 0 to 1000; stray slots are removed [default: 16]
    #[arg(long, value_name = "NUMBER", help_heading = None, value_parser = clap::value_parser!(u32).range(0..=1000))]
    overshoot: Option<u32>,

    /// Order in which surplus slots are removed [default: Descending]
    #[arg(long, value_enum, help_heading = None)]
    order: Option<Order>,
}

/// [`DeletionOrder`] as an argument, spelled as in resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
enum Order {
    /// The highest slot first
    Descending,
    /// The lowest slot first, for clients that search from slot 1 and stop at the first
    /// missing one
    Ascending,
}

impl Change {
    /// Returns the desired state for [`ResizeTo`], which has the number of slots.
    fn desired(&self, name: &LockName, records: &Records) -> Result<DesiredSlots, Failure> {
        let usage = |message| Err(Failure::new(Failure::USAGE, message));
        if !name.has_slots() && (self.overshoot.is_some() || self.order.is_some()) {
            return usage("tokens have no numbers: leave --overshoot and --order out");
        }
        let order = match self.order {
            None | Some(Order::Descending) => DeletionOrder::Descending,
            Some(Order::Ascending) => DeletionOrder::Ascending,
        };
        let overshoot = self.overshoot.unwrap_or(DEFAULT_OVERSHOOT);
        if order == DeletionOrder::Ascending && overshoot == 0 {
            return usage(
                "--order Ascending needs --overshoot of at least 1: a change cut short leaves slots above a hole, which only a check beyond it finds",
            );
        }
        Ok(DesiredSlots { slots: 0, overshoot, order, records: records.desired(name)? })
    }

    /// Changes the number of slots, reports the change, and prints the resulting counts.
    async fn make(
        &self,
        to: ResizeTo,
        records: &Records,
        draining: Draining,
    ) -> Result<(), Failure> {
        let target = self.which.find_to_change("kubectl scale --replicas=NUMBER").await?;
        let name = &target.found.name;
        let desired = self.desired(name, records)?;
        let resized = target.broker.resize(name, to, desired, &CancellationToken::new()).await;
        let resized = resized.map_err(|error| match error {
            ResizeError::Broker(error) => failed(&error),
            ResizeError::Missing { .. } => missing(name.as_str()),
            error => Failure::new(Failure::USAGE, error.to_string()),
        })?;
        let after = name.unit().count(resized.after);
        say(format!("{name} has {after}, before {}", resized.before));
        let seen = draining.wait(&target, desired, &resized).await?;
        count::print(&self.form, &target, &seen).await
    }
}

/// Arguments of `lockkeeper semaphore create`.
#[derive(Debug, clap::Args)]
pub struct CreateArguments {
    #[command(flatten)]
    change: Change,

    /// Maximum number of clients that may hold it at the same time, 0 to 10000; 0 creates
    /// it closed
    #[arg(long, value_name = "NUMBER", help_heading = None, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    slots: u32,

    #[command(flatten)]
    records: Records,
}

/// Creates a semaphore.
pub(super) async fn create(arguments: CreateArguments) -> Result<(), Failure> {
    let CreateArguments { change, slots, records } = arguments;
    change.make(ResizeTo::Create(slots), &records, Draining::default()).await
}

/// Arguments of `lockkeeper semaphore set`.
#[derive(Debug, clap::Args)]
pub struct SetArguments {
    #[command(flatten)]
    change: Change,

    /// Number of slots or tokens, 0 to 10000
    #[arg(value_name = "NUMBER", help_heading = None, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    slots: u32,

    #[command(flatten)]
    records: Records,

    #[command(flatten)]
    draining: Draining,
}

/// Creates, grows or shrinks a semaphore to a number of slots. May be repeated.
pub(super) async fn set(arguments: SetArguments) -> Result<(), Failure> {
    let SetArguments { change, slots, records, draining } = arguments;
    change.make(ResizeTo::Exactly(slots), &records, draining).await
}

/// Arguments of `lockkeeper semaphore grow`.
#[derive(Debug, clap::Args)]
pub struct GrowArguments {
    #[command(flatten)]
    change: Change,

    /// Number of slots or tokens to add, 1 to 10000
    #[arg(value_name = "NUMBER", help_heading = None, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    by: u32,

    #[command(flatten)]
    records: Records,
}

/// Adds slots or tokens.
pub(super) async fn grow(arguments: GrowArguments) -> Result<(), Failure> {
    let GrowArguments { change, by, records } = arguments;
    change.make(ResizeTo::Grow(by), &records, Draining::default()).await
}

/// Arguments of `lockkeeper semaphore shrink`.
#[derive(Debug, clap::Args)]
pub struct ShrinkArguments {
    #[command(flatten)]
    change: Change,

    /// Number of slots or tokens to remove, 1 to 10000. The highest slots are removed
    /// first; free tokens are removed before held ones, which are removed as they are
    /// released
    #[arg(value_name = "NUMBER", help_heading = None, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    by: u32,

    #[command(flatten)]
    draining: Draining,
}

/// Removes slots or tokens.
pub(super) async fn shrink(arguments: ShrinkArguments) -> Result<(), Failure> {
    let ShrinkArguments { change, by, draining } = arguments;
    change.make(ResizeTo::Shrink(by), &Records::default(), draining).await
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        set: SetArguments,
    }

    fn desired(arguments: &[&str], name: &LockName) -> Result<DesiredSlots, Failure> {
        let words = [&["set", "ci.deploy", "5"], arguments].concat();
        let SetArguments { change, records, .. } = Command::try_parse_from(words).unwrap().set;
        change.desired(name, &records)
    }

    #[test]
    fn the_order_and_the_overshoot_reach_the_change_and_need_numbered_slots() {
        let slots = LockName::new("ci.deploy").unwrap();
        assert_eq!(desired(&[], &slots).unwrap(), DesiredSlots::new(0));
        let given = desired(&["--overshoot", "3", "--order", "Ascending"], &slots).unwrap();
        assert_eq!((given.overshoot, given.order), (3, DeletionOrder::Ascending));
        let none = ["--overshoot", "0", "--order", "Ascending"];
        assert!(desired(&none, &slots).is_err(), "a change cut short could not be completed");
        let tokens = slots.with_protocol(Protocol::Token(QueueType::Classic));
        for given in [&["--overshoot", "16"][..], &["--order", "Descending"]] {
            assert!(desired(given, &tokens).is_err(), "{given:?}");
        }
        assert!(desired(&[], &tokens).is_ok());
    }
}
