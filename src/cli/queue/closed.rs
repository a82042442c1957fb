//! `lockkeeper queue closed`: whether nothing more can be put.

use super::{Failure, Which, answer, failed};

/// Arguments of `lockkeeper queue closed`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let queue = arguments.which.find().await?;
    answer(queue.closed().await.map_err(|error| failed(&queue, &error))?)
}
