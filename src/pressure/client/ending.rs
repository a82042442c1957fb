//! How a queue ends: its producer closes it, its consumer deletes it.

use super::{Awaited, Queue, QueueError, QueueRole, Wait};
use crate::plan::pressure_queue::QueueEffect;
use crate::pressure::{Applied, Deletion};

impl Queue {
    /// Closes the queue for ever: nothing more can be put, and its consumer is
    /// told once it is empty. Waits for another producer to give its role back.
    ///
    /// Errors: [`QueueError::DoesNotExist`]; [`QueueError::Closed`] if it is closed
    /// already; [`QueueError::InUse`] and [`QueueError::TimedOut`].
    pub async fn close(&self, wait: Wait) -> Result<(), QueueError> {
        let mut pace = self.0.waiting.pace(wait, None);
        loop {
            match self.0.store.apply(&self.0.name, &QueueEffect::Close).await? {
                Applied::Done => return Ok(()),
                Applied::AlreadySo => return Err(QueueError::Closed),
                Applied::Absent | Applied::Residue { .. } => return Err(QueueError::DoesNotExist),
                Applied::ProducerBusy { who } => {
                    pace.until(Awaited::Role { role: QueueRole::Producer, who }, false).await?;
                }
            }
        }
    }

    /// Deletes the queue with the elements that are in it. Whoever waits for it
    /// wakes and is told that it does not exist. Waits until both roles are free;
    /// a deletion that somebody began and gave up is taken up.
    ///
    /// Errors: [`QueueError::DoesNotExist`]; [`QueueError::InUse`] and
    /// [`QueueError::TimedOut`]: the deletion has begun, the queue does not exist
    /// any more, but some of its keys stay until it is deleted once more.
    pub async fn delete(&self, wait: Wait) -> Result<(), QueueError> {
        let seen = self.stat().await?;
        if seen.bound.is_none() && seen.leftovers.is_empty() {
            return Err(QueueError::DoesNotExist);
        }
        let mut pace = self.0.waiting.pace(wait, None);
        loop {
            let (role, holder) = match self.0.store.delete(&self.0.name, false).await? {
                Deletion::WaitingFor { producer: Some(holder), .. } => {
                    (QueueRole::Producer, holder)
                }
                Deletion::WaitingFor { consumer: Some(holder), .. } => {
                    (QueueRole::Consumer, holder)
                }
                Deletion::Gone | Deletion::WaitingFor { .. } | Deletion::NotEmpty { .. } => {
                    return Ok(());
                }
            };
            // A queue whose deletion has begun is closed. Looking once a second also
            // finds a role that nobody took, and that counts as gone after a while.
            pace.until(Awaited::Role { role, who: holder.id }, true).await?;
        }
    }
}
