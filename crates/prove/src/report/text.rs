//! Formats a report as text. See `directory` for the files of a report.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::path::Path;
use std::time::Duration;

use super::grade::{Given, Grade};
use super::shares::Share;
use super::sometimes::Sometimes;
use super::{Report, SHOWN};
use crate::check::verdict::{Property, Violation};

/// Maximum number of missing situations of a grade that are printed. `report.json` contains all
/// of them.
const MISSING: usize = 6;

/// Formats a report as text.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// The report.
    pub report: &'a Report,
    /// The directory that contains the pictures, if they were written.
    pub directory: Option<&'a Path>,
}

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.report;
        self.heading(f)?;
        for trouble in &report.troubles {
            writeln!(f, "warning: {trouble}")?;
        }
        let counts = report.verdict.counts.iter();
        let counts = counts.map(|(name, &count)| format!("{} {name}", grouped(count)));
        writeln!(f, "{}", counts.collect::<Vec<_>>().join(", "))?;
        for Share { implementation, grants, .. } in &report.shares {
            writeln!(f, "{} grants to {implementation}", grouped(*grants))?;
        }
        self.not_judged(f)?;
        self.violations(f)?;
        let scheduled = report.scheduled.iter().flat_map(|scheduled| &scheduled.violations);
        for Violation { property, cause, what, .. } in scheduled.clone().take(SHOWN) {
            writeln!(f, "{property:?} {cause} in a random schedule: {what}")?;
        }
        for grade in &report.grades {
            let given = match grade.given {
                Given::Yes => "yes",
                Given::No => "NO",
                Given::NotGiven => "not given",
            };
            let (number, meaning) = (grade.number, grade.meaning());
            writeln!(f, "grade {number}  {given:<9}  {meaning}: {}", self.because(grade))?;
        }
        if report.verdict.violations.is_empty() && scheduled.count() == 0 {
            writeln!(
                f,
                "A run without violations does not prove that the implementation has no bugs."
            )?;
        }
        Ok(())
    }
}

impl Text<'_> {
    fn heading(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (header, report) = (&self.report.header, self.report);
        write!(f, "{}", header.implementation)?;
        if !header.broker.is_empty() {
            write!(f, ", {}", header.broker)?;
        }
        if header.heartbeat_ms > 0 {
            write!(
                f,
                ", heartbeat {} s",
                Duration::from_millis(header.heartbeat_ms).as_secs_f64()
            )?;
        }
        if let Some(played) = &header.played {
            write!(f, ", {} s", Duration::from_millis(played.duration_ms).as_secs())?;
        }
        write!(f, ", seed {}", header.seed)?;
        if let Some(controls) = &report.controls {
            let right = controls.iter().filter(|control| control.right).count();
            write!(f, ", controls judged correctly: {right} of {}", controls.len())?;
        }
        writeln!(f)
    }

    /// Writes one line for each reason why properties were not judged.
    fn not_judged(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (property, why) in &self.report.verdict.not_judged {
            reasons.entry(why).or_default().push(format!("{property:?}"));
        }
        reasons
            .iter()
            .try_for_each(|(why, names)| writeln!(f, "not judged: {} ({why})", names.join(", ")))
    }

    fn violations(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let violations = &self.report.verdict.violations;
        // The violations of each rule are limited separately.
        let kind = |one: &Violation| (one.property, one.rule.clone());
        let kinds: BTreeSet<(Property, Option<String>)> = violations.iter().map(kind).collect();
        for (property, rule) in kinds {
            let those = || {
                let all = (0..).zip(violations);
                all.filter(|(_, one)| one.property == property && one.rule == rule)
            };
            for (index, one) in those().take(SHOWN) {
                let cause = one.cause;
                let seconds = Duration::from_micros(one.at).as_secs_f64();
                write!(f, "{property:?} {cause} at {seconds:.6} s: {}", one.what)?;
                for Share { implementation, processes, .. } in &self.report.shares {
                    for process in processes.iter().filter(|its| one.processes.contains(its)) {
                        write!(f, "; process {process} is {implementation}")?;
                    }
                }
                let mut pictures = self.report.pictures.iter();
                let picture = pictures.find(|picture| picture.violation == index);
                if let (Some(directory), Some(picture)) = (self.directory, picture) {
                    write!(f, "  {}", directory.join(&picture.file).display())?;
                }
                writeln!(f)?;
            }
            let more = those().count().saturating_sub(SHOWN);
            if more > 0 {
                let of = rule.map_or_else(String::new, |rule| format!(" {rule}"));
                writeln!(f, "{property:?}{of}: {} more", grouped(more as u64))?;
            }
        }
        Ok(())
    }

    /// Returns the reasons for the result of a grade.
    fn because(&self, grade: &Grade) -> String {
        let n = grade.trials;
        match grade.given {
            Given::Yes => {
                // The rule of three: the upper bound of a 95 % confidence interval.
                let bound = match n {
                    0..=3 => String::new(),
                    _ => format!(" (95 % confidence: fewer than 1 in {})", grouped(n / 3)),
                };
                format!("0 of {} {} caused a violation{bound}", grouped(n), grade.trial())
            }
            Given::No => self.violated(grade),
            Given::NotGiven => {
                let missing = grade.sometimes.iter().filter(|one| !one.is_met());
                let missing = missing.map(|Sometimes { situation, seen, needed }| {
                    format!("{situation} {} of {}", grouped(*seen), grouped(*needed))
                });
                let mut all: Vec<String> = grade.reasons.iter().cloned().chain(missing).collect();
                let more = all.len().saturating_sub(MISSING);
                all.truncate(MISSING);
                if more > 0 {
                    all.push(format!("{more} more in report.json"));
                }
                format!("no violation, but {}", all.join("; "))
            }
        }
    }

    fn violated(&self, grade: &Grade) -> String {
        let violations = &self.report.verdict.violations;
        let of = |index: &usize| violations.get(*index);
        let Some(first) = grade.violations.first().and_then(of) else {
            return grade.reasons.first().cloned().unwrap_or_default();
        };
        let cause = first.cause;
        let more = match grade.violations.len() - 1 {
            0 => String::new(),
            more => format!(" (and {} more)", grouped(more as u64)),
        };
        format!("{:?} {cause}: {}{more}", first.property, first.what)
    }
}

/// Formats a number with commas between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests;
