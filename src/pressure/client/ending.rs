//! How a queue ends: its producer closes it, its consumer deletes it.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{Awaited, Queue, QueueError, QueueRole, Wait};
use crate::plan::pressure_queue::QueueEffect;
use crate::pressure::{Applied, Deletion};

/// How often a deletion that waits for a role looks: a role that nobody took, and
/// that is not free, counts as gone only after a while.
const DELETION_LOOK: Duration = Duration::from_secs(1);

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
        let deadline = match wait {
            Wait::No => Some(Instant::now()),
            Wait::For(duration) => Instant::now().checked_add(duration),
            Wait::Forever => None,
        };
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
            let awaited = Awaited::Role { role, who: holder.id };
            if wait == Wait::No || self.0.waiting.over.is_cancelled() {
                let Awaited::Role { role, who } = awaited else { return Ok(()) };
                return Err(QueueError::InUse { role, who });
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(QueueError::TimedOut { awaited });
            }
            let look = deadline.map_or(DELETION_LOOK, |deadline| {
                deadline.saturating_duration_since(Instant::now()).min(DELETION_LOOK)
            });
            if let Ok(woken) = timeout(look, self.0.waiting.change(&awaited, true)).await {
                woken?;
            }
        }
    }
}
