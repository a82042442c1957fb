//! Observes numbered slots: which exist, which are held, and which is the highest. Takes
//! no admin mutex and changes nothing.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Instant;

use super::holding::Holding;
use crate::plan::naming::{LockName, MAX_SLOTS};
use crate::plan::semaphore::ObservedSlots;
use crate::semaphore::error::BrokerError;
use crate::semaphore::protocol::claim::HolderSeen;
use crate::semaphore::session::access::Access;

/// Observes which of the slots 1 to `slots_to` exist and which of 1 to `holders_to` are
/// held.
pub async fn observe(
    access: &Access,
    how: &dyn Holding,
    lock: &LockName,
    slots_to: u32,
    holders_to: u32,
) -> Result<ObservedSlots, BrokerError> {
    let _turn = access.turn_to_look().await?;
    let looked = how.look(access.eyes(), lock, 1..=slots_to, 1..=holders_to, true).await?;
    let slots: BTreeSet<u32> =
        (1..).zip(looked.slots).filter_map(|(slot, exists)| exists.then_some(slot)).collect();
    let holders = || (1..).zip(&looked.holders);
    let held = holders().filter(|(_, seen)| **seen == HolderSeen::Held);
    let left_over = holders().filter(|(slot, seen)| {
        **seen == HolderSeen::Unheld && *slot <= slots_to && !slots.contains(slot)
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
    access.marks.as_ref()?.highest_slot(lock).await
}

/// Finds the high-water mark with the help of the management API's list.
pub async fn find_mark(
    access: &Access,
    how: &dyn Holding,
    lock: &LockName,
    overshoot: u32,
) -> Result<u32, BrokerError> {
    let listed = highest_listed(access, lock).await;
    find_highest(access, how, lock, overshoot, listed).await
}

/// Finds the highest slot that has a slot queue, a holder or a leftover, by probing
/// upwards from the highest listed one.
pub async fn find_highest(
    access: &Access,
    how: &dyn Holding,
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
    how: &dyn Holding,
    lock: &LockName,
    slots: RangeInclusive<u32>,
) -> Result<u32, BrokerError> {
    let _turn = access.turn_to_look().await?;
    let looked = how.look(access.eyes(), lock, slots.clone(), slots.clone(), true).await?;
    let seen = looked.slots.into_iter().zip(looked.holders);
    let there =
        slots.zip(seen).filter(|(_, (exists, holder))| *exists || *holder != HolderSeen::Absent);
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
    let management = access.management.as_ref()?;
    let listed = access.listing.get(management, access.options.list_interval, since).await?;
    // A list of another broker's queues is useless.
    let cluster = access.identity().await.ok()?.cluster_name;
    if listed.cluster.as_deref() != Some(cluster.as_str()) {
        return None;
    }
    let exists = |slot: &u32| listed.names.contains(lock.slot_queue(*slot).as_str());
    Some((1..=slots_to).filter(exists).collect())
}
