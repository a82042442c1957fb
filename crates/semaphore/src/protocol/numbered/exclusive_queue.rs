//! Protocol `ExclusiveQueue`, the amqp-locks guideline's "persistent semaphore": the holder of
//! slot `i` has declared `B[i]` exclusive to its connection. True mutexes use the same
//! technique, with a queue that has the lock's name. See `numbered` for numbered slots
//! and `client` for the choice of a slot.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::TryFutureExt;
use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lockkeeper_amqp::channel::together::in_order;
use lockkeeper_amqp::channel::{Channel, Declared, short};
use lockkeeper_amqp::connection::Connection;
use lockkeeper_amqp::lazy::LazyConnection;
use lockkeeper_amqp::probe::{ProbeContext, Seen};
use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::ObservedSlots;

use super::slot_protocol::SlotProtocol;
use crate::error::BrokerError;
use crate::protocol::claim::{Claim, Claimed, ClientProtocol, HolderState, SlotObservation};
use crate::protocol::fault::Fault;
use crate::protocol::hold::HeldClaim;
use crate::protocol::revoke::{HeldBy, Revoke, RevokeError};
use crate::queues::arguments::exclusive;
use crate::queues::ownership::Ownership;
use crate::queues::wait::Waiters;
use crate::queues::{ownership, wait};
use crate::session::access::Access;
use crate::session::change::Change;

/// Implementation of protocol `ExclusiveQueue`.
pub struct ExclusiveQueue;

#[async_trait]
impl ClientProtocol for ExclusiveQueue {
    async fn claim(&self, claim: Claim<'_>) -> Result<Claimed, BrokerError> {
        take(claim).await
    }

    async fn look(
        &self,
        context: ProbeContext<'_>,
        lock: &LockName,
        slots: RangeInclusive<u32>,
        holders: RangeInclusive<u32>,
        _draining: bool,
    ) -> Result<SlotObservation, BrokerError> {
        let count = slots.clone().count();
        let names: Vec<String> = slots
            .map(|slot| lock.slot_queue(slot))
            .chain(holders.map(|slot| lock.holder_queue(slot)))
            .collect();
        let mut slots = context.prober.see(&names).await?;
        let holders = slots.split_off(count).into_iter().map(HolderState::of_exclusive_queue);
        let holders = holders.collect();
        Ok(SlotObservation { slots, holders })
    }

    /// A held slot needs no probe of its slot queue, even if it was removed.
    async fn all_held(
        &self,
        context: ProbeContext<'_>,
        lock: &LockName,
        slots: RangeInclusive<u32>,
        missing: Option<u32>,
    ) -> Result<bool, BrokerError> {
        let mut names: Vec<String> = slots.map(|slot| lock.holder_queue(slot)).collect();
        let held = names.len();
        names.extend(missing.map(|slot| lock.slot_queue(slot)));
        let seen = context.prober.see(&names).await?;
        let (held, missing) = seen.split_at(held.min(seen.len()));
        let is_held = held.iter().all(|seen| *seen == Seen::Yes);
        Ok(!held.is_empty() && is_held && missing.iter().all(|seen| *seen == Seen::No))
    }
}

#[async_trait]
impl SlotProtocol for ExclusiveQueue {
    async fn declare_slot(
        &self,
        channel: &mut Channel,
        lock: &LockName,
        slot: u32,
    ) -> Result<(), BrokerError> {
        crate::queues::slot::declare(channel, &lock.slot_queue(slot), lock.profile()).await
    }

    async fn check_holder(
        &self,
        channel: &mut Channel,
        lock: &LockName,
        slot: u32,
        seen: &ObservedSlots,
    ) -> Result<Option<Fault>, BrokerError> {
        if !seen.held.contains(&slot) || channel.connection().features.refusal_ends_connection() {
            return Ok(None);
        }
        let queue = lock.holder_queue(slot);
        // A holder's queue is exclusive to its connection, which is not this one.
        let is_ordinary = channel.look(&queue).await? == Some(Declared::Ok);
        Ok(is_ordinary.then_some(Fault::ForeignHolderQueue { slot, queue }))
    }

    async fn holder_queues_exist(
        &self,
        _: &Access,
        _: &LockName,
        _: RangeInclusive<u32>,
    ) -> Result<bool, BrokerError> {
        // Holders declare their holder queue themselves.
        Ok(true)
    }

    async fn remove_orphans(
        &self,
        _: &Change,
        _: &mut Channel,
        _: u32,
    ) -> Result<u32, BrokerError> {
        // Holder queues are deleted with their holder's connection.
        Ok(0)
    }

    fn has_separate_holders(&self) -> bool {
        true
    }

    async fn revoke(&self, revoke: &Revoke<'_>) -> Result<(), RevokeError> {
        revoke.by_closing(HeldBy::HolderQueue).await
    }
}

/// A queue that is exclusive to the connection that holds the slot.
pub struct HeldQueue {
    pub connection: Arc<Connection>,
    pub holder_queue: String,
    /// `None` for a true mutex.
    pub slot: Option<SlotOf>,
}

