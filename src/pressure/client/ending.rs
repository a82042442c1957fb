//! The end of a queue: its producer closes it, and its consumer deletes it.

use super::pace::Attempt;
use super::{Awaited, Queue, QueueError, QueueRole, Wait};
use crate::plan::pressure_queue::QueueEffect;
use crate::pressure::{Applied, Deletion};

impl Queue {
    /// Closes the queue permanently. No further element can be put, and its consumer gets
    /// [`QueueError::Closed`] once it is empty. Waits until another producer releases its
    /// role.
    ///
    /// # Errors
    ///
    /// [`QueueError::DoesNotExist`]; [`QueueError::Closed`] if it is already closed;
    /// [`QueueError::InUse`] and [`QueueError::TimedOut`].
    pub async fn close(&self, wait: Wait) -> Result<(), QueueError> {
        let mut pace = self.0.waiting.pace(wait, None);
        loop {
            if pace.after(self.try_close().await).await?.is_some() {
                return Ok(());
            }
        }
    }

    async fn try_close(&self) -> Result<Attempt<()>, QueueError> {
        match self.0.store.apply(&self.0.name, &QueueEffect::Close).await? {
            Applied::Done => Ok(Attempt::Done(())),
            Applied::AlreadySo => Err(QueueError::Closed),
            Applied::Absent | Applied::Residue { .. } => Err(QueueError::DoesNotExist),
            Applied::ProducerBusy { who } => {
                let awaited = Awaited::Role { role: QueueRole::Producer, who };
                Ok(Attempt::NotYet { awaited, polls: false })
            }
        }
    }

    /// Deletes the queue with its elements. Waiting clients wake and get
    /// [`QueueError::DoesNotExist`]. Waits until both roles are free. Completes a
    /// deletion that another client started and abandoned.
    ///
    /// # Errors
    ///
    /// [`QueueError::DoesNotExist`]; [`QueueError::InUse`] and
    /// [`QueueError::TimedOut`]. After the latter two the deletion has started: the
    /// queue no longer exists, but some of its keys stay until it is deleted once
    /// more.
    pub async fn delete(&self, wait: Wait) -> Result<(), QueueError> {
        let seen = self.stat().await?;
        if seen.bound.is_none() && seen.leftovers.is_empty() {
            return Err(QueueError::DoesNotExist);
        }
        let mut pace = self.0.waiting.pace(wait, None);
        loop {
            if pace.after(self.try_delete().await).await?.is_some() {
                return Ok(());
            }
        }
    }

    async fn try_delete(&self) -> Result<Attempt<()>, QueueError> {
        let (role, holder) = match self.0.store.delete(&self.0.name, false).await? {
            Deletion::WaitingFor { producer: Some(holder), .. } => (QueueRole::Producer, holder),
            Deletion::WaitingFor { consumer: Some(holder), .. } => (QueueRole::Consumer, holder),
            Deletion::Gone | Deletion::WaitingFor { .. } | Deletion::NotEmpty { .. } => {
                return Ok(Attempt::Done(()));
            }
        };
        // A queue whose deletion has started is closed already. Polling once a second also finds
        // a role that was never taken, which counts as gone after a grace period.
        let awaited = Awaited::Role { role, who: holder.id };
        Ok(Attempt::NotYet { awaited, polls: true })
    }
}
