//! Runs a random workload with faults against a real broker, records the run and judges it. See
//! `actor` for one process, `workload` and `cycle` for the operations, `aims` for the targets of
//! cuts, `replay` for repeated runs, `minimize` for smaller runs with the same violation, and
//! `report` for the output.

pub(crate) mod actor;
pub mod aims;
pub(crate) mod cutter;
mod cycle;
pub mod minimize;
pub mod replay;
mod workload;

use std::convert::Infallible;
use std::future::pending;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::sleep;
use url::Url;

use crate::check::verdict::Verdict;
use crate::check::{JudgeError, judge};
use crate::driver::process::DriverError;
use crate::driver::witness::Variables;
use crate::history::{Event, Header, History, Phase, Rules, VERSION, Verb, What};
use crate::wire::Recorder;
use replay::Played;

/// Time between two judgements of a run that may end at once.
const LOOK: Duration = Duration::from_millis(200);

/// Time between two judgements of a run that goes on. They cost time that its clients lack.
const LOOK_LONG: Duration = Duration::from_secs(5);

/// How the prover runs the implementation.
#[derive(Clone, Debug)]
pub enum Way {
    /// Command that starts a driver.
    Driver(String),
    /// Command that runs another command under the lock, with the placeholders `{lock}`,
    /// `{wait}` and `{work}`. The variables describe the grant.
    Exec(String, Variables),
}

impl Way {
    /// Returns the command, which names the implementation.
    pub fn command(&self) -> &str {
        match self {
            Self::Driver(command) | Self::Exec(command, _) => command,
        }
    }
}

/// Probabilities of faults, in percent, 0 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// Probability that a process is killed in a cycle, while it acquires or while it holds.
    pub kill: u32,
    /// Probability that the connections of a process are cut in a cycle: before or after a
    /// method of an operation, or while it holds.
    pub cut: u32,
    /// Probability that the requests of a process are delayed in a cycle, so that requests of
    /// other processes pass between them.
    pub slow: u32,
    /// Probability that a holder acquires again in a cycle. A driver must refuse the request or
    /// grant another slot.
    #[serde(default)]
    pub again: u32,
}

impl Faults {
    /// No faults.
    pub const NONE: Self = Self { kill: 0, cut: 0, slow: 0, again: 0 };
    /// Faults that leave most cycles undisturbed.
    pub const SOME: Self = Self { kill: 5, cut: 10, slow: 5, again: 0 };
}

/// The options of a run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The implementation.
    pub way: Way,
    /// Driver of a second implementation, which every other client process runs.
    pub second_driver: Option<String>,
    /// Driver that resizes the lock if the implementation does not support resize.
    pub administrator: String,
    /// URL of the broker. `None` if no broker is observed.
    pub url: Option<Url>,
    /// The protocol of the implementation.
    pub rules: Rules,
    /// The name of the lock. No other program may use it.
    pub lock: String,
    /// Seed of all random choices.
    pub seed: u64,
    /// Duration of the workload.
    pub duration: Duration,
    /// Number of client processes.
    pub clients: u32,
    /// Maximum number of slots. The workload resizes between 1 and this number.
    pub slots: u32,
    /// Probabilities of faults.
    pub faults: Faults,
    /// Maximum time between two resizes. Zero: the lock is not resized.
    pub resize_within: Duration,
    /// Path of this program, which provides the witness and the straw clients.
    pub program: PathBuf,
}

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

/// Error that prevents a run from being judged.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The URL of the broker names no host.
    #[error("the URL of the broker has no host. Use amqp://user:password@host:port/vhost")]
    Url,
    /// The proxy could not be started.
    #[error("no port of 127.0.0.1 could be opened: {0}")]
    Proxy(#[from] std::io::Error),
    /// The implementation could not be started, or its answers were not understood.
    #[error("{0}")]
    Driver(#[from] DriverError),
    /// The lock could not be created.
    #[error("the lock could not be created: {0}")]
    Create(String),
    /// The history cannot be judged.
    #[error("{0}")]
    Judge(#[from] JudgeError),
}

/// How a run ends before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// Pending operations are abandoned.
    AtOnce,
    /// As at the end of its time: pending operations end, and each slot is acquired once more.
    Orderly,
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
    outcome.history.header.played = Some(Played::new(&played));
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
    ended_by(options, look, |history| judge(history).ok(), condition).await
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

/// Returns whether the event is a completed resize.
fn is_resized(event: &Event) -> bool {
    matches!(&event.what, What::Operation(one) if (one.verb, one.phase) == (Verb::Resize, Phase::Ok))
}

impl RunOptions {
    /// Returns the implementation that the client process with this number runs, from 0.
    fn way_of(&self, number: u32) -> Way {
        match &self.second_driver {
            Some(driver) if number % 2 == 1 => Way::Driver(driver.clone()),
            _ => self.way.clone(),
        }
    }

    /// Returns the history with these events.
    fn history(&self, recorder: &Recorder, events: Vec<Event>) -> History {
        let mut header = self.header(recorder.broker().unwrap_or_default(), recorder.heartbeat());
        if !events.iter().any(is_resized) {
            // No operation created the lock, so it has its slots from the beginning.
            header.slots = self.slots;
        }
        History { header, events }
    }

    /// Returns the header of a run's history.
    fn header(&self, broker: String, heartbeat: Duration) -> Header {
        Header {
            version: VERSION,
            implementation: self.way.command().to_owned(),
            broker,
            protocol: self.rules,
            lock: self.lock.clone(),
            slots: 0,
            seed: self.seed,
            heartbeat_ms: u64::try_from(heartbeat.as_millis()).unwrap_or(u64::MAX),
            played: Some(Played::new(self)),
        }
    }
}
