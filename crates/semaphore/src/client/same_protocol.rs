//! Verifies that a slot being acquired belongs to this client's protocol, and finds out why a
//! lock has no slots. See [`mismatch`] for the checks themselves.

use std::time::Duration;

use lockkeeper_net::clock::Moment;
use lockkeeper_plan::naming::Protocol;

use super::error::AcquireError;
use super::lock::Lock;
use crate::error::BrokerError;
use crate::protocol::mismatch::{self, Presence};

/// How long a lock's protocol is cached. Another administrator may destroy the lock and
/// create it with another protocol.
const BELIEVED: Duration = Duration::from_secs(1);

impl Lock {
    /// Verifies that the slot does not belong to another protocol, unless that was
    /// verified recently. Its probe is sent along with the claim. Cancel safe.
    pub(super) async fn check_protocol(&self, slot: u32) -> Result<(), BrokerError> {
        if self.recall().protocol.is_some_and(|since| since.elapsed() < BELIEVED) {
            return Ok(());
        }
        let asked = Moment::now();
        mismatch::check_slot(&self.shared().prober, self.name(), slot).await?;
        self.remember(|memory| memory.protocol = Some(asked));
        Ok(())
    }

    /// Verifies that a slot without a holder queue, which a search has just seen, is not one
    /// of a lock without such queues.
    pub(super) async fn check_missing(&self, slot: u32) -> Result<(), BrokerError> {
        if self.name().protocol() != Protocol::ExclusiveConsumer {
            return Ok(());
        }
        mismatch::find(self.shared().probe_context(), self.name(), slot).await.map(drop)
    }

    /// Returns why the lock has no slots, and whether it is about to get some.
    pub(super) async fn why_no_slots(&self, existed: bool) -> (AcquireError, bool) {
        let lock = self.name().to_string();
        match mismatch::find(self.shared().probe_context(), self.name(), 1).await {
            Ok(Presence::Absent) if !existed => (AcquireError::Missing { lock }, false),
            Ok(presence) => (AcquireError::NoSlots { lock }, presence == Presence::Changing),
            Err(error) => (error.into(), false),
        }
    }
}
