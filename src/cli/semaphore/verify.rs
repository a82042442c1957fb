//! `lockkeeper semaphore verify`: whether the slots are as they should be.

use tokio_util::sync::CancellationToken;

use super::{Failure, Which, failed};
use crate::semaphore::Fault;

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
    let said = if name.has_slots() {
        faults.iter().map(ToString::to_string).collect()
    } else {
        in_tokens(&faults)
    };
    for fault in said {
        println!("{fault}");
    }
    if faults.is_empty() {
        super::say(format!("{name} is as it should be"));
        return Ok(());
    }
    let message = format!("{name} has {} faults: grow, shrink and create mend slots", faults.len());
    Err(Failure::new(WRONG, message))
}

/// Which ones are missing or too many means nothing, as tokens have no numbers.
fn in_tokens(faults: &[Fault]) -> Vec<String> {
    let count = |is: fn(&Fault) -> bool| faults.iter().filter(|fault| is(fault)).count();
    let missing = count(|fault| matches!(fault, Fault::Missing { .. }));
    let stray = count(|fault| matches!(fault, Fault::Stray { .. }));
    let counted = [(missing, "tokens are missing"), (stray, "tokens are too many")];
    let counted = counted.iter().filter(|(count, _)| *count > 0);
    let foreign = faults.iter().filter_map(|fault| match fault {
        Fault::Foreign { why, .. } => Some(format!("the token queue is somebody else's: {why}")),
        _ => None,
    });
    counted.map(|(count, what)| format!("{count} {what}")).chain(foreign).collect()
}
