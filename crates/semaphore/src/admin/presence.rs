//! Finds out whether a lock exists, and whether its name is used by another protocol.

use std::collections::BTreeSet;

use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::Observed;

use super::broker::Broker;
use crate::error::BrokerError;
use crate::protocol::mismatch::{self, Presence};

impl Broker {
    /// Returns whether `lock` exists, and whether it has a slot 1 that a client could take.
    /// Takes no admin mutex and changes nothing. Cancel safe.
    ///
    /// # Errors
    ///
    /// * [`BrokerError::ProtocolMismatch`] if the lock is one of another protocol.
    /// * Otherwise the broker can't be reached, does not answer in time, or rejects the
    ///   request.
    pub async fn presence(&self, lock: &LockName) -> Result<Presence, BrokerError> {
        let found = mismatch::find(self.handle().access.probe_context(), lock, 1).await;
        self.named(found).await
    }

    /// Verifies that no queue of the lock's name belongs to another protocol, given the
    /// observed slots. Changes nothing. A list that is up to
    /// [`BrokerOptions::list_interval`](super::super::BrokerOptions::list_interval) old may
    /// show that there is none. Cancel safe.
    ///
    /// # Errors
    ///
    /// Those of [`Broker::presence`].
    pub async fn check_protocol(
        &self,
        lock: &LockName,
        seen: &Observed,
    ) -> Result<(), BrokerError> {
        let access = &self.handle().access;
        if let Some(listed) = access.listed(None).await
            && !listed.shows_another_protocol(lock)
        {
            return Ok(());
        }
        let none = BTreeSet::new();
        let existing = seen.numbered().map_or(&none, |seen| &seen.slots);
        let checked = mismatch::check(access, lock, existing, seen.size()).await;
        self.named(checked).await
    }
}
