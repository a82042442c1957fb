//! Which slots are free, by probes: what the guideline's client does before it
//! declares anything. Taking one is `claim`'s.

use crate::plan::naming::{LockName, MAX_SLOTS};
use crate::semaphore::error::BrokerError;
use crate::semaphore::probe::Prober;

/// Slots looked at together, window by window: one first, for the lock that is
/// mostly free, then ever more at once.
const WINDOWS: [u32; 4] = [1, 16, 64, 256];

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Free slots, ascending: all in the first window that has any.
    Free(Vec<u32>),
    /// So many slots, each with a holder; 0: there is no slot 1.
    Full(u32),
}

/// Looks from `from` upwards, at the end from 1 to there. The first slot that
/// doesn't exist is the end, as the source document has it.
///
/// Cancel safe: nothing is changed.
pub(super) async fn search(
    prober: &Prober,
    lock: &LockName,
    from: u32,
) -> Result<Found, BrokerError> {
    let from = from.clamp(1, MAX_SLOTS);
    let upper = look(prober, lock, from, MAX_SLOTS).await?;
    if from == 1 || matches!(upper, Found::Free(_)) {
        return Ok(upper);
    }
    match (look(prober, lock, 1, from - 1).await?, upper) {
        // None missing below: then there are as many as above.
        (Found::Full(lower), Found::Full(upper)) if lower == from - 1 => {
            Ok(Found::Full(lower.max(upper)))
        }
        (found, _) => Ok(found),
    }
}

async fn look(prober: &Prober, lock: &LockName, from: u32, to: u32) -> Result<Found, BrokerError> {
    let mut start = from;
    let mut windows = WINDOWS.iter().copied();
    let mut width = 1;
    while start <= to {
        width = windows.next().unwrap_or(width);
        let end = start.saturating_add(width - 1).min(to);
        let names: Vec<String> = (start..=end)
            .flat_map(|slot| [lock.slot_queue(slot), lock.holder_queue(slot)])
            .collect();
        let exist = prober.exist(&names).await?;
        let mut free = Vec::new();
        let mut last = None;
        for (slot, pair) in (start..=end).zip(exist.chunks(2)) {
            match pair {
                [true, false] => free.push(slot),
                [true, _] => {}
                _ => {
                    last = Some(slot - 1);
                    break;
                }
            }
        }
        if !free.is_empty() {
            return Ok(Found::Free(free));
        }
        if let Some(last) = last {
            return Ok(Found::Full(last));
        }
        start = end + 1;
    }
    Ok(Found::Full(to))
}
