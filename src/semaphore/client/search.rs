//! Searches for free slots, as a client of the guideline does before it declares
//! anything. The protocol probes one slot, and `attempt` takes one.

use crate::plan::naming::{LockName, MAX_SLOTS};
use crate::semaphore::amqp::probe::Eyes;
use crate::semaphore::error::BrokerError;
use crate::semaphore::protocol::claim::{ClientProtocol, HolderSeen};

/// Maximum number of slots probed together. Each window is four times larger than the one
/// before it.
const WIDEST: u32 = 256;

/// Where a search begins, and when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Search {
    /// The first slot to probe, at least 1.
    pub from: u32,
    /// Number of slots to probe at first, at least 1.
    pub width: u32,
    /// The search ends when it has found more free slots than this.
    pub more_than: u32,
}

/// The result of a search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Free slots, in the order of the search.
    pub free: Vec<u32>,
    /// The number of slots, if all were probed. `0`: there is no slot 1.
    pub slots: Option<u32>,
}

/// Searches upwards from `from`, then from 1 up to `from`. The first missing slot marks
/// the end, as in the source document.
///
/// Cancel safe: nothing is changed.
pub async fn search(
    how: &dyn ClientProtocol,
    eyes: Eyes<'_>,
    lock: &LockName,
    search: Search,
) -> Result<Found, BrokerError> {
    let Search { from, width, more_than } = search;
    let from = from.clamp(1, MAX_SLOTS);
    let mut found = Found::default();
    let enough = |found: &Found| found.free.len() > more_than as usize;
    let ranges = [from..=MAX_SLOTS, 1..=from - 1];
    let mut ends = [MAX_SLOTS, from - 1];
    for (range, end) in ranges.into_iter().zip(&mut ends) {
        let (mut start, to) = range.into_inner();
        let mut width = width.clamp(1, WIDEST);
        while start <= to {
            let last = start.saturating_add(width - 1).min(to);
            let looked = how.look(eyes, lock, start..=last, start..=last, false).await?;
            let slots = (start..=last).zip(looked.slots).zip(looked.holders);
            for ((slot, exists), holder) in slots {
                if !exists {
                    *end = slot - 1;
                    break;
                }
                if holder != HolderSeen::Held {
                    found.free.push(slot);
                }
            }
            if enough(&found) {
                return Ok(found);
            }
            if *end < last {
                break;
            }
            start = last + 1;
            width = (width * 4).min(WIDEST);
        }
    }
    let [upper, lower] = ends;
    // If a slot below is missing, the slots above it don't count.
    found.slots = Some(if lower < from - 1 { lower } else { upper });
    Ok(found)
}
