//! Searches for free slots, as a client of the guideline does before it declares
//! anything. The protocol probes one slot, and `attempt` takes one.

use lockkeeper_amqp::error::AmqpError;
use lockkeeper_amqp::probe::{ProbeContext, Seen};
use lockkeeper_amqp::unanswered::no_answer_of;
use lockkeeper_plan::naming::{LockName, MAX_SLOTS};

use crate::error::BrokerError;
use crate::protocol::claim::{ClientProtocol, HolderState};

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
    /// It also ends after this number of slots, at least 1, if one of them is free.
    pub sample: u32,
    /// A slot that was confirmed to be missing a moment ago.
    pub known_end: Option<u32>,
}

/// The result of a search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Free slots, in the order of the search.
    pub free: Vec<u32>,
    /// The number of slots, if all were probed. `0`: there is no slot 1.
    pub slots: Option<u32>,
    /// The slot that was confirmed to be missing.
    pub confirmed_end: Option<u32>,
    /// Number of held slots seen.
    pub held: u32,
    /// The error of a slot of which nothing is known, because its node is down.
    pub unknown: Option<BrokerError>,
}

/// Searches upwards from `from`, then from 1 up to `from`. The first missing slot marks
/// the end, as in the amqp-locks guideline. A slot whose node is down is not missing, and the
/// search continues above it.
///
/// Cancel safe: nothing is changed.
pub async fn search(
    how: &dyn ClientProtocol,
    context: ProbeContext<'_>,
    lock: &LockName,
    search: Search,
) -> Result<Found, BrokerError> {
    let Search { from, width, more_than, sample, known_end } = search;
    let from = from.clamp(1, MAX_SLOTS);
    let mut found = Found::default();
    let enough = |found: &Found| {
        let free = found.free.len();
        free > more_than as usize || free > 0 && free + found.held as usize >= sample as usize
    };
    let ranges = [from..=MAX_SLOTS, 1..=from - 1];
    let mut ends = [MAX_SLOTS, from - 1];
    for (range, end) in ranges.into_iter().zip(&mut ends) {
        let (mut start, to) = range.into_inner();
        let mut width = width.clamp(1, WIDEST.min(sample));
        while start <= to {
            let last = start.saturating_add(width - 1).min(to);
            let looked = how.look(context, lock, start..=last, start..=last, false).await?;
            let slots = (start..=last).zip(looked.slots).zip(looked.holders);
            for ((slot, seen), holder) in slots {
                if seen == Seen::No {
                    let is_end = enough(&found) || known_end == Some(slot);
                    if is_end || found.confirm_end(context, lock, slot).await? {
                        *end = slot - 1;
                        break;
                    }
                } else {
                    found.note(lock, slot, seen, holder);
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

impl Found {
    /// Takes a slot that a publish reaches into account.
    fn note(&mut self, lock: &LockName, slot: u32, seen: Seen, holder: HolderState) {
        match (seen, holder) {
            (Seen::Unknown | Seen::No, _) => {
                self.is_unknown(no_answer_of(&[lock.slot_queue(slot)]).into());
            }
            (Seen::Yes, HolderState::Absent | HolderState::Unheld) => self.free.push(slot),
            (Seen::Yes, HolderState::Held) => self.held += 1,
            (Seen::Yes, HolderState::Unknown) => {
                self.is_unknown(no_answer_of(&[lock.holder_queue(slot)]).into());
            }
        }
    }

    /// Whether a slot that a publish does not reach is missing, by a passive declare.
    async fn confirm_end(
        &mut self,
        context: ProbeContext<'_>,
        lock: &LockName,
        slot: u32,
    ) -> Result<bool, BrokerError> {
        match context.connection.publisher().await?.look(&lock.slot_queue(slot)).await {
            Ok(None) => {
                self.confirmed_end = Some(slot);
                Ok(true)
            }
            // It was created a moment ago.
            Ok(Some(_)) => Ok(false),
            Err(error @ AmqpError::NodeDown { .. }) => {
                self.is_unknown(error.into());
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn is_unknown(&mut self, error: BrokerError) {
        self.unknown.get_or_insert(error);
    }
}
