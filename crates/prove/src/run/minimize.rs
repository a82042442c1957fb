//! Searches for the smallest run that still has a violation: without the faults, resizes, slots
//! and clients that the violation does not need. See `search` for the order of the reductions,
//! and `replay` for the repetition of a recorded run.

pub mod search;

use std::time::Duration;

use tokio::time::Instant;

use super::{Outcome, RunError, RunOptions, run_until};
use crate::check::verdict::{Cause, Property, Verdict, Violation};
use search::{Size, least};

/// Number of runs of one size before it counts as too small. The processes run concurrently, so
/// one run can miss a violation: one that occurs in half of the runs is missed by 3 runs in 1 of
/// 8 cases. More runs would leave no time for other reductions.
pub const TRIES: u32 = 3;

/// Number of repetitions of the smallest run, which show how often it violates.
pub const REPETITIONS: u32 = 5;

/// Duration of a run, relative to the time of the violation in the recorded run. A smaller run
/// may take longer to violate.
const SLACK: u32 = 3;

/// Minimum duration of a run before the duration itself is reduced. Random faults need some
/// cycles until they occur.
const SHORT: Duration = Duration::from_secs(2);

/// The violation that a smaller run must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    property: Property,
    cause: Cause,
    /// The description without numbers and details. Without it, a smaller run could violate the
    /// same property in another way.
    kind: Vec<String>,
}

impl Wanted {
    /// Requires the property, the cause and the kind of this violation.
    pub fn new(violation: &Violation) -> Self {
        let Violation { property, cause, what, .. } = violation;
        let main = what.split(" (").next().unwrap_or_default();
        let words = main.split_whitespace().filter(|word| !word.contains(char::is_numeric));
        let kind = words.map(str::to_owned).collect();
        Self { property: *property, cause: *cause, kind }
    }

    /// Returns the first such violation.
    pub fn first<'a>(&self, verdict: &'a Verdict) -> Option<&'a Violation> {
        verdict.violations.iter().find(|one| Self::new(one) == *self)
    }
}

/// The smallest run that was found.
#[derive(Clone, Debug)]
pub struct Minimal {
    /// Its options.
    pub size: Size,
    /// A run of this size with the violation.
    pub outcome: Outcome,
    /// Number of runs of this size with the violation.
    pub violated: u32,
    /// Number of runs of this size.
    pub tries: u32,
    /// Whether the time limit ended the search, so that a smaller run may exist.
    pub is_unfinished: bool,
}

/// Searches for the smallest run of these options that has the violation. The search begins with a run that is shortened to a multiple of `after`, the time of the violation
/// in the recorded run, and ends at `until`. `report` is called after each size that was tried,
/// and is told whether it violates.
///
/// Returns `None` if the violation did not occur again.
///
/// # Errors
///
/// The error of a run, if no run had the violation. Later errors count as runs without it.
pub async fn minimize(
    options: &RunOptions,
    wanted: &Wanted,
    after: Duration,
    until: Instant,
    mut report: impl FnMut(Size, bool),
) -> Result<Option<Minimal>, RunError> {
    let mut trial = Trial { options, wanted, until, smallest: None, failed: None };
    let full = Size::of(options);
    let short = (after * SLACK).max(SHORT).min(full.duration);
    let mut searched = None;
    // A violation that needs more time than in the recorded run.
    for duration in [short, full.duration] {
        let start = Size { duration, ..full };
        searched = least(start, async |size| {
            let violates = trial.violates(size).await;
            if let Some(violates) = violates {
                report(size, violates);
            }
            violates
        })
        .await;
        if searched.is_some() || short == full.duration {
            break;
        }
    }
    let (Some(found), Some((size, outcome, tries))) = (searched, trial.smallest.take()) else {
        return trial.failed.map_or(Ok(None), Err);
    };
    let mut minimal =
        Minimal { size, outcome, violated: 1, tries, is_unfinished: found.is_unfinished };
    for _ in 0..REPETITIONS {
        let Some(again) = trial.run(size).await else { break };
        minimal.violated += u32::from(again.is_some());
        minimal.tries += 1;
    }
    Ok(Some(minimal))
}

/// Runs of one search.
struct Trial<'a> {
    options: &'a RunOptions,
    wanted: &'a Wanted,
    until: Instant,
    /// The last size with the violation, the run, and the number of runs of this size.
    smallest: Option<(Size, Outcome, u32)>,
    failed: Option<RunError>,
}

impl Trial<'_> {
    /// Returns whether one of several runs of this size has the violation. Returns `None` if
    /// there was too little time.
    async fn violates(&mut self, size: Size) -> Option<bool> {
        for tries in 1..=TRIES {
            if let Some(outcome) = self.run(size).await? {
                self.smallest = Some((size, outcome, tries));
                return Some(true);
            }
        }
        Some(false)
    }

    /// Runs once. Returns `None` if there is too little time for a whole run, and the outcome if
    /// the run has the violation.
    async fn run(&mut self, size: Size) -> Option<Option<Outcome>> {
        if Instant::now() + size.duration > self.until {
            return None;
        }
        let options = size.apply(self.options);
        let wanted = self.wanted;
        match run_until(&options, |verdict| wanted.first(verdict).is_some()).await {
            Ok(outcome) if wanted.first(&outcome.verdict).is_some() => Some(Some(outcome)),
            Ok(_) => Some(None),
            Err(error) => {
                self.failed = Some(error);
                Some(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violations_of_one_kind_differ_in_numbers_and_details_only() {
        let violation = |what: &str| Violation {
            property: Property::S5,
            cause: Cause::Client,
            at: 0,
            event: 0,
            processes: Vec::new(),
            what: what.to_owned(),
            rule: None,
        };
        let wanted = Wanted::new(&violation("process 2 holds slot 1, but not owns it (9 did)"));
        let verdict = |one: Violation| Verdict { violations: vec![one], ..Verdict::default() };
        let found = |one: Violation| wanted.first(&verdict(one)).is_some();
        let same = violation("process 3 holds slot 4, but not owns it");
        assert!(found(same.clone()));
        assert!(!found(violation("process 2 holds slot 1, but did not report that")));
        assert!(!found(Violation { cause: Cause::Broker, ..same.clone() }));
        assert!(!found(Violation { property: Property::S2, ..same }));
    }
}
