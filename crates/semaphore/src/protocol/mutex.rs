//! The true mutex: one exclusive queue with the lock's name, which its holder declares
//! (source document "distributed locks"). It has one slot, which always exists, so there is
//! nothing to administer. See `exclusive_queue` for the same technique with numbered
//! slots, and `session` for the admin mutex of a semaphore, which is a true mutex.

use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use lapin::types::FieldTable;
use lockkeeper_amqp::channel::{Channel, Declared};
use lockkeeper_amqp::probe::{ProbeContext, Seen};
use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::{HolderFacts, Observed, ObservedTokens, describe_holders};

use super::claim::{Claim, Claimed, ClientProtocol, HolderState, MUTEX_SLOT, SlotObservation};
use super::holders::{Holders, PATIENCE};
use super::interface::LockProtocol;
use super::numbered::exclusive_queue::HeldQueue;
use super::revoke::{HeldBy, Revoke, RevokeError};
use crate::error::BrokerError;
use crate::queues::arguments::exclusive;
use crate::queues::wait::mutex_wait_arguments;
use crate::session::access::Access;

/// Implementation of the true mutex.
pub struct TrueMutex;

#[async_trait]
impl ClientProtocol for TrueMutex {
    async fn claim(&self, claim: Claim<'_>) -> Result<Claimed, BrokerError> {
        let Claim { connection, lock, mut facts, .. } = claim;
        exclusive(&mut facts);
        let holder_queue = lock.holder_queue(MUTEX_SLOT);
        let mut channel = Channel::take(connection).await?;
        match channel.declare_exclusive(&holder_queue, facts).await? {
            Declared::Ok => {
                let connection = Arc::clone(connection);
                let held = HeldQueue { connection, holder_queue, slot: None };
                Ok(Claimed::Yes(Box::new(held)))
            }
            Declared::Locked => {
                // The refusal closed the channel. Opens a new one, so that the next
                // attempt need not wait for it.
                if connection.is_usable() {
                    channel.raw().await?;
                }
                Ok(Claimed::Locked)
            }
        }
    }

    async fn look(
        &self,
        context: ProbeContext<'_>,
        lock: &LockName,
        slots: RangeInclusive<u32>,
        holders: RangeInclusive<u32>,
        _draining: bool,
    ) -> Result<SlotObservation, BrokerError> {
        let holder = context.prober.see(&[lock.holder_queue(MUTEX_SLOT)]).await?;
        let seen = |slot| match holder.first() {
            Some(holder) if slot == MUTEX_SLOT => HolderState::of_exclusive_queue(*holder),
            _ => HolderState::Absent,
        };
        let exists = |slot| if slot == MUTEX_SLOT { Seen::Yes } else { Seen::No };
        Ok(SlotObservation {
            slots: slots.map(exists).collect(),
            holders: holders.map(seen).collect(),
        })
    }

    fn wait_queue_arguments(&self) -> Option<FieldTable> {
        Some(mutex_wait_arguments())
    }
}

#[async_trait]
impl LockProtocol for TrueMutex {
    /// An ordinary queue of that name is an error: no client could ever take the mutex.
    async fn observe(
        &self,
        access: &Access,
        lock: &LockName,
        _: u32,
        _: u32,
    ) -> Result<Observed, BrokerError> {
        let queue = lock.holder_queue(MUTEX_SLOT);
        let mut channel = access.publisher().await?;
        if channel.connection().features.refusal_ends_connection() {
            let held = u32::from(access.any_exists(&[queue]).await?);
            return Ok(Observed::Counted(ObservedTokens { total: 1, held }));
        }
        let held = match channel.look(&queue).await? {
            None => 0,
            Some(Declared::Locked) => 1,
            Some(Declared::Ok) => {
                return Err(BrokerError::IncompatibleQueue {
                    queue,
                    why: "an ordinary queue has the name of the mutex".to_owned(),
                });
            }
        };
        Ok(Observed::Counted(ObservedTokens { total: 1, held }))
    }

    async fn waiting(&self, access: &Access, lock: &LockName) -> Result<Option<u32>, BrokerError> {
        let Some(queue) = lock.wait_queue() else { return Ok(None) };
        // The first waiter declares the wait queue.
        let waiting = access.publisher().await?.consumers(&queue).await?;
        Ok(Some(waiting.unwrap_or(0)))
    }

    async fn holders(
        &self,
        access: &Access,
        lock: &LockName,
        seen: &Observed,
        _: u32,
        limit: usize,
    ) -> Holders {
        if seen.held() == 0 || limit == 0 {
            return Holders::default();
        }
        let mut found = Holders::default();
        let mut known = HolderFacts::default();
        if let Some(management) = &access.management {
            let queue = lock.holder_queue(MUTEX_SLOT);
            match tokio::time::timeout(PATIENCE, management.owned(&queue)).await {
                Ok(Ok(Some(owned))) => known = owned.facts,
                Ok(Err(error)) => found.management_error = Some(error),
                Ok(Ok(None)) | Err(_) => {}
            }
            found.incomplete = found.management_error.is_none() && known.connection.is_none();
        }
        found.list = describe_holders(&[MUTEX_SLOT].into(), MUTEX_SLOT, 1, |_| known.clone());
        for holder in &mut found.list {
            holder.slot = None;
        }
        found
    }

    async fn revoke(&self, revoke: &Revoke<'_>) -> Result<(), RevokeError> {
        revoke.by_closing(HeldBy::Mutex).await
    }
}
