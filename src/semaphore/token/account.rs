//! How many tokens there are, as far as one may rely on it: what the management API
//! says may be older than the last change. Pure; asking is `admin`'s.

use std::time::{Duration, Instant};

/// What is known of one lock's tokens.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    /// What we made it, and when.
    ours: Option<(u32, Instant)>,
    /// What was first seen when.
    seen: Option<(u32, Instant)>,
}

/// What a look is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// So many there are: what is done may depend on it.
    Settled(u32),
    /// Look again after that time.
    Again(Duration),
}

impl Account {
    /// We made it `total`, or took note that it was before we change it.
    pub fn changed(&mut self, total: u32, now: Instant) {
        self.ours = Some((total, now));
    }

    /// Nobody knows what became of the last change.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// What we made it less than `apart` ago. Nobody else can have changed it since:
    /// whoever wants to must hold the admin mutex for as long, and look twice.
    pub fn ours(&self, now: Instant, apart: Duration) -> Option<u32> {
        let (total, at) = self.ours?;
        (now.saturating_duration_since(at) < apart).then_some(total)
    }

    /// Takes note that the count under way is the first look at it under this mutex.
    pub fn begin(&mut self) {
        self.seen = None;
    }

    /// `total` was seen. Two looks must see the same, `apart` or more from each other,
    /// which is longer than what is seen may be old: so the second one tells of the time
    /// since the first.
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
    fn one_look_is_never_enough_and_two_different_ones_begin_anew() {
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
    fn what_we_made_it_counts_only_while_nobody_else_can_have_changed_it() {
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
