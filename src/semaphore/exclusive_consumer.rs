//! Protocol `ExclusiveConsumer`: who holds slot `i` is the exclusive consumer of
//! `C[i]`, a queue that whoever administers makes before `A[i]`. The broker tells a
//! holder when it took `C[i]` away, and administrators reach the holder by a message
//! to it. What slots are, and which one to take, is `slots`' and the client's.

mod administering;
mod held;

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use futures::FutureExt;
use futures::future::BoxFuture;
use lapin::options::{BasicConsumeOptions, QueueDeclareOptions};
use lapin::types::FieldTable;

pub(super) use self::administering::revoke_message;
use self::held::HeldConsumer;
use super::broker::Inner;
use super::converge::Change;
use super::error::BrokerError;
use super::lane::{Lane, Refused, bare_arguments, short};
use super::protocol::{Claim, Claimed, Eyes, HolderSeen, Holding, Looked};
use crate::plan::naming::LockName;

/// Looks at holder queues after which an observation gives up: each but the first
/// means that one was removed meanwhile.
const LOOKS: u32 = 4;

/// Holder queues looked at together, on one channel.
const LOOKED_AT_TOGETHER: usize = 400;

/// The protocol.
pub(super) struct ExclusiveConsumer;

impl Holding for ExclusiveConsumer {
    fn claim<'a>(&'a self, claim: Claim<'a>) -> BoxFuture<'a, Result<Claimed, BrokerError>> {
        take(claim).boxed()
    }

    fn look<'a>(
        &'a self,
        eyes: Eyes<'a>,
        lock: &'a LockName,
        slots: RangeInclusive<u32>,
        holders: RangeInclusive<u32>,
        draining: bool,
    ) -> BoxFuture<'a, Result<Looked, BrokerError>> {
        async move {
            let names: Vec<String> = slots.clone().map(|slot| lock.slot_queue(slot)).collect();
            let exist = eyes.prober.exist(&names).await?;
            // A slot that exists has its holder queue. One that doesn't may be draining:
            // whether its holder queue is there is found out by a probe, which its
            // holder takes for a reason to look.
            let exists = |slot: u32| {
                slot.checked_sub(*slots.start()).and_then(|i| exist.get(i as usize)) != Some(&false)
            };
            let gone: Vec<u32> =
                holders.clone().filter(|slot| draining && !exists(*slot)).collect();
            let names: Vec<String> = gone.iter().map(|slot| lock.holder_queue(*slot)).collect();
            let left = eyes.prober.exist(&names).await?;
            let left: BTreeSet<u32> =
                gone.into_iter().zip(left).filter_map(|(slot, is)| is.then_some(slot)).collect();
            let wanted = |slot: &u32| exists(*slot) || left.contains(slot);
            let names: Vec<String> =
                holders.clone().filter(wanted).map(|slot| lock.holder_queue(slot)).collect();
            let mut consumers = consumers(eyes, &names).await?.into_iter();
            let seen = |slot: u32| {
                let consumers = if wanted(&slot) { consumers.next().flatten() } else { None };
                match consumers {
                    None => HolderSeen::Absent,
                    Some(0) => HolderSeen::Unheld,
                    Some(_) => HolderSeen::Held,
                }
            };
            let holders = holders.map(seen).collect();
            Ok(Looked { slots: exist, holders })
        }
        .boxed()
    }

    fn declare_slot<'a>(
        &'a self,
        lane: &'a mut Lane,
        lock: &'a LockName,
        slot: u32,
    ) -> BoxFuture<'a, Result<(), BrokerError>> {
        async move {
            // First: who finds the slot can hold it.
            lane.declare_holder_queue(&lock.holder_queue(slot)).await.map_err(explain)?;
            lane.declare_slot(&lock.slot_queue(slot), lock.profile()).await
        }
        .boxed()
    }

    fn can_be_held<'a>(
        &'a self,
        broker: &'a Inner,
        lock: &'a LockName,
        slots: RangeInclusive<u32>,
    ) -> BoxFuture<'a, Result<bool, BrokerError>> {
        async move {
            let names: Vec<String> = slots.map(|slot| lock.holder_queue(slot)).collect();
            broker.all_exist(&names).await
        }
        .boxed()
    }

    fn tidy<'a>(
        &'a self,
        change: &'a Change,
        lane: &'a mut Lane,
        to: u32,
    ) -> BoxFuture<'a, Result<u32, BrokerError>> {
        administering::tidy(change, lane, to).boxed()
    }
}

