//! The order in which a run is reduced. It decides by an oracle, so it runs nothing itself. See
//! `minimize` for the runs.

use std::time::Duration;

use crate::history::Faults;
use crate::run::RunOptions;

/// Minimum duration to which a run is reduced: the processes must start and connect.
const SHORTEST: Duration = Duration::from_secs(1);

/// The options of a run that can be reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Probabilities of faults.
    pub faults: Faults,
    /// Number of client processes.
    pub clients: u32,
    /// Maximum number of slots.
    pub slots: u32,
    /// Maximum time between two resizes. Zero: no resizes.
    pub resize_within: Duration,
    /// Duration of the workload.
    pub duration: Duration,
}

impl Size {
    /// Returns the size of a run with these options.
    pub fn of(options: &RunOptions) -> Self {
        let RunOptions { duration, clients, slots, faults, resize_within, .. } = *options;
        Self { faults, clients, slots, resize_within, duration }
    }

    /// Returns the options of a run of this size, on a new lock.
    pub fn apply(self, options: &RunOptions) -> RunOptions {
        let Self { faults, clients, slots, resize_within, duration } = self;
        let lock = format!("prove.run-{:016x}", rand::random::<u64>());
        RunOptions { lock, duration, clients, slots, faults, resize_within, ..options.clone() }
    }
}

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The smallest size that violates.
    pub size: Size,
    /// Whether the oracle ended the search, so that a smaller size may violate too.
    pub is_unfinished: bool,
}

/// Searches for the smallest size that violates, by an oracle that answers `None` to end the
/// search. The result did violate: its oracle's answer was true. Returns `None` if `start` does
/// not violate.
///
/// One option is reduced after the other: each kind of fault, the resizes, the slots and the
/// clients. This is repeated until none of them can be reduced: an oracle that runs something
/// may have missed a violation, and small sizes violate soon. At last the duration is halved,
/// because shorter runs are more likely to miss a violation.
pub async fn least(start: Size, oracle: impl AsyncFnMut(Size) -> Option<bool>) -> Option<Found> {
    let mut search = Search { oracle, size: start, refuted: Vec::new() };
    if (search.oracle)(start).await != Some(true) {
        return None;
    }
    let is_unfinished = search.all().await.is_none();
    Some(Found { size: search.size, is_unfinished })
}

struct Search<O> {
    oracle: O,
    /// The smallest size so far that violates.
    size: Size,
    /// The sizes that do not violate.
    refuted: Vec<Size>,
}

impl<O: AsyncFnMut(Size) -> Option<bool>> Search<O> {
    /// Reduces every option. Returns `None` if the oracle ended the search.
    async fn all(&mut self) -> Option<()> {
        loop {
            let before = self.size;
            self.pass().await?;
            if self.size == before {
                break;
            }
        }
        loop {
            let duration = self.size.duration / 2;
            if duration < SHORTEST || !self.accept(Size { duration, ..self.size }).await? {
                return Some(());
            }
        }
    }

    /// Reduces each option once, except the duration. Returns `None` if the oracle ended the
    /// search.
    async fn pass(&mut self) -> Option<()> {
        for kind in 0..self.size.faults.kinds().len() {
            let mut without = self.size;
            if let Some((_, percent)) = without.faults.kinds().into_iter().nth(kind) {
                *percent = 0;
            }
            self.accept(without).await?;
        }
        if self.size.slots > 1 {
            self.accept(Size { resize_within: Duration::ZERO, ..self.size }).await?;
        }
        self.bisect(self.size.slots, |size, slots| Size { slots, ..size }).await?;
        self.bisect(self.size.clients, |size, clients| Size { clients, ..size }).await
    }

    /// Keeps a smaller size if it violates. Returns whether it was kept. A size that is not
    /// smaller, or was tried before, is not tried.
    async fn accept(&mut self, smaller: Size) -> Option<bool> {
        if smaller == self.size || self.refuted.contains(&smaller) {
            return Some(false);
        }
        let violates = (self.oracle)(smaller).await?;
        if violates {
            self.size = smaller;
        } else {
            self.refuted.push(smaller);
        }
        Some(violates)
    }

    /// Reduces a number as far as possible, down to 1, by halves: an oracle that runs something
    /// answers sooner if a run violates.
    async fn bisect(&mut self, number: u32, with: impl Fn(Size, u32) -> Size) -> Option<()> {
        let (mut low, mut high) = (0, number);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.accept(with(self.size, middle)).await? {
                high = middle;
            } else {
                low = middle;
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
