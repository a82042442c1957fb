//! Waits for draining holders after a change, and finishes the change where only this
//! process can. See the library for how it is finished.

use std::time::Duration;

use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::{DesiredSlots, Observed, sweep_to};
use lockkeeper_semaphore::{ResizeError, ResizeTo, Resized};
use tokio_util::sync::CancellationToken;

use super::target::{LockOnBroker, failed};
use crate::cli::common::say;
use crate::cli::failure::Failure;
use crate::cli::shell::quoted;
use crate::cli::signals::{INTERRUPTING, Signals};

/// Polling interval.
const PAUSE: Duration = Duration::from_millis(250);

/// Retry interval for removing the remainder. Each attempt takes the admin mutex.
const TRY_AGAIN: Duration = Duration::from_secs(2);

/// Whether to wait for draining holders.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(super) struct Draining {
    /// Do not wait for draining holders to release
    #[arg(long, help_heading = None)]
    no_wait: bool,
}

impl Draining {
    /// Waits until no client holds a removed slot, or a token above the count. Surplus
    /// tokens are removed as they are released, while this process runs. Holder queues of
    /// removed slots that only an administrator can delete are removed too.
    pub async fn wait(
        self,
        target: &LockOnBroker,
        desired: DesiredSlots,
        resized: &Resized,
    ) -> Result<Observed, Failure> {
        let (name, slots) = (&target.found.name, resized.after);
        let mut seen = resized.done.seen.clone();
        let mut left = remaining(&seen, slots);
        if left == 0 {
            return Ok(seen);
        }
        if self.no_wait {
            say(stay(target, &seen, slots));
            return Ok(seen);
        }
        // Before the message: a reader may interrupt at once.
        let mut signals = Signals::listen(&INTERRUPTING)?;
        say(format!(
            "waiting for {}; each is removed when it is released",
            that_are_held(name, left)
        ));
        while left > 0 {
            tokio::select! {
                _ = signals.next() => {
                    return Err(Failure::new(Failure::NOT_ACQUIRED, stay(target, &seen, slots)));
                }
                () = tokio::time::sleep(PAUSE) => {}
            }
            let to = sweep_to(desired, resized.before.max(slots));
            let observed = target.broker.observe(name, to, to).await;
            seen = observed.map_err(|error| failed(&error))?;
            left = remaining(&seen, slots);
        }
        if resized.done.left > 0 && seen.numbered().is_some() {
            // Another administrator may have changed the number since: it stays.
            let same = ResizeTo::Grow(0);
            let tidied = target.broker.resize(name, same, desired, &CancellationToken::new()).await;
            match tidied {
                Ok(tidied) => seen = tidied.done.seen,
                Err(ResizeError::Broker(error)) => return Err(failed(&error)),
                // Another administrator destroyed it.
                Err(_) => {}
            }
        }
        Ok(seen)
    }

    /// Removes the semaphore. Waits for holders if their queues or tokens remain after a
    /// release. Returns the number of slots or tokens, and the number of held ones.
    pub async fn destroy(self, target: &LockOnBroker) -> Result<(u32, u32), Failure> {
        let name = &target.found.name;
        let stay = |left: u32| {
            format!(
                "{left} of {name} are still held and were not removed: run `lockkeeper semaphore destroy {}` again after they are released",
                quoted(name.as_str())
            )
        };
        let mut signals = Signals::listen(&INTERRUPTING)?;
        let mut before = None;
        loop {
            let (desired, stop) = (DesiredSlots::new(0), CancellationToken::new());
            let done = target.broker.destroy(name, desired, None, &stop).await;
            let done = done.map_err(|error| failed(&error))?;
            let held = done.seen.held();
            // Tokens go only when they are released.
            let tokens = if done.seen.numbered().is_some() { 0 } else { done.left };
            let first = before.is_none();
            let counts = *before.get_or_insert((done.deleted + tokens, held.max(done.left)));
            if done.left == 0 {
                return Ok(counts);
            }
            if self.no_wait {
                say(stay(done.left));
                return Ok(counts);
            }
            if first {
                say(format!("waiting for {}", that_are_held(&target.found.name, done.left)));
            }
            tokio::select! {
                _ = signals.next() => return Err(Failure::new(Failure::NOT_ACQUIRED, stay(done.left))),
                () = tokio::time::sleep(TRY_AGAIN) => {}
            }
        }
    }
}

/// Returns how many held slots were removed, or how many tokens are too many.
fn remaining(seen: &Observed, slots: u32) -> u32 {
    match seen {
        // A slot that another administrator added back is no longer removed.
        Observed::Numbered(seen) => u32::try_from(seen.removed().count()).unwrap_or(u32::MAX),
        Observed::Counted(seen) => seen.total.saturating_sub(slots),
    }
}

/// Describes the remaining holders, and how to wait for them.
fn stay(target: &LockOnBroker, seen: &Observed, slots: u32) -> String {
    let name = &target.found.name;
    match seen {
        Observed::Numbered(seen) => {
            let held: Vec<String> = seen.removed().take(10).map(|slot| slot.to_string()).collect();
            let held = held.join(", ");
            format!(
                "removed slots of {name} are still held: {held}. Wait for them with `lockkeeper semaphore wait {} --until drained`",
                quoted(name.as_str())
            )
        }
        Observed::Counted(_) => {
            let left = remaining(seen, slots);
            let (tokens, them) = if left == 1 { ("token", "it") } else { ("tokens", "them") };
            let quoted = quoted(name.as_str());
            format!(
                "held surplus {tokens} of {name}: {left}. Run `lockkeeper semaphore shrink {quoted} {left}` without --no-wait to remove {them}",
            )
        }
    }
}

/// Names this number of slots or tokens that are held.
fn that_are_held(name: &LockName, count: u32) -> String {
    let are = if count == 1 { "is" } else { "are" };
    format!("{} that {are} held", name.unit().count(count))
}
