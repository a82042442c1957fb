//! The auxiliary queues of a Semaphore: the wait queue with its waiters, and the slots'
//! records.

use lockkeeper_plan::semaphore::wake_ups;
use lockkeeper_semaphore::BrokerError;

use super::apply::Step;
use super::state::Observation;

impl Step<'_> {
    /// Returns descriptions of the auxiliary queues that should exist but do not. Reads the
    /// number of waiters on the way.
    pub(super) async fn look_around(
        &self,
        observation: &mut Observation,
    ) -> Result<Vec<&'static str>, BrokerError> {
        let (lock, desired) = (&self.valid.lock, self.valid.desired);
        let mut lost = Vec::new();
        if lock.wait_queue().is_some() {
            observation.waiting = self.broker.waiting(lock).await?;
            if observation.waiting.is_none() {
                lost.push("the wait queue");
            }
        }
        lost.extend(self.broker.missing_auxiliary(lock, desired).await?);
        Ok(lost)
    }

    /// Reads the number of waiters unless known, and wakes as many as can get a slot.
    /// `woken` is true if waiters were already notified of slots that a change added.
    pub(super) async fn tell_waiters(&self, observation: &mut Observation, woken: bool) {
        let lock = &self.valid.lock;
        let Observation { seen, waiting, .. } = observation;
        // With no holders there are hardly any waiters. Querying at every observation
        // would double the load of thousands of idle locks on the broker.
        let was = self.old.waiting.and_then(|waiting| u32::try_from(waiting).ok());
        if waiting.is_none() && !self.sweep_due && seen.held() == 0 && was == Some(0) {
            *waiting = was;
            return;
        }
        let told = async {
            if waiting.is_none() {
                *waiting = self.broker.waiting(lock).await?;
            }
            let free = seen.counts(self.valid.desired.slots).free;
            if self.valid.suspend || woken {
                return Ok(());
            }
            self.broker.wake(lock, wake_ups(free, *waiting)).await
        };
        let told: Result<(), BrokerError> = told.await;
        if let Err(error) = told {
            tracing::debug!(%error, "the number of waiters is not known");
        }
    }
}
