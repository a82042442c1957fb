//! The observed state of a lock: its numbered slots, or its tokens. See the module
//! `semaphore` for how it is observed.

use std::collections::BTreeSet;

/// The observed state of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    /// Of a protocol with numbered slots, each with queues of its own.
    Numbered(ObservedSlots),
    /// Of a protocol with tokens in one queue. Tokens have no numbers.
    Counted(ObservedTokens),
}

/// The observed slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedSlots {
    /// Slots 1 to this number were probed. The state of higher ones is unknown.
    pub swept_to: u32,
    /// The slots whose slot queue `A[i]` exists.
    pub slots: BTreeSet<u32>,
    /// The slots with a holder. By protocol, their holder queue `B[i]` exists, or their
    /// `C[i]` has a consumer.
    pub held: BTreeSet<u32>,
    /// The slots without slot queue whose `C[i]` is a leftover without a holder.
    pub left_over: BTreeSet<u32>,
}

/// The observed tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObservedTokens {
    /// Number of tokens, including held ones.
    pub total: u32,
    /// Number of tokens that a client holds.
    pub held: u32,
}

/// Counts of holders and free slots or tokens, as shown in status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Holders of slots up to the desired count.
    pub held: u32,
    /// Holders of slots above the desired count: a shrink waits for them to release.
    pub draining: u32,
    /// Slots up to the desired count that exist and are not held, and can be acquired
    /// now.
    pub free: u32,
}

impl Observed {
    /// Returns the number of slots or tokens that exist.
    #[must_use]
    pub fn total(&self) -> u32 {
        match self {
            Self::Numbered(seen) => count(seen.slots.len()),
            Self::Counted(seen) => seen.total,
        }
    }

    /// Returns the number of slots or tokens that exist, of the first `desired` ones.
    #[must_use]
    pub fn total_up_to(&self, desired: u32) -> u32 {
        match self {
            Self::Numbered(seen) => count(seen.slots.range(..=desired).count()),
            Self::Counted(seen) => seen.total.min(desired),
        }
    }

    /// Returns the number of holders.
    #[must_use]
    pub fn held(&self) -> u32 {
        match self {
            Self::Numbered(seen) => count(seen.held.len()),
            Self::Counted(seen) => seen.held,
        }
    }

    /// Returns the count that a relative resize starts from: the number of the highest
    /// slot that exists, or the number of tokens.
    #[must_use]
    pub fn size(&self) -> u32 {
        match self {
            Self::Numbered(seen) => seen.slots.last().copied().unwrap_or(0),
            Self::Counted(seen) => seen.total,
        }
    }

    /// Returns the counts for a semaphore with `desired` slots or tokens.
    #[must_use]
    pub fn counts(&self, desired: u32) -> Counts {
        match self {
            Self::Numbered(seen) => seen.counts(desired),
            Self::Counted(seen) => seen.counts(desired),
        }
    }

    /// Whether exactly the slots 1 to `desired` exist within the observed range, or
    /// `desired` tokens.
    #[must_use]
    pub fn has_exactly(&self, desired: u32) -> bool {
        match self {
            Self::Numbered(seen) => seen.has_exactly(desired),
            Self::Counted(seen) => seen.total == desired,
        }
    }

    /// Returns the observed slots. `None` for tokens.
    #[must_use]
    pub fn numbered(&self) -> Option<&ObservedSlots> {
        match self {
            Self::Numbered(seen) => Some(seen),
            Self::Counted(_) => None,
        }
    }
}

impl ObservedSlots {
    /// Returns the counts for a semaphore with `slots` desired slots.
    #[must_use]
    pub fn counts(&self, slots: u32) -> Counts {
        let held = count(self.held.range(..=slots).count());
        let draining = count(self.held.len()).saturating_sub(held);
        let free = self.slots.range(..=slots).filter(|slot| !self.held.contains(slot)).count();
        Counts { held, draining, free: count(free) }
    }

    /// Returns the held slots that were removed, in ascending order.
    pub fn removed(&self) -> impl Iterator<Item = u32> {
        self.held.difference(&self.slots).copied()
    }

    /// Returns the highest slot that has a slot queue, a holder or a leftover. 0 if none
    /// has.
    #[must_use]
    pub fn highest(&self) -> u32 {
        let last = |set: &BTreeSet<u32>| set.last().copied().unwrap_or(0);
        last(&self.slots).max(last(&self.held)).max(last(&self.left_over))
    }

    /// Whether exactly the slots 1 to `slots` exist, within the observed range.
    #[must_use]
    pub fn has_exactly(&self, slots: u32) -> bool {
        self.swept_to >= slots
            && self.slots.len() == slots as usize
            && self.slots.last().copied().unwrap_or(0) == slots
            && !self.slots.contains(&0)
    }
}

impl ObservedTokens {
    /// Returns the counts for a semaphore with `tokens` desired tokens. No particular
    /// holder is draining: the first surplus tokens that are released are removed.
    #[must_use]
    pub fn counts(self, tokens: u32) -> Counts {
        let held = self.held.min(tokens);
        let free = self.total.min(tokens).saturating_sub(held);
        Counts { held, draining: self.held - held, free }
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_tokens_above_the_count_are_draining_and_leave_none_free() {
        let seen = |total, held| ObservedTokens { total, held };
        let counts = |held, draining, free| Counts { held, draining, free };
        assert_eq!(seen(5, 2).counts(5), counts(2, 0, 3));
        assert_eq!(seen(5, 4).counts(3), counts(3, 1, 0));
        assert_eq!(seen(5, 1).counts(3), counts(1, 0, 2));
        assert_eq!(seen(2, 1).counts(5), counts(1, 0, 1), "not all are published yet");
        assert_eq!(seen(3, 3).counts(0), counts(0, 3, 0));
    }

    #[test]
    fn a_gap_does_not_hide_the_highest_slot_from_a_relative_resize() {
        let slots = ObservedSlots { slots: [1, 2, 7].into(), ..ObservedSlots::default() };
        let seen = Observed::Numbered(slots);
        assert_eq!((seen.total(), seen.total_up_to(5), seen.size()), (3, 2, 7));
    }
}
