//! A lock with its desired state, as a resource or a manifest describes it: observe, plan,
//! apply. The operator and `lockkeeper apply` both take these steps. See
//! [`lockkeeper_plan::semaphore`] for the decisions, and `converge` for the change.

use std::time::Instant;

use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::{
    Auxiliary, DesiredSlots, LockPlan, Observed, shared_queue, sweep_to,
};
use tokio_util::sync::CancellationToken;

use super::broker::Broker;
use crate::error::BrokerError;
use crate::session::access::Access;
use crate::session::change::Converged;

/// Where an observation comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The broker's answers to probes.
    Probes,
    /// The management API's list of queues if there is one, as for [`Broker::sweep`].
    /// Differences that only more requests would show are not looked for.
    List {
        /// When the slots were last declared or observed.
        since: Option<Instant>,
    },
}

/// A lock of a broker with its desired state.
///
/// # Cancel safety
///
/// Every method is cancel safe, and all except [`ManagedLock::apply`] change nothing.
#[derive(Clone, Copy, Debug)]
pub struct ManagedLock<'a> {
    broker: &'a Broker,
    lock: &'a LockName,
    desired: DesiredSlots,
}

impl<'a> ManagedLock<'a> {
    /// Creates a handle. It does no I/O.
    #[must_use]
    pub fn new(broker: &'a Broker, lock: &'a LockName, desired: DesiredSlots) -> Self {
        Self { broker, lock, desired }
    }

    /// Returns the high-water mark: the recorded one, or else that of
    /// [`Broker::find_highest_slot`].
    ///
    /// # Errors
    ///
    /// Those of [`Broker::observe`].
    pub async fn mark(&self, recorded: Option<u32>) -> Result<Option<u32>, BrokerError> {
        match recorded {
            None => self.broker.find_highest_slot(self.lock, self.desired.overshoot).await,
            mark => Ok(mark),
        }
    }

    /// Returns the high-water mark for [`ManagedLock::apply`] without an observation before:
    /// the recorded one, or else that of [`Broker::find_mark_for_change`].
    ///
    /// # Errors
    ///
    /// Those of [`Broker::observe`].
    pub async fn mark_for_change(&self, recorded: Option<u32>) -> Result<Option<u32>, BrokerError> {
        match recorded {
            None => self.broker.find_mark_for_change(self.lock, self.desired.overshoot).await,
            mark => Ok(mark),
        }
    }

    /// Observes all slots that may exist, given the high-water mark, and their holders.
    ///
    /// # Errors
    ///
    /// Those of [`Broker::observe`].
    pub async fn observe(
        &self,
        mark: Option<u32>,
        source: Source,
    ) -> Result<Observed, BrokerError> {
        let (slots_to, holders_to) = (self.sweep_to(mark), self.holders_to(mark));
        match source {
            Source::Probes => self.broker.observe(self.lock, slots_to, holders_to).await,
            Source::List { since } => {
                self.broker.sweep(self.lock, slots_to, holders_to, since).await
            }
        }
    }

    /// Observes only the holders, given the high-water mark. For tokens, that is all.
    ///
    /// # Errors
    ///
    /// Those of [`Broker::observe`].
    pub async fn observe_holders(&self, mark: Option<u32>) -> Result<Observed, BrokerError> {
        self.broker.observe(self.lock, 0, self.holders_to(mark)).await
    }

    /// Observes the lock's other queues, given its slots.
    ///
    /// # Errors
    ///
    /// Those of [`Broker::observe`].
    pub async fn observe_auxiliary(
        &self,
        seen: &Observed,
        source: Source,
    ) -> Result<Auxiliary, BrokerError> {
        let (broker, lock) = (self.broker, self.lock);
        // Of a token queue, the number of tokens already shows that it exists.
        let is_token_queue = lock.wait_queue().is_none() && shared_queue(lock).is_some();
        let has_tokens = is_token_queue && seen.total() > 0;
        let mut found = Auxiliary { exists: seen.total() > 0, ..Auxiliary::default() };
        if let Some(shared) = shared_queue(lock).filter(|_| !has_tokens) {
            found.waiting = broker.waiting(lock).await?;
            let exists = found.waiting.is_some()
                // Without a management API, the waiters may be unknown.
                || is_token_queue && self.access().all_exist(&[lock.token_queue()]).await?;
            found.exists |= exists;
            found.shared = (!exists).then_some(shared);
        }
        found.missing = broker.missing_auxiliary(lock, self.desired).await?;
        if found.exists && self.desired.records.is_none() && lock.record_queue(1).is_some() {
            let may_have = source == Source::Probes || self.lists_records().await;
            found.has_surplus_records = may_have && broker.has_records(lock, 1).await?;
        }
        Ok(found)
    }

    /// Plans the change. `recorded` is the high-water mark that was last recorded.
    #[must_use]
    pub fn plan(&self, seen: &Observed, auxiliary: Auxiliary, recorded: Option<u32>) -> LockPlan {
        LockPlan::new(self.desired, seen, auxiliary, recorded)
    }

    /// Applies the change with [`Broker::converge`], which observes and plans again. If the
    /// plan raises the high-water mark, the caller must have recorded it before.
    ///
    /// # Errors
    ///
    /// Those of [`Broker::converge`].
    pub async fn apply(
        &self,
        mark: Option<u32>,
        thorough: bool,
        cancel: &CancellationToken,
    ) -> Result<Converged, BrokerError> {
        let sweep_to = self.sweep_to(mark);
        self.broker.converge(self.lock, self.desired, sweep_to, thorough, cancel).await
    }

    /// Whether a list of the management API shows a record.
    async fn lists_records(&self) -> bool {
        let listed = self.access().listed(None).await;
        listed.is_some_and(|listed| listed.of(self.lock).is_some_and(|of| of.has_records))
    }

    fn access(&self) -> &Access {
        &self.broker.handle().access
    }

    fn sweep_to(&self, mark: Option<u32>) -> u32 {
        sweep_to(self.desired, mark.unwrap_or_default())
    }

    fn holders_to(&self, mark: Option<u32>) -> u32 {
        mark.unwrap_or_default().max(self.desired.slots)
    }
}
