//! Searches for free slots, as a client of the guideline does before it declares
//! anything. The protocol probes one slot, and `attempt` takes one.

use std::ops::RangeInclusive;

use crate::plan::naming::{LockName, MAX_SLOTS};
use crate::semaphore::amqp::probe::Eyes;
use crate::semaphore::error::BrokerError;
use crate::semaphore::protocol::numbered::holding::{HolderSeen, Holding};

/// Maximum number of slots probed together. The first window is one slot, which suits a
/// lock that is mostly free, or all known slots. Each further window is four times
/// larger.
const WIDEST: u32 = 256;

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Free slots in ascending order: all of the first window that has any.
    Free(Vec<u32>),
    /// The number of slots, all held. `0`: there is no slot 1.
    Full(u32),
}

/// Searches upwards from `from`, then from 1 up to `from`. The first missing slot marks
/// the end, as in the source document. `expected` is the known number of slots, all
/// assumed held, or 0 if unknown.
///
/// Cancel safe: nothing is changed.
pub async fn search(
    how: &dyn Holding,
    eyes: Eyes<'_>,
    lock: &LockName,
    from: u32,
    expected: u32,
) -> Result<Found, BrokerError> {
    let from = from.clamp(1, MAX_SLOTS);
    // Include the slot after the last, which reveals the end.
    let first = if expected == 0 { 1 } else { (expected + 2).saturating_sub(from) };
    let upper = look(how, eyes, lock, from..=MAX_SLOTS, first).await?;
    if from == 1 || matches!(upper, Found::Free(_)) {
        return Ok(upper);
    }
    match (look(how, eyes, lock, 1..=from - 1, first).await?, upper) {
        // No slot below is missing, so the upper count is the total.
        (Found::Full(lower), Found::Full(upper)) if lower == from - 1 => {
            Ok(Found::Full(lower.max(upper)))
        }
        (found, _) => Ok(found),
    }
}

async fn look(
    how: &dyn Holding,
    eyes: Eyes<'_>,
    lock: &LockName,
    range: RangeInclusive<u32>,
    first: u32,
) -> Result<Found, BrokerError> {
    let (mut start, to) = range.into_inner();
    let mut width = first.clamp(1, WIDEST);
    while start <= to {
        let end = start.saturating_add(width - 1).min(to);
        let looked = how.look(eyes, lock, start..=end, start..=end, false).await?;
        let missing = (start..=end).zip(&looked.slots).find(|(_, exists)| !**exists);
        let last = missing.map(|(slot, _)| slot - 1);
        let exists = |slot: u32| last.is_none_or(|last| slot <= last);
        let free: Vec<u32> = (start..=end)
            .zip(&looked.holders)
            .filter(|(slot, holder)| **holder != HolderSeen::Held && exists(*slot))
            .map(|(slot, _)| slot)
            .collect();
        if !free.is_empty() {
            return Ok(Found::Free(free));
        }
        if let Some(last) = last {
            return Ok(Found::Full(last));
        }
        start = end + 1;
        width = (width * 4).min(WIDEST);
    }
    Ok(Found::Full(to))
}
