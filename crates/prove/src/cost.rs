//! Measures the cost of each operation of an implementation on the wire, and compares it with
//! the minimum. See `docs/proving.md` for how to read the result.
//!
//! - `scenario`: runs the measured operations, one after the other.
//! - `background`: observes an idle holder and an idle waiter.
//! - `bench`: measures one operation. [`sample`]: the result.
//! - [`count`], [`chain`], [`slope`], [`minute`]: the arithmetic.
//! - [`least`]: the minimum cost.
//! - [`report`]: the report. [`table`]: its text.

mod background;
mod bench;
pub mod chain;
pub mod count;
pub mod least;
pub mod minute;
pub mod report;
pub mod sample;
mod scenario;
pub mod slope;
pub mod table;
#[cfg(test)]
mod tape;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use url::Url;

use crate::history::Rules;
use crate::run::RunError;
use bench::Bench;
use report::CostReport;

/// Delays that the proxy adds in each direction. A round trip takes twice the delay longer.
pub const DELAYS: [Duration; 3] =
    [Duration::ZERO, Duration::from_millis(5), Duration::from_millis(10)];

/// An operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Acquire while all slots are free.
    AcquireFree,
    /// Acquire while only one slot is free.
    AcquireTaken,
    /// Acquire while no slot is free. It is refused.
    AcquireFull,
    /// Acquire while another client takes the slot between the search and the attempt.
    LostRace,
    /// Verify a held slot.
    Verify,
    /// Release a slot for which no client waits.
    Release,
    /// Release and grant of the slot to a waiting client, for both processes together.
    HandOver,
    /// Resize to one more slot.
    Grow,
    /// Resize to one slot less. The removed slot is free.
    Shrink,
}

impl Operation {
    /// All operations, in the order of the report.
    pub const ALL: [Self; 9] = [
        Self::AcquireFree,
        Self::AcquireTaken,
        Self::AcquireFull,
        Self::LostRace,
        Self::Verify,
        Self::Release,
        Self::HandOver,
        Self::Grow,
        Self::Shrink,
    ];
}

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
    /// Number of slots that are held during [`Operation::AcquireTaken`]. The lock has one more
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

/// Measures an implementation. Deletes its locks from the broker afterwards. They remain only if
/// both drivers fail to destroy them.
///
/// # Errors
///
/// [`RunError`] if the implementation cannot be used, or the lock cannot be created.
///
/// # Cancel safety
///
/// If the future is dropped, the processes are killed and the locks remain on the broker.
pub async fn cost(options: &CostOptions) -> Result<CostReport, RunError> {
    let front = Bench::new(options, &options.lock);
    let back = Bench::new(options, &format!("{}.minute", options.lock));
    let (samples, minutes) = tokio::try_join!(scenario::play(&front), background::observe(&back))?;
    let mut report = CostReport::new(options, &samples);
    report.broker = front.recorder.broker().unwrap_or_default();
    report.add_minutes(options, minutes);
    report.not_offered = front.not_offered();
    report.troubles = front.troubles().into_iter().chain(back.troubles()).collect();
    Ok(report)
}
