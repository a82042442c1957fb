//! Explores every interleaving of a few operations on a real broker. Each client acquires once;
//! an administrator may resize the lock at the same time. See `explore` for the search, `lab`
//! for one execution, `schedules` for random schedules, and `run` for a random workload with faults.

mod answered;
mod cuts;
mod error;
pub mod explore;
pub mod faults;
mod lab;
mod options;
mod pauses;
pub mod pct;
mod player;
pub mod request;
pub mod schedules;
#[cfg(test)]
mod sim;
mod stage;

use std::time::{Duration, Instant};

use crate::history::Faults;
use crate::run::{RunOptions, Way};
pub use error::StepsError;
use explore::{End, Explored, Search, explore};
use faults::{Faulted, faults};
use lab::Lab;
pub use lab::{LONGEST, Totals, Violated};
pub use options::{InjectedFaults, Resizes, StepsOptions};
use pct::Pct;
use request::Request;
use stage::Stage;

/// The result of an exploration.
#[derive(Clone, Debug)]
pub struct StepsOutcome {
    /// The systematic search. Its end shows whether it is complete.
    pub explored: Explored<Request, Violated>,
    /// The random schedules. `None` if the implementation repeats its requests.
    pub drawn: Option<Explored<Request, Violated>>,
    /// The executions with a fault. `None` if faults were not requested, or if an execution
    /// without a fault violates a property.
    pub faulted: Option<Faulted>,
    /// Totals over all executions.
    pub totals: Totals,
    /// Duration of the exploration.
    pub took: Duration,
}

impl StepsOutcome {
    /// Returns the shortest schedule that violates a property.
    pub fn violation(&self) -> Option<&(Vec<Request>, Violated)> {
        let drawn = self.drawn.as_ref().and_then(|drawn| drawn.fault.as_ref());
        let faulted = self.faulted.as_ref().and_then(|faulted| faulted.shortest.as_ref());
        let all = self.explored.fault.iter().chain(drawn).chain(faulted);
        all.min_by_key(|(schedule, _)| schedule.len())
    }
}

/// Number of random schedules for an implementation that does not repeat its requests, unless
/// the limit is lower.
const DRAWN: u64 = 200;

/// Explores every interleaving of the requests.
///
/// # Errors
///
/// [`StepsError`] if the exploration cannot be judged.
pub async fn steps(options: &StepsOptions) -> Result<StepsOutcome, StepsError> {
    let started = Instant::now();
    let stage = Stage { run: run_options(options), administrator: None };
    let mut lab = Lab::new(options, stage);
    let outcome = search(options, &mut lab).await;
    lab.close().await;
    let (explored, drawn, faulted) = outcome?;
    let (totals, took) = (lab.totals, started.elapsed());
    Ok(StepsOutcome { explored, drawn, faulted, totals, took })
}

type Searched = (Explored<Request, Violated>, Option<Explored<Request, Violated>>, Option<Faulted>);

/// Searches systematically. If the implementation does not repeat its requests, uses random
/// schedules instead. Then injects faults into the executions that were found.
async fn search(options: &StepsOptions, lab: &mut Lab<'_>) -> Result<Searched, StepsError> {
    let mut search = Search::new(options.sleep_sets);
    let explored = explore(lab, &mut search, options.limit).await?;
    let drawn = match explored.end {
        End::Diverged(_) => {
            let executions = DRAWN.min(options.limit);
            let length = usize::try_from(explored.steps / explored.all().max(1)).unwrap_or(LONGEST);
            let mut pct = Pct::new(options.seed, executions, length);
            Some(explore(lab, &mut pct, executions).await?)
        }
        End::Complete | End::Limit => None,
    };
    let violated = drawn.iter().chain([&explored]).any(|explored| explored.fault.is_some());
    let faulted = match options.faults {
        InjectedFaults::One if !violated => Some(faults(options, lab).await?),
        _ => None,
    };
    Ok((explored, drawn, faulted))
}

/// Returns the options for starting processes.
fn run_options(options: &StepsOptions) -> RunOptions {
    RunOptions {
        way: Way::Driver(options.driver.clone()),
        second_driver: None,
        administrator: options.administrator.clone(),
        url: Some(options.url.clone()),
        rules: options.rules,
        lock: format!("prove.steps-{:016x}", rand::random::<u64>()),
        seed: options.seed,
        duration: Duration::ZERO,
        clients: options.actors,
        slots: options.slots,
        faults: Faults::NONE,
        resize_within: Duration::ZERO,
        program: options.program.clone(),
    }
}
