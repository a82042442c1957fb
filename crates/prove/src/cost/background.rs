//! Observes a holder and a waiter for its slot while both are idle, and then kills the holder. See
//! `minute` for how the counts are scaled.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::bench::{Bench, text};
use super::minute::PerMinute;
use super::options::SETTLING;
use crate::driver::message::{Line, UNSUPPORTED};
use crate::history::Verb;
use crate::run::RunError;
use crate::run::actor::Actor;

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
    /// Time from the death of the holder until the waiter held the slot. `None` if it did not get
    /// it within [`TAKEOVER`].
    pub takeover: Option<Duration>,
}

/// Time in which a waiter must get the slot of a killed holder.
pub const TAKEOVER: Duration = Duration::from_secs(30);

/// Lets one process hold the only slot of a lock while another one waits for it.
///
/// # Errors
///
/// [`RunError`] if the implementation cannot be used, or the lock cannot be created.
pub async fn observe(bench: &Bench) -> Result<Minutes, RunError> {
    let (administrator, _) = bench.administrator(1).await?;
    let (mut holder, mut waiter) = (bench.start().await?, bench.start().await?);
    let holds = bench.ask(&mut holder, Verb::Acquire).await?;
    let mut minutes = observe_both(bench, holds, holder, &mut waiter).await?;
    if minutes.takeover.is_some() && !bench.ask(&mut waiter, Verb::Release).await? {
        bench.trouble("the waiter could not release the slot of the killed holder".to_owned());
        minutes.takeover = None;
    }
    bench.end(waiter).await;
    bench.destroy(administrator).await?;
    Ok(minutes)
}

async fn observe_both(
    bench: &Bench,
    holds: bool,
    mut holder: Actor,
    waiter: &mut Actor,
) -> Result<Minutes, RunError> {
    let duration = bench.options().hold;
    let waiting_process = waiter.process();
    let mut waits = pin!(waiter.ask(Verb::Acquire, Some(SETTLING + duration + 2 * TAKEOVER), None));
    let start = {
        let time = async {
            sleep(SETTLING).await;
            let start = bench.recorder.at();
            sleep(duration).await;
            start
        };
        tokio::select! {
            start = time => Some(start),
            answer = &mut waits => {
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
        waiter: minute(waiting_process),
        takeover: None,
    };
    let is_held = match holder.ask(Verb::Verify, None, None).await? {
        Line::Ok(_) => holds,
        Line::Fail(why) if why == UNSUPPORTED => holds,
        answer => {
            bench.trouble(format!("the idle holder lost its slot: {}", text(&answer)));
            minutes.holder = None;
            false
        }
    };
    let killed = Instant::now();
    bench.end(holder).await;
    if start.is_some() && is_held {
        minutes.takeover = match tokio::time::timeout(TAKEOVER, waits).await {
            Ok(answer) => match answer? {
                Line::Ok(_) => Some(killed.elapsed()),
                answer => {
                    bench.trouble(format!("after the holder's death: {}", text(&answer)));
                    None
                }
            },
            Err(_) => None,
        };
    }
    Ok(minutes)
}
