//! Measures the cost of each operation of an implementation on the wire, and compares it with
//! the minimum. See `docs/proving.md` for how to read the result.
//!
//! - `scenario`: runs the measured operations, one after the other.
//! - `background`: observes an idle holder and an idle waiter.
//! - `bench`: measures one operation. [`sample`]: the result.
//! - [`count`], [`chain`], [`median`], [`minute`]: the arithmetic.
//! - [`least`]: the minimum cost.
//! - [`report`]: the report. [`table`]: its text.

mod background;
mod bench;
pub mod chain;
pub mod count;
pub mod least;
pub mod median;
pub mod minute;
mod operation;
mod options;
pub mod report;
pub mod sample;
mod scenario;
pub mod table;
#[cfg(test)]
mod tape;

use crate::run::RunError;
use bench::Bench;
pub use operation::Operation;
pub use options::{CostOptions, DELAYS, SETTLING};
use report::CostReport;

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
