//! Observes numbered slots: which exist, which are held, and which is the highest. Takes
//! no admin mutex and changes nothing.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Instant;

use lockkeeper_amqp::probe::Seen;
use lockkeeper_amqp::unanswered::no_answer_of;
use lockkeeper_plan::naming::{LockName, MAX_SLOTS};
use lockkeeper_plan::semaphore::ObservedSlots;

use super::slot_protocol::SlotProtocol;
use crate::error::BrokerError;
use crate::protocol::claim::{HolderState, SlotObservation};
use crate::session::access::Access;

/// Maximum number of slots inspected that are missing among existing ones.
const GAPS: usize = 16;

/// Observes which of the slots 1 to `slots_to` exist and which of 1 to `holders_to` are
/// held.
pub async fn observe(
    access: &Access,
    how: &dyn SlotProtocol,
    lock: &LockName,
    slots_to: u32,
    holders_to: u32,
) -> Result<ObservedSlots, BrokerError> {
    let _turn = access.turn_to_look().await?;
    let looked = how.look(access.probe_context(), lock, 1..=slots_to, 1..=holders_to, true).await?;
    check_known(lock, 1, &looked)?;
    let exist = (1..).zip(looked.slots).filter(|(_, seen)| *seen == Seen::Yes);
    let slots: BTreeSet<u32> = exist.map(|(slot, _)| slot).collect();
    let gaps = (1..slots.last().copied().unwrap_or(0)).filter(|slot| !slots.contains(slot));
    look_at_missing(access, lock, gaps).await?;
    let holders = || (1..).zip(&looked.holders);
    let held = holders().filter(|(_, seen)| **seen == HolderState::Held);
    let left_over = holders().filter(|(slot, seen)| {
        **seen == HolderState::Unheld && *slot <= slots_to && !slots.contains(slot)
    });
    Ok(ObservedSlots {
        swept_to: slots_to,
        held: held.map(|(slot, _)| slot).collect(),
        left_over: left_over.map(|(slot, _)| slot).collect(),
        slots,
    })
}

/// Returns the highest slot in any of the lock's queues, according to the management API.
/// `None` without a list.
pub async fn highest_listed(access: &Access, lock: &LockName) -> Option<u32> {
    let listed = access.listing.recent(access.management.as_ref()?).await?;
    Some(listed.of(lock).map_or(0, |of| of.highest))
}

/// Finds the high-water mark with the help of the management API's list. If the next slot
/// exists, but its node is down, that is an error.
pub async fn find_highest_slot(
    access: &Access,
    how: &dyn SlotProtocol,
    lock: &LockName,
    overshoot: u32,
) -> Result<u32, BrokerError> {
    let listed = highest_listed(access, lock).await;
    let highest = find_highest(access, how, lock, overshoot, listed).await?;
    look_at_missing(access, lock, std::iter::once(highest + 1)).await?;
    Ok(highest)
}

/// Returns an error if one of these slots, which a publish does not reach, is not missing:
/// its node is down (Mnesia). Costs a channel for each, so only the first ones are
/// inspected.
async fn look_at_missing(
    access: &Access,
    lock: &LockName,
    slots: impl Iterator<Item = u32>,
) -> Result<(), BrokerError> {
    let queues: Vec<String> = slots.take(GAPS).map(|slot| lock.slot_queue(slot)).collect();
    if queues.is_empty() {
        return Ok(());
    }
    let mut channel = access.publisher().await?;
    for queue in queues {
        channel.look(&queue).await?;
    }
    Ok(())
}

/// Returns an error if nothing is known of a slot or its holder, because a node is down. It
/// neither exists nor is it missing. The first slot observed is `from`.
fn check_known(lock: &LockName, from: u32, looked: &SlotObservation) -> Result<(), BrokerError> {
    let mut slots = (from..).zip(&looked.slots);
    let mut holders = (from..).zip(&looked.holders);
    let unknown = slots
        .find(|(_, seen)| **seen == Seen::Unknown)
        .map(|(slot, _)| lock.slot_queue(slot))
        .or_else(|| {
            let holder = holders.find(|(_, seen)| **seen == HolderState::Unknown);
            holder.map(|(slot, _)| lock.holder_queue(slot))
        });
    unknown.map_or(Ok(()), |queue| Err(no_answer_of(&[queue]).into()))
}

/// Finds the highest slot that has a slot queue, a holder or a leftover, by probing
/// upwards from the highest listed one.
pub async fn find_highest(
    access: &Access,
    how: &dyn SlotProtocol,
    lock: &LockName,
    overshoot: u32,
    listed: Option<u32>,
) -> Result<u32, BrokerError> {
    let gap = overshoot.saturating_mul(2).max(1);
    // Probe even with a list: it may belong to another broker, or be empty.
    let mut highest = listed.unwrap_or(0);
    let mut from = highest + 1;
    let mut to = highest + if listed.is_some() { gap } else { gap.max(64) };
    loop {
        highest = highest.max(highest_among(access, how, lock, from..=to).await?);
        if to - highest >= gap || highest >= MAX_SLOTS {
            return Ok(highest.min(MAX_SLOTS));
        }
        from = to + 1;
        to = (highest + gap).max(to.saturating_mul(2).min(MAX_SLOTS + gap)).max(from);
    }
}

/// Returns the highest of these slots that has a slot queue, a holder or a leftover.
/// 0 if none has.
async fn highest_among(
    access: &Access,
    how: &dyn SlotProtocol,
    lock: &LockName,
    slots: RangeInclusive<u32>,
) -> Result<u32, BrokerError> {
    let _turn = access.turn_to_look().await?;
    let looked = how.look(access.probe_context(), lock, slots.clone(), slots.clone(), true).await?;
    check_known(lock, *slots.start(), &looked)?;
    let seen = looked.slots.into_iter().zip(looked.holders);
    let there = slots
        .zip(seen)
        .filter(|(_, (slot, holder))| *slot != Seen::No || *holder != HolderState::Absent);
    Ok(there.map(|(slot, _)| slot).last().unwrap_or(0))
}

/// Returns the slots among 1 to `slots_to` that the management API has listed since then.
/// `None` without a usable list.
pub async fn listed(
    access: &Access,
    lock: &LockName,
    slots_to: u32,
    since: Option<Instant>,
) -> Option<BTreeSet<u32>> {
    let listed = access.listed(since).await?;
    let slots = listed.of(lock).into_iter().flat_map(|of| &of.slots);
    Some(slots.copied().take_while(|slot| *slot <= slots_to).collect())
}
