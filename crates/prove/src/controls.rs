//! Runs the controls of a verdict: clients with seeded bugs, which must be caught on the same
//! machine and broker, and correct clients, which must pass. A verdict is meaningless if a
//! control fails. See `straw` for the clients.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::check::verdict::{Cause, Verdict, Violation};
use crate::history::{Faults, Rules};
use crate::run::{RunError, RunOptions, Way, run_until};
use crate::steps::{InjectedFaults, Resizes, StepsError, StepsOptions, steps};
use crate::straw::{Bug, Trigger};

/// Duration of one round of a control.
const ROUND: Duration = Duration::from_secs(2);

/// Maximum number of rounds. A bug that is not caught in them counts as missed.
const ROUNDS: usize = 5;

/// Maximum number of interleavings. A bug that is not caught in them counts as missed.
const INTERLEAVINGS: u64 = 200;

/// The result of one control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    /// The bug. `None`: the correct client.
    pub bug: Option<Bug>,
    /// Violations of the expected property by the expected cause. For the correct client: all
    /// violations.
    pub found: Vec<Violation>,
    /// Other violations in the last round.
    pub others: Vec<Violation>,
}

impl Control {
    /// Returns whether the prover judged the control correctly.
    pub fn is_right(&self) -> bool {
        self.found.is_empty() == self.bug.is_none()
    }
}

/// Error that prevents a control from running.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The random workload failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The exploration of interleavings failed.
    #[error(transparent)]
    Steps(#[from] StepsError),
}

/// Returns the seeded bugs of clients of this protocol.
pub fn bugs(rules: Rules) -> Vec<Bug> {
    Bug::ALL.into_iter().filter(|bug| bug.protocol() == of_straw(rules)).collect()
}

/// Returns the protocol of the straw clients that serve as controls for this protocol. The names
/// and options of amqp-locks-python make no difference to them.
fn of_straw(rules: Rules) -> Rules {
    if rules == Rules::AmqpLocksPython { Rules::ExclusiveQueue } else { rules }
}

/// Runs one control against the broker of these options. Uses a random workload, or explores
/// interleavings if a random workload seldom triggers the bug.
///
/// # Errors
///
/// [`ControlError`] if the straw client could not be run.
pub async fn control(options: &RunOptions, bug: Option<Bug>) -> Result<Control, ControlError> {
    let options = &RunOptions { rules: of_straw(options.rules), ..options.clone() };
    let mut control = Control { bug, found: Vec::new(), others: Vec::new() };
    let expected = |violation: &Violation| match bug {
        Some(bug) => {
            violation.property == bug.property()
                && (violation.cause == bug.cause() || violation.cause == Cause::Unknown)
        }
        None => true,
    };
    if bug.is_some_and(|bug| bug.trigger() == Trigger::Interleaving) {
        let violations = interleaved(options, bug).await?;
        (control.found, control.others) = violations.into_iter().partition(expected);
        return Ok(control);
    }
    let mut random = StdRng::seed_from_u64(options.seed);
    let rounds = if bug.is_some() { ROUNDS } else { 1 };
    for round in 0..rounds {
        let round = of_round(options, bug, round, &mut random);
        let caught = |verdict: &Verdict| bug.is_some() && verdict.violations.iter().any(expected);
        let violations = run_until(&round, caught).await?.verdict.violations;
        (control.found, control.others) = violations.into_iter().partition(expected);
        if !control.found.is_empty() {
            break;
        }
    }
    Ok(control)
}

/// Returns the options of one round of a random workload.
fn of_round(
    options: &RunOptions,
    bug: Option<Bug>,
    round: usize,
    random: &mut StdRng,
) -> RunOptions {
    let straw = straw(options, bug);
    let trigger = bug.map(Bug::trigger);
    RunOptions {
        way: Way::Driver(straw.clone()),
        second_driver: None,
        administrator: straw,
        lock: format!("{}.{}-{round}", options.lock, bug.map_or("correct", Bug::name)),
        seed: random.random(),
        duration: ROUND,
        slots: options.slots.max(2),
        faults: match trigger {
            None => Faults::SOME,
            Some(Trigger::Cut) => Faults { cut: 30, ..Faults::NONE },
            Some(Trigger::SecondAcquire) => Faults { again: 30, ..Faults::NONE },
            Some(_) => Faults::NONE,
        },
        resize_within: match trigger {
            Some(Trigger::Resize) => Duration::from_millis(50),
            _ => options.resize_within,
        },
        ..options.clone()
    }
}

/// Explores two clients and a shrink until a property is violated.
async fn interleaved(
    options: &RunOptions,
    bug: Option<Bug>,
) -> Result<Vec<Violation>, ControlError> {
    // A larger value would add probes of irrelevant slots to the exploration.
    let straw = straw(options, bug) + " --overshoot 1";
    let outcome = steps(&StepsOptions {
        driver: straw.clone(),
        administrator: straw,
        url: options.url.clone().ok_or(RunError::Url)?,
        rules: options.rules,
        actors: 2,
        slots: 1,
        release: false,
        resizes: Resizes::Shrink,
        limit: INTERLEAVINGS,
        sleep_sets: true,
        faults: InjectedFaults::None,
        sample: None,
        seed: options.seed,
        program: options.program.clone(),
    })
    .await?;
    let violated = outcome.violation().map(|(_, violated)| violated.verdict.violations.clone());
    Ok(violated.unwrap_or_default())
}

fn straw(options: &RunOptions, bug: Option<Bug>) -> String {
    let program = options.program.display();
    let bug = bug.map_or_else(String::new, |bug| format!(" --bug {}", bug.name()));
    format!("'{program}' straw --protocol {}{bug}", protocol(options.rules))
}

/// Returns the value of the option `--protocol`.
fn protocol(rules: Rules) -> String {
    clap::ValueEnum::to_possible_value(&rules)
        .map_or_else(String::new, |value| value.get_name().to_owned())
}
