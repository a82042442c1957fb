//! `lockkeeper semaphore verify`: verifies that the slots are intact.

use lockkeeper_semaphore::{Expected, Fault};
use tokio_util::sync::CancellationToken;

use super::target::{SemaphoreTarget, failed};
use crate::cli::common::say;
use crate::cli::failure::Failure;
use crate::cli::output;

/// Arguments of `lockkeeper semaphore verify`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: SemaphoreTarget,

    /// Expected number of slots [default: that of the resource, otherwise the highest
    /// slot]
    #[arg(long, value_name = "NUMBER", help_heading = None, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    slots: Option<u32>,
}

/// Exit code if a fault was found.
const WRONG: u8 = 1;

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let target = arguments.which.find().await?;
    let name = &target.found.name;
    let slots = arguments.slots.or(target.found.slots);
    let records = target.found.lock_delay.is_some();
    let expected = Expected { slots, records };
    let checked = target.broker.check(name, expected, &CancellationToken::new()).await;
    let faults = checked.map_err(|error| failed(&error))?;
    for fault in &faults {
        output::write(&format!("{fault}\n"))?;
    }
    if faults.is_empty() {
        say(format!("{name} is as it should be"));
        return Ok(());
    }
    let count = match faults.len() {
        1 => "1 fault".to_owned(),
        more => format!("{more} faults"),
    };
    let advice = match faults[..] {
        [Fault::Absent] => "check its name, or create it",
        [Fault::OtherProtocol { .. }] => "use the lock's own protocol",
        _ => "create, grow and shrink repair slots",
    };
    Err(Failure::new(WRONG, format!("{name} has {count}: {advice}")))
}
