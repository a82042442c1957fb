//! Runs a random workload with faults against a real broker, records the run and judges it. See
//! `options` for the options, `actor` for one process, `workload` and `cycle` for the operations,
//! `aims` for the targets of cuts, `replay` for repeated runs, `minimize` for smaller runs with the
//! same violation, and `report` for the output.

pub(crate) mod actor;
pub mod aims;
pub(crate) mod cutter;
mod cycle;
mod ending;
mod error;
pub mod minimize;
mod options;
pub mod replay;
mod workload;

use std::convert::Infallible;
use std::future::pending;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::sleep;

use crate::check::verdict::Verdict;
use crate::check::{judge, judge_so_far};
use crate::history::History;
use crate::wire::Recorder;
use ending::Ending;
pub use error::RunError;
pub use options::{RunOptions, Way};

/// Time between two judgements of a run that may end at once.
const LOOK: Duration = Duration::from_millis(200);

/// Time between two judgements of a run that goes on. They cost time that its clients lack.
const LOOK_LONG: Duration = Duration::from_secs(5);

/// The result of a completed run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The recorded run.
    pub history: History,
    /// The verdict on the history.
    pub verdict: Verdict,
    /// Warnings about the implementation's behaviour, each text once.
    pub troubles: Vec<String>,
}

/// Runs the workload for its duration and judges the history.
///
/// # Errors
///
/// [`RunError`] if the run cannot be judged.
pub async fn run(options: &RunOptions) -> Result<Outcome, RunError> {
    // The sender must exist until the end of the run.
    let (_end, ended) = watch::channel(None);
    let recorder = Recorder::new();
    let troubles = workload::play(options, &recorder, ended).await?;
    judged(options, &recorder, troubles)
}

/// Runs the workload as [`run`] does, but goes on after its duration until the history is enough,
/// or until `at_most` has passed. The history contains the duration of the run.
///
/// # Errors
///
/// As [`run`].
pub async fn run_on(
    options: &RunOptions,
    at_most: Duration,
    enough: fn(&History) -> bool,
) -> Result<Outcome, RunError> {
    if at_most <= options.duration {
        return run(options).await;
    }
    let longest = RunOptions { duration: at_most, ..options.clone() };
    let begun = Instant::now();
    let look = Look { first: options.duration, next: LOOK_LONG, ending: Ending::Orderly };
    let mut outcome = ended_by(&longest, look, enough, |&enough| enough).await?;
    let duration = begun.elapsed().clamp(options.duration, longest.duration);
    let played = RunOptions { duration, ..longest };
    outcome.history.header.played = Some(played.played());
    Ok(outcome)
}

/// Runs the workload until the verdict on the events so far meets the condition, but not longer
/// than its duration. The verdict in the outcome is on the whole run.
///
/// # Errors
///
/// As [`run`].
pub async fn run_until(
    options: &RunOptions,
    condition: impl Fn(&Verdict) -> bool,
) -> Result<Outcome, RunError> {
    let look = Look { first: LOOK, next: LOOK, ending: Ending::AtOnce };
    let condition = |verdict: &Option<Verdict>| verdict.as_ref().is_some_and(&condition);
    ended_by(options, look, |history| judge_so_far(history).ok(), condition).await
}

/// When the events so far are judged, and how the run ends after that.
struct Look {
    /// Time until the first judgement.
    first: Duration,
    /// Time between two judgements.
    next: Duration,
    ending: Ending,
}

/// Runs the workload until a judgement of the events so far meets the condition, but not longer
/// than its duration.
async fn ended_by<T: Send + 'static>(
    options: &RunOptions,
    look: Look,
    judgement: fn(&History) -> T,
    condition: impl Fn(&T) -> bool,
) -> Result<Outcome, RunError> {
    let (end, ended) = watch::channel(None);
    let recorder = Recorder::new();
    let watched = async {
        sleep(look.first).await;
        loop {
            let history = options.history(&recorder, recorder.so_far());
            let judgement = tokio::task::spawn_blocking(move || judgement(&history)).await;
            if judgement.is_ok_and(|judgement| condition(&judgement)) {
                end.send_replace(Some(look.ending));
                return pending::<Infallible>().await;
            }
            sleep(look.next).await;
        }
    };
    let troubles = tokio::select! {
        played = workload::play(options, &recorder, ended) => played?,
        never = watched => match never {},
    };
    judged(options, &recorder, troubles)
}

fn judged(
    options: &RunOptions,
    recorder: &Recorder,
    troubles: Vec<String>,
) -> Result<Outcome, RunError> {
    let history = options.history(recorder, recorder.finish());
    let verdict = judge(&history)?;
    Ok(Outcome { history, verdict, troubles })
}
