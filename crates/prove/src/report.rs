//! The report of a run: the verdict with its grades, as text and as `report.json`, and a picture
//! of each violation. See `check` for how a history is judged.
//!
//! - [`grade`]: which grades are given, with the reasons.
//! - [`sometimes`], [`situations`]: the situations that a grade requires, and those that
//!   occurred.
//! - `scheduled`: the random schedules. `tested`: the controls.
//! - [`text`]: the report as text.
//! - [`mod@shares`]: the implementations of a run with several.
//! - [`directory`]: the files.
//! - `picture`, `svg`: the pictures.

pub mod directory;
pub mod grade;
mod picture;
mod scheduled;
pub mod shares;
pub mod situations;
pub mod sometimes;
mod svg;
mod tested;
pub mod text;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::check::verdict::{Property, Verdict};
use crate::check::{JudgeError, examine};
use crate::controls::Control;
use crate::history::{Header, History};
use grade::{Evidence, Given, Grade, grades};
pub use scheduled::Scheduled;
use shares::{Share, shares};
use situations::Situations;
use sometimes::Sometimes;
pub use tested::Tested;

/// Maximum number of violations of one property that are printed and drawn.
pub const SHOWN: usize = 3;

/// Prefix and suffix of the names of pictures.
pub const PICTURE: (&str, &str) = ("violation-", ".svg");

/// Version of `report.json`.
pub const VERSION: u32 = 1;

/// The report of one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// The tested implementation, and the conditions of the run.
    pub header: Header,
    /// The grades, in ascending order from 0.
    pub grades: Vec<Grade>,
    /// The violations and counts.
    pub verdict: Verdict,
    /// The shares of the implementations, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<Share>,
    /// The situations that occurred, including the faults that took effect.
    pub situations: Situations,
    /// The random schedules. `None` if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<Scheduled>,
    /// The controls. `None` if they were not run.
    pub controls: Option<Vec<Tested>>,
    /// Warnings about the implementation's behaviour, each text once.
    pub troubles: Vec<String>,
    /// The pictures of violations.
    pub pictures: Vec<Drawn>,
}

/// A picture of a violation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drawn {
    /// The name of the file.
    pub file: String,
    /// Index of the violation in the verdict.
    pub violation: usize,
    /// The picture, as SVG.
    #[serde(skip)]
    pub svg: String,
}

impl Report {
    /// Judges a history and draws its violations. `controls` are the controls of the same run,
    /// and `troubles` are warnings about the implementation's behaviour.
    ///
    /// # Errors
    ///
    /// [`JudgeError`] if the history cannot be judged.
    pub fn new(
        history: &History,
        controls: Option<&[Control]>,
        troubles: &[String],
    ) -> Result<Self, JudgeError> {
        Self::with_schedules(history, controls, None, troubles)
    }

    /// As [`Report::new`], of a run that also executed random schedules.
    ///
    /// # Errors
    ///
    /// As [`Report::new`].
    pub fn with_schedules(
        history: &History,
        controls: Option<&[Control]>,
        scheduled: Option<Scheduled>,
        troubles: &[String],
    ) -> Result<Self, JudgeError> {
        let examined = examine(history)?;
        let situations = situations::read(history, &examined);
        let controls: Option<Vec<Tested>> =
            controls.map(|controls| controls.iter().map(Tested::new).collect());
        let grades = if history.has_operations() {
            let evidence =
                Evidence { controls: controls.as_deref(), scheduled: scheduled.as_ref() };
            grades(history, &examined.verdict, &situations, evidence)
        } else {
            Vec::new()
        };
        let mut drawn: BTreeMap<Property, usize> = BTreeMap::new();
        let mut pictures = Vec::new();
        for (violation, one) in examined.verdict.violations.iter().enumerate() {
            let count = drawn.entry(one.property).or_default();
            *count += 1;
            if *count <= SHOWN {
                let file = format!("{}{:?}-{count}{}", PICTURE.0, one.property, PICTURE.1);
                let svg = svg::render(&picture::picture(history, &examined, one));
                pictures.push(Drawn { file, violation, svg });
            }
        }
        Ok(Self {
            version: VERSION,
            header: history.header.clone(),
            grades,
            verdict: examined.verdict,
            shares: shares(history),
            situations,
            scheduled,
            controls,
            troubles: troubles.to_vec(),
            pictures,
        })
    }
}

/// Returns whether there is nothing to wait for in a run: the events so far cannot be judged, or
/// for each grade they contain a violation or the required situations, except those that the workload does not cause.
pub fn is_enough(history: &History) -> bool {
    let Ok(examined) = examine(history) else { return true };
    let situations = situations::read(history, &examined);
    let met = |one: &Sometimes| one.is_met() || sometimes::OUTSIDE.contains(&&*one.situation);
    grades(history, &examined.verdict, &situations, Evidence::default())
        .iter()
        .all(|grade| grade.given == Given::No || grade.sometimes.iter().all(met))
}
