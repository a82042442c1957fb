//! Observes a holder and a waiter for its slot while both are idle. See `minute` for how the
//! counts are scaled.

use std::time::Duration;

use tokio::time::sleep;

use super::bench::{Bench, text};
use super::minute::PerMinute;
use super::options::SETTLING;
use crate::history::Verb;
use crate::run::RunError;

/// The result of the observation.
#[derive(Clone, Debug, PartialEq)]
pub struct Minutes {
    /// The observed time.
    pub observed: Duration,
    /// The heartbeat interval that the holder negotiated.
    pub heartbeat: Duration,
    /// The traffic of the holder. `None` if it could not acquire, or lost its slot.
    pub holder: Option<PerMinute>,
    /// The traffic of the waiter. `None` if it did not wait, or stopped waiting.
    pub waiter: Option<PerMinute>,
}

/// Lets one process hold the only slot of a lock while another one waits for it.
///
/// # Errors
///
/// [`RunError`] if the implementation cannot be used, or the lock cannot be created.
pub async fn observe(bench: &Bench) -> Result<Minutes, RunError> {
    let (administrator, _) = bench.administrator(1).await?;
    let (mut holder, mut waiter) = (bench.start().await?, bench.start().await?);
    let duration = bench.options().hold;
    let holds = bench.ask(&mut holder, Verb::Acquire).await?;
    let start = {
        let (long, recorder) = (SETTLING + duration + Duration::from_secs(30), &bench.recorder);
        let waits = waiter.ask(Verb::Acquire, Some(long), None);
        let time = async {
            sleep(SETTLING).await;
            let start = recorder.at();
            sleep(duration).await;
            start
        };
        tokio::select! {
            start = time => Some(start),
            answer = waits => {
                bench.trouble(format!("the waiter did not wait: {}", text(&answer?)));
                None
            }
        }
    };
    let until = bench.recorder.at();
    let (events, sizes) = (bench.recorder.finish(), bench.recorder.finish_sizes());
    let minute = |process| start.map(|start| PerMinute::of(&events, &sizes, process, start, until));
    let mut minutes = Minutes {
        observed: start.map_or(Duration::ZERO, |start| Duration::from_micros(until - start)),
        heartbeat: bench.recorder.heartbeat_of(holder.process()),
        holder: holds.then(|| minute(holder.process())).flatten(),
        waiter: minute(waiter.process()),
    };
    // The waiter would otherwise take the slot.
    bench.end(waiter).await;
    if holds && !bench.ask(&mut holder, Verb::Release).await? {
        bench.trouble("the idle holder could not release its slot".to_owned());
        minutes.holder = None;
    }
    bench.end(holder).await;
    bench.destroy(administrator).await?;
    Ok(minutes)
}
