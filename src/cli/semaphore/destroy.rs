//! `lockkeeper semaphore destroy`: removes a semaphore.

use super::draining::Draining;
use super::target::SemaphoreTarget;
use crate::cli::common::say;
use crate::cli::failure::Failure;
use crate::cli::question::confirmed;

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
    if !arguments.yes {
        let seen = target.look().await?;
        let question = format!(
            "Destroy the semaphore {name} ({} {}, {} held)?",
            seen.total(),
            target.found.units(),
            seen.held()
        );
        if !confirmed(&question).await? {
            return Err(Failure::new(Failure::NOT_ACQUIRED, "nothing was changed"));
        }
    }
    let (had, held) = arguments.draining.destroy(&target).await?;
    say(format!("{name} is gone with {had} {}, {held} of them held", target.found.units()));
    Ok(())
}
