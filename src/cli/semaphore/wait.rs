//! `lockkeeper semaphore wait`: waits until a semaphore, or one of its slots, is taken or
//! released.

use std::time::{Duration, Instant};

use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::Observed;

use super::target::{SemaphoreTarget, failed};
use crate::cli::common::duration;
use crate::cli::failure::Failure;
use crate::cli::within::within;

/// Polling interval.
const PAUSE: Duration = Duration::from_millis(250);

/// Arguments of `lockkeeper semaphore wait`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: SemaphoreTarget,

    /// Number of the slot, 1 to 10000; not for tokens, which are not numbered [default:
    /// the whole semaphore]
    #[arg(long, value_name = "NUMBER", help_heading = None, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    slot: Option<u32>,

    /// State to wait for
    #[arg(long, value_enum, help_heading = None)]
    until: Until,

    /// Give up after this time [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = None)]
    timeout: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Until {
    /// A client holds it
    Taken,
    /// No client holds it, including draining slots
    Released,
    /// No client holds a slot that was removed; not for tokens, where `shrink` waits
    Drained,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let target = within(arguments.timeout, "Kubernetes", arguments.which.find()).await?;
    let name = &target.found.name;
    if arguments.slot.is_some() && !name.has_slots() {
        let message = "tokens have no numbers: leave --slot out, to wait for all of them";
        return Err(Failure::new(Failure::USAGE, message));
    }
    if arguments.until == Until::Drained && (arguments.slot.is_some() || !name.has_slots()) {
        let message = "--until drained is for all slots together, and tokens have none: leave --slot out, or let `lockkeeper semaphore shrink` wait";
        return Err(Failure::new(Failure::USAGE, message));
    }
    within(arguments.timeout, "the broker", target.must_exist()).await?;
    let look = async || match arguments.slot {
        Some(slot) => {
            let seen = target.broker.observe(name, 0, slot).await;
            let seen = seen.map_err(|error| failed(&error))?;
            let held = seen.numbered().is_some_and(|seen| seen.held.contains(&slot));
            Ok((target.found.what(Some(slot)), held))
        }
        None => Ok(held(&arguments, &target.look().await?, name)),
    };
    until(look, arguments.until == Until::Taken, arguments.timeout).await
}

/// Waits until the lock is held, or until it is not. `look` names it and returns its
/// state.
pub(in crate::cli) async fn until(
    look: impl AsyncFn() -> Result<(String, bool), Failure>,
    held: bool,
    timeout: Option<Duration>,
) -> Result<(), Failure> {
    let started = Instant::now();
    loop {
        let left = timeout.map(|limit| limit.saturating_sub(started.elapsed()));
        let (what, is_held) = within(left, "the broker", look()).await?;
        if is_held == held {
            return Ok(());
        }
        if timeout.is_some_and(|limit| started.elapsed() >= limit) {
            let state = if is_held { "held" } else { "free" };
            let message = format!("{what} is still {state}");
            return Err(Failure::new(Failure::NOT_ACQUIRED, message));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Returns the awaited slots, for messages, and whether one of them is held.
fn held(arguments: &Arguments, seen: &Observed, name: &LockName) -> (String, bool) {
    match seen {
        Observed::Numbered(seen) if arguments.until == Until::Drained => {
            match seen.removed().next() {
                Some(slot) => (format!("the removed slot {slot} of {name}"), true),
                None => (name.to_string(), false),
            }
        }
        seen => (name.to_string(), seen.held() > 0),
    }
}
