//! What the operator remembers of the holders of a Semaphore, for revocations.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use lockkeeper_plan::semaphore::Holder;

/// State of holders. After a restart all of them are new, so that no holder is revoked
/// too early.
#[derive(Default)]
pub struct Holding {
    pub holders: HashMap<(Option<u32>, String), Known>,
    /// The request that was handled last or is being handled, and when it was first seen.
    pub request: Option<(String, Instant)>,
    /// Whether the request was handled and only has to be removed from the object.
    pub handled: bool,
}

/// One holder.
pub struct Known {
    pub since: Instant,
    /// Time when draining started.
    pub draining: Option<Instant>,
    /// Time of the last failed revocation.
    pub failed: Option<Instant>,
}

impl Holding {
    /// Updates the state with the current holders.
    pub fn follow(&mut self, list: &[Holder]) {
        let now = Instant::now();
        let mut before = std::mem::take(&mut self.holders);
        for holder in list {
            let key = (holder.slot, holder.id.clone());
            let known = before.remove(&key);
            let mut known = known.unwrap_or(Known { since: now, draining: None, failed: None });
            known.draining = holder.draining.then(|| known.draining.unwrap_or(now));
            self.holders.insert(key, known);
        }
    }

    pub fn known_for(&self, slot: Option<u32>, id: &str) -> Duration {
        let known = self.holders.get(&(slot, id.to_owned()));
        known.map(|known| known.since.elapsed()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(slot: u32, id: &str, draining: bool) -> Holder {
        let (id, slot) = (id.to_owned(), Some(slot));
        let (identity, reason, url, since, connection) = (None, None, None, None, None);
        Holder { id, slot, identity, reason, url, since, connection, draining }
    }

    #[test]
    fn draining_starts_when_first_observed_and_restarts_after_a_pause() {
        let mut holding = Holding::default();
        let since = |holding: &Holding| holding.holders[&(Some(3), "a".to_owned())].draining;
        holding.follow(&[holder(3, "a", false)]);
        assert_eq!(since(&holding), None);
        holding.follow(&[holder(3, "a", true), holder(1, "b", false)]);
        let first = since(&holding).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        holding.follow(&[holder(3, "a", true)]);
        assert_eq!(since(&holding), Some(first));
        holding.follow(&[holder(3, "a", false)]);
        std::thread::sleep(Duration::from_millis(2));
        holding.follow(&[holder(3, "a", true)]);
        assert!(since(&holding).unwrap() > first);
        holding.follow(&[holder(3, "other", true)]);
        assert_eq!(holding.known_for(Some(3), "a"), Duration::ZERO);
    }
}
