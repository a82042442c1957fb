//! `lockkeeper queue closed`: whether nothing more can be put.

use super::{Failure, Which, answer, failed};

pub(super) async fn run(which: Which) -> Result<(), Failure> {
    let queue = which.find().await?;
    answer(queue.closed().await.map_err(|error| failed(&queue, &error))?)
}
