//! Checks a driver: whether its answers are understood, and which operations it supports. See
//! `message` for the lines, and `process` for the errors.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::group::Environment;
use super::message::{Done, FULL, Line, Request, UNSUPPORTED};
use super::process::{Driver, DriverError, Listener};
use crate::history::Verb;

/// Time limit of the whole check, including the start of the driver.
pub const LIMIT: Duration = Duration::from_secs(2);

/// The requests, in an order in which each can succeed and the lock is deleted at the end.
const ORDER: [Verb; 7] = [
    Verb::Count,
    Verb::Resize,
    Verb::Acquire,
    Verb::Verify,
    Verb::Believes,
    Verb::Release,
    Verb::Destroy,
];

/// The result of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The driver supports the operation and gave this answer.
    Offered(Line),
    /// The driver answered [`UNSUPPORTED`].
    NotOffered,
    /// The request was not sent, for this reason.
    NotAsked(&'static str),
}

/// The result of checking a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Command that starts the driver.
    pub command: String,
    /// The result of each request, in order.
    pub offers: Vec<(Verb, Offer)>,
    /// The error, if an answer was not understood.
    pub misunderstood: Option<DriverError>,
    /// Advice about valid but unexpected answers: the expected answer, the actual answer, and
    /// the fix.
    pub notes: Vec<String>,
    /// Duration of the check.
    pub took: Duration,
}

impl Report {
    /// Returns whether every answer was understood.
    pub fn is_understood(&self) -> bool {
        self.misunderstood.is_none()
    }

    /// Returns whether the driver supports an operation.
    pub fn offers(&self, verb: Verb) -> bool {
        self.answer(verb).is_some()
    }

    /// Returns the driver's answer to an operation that it supports.
    fn answer(&self, verb: Verb) -> Option<&Line> {
        self.offers.iter().find_map(|(asked, offer)| match offer {
            Offer::Offered(line) if *asked == verb => Some(line),
            _ => None,
        })
    }
}

/// Starts a driver and sends it one request of each kind, for a lock that no other program
/// uses. Takes at most [`LIMIT`], and kills the driver at the end.
pub async fn speak(command: &str, environment: &Environment, lock: &str) -> Report {
    let started = Instant::now();
    let lost: Arc<Mutex<Option<String>>> = Arc::default();
    let listener: Listener = {
        let lost = Arc::clone(&lost);
        Arc::new(move |line: &Line| {
            if let Line::Lost(why) = line {
                *lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.clone());
            }
        })
    };
    let mut report = Report {
        command: command.to_owned(),
        offers: Vec::new(),
        misunderstood: None,
        notes: Vec::new(),
        took: Duration::ZERO,
    };
    match Driver::start(command, environment, listener) {
        Ok(mut driver) => {
            ask_all(&mut driver, lock, started, &mut report).await;
            driver.kill().await;
        }
        Err(error) => report.misunderstood = Some(error),
    }
    let not_asked = ORDER.iter().skip(report.offers.len());
    let not_asked = not_asked.map(|verb| (*verb, Offer::NotAsked("an earlier request failed")));
    report.offers.extend(not_asked);
    report.notes = notes(&report);
    if let Some(why) = lost.lock().unwrap_or_else(PoisonError::into_inner).take() {
        report.notes.push(format!(
            "The driver reported that it lost its slot ({why}), but no fault was injected. Check its connection to the broker."
        ));
    }
    report.took = started.elapsed();
    report
}

