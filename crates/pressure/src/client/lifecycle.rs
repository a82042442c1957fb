//! The end of a queue: its producer closes it, and its consumer deletes it.

use std::time::Duration;

use lockkeeper_plan::pressure_queue::{Applied, QueueEffect};

use super::pace::Attempt;
use super::{Awaited, Queue, QueueError, QueueRole, Wait};
use crate::store::{Start, Step};
use crate::{Deletion, Removed, TakenRoles};

/// Time for which a deletion that must not wait still waits for a client that took a role
/// in its middle.
const LAST: Duration = Duration::from_secs(5);

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
    /// more. See [`Self::remove`] for one that does not start then.
    pub async fn delete(&self, wait: Wait) -> Result<(), QueueError> {
        self.delete_from(Start::Ordinary, wait).await.map(drop)
    }

    /// Like [`Self::delete`], and returns the numbers of removed elements.
    ///
    /// Does not start while a client holds a role and has nothing to wait for: it is about
    /// to release the role, or it has died and never will. A client that waits with its
    /// role is woken by the start. With [`Wait::No`] nothing starts unless both roles are
    /// free.
    ///
    /// # Errors
    ///
    /// [`QueueError::DoesNotExist`]; [`QueueError::InUse`] and [`QueueError::TimedOut`].
    /// After the latter two nothing was changed if the queue still exists. Otherwise a
    /// woken client did not release its role: the deletion has started, and the remaining
    /// keys stay until the queue is deleted once more.
    pub async fn remove(&self, wait: Wait, taken: TakenRoles) -> Result<Removed, QueueError> {
        let start = match (taken, wait) {
            (TakenRoles::Ignore, _) => Start::Force,
            (TakenRoles::Wait, Wait::No) => Start::IfFree,
            (TakenRoles::Wait, Wait::For(_) | Wait::Forever) => Start::IfPassing,
        };
        self.delete_from(start, wait).await
    }

    async fn delete_from(&self, start: Start, wait: Wait) -> Result<Removed, QueueError> {
        let seen = self.stat().await?;
        if seen.bound.is_none() && seen.leftovers.is_empty() && seen.wrong_types.is_empty() {
            return Err(QueueError::DoesNotExist);
        }
        let mut pace = self.0.waiting.pace(wait, None);
        let mut has_to_finish = start == Start::IfFree && seen.bound.is_some();
        loop {
            let step = self.0.store.delete_step(&self.0.name, start).await;
            if has_to_finish && step.as_ref().is_ok_and(|step| step.has_started) {
                // A client checks the queue at this moment, and releases its role.
                pace = self.0.waiting.pace(Wait::For(LAST), None);
                has_to_finish = false;
            }
            let step = step.map_err(QueueError::from).map(attempt);
            if let Some(removed) = pace.after(step).await? {
                return Ok(removed);
            }
        }
    }
}

fn attempt(step: Step) -> Attempt<Removed> {
    let (role, holder) = match step.deletion {
        Deletion::WaitingFor { producer: Some(holder), .. } => (QueueRole::Producer, holder),
        Deletion::WaitingFor { consumer: Some(holder), .. } => (QueueRole::Consumer, holder),
        Deletion::Gone | Deletion::WaitingFor { .. } | Deletion::NotEmpty { .. } => {
            return Attempt::Done(step.removed);
        }
    };
    // A queue whose deletion has started is closed already. Polling once a second also finds
    // a role that was never taken, which counts as gone after a grace period.
    Attempt::NotYet { awaited: Awaited::Role { role, who: holder.id }, polls: true }
}
