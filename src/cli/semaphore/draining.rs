//! Waits for draining holders after a change, where only this process can finish the
//! change. See the library for how it is finished.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::target::{FoundSemaphore, failed};
use crate::cli::common::say;
use crate::cli::failure::Failure;
use crate::cli::signals::{INTERRUPTING, Signals};
use crate::plan::semaphore::{DesiredSlots, Observed};
use crate::semaphore::Converged;

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
    /// Waits until the semaphore has no more than `tokens` tokens. Surplus tokens are
    /// removed as they are released, while this process runs.
    pub async fn tokens(
        self,
        target: &FoundSemaphore,
        tokens: u32,
        done: &Converged,
    ) -> Result<Observed, Failure> {
        let name = &target.found.name;
        let stay = |left: u32| {
            format!(
                "{left} tokens too many of {name} stay, held ones: to remove them, `lockkeeper semaphore shrink {name} {left}` once more, and let it wait"
            )
        };
        if done.left == 0 || done.seen.numbered().is_some() {
            return Ok(done.seen.clone());
        }
        if self.no_wait {
            say(stay(done.left));
            return Ok(done.seen.clone());
        }
        let (mut seen, mut left) = (done.seen.clone(), done.left);
        // Before the message: whoever reads it may interrupt.
        let mut signals = Signals::listen(&INTERRUPTING)?;
        say(format!("waiting for {left} tokens that are held; they go as they are released"));
        while left > 0 {
            tokio::select! {
                _ = signals.next() => return Err(Failure::new(Failure::NOT_ACQUIRED, stay(left))),
                () = tokio::time::sleep(PAUSE) => {}
            }
            seen = target.look().await?;
            left = seen.total().saturating_sub(tokens);
        }
        Ok(seen)
    }

    /// Removes the semaphore. Waits for holders if their queues or tokens remain after a
    /// release. Returns the number of slots or tokens, and the number of held ones.
    pub async fn destroy(self, target: &FoundSemaphore) -> Result<(u32, u32), Failure> {
        let name = &target.found.name;
        let stay = |left: u32| {
            format!(
                "{left} of {name} are still held and were not removed: run `lockkeeper semaphore destroy {name}` again after they are released"
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
                say(format!("waiting for {} {} that are held", done.left, target.found.units()));
            }
            tokio::select! {
                _ = signals.next() => return Err(Failure::new(Failure::NOT_ACQUIRED, stay(done.left))),
                () = tokio::time::sleep(TRY_AGAIN) => {}
            }
        }
    }
}