async fn ask_all(driver: &mut Driver, lock: &str, started: Instant, report: &mut Report) {
    for verb in ORDER {
        let holds = matches!(report.answer(Verb::Acquire), Some(Line::Ok(_)));
        let needs_hold = matches!(verb, Verb::Verify | Verb::Believes | Verb::Release);
        if needs_hold && report.offers(Verb::Acquire) && !holds {
            report.offers.push((verb, Offer::NotAsked("acquire was not granted")));
            continue;
        }
        let request = Request {
            verb,
            lock: lock.to_owned(),
            wait_ms: (verb == Verb::Acquire).then_some(0),
            slots: (verb == Verb::Resize).then_some(1),
        };
        let left = LIMIT.saturating_sub(started.elapsed());
        let offer = match driver.ask(&request, left).await {
            Ok(Line::Fail(why)) if why == UNSUPPORTED => Offer::NotOffered,
            Ok(line) => Offer::Offered(line),
            Err(error) => {
                report.misunderstood = Some(error);
                return;
            }
        };
        report.offers.push((verb, offer));
    }
}

/// Returns advice about the answers that differ from the expected ones.
fn notes(report: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    for verb in [Verb::Resize, Verb::Verify, Verb::Believes, Verb::Release, Verb::Destroy] {
        if let Some(answer) = report.answer(verb)
            && !matches!(answer, Line::Ok(_))
        {
            let expected = format!("{{\"ok\":{{}}}} to {}", verb.name());
            let advice = "No other program uses this lock, so the operation can be done.";
            notes.push(instead(&expected, answer, advice));
        }
    }
    // After an error, missing answers are expected.
    if report.is_understood() {
        notes.extend(note_on_acquire(report));
    }
    notes.extend(note_on_count(report));
    notes
}

fn instead(expected: &str, came: &Line, advice: &str) -> String {
    format!("Expected {expected}, but the driver answered {}. {advice}", json(came))
}

fn note_on_acquire(report: &Report) -> Option<String> {
    let resized = matches!(report.answer(Verb::Resize), Some(Line::Ok(_)));
    match report.answer(Verb::Acquire) {
        Some(answer @ Line::Ok(Done { slot: Some(0), .. })) => {
            Some(instead("slots from 1", answer, "Add 1 to the number."))
        }
        Some(Line::Ok(Done { slot: None, token: None, .. })) => Some(
            "The driver reports no slot with a grant, so only the number of simultaneous holders is judged. Add \"slot\" if the implementation knows the slot number."
                .to_owned(),
        ),
        Some(Line::Fail(why)) if !resized && why != FULL => Some(format!(
            "Acquire failed ({why}), perhaps because the lock does not exist: the driver did not create it with resize. Create the lock, or resize it with another driver (--administrator)."
        )),
        Some(answer @ (Line::Fail(_) | Line::Info(_))) if resized => {
            Some(instead("{\"ok\":{…}} to acquire after resize to 1", answer, "The slot is free."))
        }
        Some(Line::Ok(_) | Line::Fail(_) | Line::Info(_) | Line::Lost(_)) => None,
        None => Some(
            "The driver does not support acquire, so it can only administer locks for another driver."
                .to_owned(),
        ),
    }
}

fn note_on_count(report: &Report) -> Option<String> {
    match report.answer(Verb::Count)? {
        answer @ Line::Ok(Done { slots: None, .. }) => {
            Some(instead("{\"ok\":{\"slots\":0}} to count", answer, "Add the number of slots."))
        }
        answer @ Line::Ok(Done { slots: Some(1..), .. }) => Some(instead(
            "no slots before resize",
            answer,
            "Name a lock that no other program uses.",
        )),
        _ => None,
    }
}

fn json(line: &Line) -> String {
    serde_json::to_string(line).unwrap_or_default()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let understood = if self.is_understood() { "understood" } else { "NOT understood" };
        writeln!(f, "{}: {understood}, {:.1} s", self.command, self.took.as_secs_f64())?;
        for (verb, offer) in &self.offers {
            let (offered, answer) = match offer {
                Offer::Offered(line) => ("yes", json(line)),
                Offer::NotOffered => ("no", String::new()),
                Offer::NotAsked(why) => ("–", format!("not asked: {why}")),
            };
            writeln!(f, "{}", format!("  {:<9} {offered:<4} {answer}", verb.name()).trim_end())?;
        }
        if let Some(error) = &self.misunderstood {
            writeln!(f, "{error}")?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

#[cfg(test)]
mod tests;
