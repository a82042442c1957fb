//! The options of a measurement. See `bench` for their use.

use std::time::Duration;

use url::Url;

use crate::history::Rules;

/// Delays that the proxy adds in each direction: none, to measure times, and one that shows which
/// request waits for which answer.
pub const DELAYS: [Duration; 2] = [Duration::ZERO, Duration::from_millis(10)];

/// The options of a measurement.
#[derive(Clone, Debug)]
pub struct CostOptions {
    /// Command that starts the implementation's driver.
    pub driver: String,
    /// Driver that resizes the lock if the implementation does not support resize.
    pub administrator: String,
    /// URL of the broker.
    pub url: Url,
    /// The protocol of the implementation. Not [`Rules::None`].
    pub rules: Rules,
    /// Prefix of the names of the locks. No other program may use these locks.
    pub lock: String,
    /// Number of slots that are held during [`Operation::AcquireTaken`](super::Operation::AcquireTaken). The lock has one more
    /// slot.
    pub taken: u32,
    /// Number of measurements of each operation at each delay, at least 1. Slow operations are
    /// measured less often.
    pub repetitions: u32,
    /// Time for which a holder and a waiter are observed, after [`SETTLING`].
    pub hold: Duration,
}

/// Time for which a new holder and a new waiter stay idle before they are observed.
pub const SETTLING: Duration = Duration::from_millis(2_500);
