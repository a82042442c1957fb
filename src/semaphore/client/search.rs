//! Which slots are free: what the guideline's client finds out before it declares
//! anything. Looking at one is the protocol's, taking one `attempt`'s.

use std::ops::RangeInclusive;

use crate::plan::naming::{LockName, MAX_SLOTS};
use crate::semaphore::error::BrokerError;
use crate::semaphore::protocol::{Eyes, HolderSeen, Holding};

/// Most slots looked at together. The first window is one slot, for the lock that
/// is mostly free, or all that there seem to be; each further one four times that.
const WIDEST: u32 = 256;

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Free slots, ascending: all in the first window that has any.
    Free(Vec<u32>),
    /// So many slots, each with a holder; 0: there is no slot 1.
    Full(u32),
}

/// Looks from `from` upwards, at the end from 1 to there. The first slot that
/// doesn't exist is the end, as the source document has it. `expected`: how many
/// slots there seemed to be, each of them held; 0 if nothing is known.
///
/// Cancel safe: nothing is changed.
pub(super) async fn search(
    how: &dyn Holding,
    eyes: Eyes<'_>,
    lock: &LockName,
    from: u32,
    expected: u32,
) -> Result<Found, BrokerError> {
    let from = from.clamp(1, MAX_SLOTS);
    // With the one after the last: that is how the end is seen.
    let first = if expected == 0 { 1 } else { (expected + 2).saturating_sub(from) };
    let upper = look(how, eyes, lock, from..=MAX_SLOTS, first).await?;
    if from == 1 || matches!(upper, Found::Free(_)) {
        return Ok(upper);
    }
    match (look(how, eyes, lock, 1..=from - 1, first).await?, upper) {
        // None missing below: then there are as many as above.
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

/// Whether `slot` exists and has no holder. Cancel safe.
pub(super) async fn is_free(
    how: &dyn Holding,
    eyes: Eyes<'_>,
    lock: &LockName,
    slot: u32,
) -> Result<bool, BrokerError> {
    let looked = how.look(eyes, lock, slot..=slot, slot..=slot, false).await?;
    Ok(looked.slots == [true] && looked.holders != [HolderSeen::Held])
}
