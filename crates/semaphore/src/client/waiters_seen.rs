//! What a client knows about the waiters of locks, from the broker's answers to its own
//! requests. See `fairness` for what follows from it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_net::clock::Moment;

use crate::queues::wait::Waiters;

/// How long a client relies on the absence of waiters before it asks the broker again, and on
/// a lock being crowded (`memory`).
/// Within this time it may overtake a new waiter once: its next release finds the waiter. Of a
/// lock that is not crowded any more, it uses a place in the wait queue once for nothing.
pub const BELIEVED: Duration = Duration::from_secs(5);

/// The same for the absence of a wait queue. The first waiter of a true mutex declares it.
/// Until then, each question costs a channel.
const MISSING: Duration = Duration::from_secs(1);

/// Maximum number of cached wait queues. Beyond it, the cache is cleared.
const MOST: usize = 4096;

/// The broker's last answer about the waiters of each lock, by wait queue.
#[derive(Default)]
pub struct WaitersSeen(Mutex<HashMap<String, (Waiters, Moment)>>);

impl WaitersSeen {
    /// Records an answer of the broker, usually that of a release.
    pub fn note(&self, wait_queue: &str, waiters: Waiters) {
        if waiters == Waiters::Unknown {
            return;
        }
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= MOST && !seen.contains_key(wait_queue) {
            seen.clear();
        }
        seen.insert(wait_queue.to_owned(), (waiters, Moment::now()));
    }

    /// Records the number of other waiters when this client joined them. If there were none,
    /// nothing is known of those that join later, so the next acquisition asks, unless the release
    /// does. A client that counted itself would take itself for another one, and join each time.
    pub fn joined(&self, wait_queue: &str, others: u32) {
        if others > 0 {
            return self.note(wait_queue, Waiters::Count(others));
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(wait_queue);
    }

    /// Whether the wait queue was missing a moment ago. Each further question would cost a
    /// channel.
    pub fn is_missing(&self, wait_queue: &str) -> bool {
        matches!(self.recall(wait_queue), Some((Waiters::NoQueue, since)) if since.elapsed() < MISSING)
    }

    /// The number of waiters, if the cached answer is recent enough.
    pub fn count(&self, wait_queue: &str) -> Option<u32> {
        match self.recall(wait_queue)? {
            (Waiters::NoQueue, since) => (since.elapsed() < MISSING).then_some(0),
            (Waiters::Count(0), since) => (since.elapsed() < BELIEVED).then_some(0),
            (Waiters::Count(waiters), _) => Some(waiters),
            (Waiters::Unknown, _) => None,
        }
    }

    fn recall(&self, wait_queue: &str) -> Option<(Waiters, Moment)> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(wait_queue).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_are_believed_until_a_release_finds_none() {
        let seen = WaitersSeen::default();
        assert_eq!(seen.count("a-W"), None);
        seen.note("a-W", Waiters::Count(2));
        seen.note("a-W", Waiters::Unknown);
        assert_eq!((seen.count("a-W"), seen.count("b-W")), (Some(2), None));
        seen.note("a-W", Waiters::Count(0));
        assert_eq!(seen.count("a-W"), Some(0));
        assert!(!seen.is_missing("a-W"));
        seen.note("a-W", Waiters::NoQueue);
        assert!(seen.is_missing("a-W"));
        assert_eq!(seen.count("a-W"), Some(0));
    }

    #[test]
    fn a_client_that_joins_does_not_count_itself() {
        let seen = WaitersSeen::default();
        seen.joined("a-W", 2);
        assert_eq!(seen.count("a-W"), Some(2));
        seen.joined("a-W", 0);
        assert_eq!(seen.count("a-W"), None);
    }

    #[test]
    fn the_number_of_remembered_wait_queues_is_limited() {
        let seen = WaitersSeen::default();
        for lock in 0..=MOST {
            seen.note(&format!("{lock}-W"), Waiters::Count(1));
        }
        assert!(seen.0.lock().unwrap().len() <= MOST);
        assert_eq!(seen.count(&format!("{MOST}-W")), Some(1));
    }
}
