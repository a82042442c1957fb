//! `lockkeeper queue delete`: no queue any more.

use super::{Failure, Patience, Which, count, failed, say};
use crate::cli::question::confirmed;
use crate::pressure::QueueError;

/// Arguments of `lockkeeper queue delete`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    patience: Patience,

    /// Don't ask where there are elements in it
    #[arg(long, short, help_heading = None)]
    yes: bool,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let queue = arguments.which.find().await?;
    let name = queue.name();
    let length = match queue.len().await {
        Ok(length) => length,
        // What a deletion that was given up has left.
        Err(QueueError::DoesNotExist) => 0,
        Err(error) => return Err(failed(&queue, &error)),
    };
    if length > 0 && !arguments.yes {
        let question = format!("Delete the queue {name} with {}?", count(length, "element"));
        if !confirmed(&question).await? {
            return Err(Failure::new(Failure::NOT_ACQUIRED, "nothing was changed"));
        }
    }
    queue.delete(arguments.patience.wait()).await.map_err(|error| failed(&queue, &error))?;
    say(format!("{name} is gone with {}", count(length, "element")));
    Ok(())
}