/// How many consumers each of these queues has; `None` for one that is missing.
///
/// By passive declares, which say it to anyone. A missing queue ends the channel
/// and leaves the rest unanswered, so then the missing ones are found by a probe
/// (which a holder takes for a reason to look at its slot).
async fn consumers(eyes: Eyes<'_>, names: &[String]) -> Result<Vec<Option<u32>>, BrokerError> {
    let mut exist = vec![true; names.len()];
    let mut lane = eyes.link.publisher().await?;
    for _ in 0..LOOKS {
        let there = names.iter().zip(&exist).filter(|(_, exists)| **exists);
        let there: Vec<String> = there.map(|(name, _)| name.clone()).collect();
        let mut counts = Vec::with_capacity(there.len());
        for names in there.chunks(LOOKED_AT_TOGETHER) {
            match lane.consumers_of(names).await? {
                Some(more) => counts.extend(more),
                None => break,
            }
        }
        if counts.len() == there.len() {
            let mut counts = counts.into_iter();
            return Ok(exist
                .into_iter()
                .map(|exists| if exists { counts.next() } else { None })
                .collect());
        }
        exist = eyes.prober.exist(names).await?;
    }
    Err(BrokerError::Protocol { why: "holder queues come and go".to_owned() })
}

/// Consumes from the holder queue, exclusively, and looks that the slot exists,
/// sent together.
async fn take(claim: Claim<'_>) -> Result<Claimed, BrokerError> {
    let Claim { conn, lock, slot, id, facts, checked, .. } = claim;
    let (slot_queue, holder_queue) = (lock.slot_queue(slot), lock.holder_queue(slot));
    let tag = format!("lockkeeper-{id}");
    let mut lane = Lane::take(conn).await?;
    let channel = lane.channel().await?;
    lane.count_declares(2);
    let (holder, tag) = (short(&holder_queue)?, short(&tag)?);
    let exclusive = BasicConsumeOptions { exclusive: true, no_ack: true, ..Default::default() };
    let consume = channel.basic_consume(holder.clone(), tag.clone(), exclusive, facts);
    // A queue of another type grants a second exclusive consumer without a word, so
    // nothing may be held by one. Declaring it again tells, and makes nothing: it is
    // there, as there is a consumer.
    let is_checked = checked.contains(&holder_queue);
    let check = async {
        if is_checked {
            return Ok(());
        }
        let durable = QueueDeclareOptions::durable();
        channel.queue_declare(holder, durable, bare_arguments()).await.map(drop)
    };
    let slot = short(&slot_queue)?;
    let passive = QueueDeclareOptions::default().passive();
    let exists = channel.queue_declare(slot, passive, FieldTable::default());
    let all = async { Ok(futures::join!(consume, check, exists)) };
    let (consumer, check, exists) =
        match lane.answer("to basic.consume", &holder_queue, all).await? {
            Ok(answers) => answers,
            Err(refused) => return Err(refused.error),
        };
    // A refusal closes the channel, which ends the consumer, and what was sent after
    // it is not done: so the first error is the one that counts.
    let claimed = match (consumer, check, exists) {
        (Ok(consumer), Ok(()), Ok(_)) => {
            if !is_checked {
                checked.insert(holder_queue.clone());
            }
            let held = HeldConsumer::new(lane, consumer, tag, holder_queue, slot_queue);
            return Ok(Claimed::Yes(Box::new(held)));
        }
        (Err(error), _, _) => {
            let refused = lane.refused(&error, &holder_queue)?;
            match refused {
                Refused { code: 404, error: error @ BrokerError::NodeDown { .. } } => {
                    return Err(error);
                }
                Refused { code: 404, .. } => Claimed::NoSlot,
                Refused { code: 403, error } if is_in_use(&error) => Claimed::Locked,
                // The check's answer may come first.
                refused => return Err(explain(refused.error)),
            }
        }
        (_, Err(error), _) => {
            return Err(explain(lane.refused(&error, &holder_queue)?.error));
        }
        (_, _, Err(error)) => match lane.refused(&error, &slot_queue)? {
            Refused { code: 404, error: error @ BrokerError::NodeDown { .. } } => {
                return Err(error);
            }
            Refused { code: 404, .. } => Claimed::NoSlot,
            refused => return Err(refused.error),
        },
    };
    // Whatever happened, it may be another queue next time.
    checked.remove(&holder_queue);
    // Who wants a channel next is not to wait for it.
    lane.channel().await?;
    Ok(claimed)
}

/// Says why another kind of queue won't do, before how this one differs.
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

/// Another consumer has it, as opposed to: we have no right to read it.
fn is_in_use(error: &BrokerError) -> bool {
    matches!(error, BrokerError::AccessRefused { why } if why.contains("exclusive use"))
}
