//! Protocol `ExclusiveConsumer`: the holder of slot `i` is the exclusive consumer of
//! `C[i]`. The administrator declares this queue before `A[i]`. The broker notifies a
//! holder when `C[i]` is deleted, and administrators send messages to the holder through
//! it. See `numbered` for numbered slots and `client` for the choice of a slot.

mod administering;
mod held;
mod revoking;

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use futures::TryFutureExt;
use futures::stream::{self, StreamExt, TryStreamExt};
use lapin::options::{BasicConsumeOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lockkeeper_amqp::channel::together::in_order;
use lockkeeper_amqp::channel::{Channel, Refused, short};
use lockkeeper_amqp::error::AmqpError;
use lockkeeper_amqp::probe::{INSPECTED_TOGETHER, ProbeContext, Seen};
use lockkeeper_amqp::refusal::is_in_use;
use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::ObservedSlots;

use self::held::HeldConsumer;
use super::slot_protocol::SlotProtocol;
use crate::error::BrokerError;
use crate::protocol::claim::{Claim, Claimed, ClientProtocol, HolderState, SlotObservation};
use crate::protocol::fault::Fault;
use crate::protocol::revoke::{Revoke, RevokeError};
use crate::queues::arguments::bare_arguments;
use crate::queues::{holder, slot};
use crate::session::access::Access;
use crate::session::change::Change;

/// Number of attempts to observe holder queues. Each repetition means that a queue was
/// deleted in the meantime.
const LOOKS: u32 = 4;

/// Number of holder queues inspected together on one channel.
const LOOKED_AT_TOGETHER: usize = 400;

/// Implementation of protocol `ExclusiveConsumer`.
pub struct ExclusiveConsumer;

#[async_trait]
impl ClientProtocol for ExclusiveConsumer {
    async fn claim(&self, claim: Claim<'_>) -> Result<Claimed, BrokerError> {
        take(claim).await
    }

    async fn look(
        &self,
        context: ProbeContext<'_>,
        lock: &LockName,
        slots: RangeInclusive<u32>,
        holders: RangeInclusive<u32>,
        draining: bool,
    ) -> Result<SlotObservation, BrokerError> {
        let names: Vec<String> = slots.clone().map(|slot| lock.slot_queue(slot)).collect();
        let seen = context.prober.see(&names).await?;
        // An existing slot has its holder queue. A missing slot may be draining. A
        // probe then shows whether its holder queue exists, and prompts its holder to
        // verify the slot.
        let exists = |slot: u32| {
            let seen = slot.checked_sub(*slots.start()).and_then(|i| seen.get(i as usize));
            !matches!(seen, Some(Seen::No))
        };
        let gone: Vec<u32> = holders.clone().filter(|slot| draining && !exists(*slot)).collect();
        let names: Vec<String> = gone.iter().map(|slot| lock.holder_queue(*slot)).collect();
        let left = context.prober.see(&names).await?;
        let left = gone.into_iter().zip(left).filter(|(_, left)| *left != Seen::No);
        let left: BTreeSet<u32> = left.map(|(slot, _)| slot).collect();
        let inspected = |slot: &u32| exists(*slot) || left.contains(slot);
        let names: Vec<String> =
            holders.clone().filter(inspected).map(|slot| lock.holder_queue(slot)).collect();
        let mut counted = held(context, &names).await?.into_iter();
        let held = |slot: u32| {
            if inspected(&slot) {
                counted.next().unwrap_or(HolderState::Absent)
            } else {
                HolderState::Absent
            }
        };
        let holders = holders.map(held).collect();
        Ok(SlotObservation { slots: seen, holders })
    }

    /// In one round trip, and without a probe of each slot: a held one needs none, even if it
    /// was removed.
    async fn all_held(
        &self,
        context: ProbeContext<'_>,
        lock: &LockName,
        slots: RangeInclusive<u32>,
        missing: Option<u32>,
    ) -> Result<bool, BrokerError> {
        let holders: Vec<String> = slots.map(|slot| lock.holder_queue(slot)).collect();
        if holders.is_empty() || holders.len() > LOOKED_AT_TOGETHER {
            return Ok(false);
        }
        let missing: Vec<String> = missing.map(|slot| lock.slot_queue(slot)).into_iter().collect();
        let consumers =
            async { context.connection.publisher().await?.consumers_of(&holders).await };
        match futures::try_join!(consumers, context.prober.see(&missing)) {
            Ok((consumers, seen)) => {
                let held = consumers.is_some_and(|all| all.iter().all(|consumers| *consumers > 0));
                Ok(held && seen.iter().all(|seen| *seen == Seen::No))
            }
            Err(AmqpError::NodeDown { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

#[async_trait]
impl SlotProtocol for ExclusiveConsumer {
    async fn declare_slot(
        &self,
        channel: &mut Channel,
        lock: &LockName,
        slot: u32,
    ) -> Result<(), BrokerError> {
        // First, so that a client that finds the slot can hold it.
        holder::declare(channel, &lock.holder_queue(slot)).await.map_err(explain)?;
        slot::declare(channel, &lock.slot_queue(slot), lock.profile()).await
    }

    async fn check_holder(
        &self,
        channel: &mut Channel,
        lock: &LockName,
        slot: u32,
        seen: &ObservedSlots,
    ) -> Result<Option<Fault>, BrokerError> {
        if !seen.slots.contains(&slot) {
            return Ok(None);
        }
        match holder::inspect(channel, &lock.holder_queue(slot)).await.map_err(explain) {
            Ok(found) => Ok(found.is_none().then_some(Fault::WithoutHolderQueue { slot })),
            Err(BrokerError::IncompatibleQueue { why, .. }) => {
                Ok(Some(Fault::Foreign { slot, why }))
            }
            Err(error) => Err(error),
        }
    }

    async fn holder_queues_exist(
        &self,
        access: &Access,
        lock: &LockName,
        slots: RangeInclusive<u32>,
    ) -> Result<bool, BrokerError> {
        let names: Vec<String> = slots.map(|slot| lock.holder_queue(slot)).collect();
        access.all_exist(&names).await
    }

    async fn remove_orphans(
        &self,
        change: &Change,
        channel: &mut Channel,
        to: u32,
    ) -> Result<u32, BrokerError> {
        administering::remove_orphans(change, channel, to).await
    }

    fn has_separate_holders(&self) -> bool {
        // A slot's holder queue shows whether it is held, and exists with the slot.
        false
    }

    async fn revoke(&self, revoke: &Revoke<'_>) -> Result<(), RevokeError> {
        revoking::revoke(revoke).await
    }
}

/// Returns the state of each of these holder queues.
///
/// Uses passive declares, which any connection may send. A missing queue closes the
/// channel and leaves the rest unanswered. In this case a probe finds the missing ones,
/// and prompts holders to verify their slots. If the node of one is down, each is inspected
/// alone.
async fn held(
    context: ProbeContext<'_>,
    names: &[String],
) -> Result<Vec<HolderState>, BrokerError> {
    let mut seen = vec![Seen::Yes; names.len()];
    let mut channel = context.connection.publisher().await?;
    let all = names;
    for _ in 0..LOOKS {
        let there = names.iter().zip(&seen).filter(|(_, seen)| **seen == Seen::Yes);
        let there: Vec<String> = there.map(|(name, _)| name.clone()).collect();
        let mut counts = Vec::with_capacity(there.len());
        for names in there.chunks(LOOKED_AT_TOGETHER) {
            match channel.consumers_of(names).await {
                Ok(Some(more)) => counts.extend(more),
                Ok(None) => break,
                Err(AmqpError::NodeDown { .. }) => return held_each(context, all).await,
                Err(error) => return Err(error.into()),
            }
        }
        if counts.len() == there.len() {
            let mut counts = counts.into_iter().map(with_consumers);
            let holder = |seen| match seen {
                Seen::Yes => counts.next().unwrap_or(HolderState::Absent),
                Seen::No => HolderState::Absent,
                Seen::Unknown => HolderState::Unknown,
            };
            return Ok(seen.into_iter().map(holder).collect());
        }
        seen = context.prober.see(names).await?;
    }
    Err(BrokerError::Protocol { why: "holder queues come and go".to_owned() })
}

/// Inspects each of these holder queues alone.
async fn held_each(
    context: ProbeContext<'_>,
    names: &[String],
) -> Result<Vec<HolderState>, BrokerError> {
    let inspect = |name: String| async move {
        let mut channel = context.connection.publisher().await?;
        match channel.consumers(&name).await {
            Ok(consumers) => Ok(consumers.map_or(HolderState::Absent, with_consumers)),
            Err(AmqpError::NodeDown { .. }) => Ok(HolderState::Unknown),
            Err(error) => Err(error),
        }
    };
    stream::iter(names.to_vec())
        .map(inspect)
        .buffered(INSPECTED_TOGETHER)
        .try_collect()
        .await
        .map_err(BrokerError::from)
}

/// Returns the state of the holder whose queue has this many consumers.
fn with_consumers(consumers: u32) -> HolderState {
    if consumers > 0 { HolderState::Held } else { HolderState::Unheld }
}

/// Consumes from the holder queue exclusively and checks that the slot exists, sent
/// together.
async fn take(claim: Claim<'_>) -> Result<Claimed, BrokerError> {
    let Claim { side, connection, lock, slot, id, facts, checked, .. } = claim;
    let (slot_queue, holder_queue) = (lock.slot_queue(slot), lock.holder_queue(slot));
    let tag = format!("lockkeeper-{id}");
    let mut channel = Channel::take(connection).await?;
    let raw = channel.raw().await?;
    channel.count_declares(2);
    let (holder, tag) = (short(&holder_queue)?, short(&tag)?);
    let exclusive = BasicConsumeOptions { exclusive: true, no_ack: true, ..Default::default() };
    let consume = raw.basic_consume(holder.clone(), tag.clone(), exclusive, facts);
    // A queue of another type silently grants a second exclusive consumer, so it must not
    // hold a slot. Declaring it again reveals this without creating anything: the queue
    // exists, because it has a consumer.
    let is_checked = checked.contains(&holder_queue);
    let check = async {
        if is_checked {
            return Ok(());
        }
        let durable = QueueDeclareOptions::durable();
        raw.queue_declare(holder, durable, bare_arguments()).await.map(drop)
    };
    let slot = short(&slot_queue)?;
    let passive = QueueDeclareOptions::default().passive();
    let exists = raw.queue_declare(slot, passive, FieldTable::default());
    let consume = consume.map_err(|error| (Request::Consume, error));
    let check = check.map_err(|error| (Request::Check, error));
    let exists = exists.map_err(|error| (Request::Exists, error));
    let all = async { Ok(in_order(consume, in_order(check, exists)).await) };
    let claimed = match channel.answer("to basic.consume", &holder_queue, all).await? {
        Ok(Ok((consumer, _))) => {
            if !is_checked {
                checked.insert(holder_queue.clone());
            }
            let side = Arc::clone(side);
            let held = HeldConsumer::new(channel, consumer, tag, holder_queue, slot_queue, side);
            return Ok(Claimed::Yes(Box::new(held)));
        }
        Ok(Err((request, error))) => {
            not_claimed(&mut channel, request, &error, &holder_queue, &slot_queue)?
        }
        Err(refused) => return Err(refused.error.into()),
    };
    // In any case, it may be another queue next time.
    checked.remove(&holder_queue);
    // Opens a new channel, so that the next acquisition need not wait for it.
    channel.raw().await?;
    Ok(claimed)
}

/// The requests by which a slot is taken, in this order.
#[derive(Clone, Copy)]
enum Request {
    Consume,
    Check,
    Exists,
}

/// Returns why a slot was not taken, from the first request that failed. A refusal closes the
/// channel, which ends the consumer.
fn not_claimed(
    channel: &mut Channel,
    request: Request,
    error: &lapin::Error,
    holder_queue: &str,
    slot_queue: &str,
) -> Result<Claimed, BrokerError> {
    match request {
        Request::Consume => match channel.refused(error, holder_queue)? {
            Refused { code: 404, .. } => Ok(Claimed::NoSlot),
            Refused { code: 403, error } if is_in_use(&error) => Ok(Claimed::Locked),
            // The answer to the check may arrive first.
            refused => Err(explain(refused.error.into())),
        },
        Request::Check => Err(explain(channel.refused(error, holder_queue)?.error.into())),
        Request::Exists => match channel.refused(error, slot_queue)? {
            Refused { code: 404, .. } => Ok(Claimed::NoSlot),
            refused => Err(refused.error.into()),
        },
    }
}

/// Adds why another kind of queue is not usable, before the difference.
fn explain(error: BrokerError) -> BrokerError {
    match error {
        BrokerError::IncompatibleQueue { queue, why } => BrokerError::IncompatibleQueue {
            queue,
            why: format!(
                "a holder queue must be a durable classic queue with x-max-length 0, because one of another type, such as a quorum queue, lets two clients hold the slot at once; delete it. {why}"
            ),
        },
        error => error,
    }
}
