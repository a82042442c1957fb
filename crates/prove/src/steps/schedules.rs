//! Draws random schedules of an implementation during a run: two clients acquire the only slot
//! while an administrator removes it. See `pauses` for the schedules, and `explore` for a systematic
//! search.

use std::time::{Duration, Instant};

use super::explore::explore;
use super::lab::{Lab, Violated};
use super::options::{InjectedFaults, Resizes, StepsOptions};
use super::pauses::Pauses;
use super::request::Request;
use super::{StepsError, stage};
use crate::run::{RunOptions, Way};

/// Maximum number of schedules.
const MOST: u64 = 100;

/// The schedules that were executed.
#[derive(Clone, Debug)]
pub struct Schedules {
    /// Their number.
    pub executions: u64,
    /// The first one that violates a property.
    pub violation: Option<(Vec<Request>, Violated)>,
}

/// Executes random schedules until one violates a property, but not longer than `within` and one
/// execution. Returns `None` if the implementation is no driver or the broker is not observed.
///
/// # Errors
///
/// [`StepsError`] if the implementation or the broker cannot be used.
pub async fn schedules(
    options: &RunOptions,
    within: Duration,
) -> Result<Option<Schedules>, StepsError> {
    let (Way::Driver(driver), Some(url)) = (&options.way, &options.url) else { return Ok(None) };
    let options = StepsOptions {
        driver: driver.clone(),
        administrator: options.administrator.clone(),
        url: url.clone(),
        rules: options.rules,
        actors: 2,
        slots: 1,
        release: false,
        resizes: Resizes::Shrink,
        limit: MOST,
        sleep_sets: true,
        faults: InjectedFaults::None,
        sample: None,
        seed: options.seed,
        program: options.program.clone(),
    };
    let stage = stage::Stage { run: super::run_options(&options), administrator: None };
    let mut lab = Lab::new(&options, stage);
    let mut pauses = Pauses::new(options.seed, Instant::now() + within);
    let explored = explore(&mut lab, &mut pauses, MOST).await;
    lab.close().await;
    let explored = explored?;
    Ok(Some(Schedules { executions: explored.executions, violation: explored.fault }))
}
