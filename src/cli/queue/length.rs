//! `lockkeeper queue length`: how many elements there are.

use super::{Failure, Which, failed, print};

pub(super) async fn run(which: Which) -> Result<(), Failure> {
    let queue = which.find().await?;
    let length = queue.len().await.map_err(|error| failed(&queue, &error))?;
    print(&format!("{length}\n"))
}
