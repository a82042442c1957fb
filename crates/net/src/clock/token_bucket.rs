//! A rate limit that permits bursts. See `events` and `lazy` for its uses.

use std::time::{Duration, Instant};

/// A token bucket: as many permits as it has tokens, and one more after each interval, up
/// to its capacity.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    capacity: u32,
    interval: Duration,
    tokens: u32,
    /// When the tokens were last counted.
    counted: Instant,
}

impl TokenBucket {
    /// Creates a full bucket. The interval must not be zero.
    pub fn full(capacity: u32, interval: Duration, now: Instant) -> Self {
        Self { capacity, interval, tokens: capacity, counted: now }
    }

    /// Takes one token.
    ///
    /// # Errors
    ///
    /// How long to wait for the next one, if there is none.
    pub fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let since = now.saturating_duration_since(self.counted);
        let earned = since.as_nanos() / self.interval.as_nanos().max(1);
        match u32::try_from(earned) {
            Ok(earned) if earned < self.capacity - self.tokens => {
                self.tokens += earned;
                self.counted += self.interval * earned;
            }
            // A full bucket earns nothing, so the next interval starts now.
            _ => (self.tokens, self.counted) = (self.capacity, now),
        }
        match self.tokens.checked_sub(1) {
            Some(left) => {
                self.tokens = left;
                Ok(())
            }
            None => Err(self.interval.saturating_sub(now.saturating_duration_since(self.counted))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_at_once_and_then_one_in_each_interval() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut bucket = TokenBucket::full(10, Duration::from_secs(1), start);
        assert!((0..10).all(|_| bucket.take(at(100)).is_ok()));
        assert_eq!(bucket.take(at(200)), Err(Duration::from_millis(900)));
        assert_eq!(bucket.take(at(1_100)), Ok(()));
        assert_eq!(bucket.take(at(1_500)), Err(Duration::from_millis(600)));
        // Over ten seconds at most ten, whenever they are requested.
        let made = (1_550..=11_100).step_by(50).filter(|millis| bucket.take(at(*millis)).is_ok());
        assert_eq!(made.count(), 10);
        // After a rest one burst again, and no more.
        assert!((0..10).all(|_| bucket.take(at(60_000)).is_ok()));
        assert!(bucket.take(at(60_000)).is_err());
    }

    #[test]
    fn the_next_token_is_due_one_interval_after_the_first_one_was_taken() {
        let start = Instant::now();
        let rested = start + Duration::from_secs(500);
        let mut bucket = TokenBucket::full(1, Duration::from_secs(1), start);
        assert_eq!(bucket.take(rested), Ok(()));
        assert_eq!(bucket.take(rested), Err(Duration::from_secs(1)));
    }
}
