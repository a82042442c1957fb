//! `lockkeeper semaphore destroy`: removes a semaphore.

use super::draining::Draining;
use super::target::{SemaphoreTarget, missing};
use crate::cli::common::say;
use crate::cli::confirm::confirmed;
use crate::cli::failure::Failure;

/// Arguments of `lockkeeper semaphore destroy`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: SemaphoreTarget,

    /// Do not ask for confirmation
    #[arg(long, short, help_heading = None)]
    yes: bool,

    #[command(flatten)]
    draining: Draining,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let target = arguments.which.find_to_change("kubectl delete").await?;
    let name = &target.found.name;
    let existed = target.may_exist().await?;
    if !arguments.yes && existed {
        let seen = target.look().await?;
        let question = format!(
            "Destroy the semaphore {name} ({}, {} held)?",
            name.unit().count(seen.total()),
            seen.held()
        );
        if !confirmed(&question).await? {
            return Err(Failure::new(Failure::NOT_ACQUIRED, "nothing was changed"));
        }
    }
    // Queues of slots above the first may be left.
    let (had, held) = arguments.draining.destroy(&target).await?;
    if !existed && had == 0 {
        return Err(missing(name.as_str()));
    }
    say(format!("{name} is gone with {}, {held} of them held", name.unit().count(had)));
    Ok(())
}