/// The slot queue of a holder queue.
pub struct SlotOf {
    pub queue: String,
    /// A connection that holds nothing.
    pub side: Arc<LazyConnection>,
}

#[async_trait]
impl HeldClaim for HeldQueue {
    async fn verify(&self, limit: Duration) -> Result<Ownership, BrokerError> {
        let mut channel = Channel::take(&self.connection).await?;
        channel.set_limit(limit);
        match &self.slot {
            Some(slot) if !self.connection.is_worn() => {
                ownership::verify(&mut channel, &self.holder_queue, &slot.queue).await
            }
            slot => match channel.look(&self.holder_queue).await? {
                Some(Declared::Ok) => match slot {
                    None => Ok(Ownership::Held),
                    Some(slot) => ownership::with_slot(&slot.side, &slot.queue, limit).await,
                },
                _ => Ok(Ownership::Gone),
            },
        }
    }

    async fn give_back(&self, wait_queue: Option<&str>) -> Result<Waiters, BrokerError> {
        let mut channel = Channel::take(&self.connection).await?;
        let raw = channel.raw().await?;
        let options = QueueDeleteOptions::default();
        let delete = raw.queue_delete(short(&self.holder_queue)?, options);
        wait::do_and_count(&mut channel, delete, &self.holder_queue, wait_queue).await
    }
}

/// The result of declaring a holder queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// The holder queue belongs to this connection, and the slot existed after that.
    Yes,
    /// The slot does not exist. Nothing was declared.
    NoSlot,
    /// Another connection owns the holder queue.
    Locked,
    /// The holder queue belongs to this connection, but the slot was deleted in the
    /// meantime: release it (hazard A8: 1,500 of 1,500 forced races).
    SlotWent,
}

async fn take(claim: Claim<'_>) -> Result<Claimed, BrokerError> {
    let Claim { side, connection, lock, slot, looked, mut facts, .. } = claim;
    let (slot_queue, holder_queue) = (lock.slot_queue(slot), lock.holder_queue(slot));
    exclusive(&mut facts);
    let mut channel = Channel::take(connection).await?;
    let taken = take_slot(&mut channel, &slot_queue, looked, &holder_queue, facts).await?;
    let claimed = match taken {
        Taken::Yes => {
            let connection = Arc::clone(connection);
            let slot = Some(SlotOf { queue: slot_queue, side: Arc::clone(side) });
            let held = HeldQueue { connection, holder_queue, slot };
            return Ok(Claimed::Yes(Box::new(held)));
        }
        Taken::SlotWent => {
            channel.delete(&holder_queue).await?;
            Claimed::NoSlot
        }
        Taken::NoSlot => Claimed::NoSlot,
        Taken::Locked => Claimed::Locked,
    };
    // The refusal closed the channel. Opens a new one, so that the next acquisition need
    // not wait for it.
    if connection.is_usable() {
        channel.raw().await?;
    }
    Ok(claimed)
}

/// Declares `holder` exclusive to this connection. Checks that `slot` exists before
/// it (unless `looked`: a probe has just seen it) and after it. Three methods in one
/// round trip.
async fn take_slot(
    channel: &mut Channel,
    slot: &str,
    looked: bool,
    holder: &str,
    facts: FieldTable,
) -> Result<Taken, BrokerError> {
    let raw = channel.raw().await?;
    channel.count_declares(3);
    let passive = QueueDeclareOptions::default().passive();
    let (slot_name, holder_name) = (short(slot)?, short(holder)?);
    let before = async {
        if !looked {
            raw.queue_declare(slot_name.clone(), passive, FieldTable::default()).await?;
        }
        Ok::<_, lapin::Error>(())
    };
    let exclusive = QueueDeclareOptions::exclusive();
    let facts = channel.connection().features.exclusive_arguments(facts);
    let declare = raw.queue_declare(holder_name, exclusive, facts);
    let after = raw.queue_declare(slot_name.clone(), passive, FieldTable::default());
    let before = before.map_err(|error| (error, slot, Taken::NoSlot, None));
    let declare = declare.map_err(|error| (error, holder, Taken::Locked, Some(Taken::Locked)));
    let after = after.map_err(|error| (error, slot, Taken::SlotWent, Some(Taken::Yes)));
    let all = async { Ok(in_order(before, in_order(declare, after)).await) };
    let (error, queue, on_404, on_405) = match channel.answer_to_claim(holder, all).await? {
        Ok(Ok(_)) => return Ok(Taken::Yes),
        Ok(Err(failed)) => failed,
        Err(refused) => return Err(refused.error.into()),
    };
    let refused = channel.refused(&error, queue)?;
    match (refused.code, on_405, refused.error) {
        (404, _, _) => Ok(on_404),
        (405, Some(claimed), _) => Ok(claimed),
        (_, _, error) => Err(error.into()),
    }
}
