//! `lockkeeper queue length`: how many elements there are.

use super::{Failure, Which, failed, print};

/// Arguments of `lockkeeper queue length`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let queue = arguments.which.find().await?;
    let length = queue.len().await.map_err(|error| failed(&queue, &error))?;
    print(&format!("{length}\n"))
}
