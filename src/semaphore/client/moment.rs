//! Points in time on the clock that a lock's validity is measured by. What is
//! measured by it is `keeper`'s.

use std::ops::{Add, Sub};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// A suspended machine's timers stand still: sleeping is cut into pieces of this
/// length, so that what is due is noticed so soon after it wakes up.
const SLICE: Duration = Duration::from_millis(500);

/// A point in time on a clock that never goes back and doesn't stand still while
/// the machine is suspended (`CLOCK_BOOTTIME` where there is one). A holder in a
/// virtual machine that was paused must not believe that no time has passed.
/// Comparable between processes of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let clock = ClockId::CLOCK_BOOTTIME;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let clock = ClockId::CLOCK_MONOTONIC;
        // Without a clock nothing may be believed valid: then it is always late.
        Self(clock_gettime(clock).map_or(Duration::MAX, Duration::from))
    }

    /// To hand it to another process of this machine: nanoseconds on the clock.
    #[must_use]
    pub fn as_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    /// From [`Moment::as_nanos`] of another process.
    #[must_use]
    pub fn from_nanos(nanos: u64) -> Self {
        Self(Duration::from_nanos(nanos))
    }

    /// How long until then; zero if it is past.
    #[must_use]
    pub fn left(self) -> Duration {
        self.0.saturating_sub(Self::now().0)
    }

    /// How long since then; zero if it is to come.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }

    /// Sleeps until then. Cancel safe.
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
