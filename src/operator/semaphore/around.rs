//! The auxiliary queues of a Semaphore: the wait queue with its waiters, and the slots'
//! records.

use super::apply::Step;
use super::findings::Findings;
use crate::plan::semaphore::wake_ups;
use crate::semaphore::BrokerError;

impl Step<'_> {
    /// Returns descriptions of the auxiliary queues that should exist but do not.
    pub(super) async fn look_around(
        &self,
        found: &mut Findings,
    ) -> Result<Vec<&'static str>, BrokerError> {
        let (lock, desired) = (&self.valid.lock, self.valid.desired);
        let mut lost = Vec::new();
        if lock.wait_queue().is_some() {
            found.waiting = self.broker.waiting(lock).await?;
            if found.waiting.is_none() {
                lost.push("the wait queue");
            }
        }
        lost.extend(self.broker.lost_parts(lock, desired).await?);
        Ok(lost)
    }

    /// Reads the number of waiters unless known, and wakes as many as can get a slot.
    pub(super) async fn tell_waiters(&self, found: &mut Findings) {
        let lock = &self.valid.lock;
        let Some(seen) = &found.seen else { return };
        // With no holders there are hardly any waiters. Querying at every observation
        // would double the load of thousands of idle locks on the broker.
        let was = self.old.waiting.and_then(|waiting| u32::try_from(waiting).ok());
        if found.waiting.is_none() && !self.sweep_due && seen.held() == 0 && was == Some(0) {
            found.waiting = was;
            return;
        }
        let told = async {
            if found.waiting.is_none() {
                found.waiting = self.broker.waiting(lock).await?;
            }
            let free = seen.counts(found.slots).free;
            if self.valid.suspend || found.woken {
                return Ok(());
            }
            self.broker.wake(lock, wake_ups(free, found.waiting)).await
        };
        let told: Result<(), BrokerError> = told.await;
        if let Err(error) = told {
            tracing::debug!(%error, "the number of waiters is not known");
        }
    }
}
