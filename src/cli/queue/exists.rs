//! `lockkeeper queue exists`: whether the queue is there.

use super::{Failure, Which, answer, failed};

pub(super) async fn run(which: Which) -> Result<(), Failure> {
    let queue = which.find().await?;
    answer(queue.exists().await.map_err(|error| failed(&queue, &error))?)
}
