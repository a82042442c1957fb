//! Points in time on the clock that measures a lock's validity. See `heartbeat` for the
//! validity itself.

pub mod token_bucket;

use std::ops::{Add, Sub};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Maximum length of one sleep. The timers of a suspended machine stand still, so longer
/// sleeps are split. Due events are noticed within this time after a resume.
const SLICE: Duration = Duration::from_millis(500);

/// A point in time on a clock that never goes back and includes the time that the machine
/// is suspended (`CLOCK_BOOTTIME` where available). Comparable between processes of one
/// machine.
///
/// It excludes the time during which a hypervisor pauses a virtual machine, and the time
/// between a snapshot and its restoration. The guest's clocks stand still then.
/// `Permit::is_valid` may therefore be true right after such a pause, until a closed
/// connection or the next verification shows the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// Returns the current moment.
    #[must_use]
    pub fn now() -> Self {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let clock = ClockId::CLOCK_BOOTTIME;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let clock = ClockId::CLOCK_MONOTONIC;
        // Without a clock, every moment is late, so that no slot is considered valid.
        Self(clock_gettime(clock).map_or(Duration::MAX, Duration::from))
    }

    /// Returns nanoseconds on the clock, to pass the moment to another process of this
    /// machine.
    #[must_use]
    pub fn as_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Creates a moment from [`Moment::as_nanos`] of another process.
    #[must_use]
    pub fn from_nanos(nanos: u64) -> Self {
        Self(Duration::from_nanos(nanos))
    }

    /// Returns the time until this moment. Zero if it is past.
    #[must_use]
    pub fn left(self) -> Duration {
        self.0.saturating_sub(Self::now().0)
    }

    /// Returns the time since this moment. Zero if it is in the future.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }

    /// Sleeps until this moment. Cancel safe.
    pub async fn reached(self) {
        loop {
            let left = self.left();
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(SLICE)).await;
        }
    }
}

impl Add<Duration> for Moment {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;
    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_survives_the_way_to_another_process() {
        let now = Moment::now();
        assert_eq!(Moment::from_nanos(now.as_nanos()), now);
        assert!(now.elapsed() < Duration::from_secs(5));
        assert!((now + Duration::from_secs(60)).left() > Duration::from_secs(50));
        assert_eq!((now - Duration::from_secs(60)).left(), Duration::ZERO);
    }
}
