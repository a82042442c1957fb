//! Estimates the number of tokens reliably, because the management API's figure may be
//! older than the last change. Pure logic. See `admin` for the requests.

use std::time::{Duration, Instant};

/// The known state of one lock's tokens.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// The total after this process's last change, and its time.
    ours: Option<(u32, Instant)>,
    /// The total observed first, and its time.
    seen: Option<(u32, Instant)>,
}

/// The result of one observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The total is reliable: a change may depend on it.
    Settled(u32),
    /// Observe again after that time.
    Again(Duration),
}

impl Account {
    /// Records that this process set the total to `total`, or is about to change it from
    /// there.
    pub fn changed(&mut self, total: u32, now: Instant) {
        self.ours = Some((total, now));
    }

    /// Forgets everything, because the outcome of the last change is unknown.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Returns the total that this process set less than `apart` ago. No other
    /// administrator can have changed it since: that requires the admin mutex for as
    /// long, and two observations.
    pub fn ours(&self, now: Instant, apart: Duration) -> Option<u32> {
        let (total, at) = self.ours?;
        (now.saturating_duration_since(at) < apart).then_some(total)
    }

    /// Starts a new count under the current mutex.
    pub fn begin(&mut self) {
        self.seen = None;
    }

    /// Records an observation of `total`. The result is settled after two equal
    /// observations that are at least `apart` from each other. `apart` exceeds the age of
    /// any figure, so the second observation is newer than the first.
    pub fn look(&mut self, total: u32, now: Instant, apart: Duration) -> Look {
        match self.seen {
            Some((same, at)) if same == total => {
                let since = now.saturating_duration_since(at);
                let left = apart.saturating_sub(since);
                if left.is_zero() { Look::Settled(total) } else { Look::Again(left) }
            }
            _ => {
                self.seen = Some((total, now));
                Look::Again(apart)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const APART: Duration = Duration::from_secs(6);

    #[test]
    fn one_count_is_never_enough_and_two_different_ones_start_over() {
        let (start, mut account) = (Instant::now(), Account::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(account.look(3, at(0), APART), Look::Again(APART));
        assert_eq!(account.look(3, at(4), APART), Look::Again(Duration::from_secs(2)));
        assert_eq!(account.look(2, at(5), APART), Look::Again(APART));
        assert_eq!(account.look(2, at(6), APART), Look::Again(Duration::from_secs(5)));
        assert_eq!(account.look(2, at(11), APART), Look::Settled(2));
        account.begin();
        assert_eq!(account.look(2, at(20), APART), Look::Again(APART));
    }

    #[test]
    fn our_own_count_is_used_only_while_no_other_client_can_have_changed_it() {
        let (start, mut account) = (Instant::now(), Account::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(account.ours(at(0), APART), None);
        account.changed(5, at(0));
        assert_eq!(account.ours(at(5), APART), Some(5));
        assert_eq!(account.ours(at(6), APART), None);
        account.changed(4, at(7));
        account.forget();
        assert_eq!(account.ours(at(8), APART), None);
    }
}
