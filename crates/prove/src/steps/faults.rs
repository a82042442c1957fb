//! Repeats executions with one fault each. See `cuts` for the choice of faults, and `lab` for one
//! execution.

use super::cuts::{self, Fault, Order};
use super::error::StepsError;
use super::explore::World;
use super::lab::{Lab, Violated};
use super::options::StepsOptions;
use super::request::Request;

/// The result of the executions with a fault.
#[derive(Clone, Debug, Default)]
pub struct Faulted {
    /// Number of possible executions with a fault.
    pub possible: u64,
    /// Number of those that were executed.
    pub executions: u64,
    /// Number of faults that took effect.
    pub effective: u64,
    /// Number of executions in which a process was killed, because it neither sent a request nor
    /// answered after the fault. They were judged up to there.
    pub killed: u64,
    /// Number of executions that violate a property.
    pub violations: u64,
    /// The shortest schedule that violates a property, with the fault as a step.
    pub shortest: Option<(Vec<Request>, Violated)>,
}

/// Repeats the executions that were found without a fault, with one fault each. Executes the
/// number in the options, drawn at random, or all.
///
/// # Errors
///
/// [`StepsError`] if an execution cannot be judged.
pub(super) async fn faults(
    options: &StepsOptions,
    lab: &mut Lab<'_>,
) -> Result<Faulted, StepsError> {
    let executions: Vec<cuts::Execution> = std::mem::take(&mut lab.complete).into_iter().collect();
    let every = cuts::every(&executions);
    let mut faulted = Faulted { possible: length(every.len()), ..Faulted::default() };
    let sample = options.sample.and_then(|sample| usize::try_from(sample).ok());
    for fault in cuts::draw(every, sample.unwrap_or(usize::MAX), options.seed) {
        lab.fault = Some(fault.side);
        faulted.executions += 1;
        let Some((schedule, violated)) =
            execute(lab, &executions[fault.execution].schedule, fault).await?
        else {
            continue;
        };
        faulted.violations += 1;
        let shortest = faulted.shortest.as_ref();
        if shortest.is_none_or(|(shortest, _)| schedule.len() < shortest.len()) {
            faulted.shortest = Some((schedule, violated));
        }
    }
    (faulted.effective, faulted.killed) = (lab.totals.effective, lab.totals.killed);
    Ok(faulted)
}

/// Executes a schedule with a fault. Returns the steps after which a violation was certain.
async fn execute(
    lab: &mut Lab<'_>,
    schedule: &[Request],
    fault: Fault,
) -> Result<Option<(Vec<Request>, Violated)>, StepsError> {
    let mut order = Order::new(schedule, fault);
    let mut taken = Vec::new();
    lab.begin().await?;
    loop {
        let steps = lab.steps().await?;
        let Some(step) = order.choose(&steps, &lab.holders()) else { break };
        lab.take(&step).await?;
        taken.push(step);
    }
    let violated = lab.end().await?;
    Ok(violated.map(|(length, violated)| {
        taken.truncate(length);
        (taken, violated)
    }))
}

fn length(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
