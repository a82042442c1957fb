//! Chooses how many bytes of elements go over the connection in one batch: as many as it
//! carried in about half a second. On a slow network little is then held back, and an
//! interrupted put or get leaves little in doubt.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Target duration of one batch.
const TARGET: Duration = Duration::from_millis(500);

/// Initial size and limits, in bytes. A script with a batch of the maximum size takes the
/// server well under a millisecond.
const START: usize = 64 * 1024;
const LEAST: usize = 4 * 1024;
pub(super) const MOST: usize = 1024 * 1024;

/// The batch size that suits a connection in one direction.
pub(super) struct BatchSize(AtomicUsize);

impl Default for BatchSize {
    fn default() -> Self {
        Self(AtomicUsize::new(START))
    }
}

impl BatchSize {
    pub(super) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Adapts the size to a batch of `bytes` that took this long.
    pub(super) fn learn(&self, bytes: usize, took: Duration) {
        self.0.store(next(self.bytes(), bytes, took), Ordering::Relaxed);
    }
}

/// Returns the size after a batch of `bytes` that took this long. Small batches are
/// ignored, because most of their time is not spent on the network.
fn next(now: usize, bytes: usize, took: Duration) -> usize {
    if bytes < now / 2 {
        return now;
    }
    let micros = u128::try_from(bytes).unwrap_or(u128::MAX).saturating_mul(TARGET.as_micros());
    let suits = usize::try_from(micros / took.as_micros().max(1)).unwrap_or(usize::MAX);
    suits.min(now.saturating_mul(2)).clamp(LEAST, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the size after many batches over a network of this speed.
    fn settled(bytes_per_second: u64) -> usize {
        (0..20).fold(START, |size, _| {
            next(size, size, Duration::from_micros(size as u64 * 1_000_000 / bytes_per_second))
        })
    }

    #[test]
    fn a_batch_takes_half_a_second_on_a_slow_network_and_is_large_on_a_fast_one() {
        assert_eq!(settled(125_000), 62_500);
        assert_eq!(settled(12_500_000), MOST);
        assert_eq!(settled(100), LEAST);
    }

    #[test]
    fn a_small_batch_does_not_change_the_size() {
        assert_eq!(next(START, 100, Duration::from_secs(3)), START);
        assert_eq!(next(START, START, Duration::ZERO), 2 * START);
    }

    proptest! {
        #[test]
        fn the_size_stays_within_its_limits(
            now in LEAST..=MOST, bytes in 0_usize..1 << 40, micros in 0_u64..1 << 40,
        ) {
            let next = next(now, bytes, Duration::from_micros(micros));
            prop_assert!((LEAST..=MOST).contains(&next));
        }
    }
}
