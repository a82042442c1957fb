//! Verifies that a slot being acquired belongs to this client's protocol. See
//! [`mismatch`] for the check itself.

use std::time::Duration;

use super::lock::Lock;
use crate::clock::Moment;
use crate::semaphore::error::BrokerError;
use crate::semaphore::protocol::numbered::mismatch;

/// How long a lock's protocol is cached. It is chosen when the lock is created, and
/// rarely changes.
const BELIEVED: Duration = Duration::from_mins(1);

impl Lock {
    /// Verifies that the slot does not belong to another protocol, unless that was
    /// verified recently. Its batch of probes is sent along with the claim. Cancel safe.
    pub(super) async fn check_protocol(&self, slot: u32) -> Result<(), BrokerError> {
        if self.recall().protocol.is_some_and(|since| since.elapsed() < BELIEVED) {
            return Ok(());
        }
        let asked = Moment::now();
        mismatch::check(&self.shared().prober, self.name(), [slot]).await?;
        self.remember(|memory| memory.protocol = Some(asked));
        Ok(())
    }
}
