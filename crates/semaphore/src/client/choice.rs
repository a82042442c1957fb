//! Chooses the slot that an attempt tries: one that is probably free, or one that a search has
//! found. See `search` for the requests of a search, and `attempt` for what follows.

use lockkeeper_net::clock::Moment;

use super::acquisition::{Acquisition, Place};
use super::error::AcquireError;
use super::memory::Memory;
use super::options::Start;
use super::search::{Search, search};

/// A search after lost races ends when it has found more free slots than this for each of them.
/// The client chooses one at random, so that it rarely meets another client again.
const CHOICES_PER_RACE: u32 = 4;

/// Such a search also ends after this number of slots, if one of them is free and the client has
/// held a slot before. Clients that have not all begin at the first slot, and would meet there.
const SAMPLE: u32 = 20;

/// A slot to try.
pub struct Choice {
    pub slot: u32,
    /// A probe has just seen the slot existing and free.
    pub looked: bool,
    /// Other slots were free as well.
    pub more: bool,
    /// There were no more free slots than lost races. A client that can wait then joins the
    /// wait queue if it loses this race too.
    pub few: bool,
}

/// Returns a slot to take without a probe. That saves a round trip if it is free, and
/// costs a channel if it isn't.
pub fn guess(acquisition: &Acquisition<'_>) -> Option<u32> {
    match acquisition.options.start {
        Start::At(slot) => Some(slot.max(1)),
        Start::Last => {
            let memory = acquisition.recall();
            memory.last.filter(|_| memory.calm)
        }
        Start::First | Start::Random => None,
    }
}

/// Searches for a free slot. Chooses none unless there are more free slots than other
/// waiters. For a client among waiters, `more` is then certain. For one that has not
/// looked for waiters, the first free slot ends the search, or after lost races some more,
/// if it can wait.
pub async fn choose(
    acquisition: &Acquisition<'_>,
    place: Place,
    lost: u32,
) -> Result<Choice, AcquireError> {
    let options = acquisition.options;
    let memory = acquisition.recall();
    let from = match options.start {
        Start::Random if memory.slots > 1 => rand::random_range(1..=memory.slots),
        // The slot that was just lost is held.
        Start::Last => memory.last.map_or(1, |slot| slot + u32::from(lost > 0)),
        _ => 1,
    };
    let spread = if options.start == Start::Random { lost.max(1) } else { lost };
    let (others, more_than) = match place {
        Place::Search { others } => (others, others.saturating_add(1)),
        Place::OrWait { .. } => (0, CHOICES_PER_RACE.saturating_mul(lost)),
        Place::Any | Place::Slot(_) => (0, 0),
    };
    let samples = matches!(place, Place::OrWait { .. }) && lost > 0 && memory.last.is_some();
    let sample = if samples { SAMPLE } else { u32::MAX };
    let width = first_width(&memory, from, more_than, spread);
    let wanted = Search { from, width, more_than, sample, known_end: memory.known_end() };
    let found =
        search(acquisition.protocol, acquisition.client.probe_context(), acquisition.lock, wanted)
            .await?;
    let free = found.free;
    acquisition.remember(|memory| {
        memory.slots = found.slots.unwrap_or(memory.slots).max(highest(&free));
        memory.complete = found.slots.is_some() || memory.complete;
        memory.end = found.confirmed_end.map(|slot| (slot, Moment::now())).or(memory.end);
        if free.len() > others as usize + 1 {
            memory.crowded = None;
        } else if found.slots.is_some() {
            memory.crowded = Some(Moment::now());
        }
    });
    if free.is_empty()
        && found.held == 0
        && let Some(error) = found.unknown
    {
        return Err(error.into());
    }
    if found.slots == Some(0) && free.is_empty() {
        return Err(AcquireError::NoSlots { lock: acquisition.lock.to_string() });
    }
    if free.len() <= others as usize {
        return Err(acquisition.full());
    }
    // After a lost race, a random slot, because the other clients take the first.
    let first = spread == 0 && others == 0;
    let at = if first { 0 } else { rand::random_range(0..free.len()) };
    // Of 64 clients that began together on 10 slots, each lost 8 races without this limit. But
    // each client in the wait queue makes all others search: with four free slots for each
    // lost race, 64 clients on 100 slots of which half were held took 1.3 times as long.
    let few = found.slots.is_some() && free.len() <= lost as usize;
    Ok(Choice { slot: free[at], looked: true, more: free.len() > 1, few })
}

/// Returns how many slots a search probes first. One slot suits a lock that is mostly
/// free, and all known slots one that is mostly held. In between, it is a few more than
/// other clients are about to take: losers of a race spread over four times as many slots
/// as before it.
fn first_width(memory: &Memory, from: u32, more_than: u32, spread: u32) -> u32 {
    // Include the slot after the last, which reveals the end.
    let rest = memory.slots.saturating_add(2).saturating_sub(from);
    if memory.is_crowded() {
        return rest;
    }
    let width = more_than.saturating_add(1).saturating_mul(4_u32.saturating_pow(spread));
    width.min(if memory.complete { rest } else { rest.saturating_mul(4) })
}

fn highest(slots: &[u32]) -> u32 {
    slots.iter().copied().max().unwrap_or_default()
}
