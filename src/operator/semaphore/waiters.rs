//! The waiters of a Semaphore: how many there are, and which of them are woken.

use lockkeeper_plan::semaphore::wake_ups;
use lockkeeper_semaphore::BrokerError;

use super::apply::Step;
use super::state::Observation;

impl Step<'_> {
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
