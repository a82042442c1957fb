//! `lockkeeper queue exists`: whether the queue is there.

use super::{Failure, Which, answer, failed};

/// Arguments of `lockkeeper queue exists`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let queue = arguments.which.find().await?;
    answer(queue.exists().await.map_err(|error| failed(&queue, &error))?)
}
