//! What a client remembers of a lock between two acquisitions.

use std::time::Duration;

use lockkeeper_net::clock::Moment;

use super::waiters_seen::BELIEVED;

/// The cached state of a lock between two acquisitions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// The slot that this client held last.
    pub last: Option<u32>,
    /// True if that slot was free at the last acquisition. It is then taken without a
    /// probe.
    pub calm: bool,
    /// The known number of slots.
    pub slots: u32,
    /// True if a search has seen the last slot. Otherwise there may be more slots.
    pub complete: bool,
    /// When this client last found at most one more free slot than waiters.
    pub crowded: Option<Moment>,
    /// Whether its slots had records, and when that was checked.
    pub records: Option<(bool, Moment)>,
    /// The slot that was missing at the end of a search, and when a passive declare
    /// confirmed that.
    pub end: Option<(u32, Moment)>,
    /// When its slots were verified to use this protocol.
    pub protocol: Option<Moment>,
}

/// How long the end of the slots is relied on. A slot at the end may exist on a node that is
/// down: a search that believes the probe misses the slots above it.
const END_BELIEVED: Duration = Duration::from_mins(1);

impl Memory {
    /// Returns the slot that is known to be missing, if that was confirmed recently.
    pub fn known_end(&self) -> Option<u32> {
        self.end.filter(|(_, since)| since.elapsed() < END_BELIEVED).map(|(slot, _)| slot)
    }

    /// Whether the lock's free slots were recently too few for its waiters. A client then
    /// joins the wait queue without a search.
    pub fn is_crowded(&self) -> bool {
        self.crowded.is_some_and(|since| since.elapsed() < BELIEVED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients that work in turns of a few seconds would otherwise all search at the beginning
    /// of each, and lose races.
    #[test]
    fn a_crowded_lock_is_considered_crowded_over_a_pause_of_seconds() {
        let found = |ago| Memory { crowded: Some(Moment::now() - ago), ..Memory::default() };
        assert!(found(Duration::from_secs(3)).is_crowded());
        assert!(!found(BELIEVED).is_crowded());
        assert!(!Memory::default().is_crowded());
    }
}
