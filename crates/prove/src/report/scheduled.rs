//! The random schedules in a report. See `steps` for how they are executed.

use serde::{Deserialize, Serialize};

use crate::check::verdict::{Property, Violation};
use crate::steps::schedules::Schedules;

/// The random schedules of a run, in which the prover decided the order of the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduled {
    /// Number of schedules.
    pub executions: u64,
    /// The violations of the first schedule with any.
    pub violations: Vec<Violation>,
}

impl Scheduled {
    /// Returns the summary of these schedules.
    pub fn new(schedules: &Schedules) -> Self {
        let violated = schedules.violation.as_ref();
        let violations = violated.map(|(_, violated)| violated.verdict.violations.clone());
        let (executions, violations) = (schedules.executions, violations.unwrap_or_default());
        Self { executions, violations }
    }

    /// Returns a description of the first violation of such a property.
    pub(super) fn violated(&self, is: impl Fn(Property) -> bool) -> Option<String> {
        let first = self.violations.iter().find(|one| is(one.property))?;
        Some(format!("{:?} {} in a random schedule: {}", first.property, first.cause, first.what))
    }
}
