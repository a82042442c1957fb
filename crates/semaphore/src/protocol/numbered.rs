//! Protocols with numbered slots: what they have in common for administrators. A client
//! may take a slot while its slot queue `A[i]` exists. See [`SlotProtocol`] for how a slot is
//! held.

mod auxiliary;
mod check;
mod converge;
pub mod exclusive_consumer;
pub mod exclusive_queue;
pub mod holders;
mod observe;
pub mod records;
pub mod slot_protocol;

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use lockkeeper_amqp::channel::Channel;
use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::{DesiredSlots, Observed, ObservedSlots};

use self::holders::HolderCache;
use self::records::RecordsSeen;
use self::slot_protocol::SlotProtocol;
use super::fault::{Expected, Fault};
use super::holders::Holders;
use super::interface::{AdminProtocol, LockProtocol};
use super::mismatch;
use super::revoke::{Revoke, RevokeError};
use crate::error::BrokerError;
use crate::session::access::Access;
use crate::session::change::{Change, Converged};

/// The protocol with numbered slots that are held as `H` defines.
pub struct Numbered<H> {
    how: H,
    holders: Arc<HolderCache>,
}

impl<H> Numbered<H> {
    /// Creates the protocol with the cache of holders that all of these share.
    pub fn new(how: H, holders: Arc<HolderCache>) -> Self {
        Self { how, holders }
    }
}

#[async_trait]
impl<H: SlotProtocol> LockProtocol for Numbered<H> {
    async fn observe(
        &self,
        access: &Access,
        lock: &LockName,
        slots_to: u32,
        holders_to: u32,
    ) -> Result<Observed, BrokerError> {
        let seen = observe::observe(access, &self.how, lock, slots_to, holders_to).await?;
        Ok(Observed::Numbered(seen))
    }

    async fn sweep(
        &self,
        access: &Access,
        lock: &LockName,
        (slots_to, holders_to): (u32, u32),
        since: Option<Instant>,
    ) -> Result<Observed, BrokerError> {
        if self.how.has_separate_holders()
            && let Some(slots) = observe::listed(access, lock, slots_to, since).await
        {
            let held = observe::observe(access, &self.how, lock, 0, holders_to).await?;
            return Ok(Observed::Numbered(ObservedSlots { swept_to: slots_to, slots, ..held }));
        }
        self.observe(access, lock, slots_to, holders_to).await
    }

    async fn find_highest_slot(
        &self,
        access: &Access,
        lock: &LockName,
        overshoot: u32,
    ) -> Result<Option<u32>, BrokerError> {
        observe::find_highest_slot(access, &self.how, lock, overshoot).await.map(Some)
    }

    async fn find_mark_for_change(
        &self,
        access: &Access,
        lock: &LockName,
        overshoot: u32,
    ) -> Result<Option<u32>, BrokerError> {
        match observe::highest_listed(access, lock).await {
            Some(0) => Ok(Some(0)),
            listed => {
                observe::find_highest(access, &self.how, lock, overshoot, listed).await.map(Some)
            }
        }
    }

    async fn missing_auxiliary(
        &self,
        access: &Access,
        lock: &LockName,
        desired: DesiredSlots,
    ) -> Result<Vec<&'static str>, BrokerError> {
        let mut lost = Vec::new();
        if desired.records.is_some() {
            match records::look(access, lock, 1..=desired.slots).await? {
                RecordsSeen::WithoutQueue => lost.push("slot records"),
                RecordsSeen::Emptied(slots) if slots.is_empty() => {}
                RecordsSeen::Emptied(_) => lost.push("emptied slot records"),
            }
        }
        if !self.how.holder_queues_exist(access, lock, 1..=desired.slots).await? {
            lost.push("holder queues");
        }
        Ok(lost)
    }

    async fn holders(
        &self,
        _: &Access,
        lock: &LockName,
        seen: &Observed,
        slots: u32,
        limit: usize,
    ) -> Holders {
        // An observation of tokens has no holders of slots.
        let Some(seen) = seen.numbered() else { return Holders::default() };
        HolderCache::holders(&self.holders, lock, seen, slots, limit).await
    }

    async fn revoke(&self, revoke: &Revoke<'_>) -> Result<(), RevokeError> {
        self.how.revoke(revoke).await
    }
}

#[async_trait]
impl<H: SlotProtocol> AdminProtocol for Numbered<H> {
    async fn survey(
        &self,
        change: &Change,
        _: &mut Channel,
    ) -> Result<(Option<u32>, Observed), BrokerError> {
        let (access, lock) = (&change.access, &change.lock);
        let mark = self.find_highest_slot(access, lock, change.desired.overshoot).await?;
        let seen = observe::observe(access, &self.how, lock, mark.unwrap_or_default(), 0).await?;
        mismatch::check(access, lock, &seen.slots, seen.highest()).await?;
        Ok((mark, Observed::Numbered(seen)))
    }

    async fn apply(
        &self,
        change: &Change,
        channel: &mut Channel,
        swept_to: u32,
    ) -> Result<Converged, BrokerError> {
        change.make_slots(&self.how, channel, swept_to).await
    }

    async fn make_room(
        &self,
        change: &Change,
        channel: &mut Channel,
        swept_to: u32,
    ) -> Result<Option<u32>, BrokerError> {
        change.delete_one(&self.how, channel, swept_to).await
    }

    async fn exists(
        &self,
        change: &Change,
        channel: &mut Channel,
        seen: &Observed,
    ) -> Result<bool, BrokerError> {
        Ok(seen.total() > 0
            || match change.lock.wait_queue() {
                Some(queue) => channel.consumers(&queue).await?.is_some(),
                None => false,
            })
    }

    async fn check(
        &self,
        change: &Change,
        channel: &mut Channel,
        expected: Expected,
    ) -> Result<Vec<Fault>, BrokerError> {
        check::check_slots(change, &self.how, channel, expected).await
    }
}
