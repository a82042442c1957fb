//! Grades an implementation. A grade is given if three conditions are met: no violation of it was
//! found, the situations in its *sometimes* table occurred often enough, and the controls were
//! judged correctly in the same run. See `sometimes` for the tables.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::scheduled::Scheduled;
use super::situations::Situations;
use super::sometimes::{Sometimes, excludes, survives};
use super::tested::Tested;
use crate::check::verdict::{Property, Verdict, Violation};
use crate::history::{Header, History, Phase, Rules, Verb, What};

/// Whether a grade is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Given {
    /// It is given.
    Yes,
    /// It is denied: a violation was found.
    No,
    /// It is not given: no violation was found, but too little was tested.
    NotGiven,
}

/// A grade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grade {
    /// 0: the lock excludes. 1: the lock survives crashes.
    pub number: u8,
    /// Whether it is given.
    pub given: Given,
    /// The violations of the grade, as indices in the verdict.
    pub violations: Vec<usize>,
    /// Number of opportunities for a violation.
    pub trials: u64,
    /// The required situations, with the number of times that each occurred.
    pub sometimes: Vec<Sometimes>,
    /// Reasons why the grade is not given, in addition to missing situations.
    pub reasons: Vec<String>,
}

impl Grade {
    /// Returns the claim that the grade makes about an implementation.
    pub fn meaning(&self) -> &'static str {
        if self.number == 0 { "excludes" } else { "survives crashes" }
    }

    /// Returns the name of the trials.
    pub fn trial(&self) -> &'static str {
        if self.number == 0 { "contended hand-overs" } else { "faults that took effect" }
    }
}

/// The parts of a run besides its history.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evidence<'a> {
    /// The controls. `None` if they were not run.
    pub controls: Option<&'a [Tested]>,
    /// The random schedules. `None` if there were none.
    pub scheduled: Option<&'a Scheduled>,
}

/// Returns the grades 0 and 1.
pub(super) fn grades(
    history: &History,
    verdict: &Verdict,
    situations: &Situations,
    evidence: Evidence,
) -> Vec<Grade> {
    let Evidence { controls: tested, scheduled } = evidence;
    let struck = Struck::new(history);
    let of: Vec<u8> = verdict.violations.iter().map(|one| struck.grade(one)).collect();
    let violating = |number: u8| -> Vec<usize> {
        (0..).zip(&of).filter(|&(_, &one)| one == number).map(|(index, _)| index).collect()
    };
    let contended = verdict.counts.get("contended hand-overs").copied().unwrap_or_default();
    let effective = situations.faults.iter().filter(|(name, _)| !name.ends_with("while idle"));
    let mut first = Grade {
        number: 0,
        given: Given::NotGiven,
        violations: violating(0),
        trials: contended,
        sometimes: excludes(&history.header, verdict, situations, scheduled),
        reasons: reasons(0, &history.header, verdict, tested),
    };
    let mut second = Grade {
        number: 1,
        given: Given::NotGiven,
        violations: violating(1),
        trials: effective.map(|(_, count)| count).sum(),
        sometimes: survives(&history.header, verdict, situations),
        reasons: reasons(1, &history.header, verdict, tested),
    };
    first.decide(scheduled);
    if first.given == Given::NotGiven {
        second.reasons.push("grade 0 is not given".to_owned());
    }
    second.decide(scheduled);
    if first.given == Given::No {
        second.given = Given::No;
        second.reasons.insert(0, "grade 0 is not reached".to_owned());
    }
    vec![first, second]
}

impl Grade {
    fn decide(&mut self, scheduled: Option<&Scheduled>) {
        let number = self.number;
        let violated = scheduled.and_then(|all| all.violated(|one| of(one) == number));
        let tested = self.reasons.is_empty() && self.sometimes.iter().all(Sometimes::is_met);
        self.given = match (self.violations.is_empty() && violated.is_none(), tested) {
            (false, _) => Given::No,
            (true, true) => Given::Yes,
            (true, false) => Given::NotGiven,
        };
        self.reasons.splice(0..0, violated);
    }
}

/// Returns the reasons why the absence of violations is not meaningful.
fn reasons(
    number: u8,
    header: &Header,
    verdict: &Verdict,
    tested: Option<&[Tested]>,
) -> Vec<String> {
    let mut reasons = Vec::new();
    match tested {
        // There are no straw clients for other locks.
        None if header.protocol == Rules::None => {}
        None => reasons.push("the controls were not run".to_owned()),
        Some(tested) => {
            let concerns = |one: &&Tested| one.property.is_none_or(|one| of(one) <= number);
            for one in tested.iter().filter(concerns).filter(|one| !one.right) {
                reasons.push(match &one.bug {
                    Some(bug) => format!("control {bug} was missed"),
                    None => "violations were reported for the correct control".to_owned(),
                });
            }
        }
    }
    if header.protocol != Rules::None && verdict.not_judged.contains_key(&Property::S4) {
        reasons.push("the broker was not observed".to_owned());
    }
    reasons
}

/// Returns the lowest grade that requires a property.
fn of(property: Property) -> u8 {
    match property {
        Property::S1 | Property::S2 | Property::S3 | Property::S4 | Property::TokensConserved => 0,
        Property::S5 | Property::S6 | Property::S9 | Property::S10 | Property::Rule => 1,
    }
}

/// The faults that hit each process.
struct Struck {
    /// The acquires of each process.
    acquires: BTreeMap<u32, Vec<usize>>,
    /// The faults of each process.
    faults: BTreeMap<u32, Vec<usize>>,
    /// The faults of the broker.
    broker: Vec<usize>,
}

impl Struck {
    fn new(history: &History) -> Self {
        let mut struck =
            Self { acquires: BTreeMap::new(), faults: BTreeMap::new(), broker: Vec::new() };
        for (at, event) in history.events.iter().enumerate() {
            match &event.what {
                What::Operation(operation)
                    if (operation.verb, operation.phase) == (Verb::Acquire, Phase::Invoke) =>
                {
                    struck.acquires.entry(operation.process).or_default().push(at);
                }
                What::Fault { process: Some(process), .. } => {
                    struck.faults.entry(*process).or_default().push(at);
                }
                What::Fault { process: None, .. } => struck.broker.push(at),
                _ => {}
            }
        }
        struck
    }

    /// Returns the grade that the violation belongs to. It is grade 1 if a fault hit the broker
    /// or an involved process in the current or the previous cycle of that process. Otherwise it
    /// is the lowest grade that requires the property.
    fn grade(&self, violation: &Violation) -> u8 {
        let before = |all: &[usize], back: usize| {
            all[..all.partition_point(|&at| at < violation.event)].iter().rev().nth(back).copied()
        };
        let struck = violation.processes.iter().any(|process| {
            let of = |all: &BTreeMap<u32, Vec<usize>>, back: usize| {
                all.get(process).and_then(|all| before(all, back))
            };
            let from = of(&self.acquires, 1).unwrap_or_default();
            let last = of(&self.faults, 0).max(before(&self.broker, 0));
            last.is_some_and(|last| last >= from)
        });
        of(violation.property).max(u8::from(struck))
    }
}

#[cfg(test)]
mod tests;
