//! Draws random schedules of an implementation during a run: two clients acquire the only slot
//! while an administrator removes it. See `pct` for the schedules, and `explore` for a systematic
//! search.

use std::time::{Duration, Instant};

use super::explore::{Choice, Scheduler, explore};
use super::lab::{Lab, Violated};
use super::options::{InjectedFaults, Resizes, StepsOptions};
use super::pct::Pct;
use super::request::Request;
use super::{StepsError, stage};
use crate::run::{RunOptions, Way};

/// Maximum number of schedules.
const MOST: u64 = 100;

/// Expected number of steps of a schedule. Each one corrects it.
const STEPS: usize = 20;

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
    let pct = Pct::new(options.seed, MOST, STEPS);
    let mut scheduler = Until { pct, end: Instant::now() + within, is_found: false };
    let explored = explore(&mut lab, &mut scheduler, MOST).await;
    lab.close().await;
    let explored = explored?;
    Ok(Some(Schedules { executions: explored.executions, violation: explored.fault }))
}

/// Random schedules until a time, or until one violates a property.
struct Until {
    pct: Pct,
    end: Instant,
    is_found: bool,
}

impl Scheduler<Request> for Until {
    fn choose(&mut self, steps: &[Request]) -> Choice<Request> {
        self.pct.choose(steps)
    }

    fn again(&mut self) {
        Scheduler::<Request>::again(&mut self.pct);
    }

    fn next(&mut self) -> bool {
        let goes_on = !self.is_found && Instant::now() < self.end;
        goes_on && Scheduler::<Request>::next(&mut self.pct)
    }

    fn limit(&mut self, _: usize) {
        self.is_found = true;
    }
}
