//! `lockkeeper semaphore destroy`: no semaphore any more.

use tokio_util::sync::CancellationToken;

use super::{Failure, SlotWish, Which, failed, say, slots};
use crate::cli::question::confirmed;

/// Arguments of `lockkeeper semaphore destroy`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: Which,

    /// Don't ask
    #[arg(long, short, help_heading = None)]
    yes: bool,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let target = arguments.which.find_to_change().await?;
    let name = &target.found.name;
    if !arguments.yes {
        let seen = target.look().await?;
        let question = format!(
            "Destroy the semaphore {name} ({} {}, {} held)?",
            slots(&seen),
            target.found.units(),
            seen.held.len()
        );
        if !confirmed(&question).await? {
            return Err(Failure::new(Failure::NOT_ACQUIRED, "nothing was changed"));
        }
    }
    let done = target
        .broker
        .destroy(name, SlotWish::new(0), None, &CancellationToken::new())
        .await
        .map_err(|error| failed(&error))?;
    say(format!(
        "{name} is gone with {} {}, {} of them held",
        done.deleted,
        target.found.units(),
        done.seen.held.len()
    ));
    Ok(())
}
