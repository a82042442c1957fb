//! Runs the controls of a verdict: clients with seeded bugs, which must be caught on the same
//! machine and broker by the workload and the random schedules that the implementation gets, and
//! correct clients, which must pass. A verdict is meaningless if a control fails. See `straw` for
//! the clients.

use std::time::Duration;

use crate::check::verdict::{Cause, Verdict, Violation};
use crate::history::{Faults, Rules};
use crate::run::{RunError, RunOptions, Way, run_until};
use crate::steps::StepsError;
use crate::steps::schedules::schedules;
use crate::straw::Bug;

/// Maximum duration of the workload in one round.
const ROUND: Duration = Duration::from_secs(6);

/// Maximum duration of the random schedules in one round.
const SCHEDULES: Duration = Duration::from_secs(2);

/// Maximum number of rounds of a control, for as long as a run of the implementation usually takes.
/// A bug that is not caught in them counts as missed.
const ROUNDS: u64 = 10;

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
    /// The workload failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The random schedules failed.
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

/// Runs one control against the broker of these options.
///
/// # Errors
///
/// [`ControlError`] if the straw client could not be run.
pub async fn control(options: &RunOptions, bug: Option<Bug>) -> Result<Control, ControlError> {
    let options = &RunOptions { rules: of_straw(options.rules), ..options.clone() };
    let expected = |violation: &Violation| match bug {
        Some(bug) => {
            violation.property == bug.property()
                && (violation.cause == bug.cause() || violation.cause == Cause::Unknown)
        }
        None => true,
    };
    let straw = straw(options, bug);
    let of_straw = RunOptions {
        way: Way::Driver(straw.clone()),
        second_driver: None,
        administrator: straw,
        lock: format!("{}.{}", options.lock, bug.map_or("correct", Bug::name)),
        slots: options.slots.max(2),
        faults: Faults::SOME,
        ..options.clone()
    };
    let violations = match bug {
        Some(_) => find(&of_straw, ROUNDS, SCHEDULES, expected).await?,
        None => find(&of_straw, 1, SCHEDULES, |_| false).await?,
    };
    let (found, others) = violations.into_iter().partition(expected);
    Ok(Control { bug, found, others })
}

/// Runs the workload and random schedules in turn, in up to this number of rounds, until one
/// shows an expected violation. `within` limits the time of the schedules in each round. Returns
/// the violations of the last round.
///
/// # Errors
///
/// [`ControlError`] if the implementation could not be run.
pub async fn find(
    options: &RunOptions,
    rounds: u64,
    within: Duration,
    expected: impl Fn(&Violation) -> bool,
) -> Result<Vec<Violation>, ControlError> {
    let is_found = |violations: &[Violation]| violations.iter().any(&expected);
    let mut violations = Vec::new();
    for round in 0..rounds {
        let options = RunOptions {
            lock: format!("{}-{round}", options.lock),
            seed: options.seed.wrapping_add(round),
            duration: ROUND,
            ..options.clone()
        };
        let ends = |verdict: &Verdict| is_found(&verdict.violations);
        violations = run_until(&options, ends).await?.verdict.violations;
        if !is_found(&violations) {
            violations.extend(scheduled(&options, within).await?);
        }
        if is_found(&violations) {
            break;
        }
    }
    Ok(violations)
}

/// Executes random schedules, and returns the violations of the first that violates a property.
/// Nothing is known of one in which a process waits for another one that is held back.
async fn scheduled(options: &RunOptions, within: Duration) -> Result<Vec<Violation>, ControlError> {
    let drawn = match schedules(options, within).await {
        Err(StepsError::Stuck(_)) => None,
        drawn => drawn?,
    };
    let violation = drawn.and_then(|drawn| drawn.violation);
    Ok(violation.map(|(_, violated)| violated.verdict.violations).unwrap_or_default())
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
