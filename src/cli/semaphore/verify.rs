//! `lockkeeper semaphore verify`: whether the slots are as they should be.

use super::{Failure, Which, failed};
use tokio_util::sync::CancellationToken;

/// Arguments of `lockkeeper semaphore verify`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: Which,

    /// How many slots there should be [default: the resource's, else as many as the highest says]
    #[arg(long, value_name = "NUMBER", help_heading = None, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    slots: Option<u32>,
}

/// Something is wrong with it.
const WRONG: u8 = 1;

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let target = arguments.which.find().await?;
    let name = &target.found.name;
    let wanted = arguments.slots.or(target.found.slots);
    let checked = target.broker.check(name, wanted, &CancellationToken::new()).await;
    let faults = checked.map_err(|error| failed(&error))?;
    for fault in &faults {
        println!("{fault}");
    }
    if faults.is_empty() {
        super::say(format!("{name} is as it should be"));
        return Ok(());
    }
    let message = format!("{name} has {} faults: grow, shrink and create mend slots", faults.len());
    Err(Failure::new(WRONG, message))
}
