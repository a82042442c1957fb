//! The interfaces that the lock protocols implement for observers and administrators. See
//! `hold` and `claim` for those for clients.

use std::time::Instant;

use async_trait::async_trait;
use lockkeeper_amqp::channel::Channel;
use lockkeeper_net::clock::Moment;
use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::{DesiredSlots, Observed};

use super::fault::{Expected, Fault};
use super::holders::Holders;
use super::revoke::{Revoke, RevokeError};
use super::waiters::{self, Waiter};
use crate::error::BrokerError;
use crate::management::{Management, ManagementError};
use crate::session::access::Access;
use crate::session::change::{Change, Converged};

/// How long to wait for a free slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Do not wait.
    No,
    /// Wait until that moment.
    Until(Moment),
    /// Wait without a limit.
    Forever,
}

impl Wait {
    /// Returns the end of the wait, if there is one.
    pub fn until(self) -> Option<Moment> {
        match self {
            Self::Until(until) => Some(until),
            Self::No | Self::Forever => None,
        }
    }
}

/// A lock protocol, for those who observe locks or revoke them from a holder. Each method
/// is as cancel safe as the public operation that calls it.
#[async_trait]
pub trait LockProtocol: Send + Sync {
    /// [`Broker::observe`](crate::Broker::observe).
    async fn observe(
        &self,
        access: &Access,
        lock: &LockName,
        slots_to: u32,
        holders_to: u32,
    ) -> Result<Observed, BrokerError>;

    /// [`Broker::sweep`](crate::Broker::sweep).
    async fn sweep(
        &self,
        access: &Access,
        lock: &LockName,
        (slots_to, holders_to): (u32, u32),
        _since: Option<Instant>,
    ) -> Result<Observed, BrokerError> {
        self.observe(access, lock, slots_to, holders_to).await
    }

    /// [`Broker::find_highest_slot`](crate::Broker::find_highest_slot).
    async fn find_highest_slot(
        &self,
        _access: &Access,
        _lock: &LockName,
        _overshoot: u32,
    ) -> Result<Option<u32>, BrokerError> {
        Ok(None)
    }

    /// [`Broker::find_mark_for_change`](crate::Broker::find_mark_for_change).
    async fn find_mark_for_change(
        &self,
        _access: &Access,
        _lock: &LockName,
        _overshoot: u32,
    ) -> Result<Option<u32>, BrokerError> {
        Ok(None)
    }

    /// [`Broker::hold_limit`](crate::Broker::hold_limit).
    async fn hold_limit(
        &self,
        _access: &Access,
        _lock: &LockName,
    ) -> Result<Option<&'static str>, BrokerError> {
        Ok(None)
    }

    /// [`Broker::waiting`](crate::Broker::waiting).
    async fn waiting(&self, access: &Access, lock: &LockName) -> Result<Option<u32>, BrokerError> {
        let Some(queue) = lock.wait_queue() else { return Ok(None) };
        access.publisher().await?.consumers(&queue).await.map_err(BrokerError::from)
    }

    /// [`Broker::waiters`](crate::Broker::waiters).
    async fn waiters(
        &self,
        management: &Management,
        lock: &LockName,
    ) -> Result<Vec<Waiter>, ManagementError> {
        match lock.wait_queue() {
            Some(queue) => waiters::of_queue(management, &queue, waiters::waits).await,
            // Clients of amqp-locks-python only poll.
            None => Ok(Vec::new()),
        }
    }

    /// [`Broker::missing_auxiliary`](crate::Broker::missing_auxiliary).
    async fn missing_auxiliary(
        &self,
        _access: &Access,
        _lock: &LockName,
        _wish: DesiredSlots,
    ) -> Result<Vec<&'static str>, BrokerError> {
        Ok(Vec::new())
    }

    /// [`Broker::holders`](crate::Broker::holders).
    async fn holders(
        &self,
        access: &Access,
        lock: &LockName,
        seen: &Observed,
        slots: u32,
        limit: usize,
    ) -> Holders;

    /// Revokes a slot from its holder.
    async fn revoke(&self, revoke: &Revoke<'_>) -> Result<(), RevokeError>;
}

/// A protocol of locks that an administrator creates and resizes. Each method runs under
/// the admin mutex, unless the broker's limit on queues is reached.
#[async_trait]
pub trait AdminProtocol: LockProtocol {
    /// Returns the high-water mark and the existing slots, for a change that depends on
    /// them.
    async fn survey(
        &self,
        change: &Change,
        channel: &mut Channel,
    ) -> Result<(Option<u32>, Observed), BrokerError>;

    /// Applies the change. The sweep ends at `swept_to`.
    async fn apply(
        &self,
        change: &Change,
        channel: &mut Channel,
        swept_to: u32,
    ) -> Result<Converged, BrokerError>;

    /// Whether the lock exists, given the observed slots. A lock can exist without slots.
    async fn exists(
        &self,
        change: &Change,
        channel: &mut Channel,
        seen: &Observed,
    ) -> Result<bool, BrokerError>;

    /// Deletes one surplus queue of the lock without the admin mutex, for which the broker's
    /// limit leaves no queue. Returns the number of slots deleted, or `None` if nothing was.
    async fn make_room(
        &self,
        _change: &Change,
        _channel: &mut Channel,
        _swept_to: u32,
    ) -> Result<Option<u32>, BrokerError> {
        Ok(None)
    }

    /// Lists the faults of the lock.
    async fn check(
        &self,
        change: &Change,
        channel: &mut Channel,
        expected: Expected,
    ) -> Result<Vec<Fault>, BrokerError>;
}
