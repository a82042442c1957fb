//! How a slot is held: the interface that each protocol with numbered slots implements
//! for administrators. See `claim` for the one for clients.

use std::ops::RangeInclusive;

use async_trait::async_trait;
use lockkeeper_amqp::channel::Channel;
use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::ObservedSlots;

use crate::error::BrokerError;
use crate::protocol::claim::ClientProtocol;
use crate::protocol::fault::Fault;
use crate::protocol::revoke::{Revoke, RevokeError};
use crate::session::access::Access;
use crate::session::change::Change;

/// A protocol with numbered slots. A client may take slot `i` while its slot queue `A[i]`
/// exists.
#[async_trait]
pub trait SlotProtocol: ClientProtocol {
    /// Whether slots and holders can be observed apart: then the slots may come from a
    /// list of queues.
    fn has_separate_holders(&self) -> bool;

    /// Declares slot `i` or its missing parts. If the slot exists, verifies its
    /// properties.
    async fn declare_slot(
        &self,
        channel: &mut Channel,
        lock: &LockName,
        slot: u32,
    ) -> Result<(), BrokerError>;

    /// Reports a fault of the holder queue or its equivalent, under the admin mutex.
    /// Changes nothing.
    async fn check_holder(
        &self,
        channel: &mut Channel,
        lock: &LockName,
        slot: u32,
        seen: &ObservedSlots,
    ) -> Result<Option<Fault>, BrokerError>;

    /// Whether all queues exist that these slots need in order to be held.
    async fn holder_queues_exist(
        &self,
        access: &Access,
        lock: &LockName,
        slots: RangeInclusive<u32>,
    ) -> Result<bool, BrokerError>;

    /// Removes unused holder queues of slots above the desired count, up to `to`, and
    /// notifies the remaining holders. Returns the number of remaining holders.
    async fn remove_orphans(
        &self,
        change: &Change,
        channel: &mut Channel,
        to: u32,
    ) -> Result<u32, BrokerError>;

    /// Revokes a slot from its holder.
    async fn revoke(&self, revoke: &Revoke<'_>) -> Result<(), RevokeError>;
}
