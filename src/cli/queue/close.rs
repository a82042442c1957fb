//! `lockkeeper queue close`: nothing more can be put.

use super::{Failure, Patience, Which, failed, say};

/// Arguments of `lockkeeper queue close`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    patience: Patience,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let queue = arguments.which.find().await?;
    queue.close(arguments.patience.wait()).await.map_err(|error| failed(&queue, &error))?;
    say(format!("{} is closed", queue.name()));
    Ok(())
}
