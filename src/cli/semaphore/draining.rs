//! What a change leaves to those who hold: waiting until they have released, where
//! nobody else does what is to be done then. Doing it is the library's.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Failure, SlotWish, Target, failed, say, slots};
use crate::cli::signalled;
use crate::plan::semaphore::SlotsSeen;
use crate::semaphore::Converged;

/// How often it is looked.
const PAUSE: Duration = Duration::from_millis(250);

/// How often it is tried to remove the rest: each try takes the admin mutex.
const TRY_AGAIN: Duration = Duration::from_secs(2);

/// Whether to wait.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(super) struct Draining {
    /// Don't wait until what goes was released
    #[arg(long, help_heading = None)]
    no_wait: bool,
}

impl Draining {
    /// Waits until a semaphore of tokens has no more than `tokens`: those that are too
    /// many go as they are released, for as long as this process lives.
    pub async fn tokens(
        self,
        target: &Target,
        tokens: u32,
        done: &Converged,
    ) -> Result<SlotsSeen, Failure> {
        let name = &target.found.name;
        let stay = |left: u32| {
            format!(
                "{left} tokens too many of {name} stay, held ones: to remove them, `lockkeeper semaphore shrink {name} {left}` once more, and let it wait"
            )
        };
        if done.left == 0 || name.has_slots() {
            return Ok(done.seen.clone());
        }
        if self.no_wait {
            say(stay(done.left));
            return Ok(done.seen.clone());
        }
        let (mut seen, mut left) = (done.seen.clone(), done.left);
        say(format!("waiting for {left} tokens that are held; they go as they are released"));
        let signal = signalled();
        tokio::pin!(signal);
        while left > 0 {
            tokio::select! {
                _ = &mut signal => return Err(Failure::new(Failure::NOT_ACQUIRED, stay(left))),
                () = tokio::time::sleep(PAUSE) => {}
            }
            seen = target.look().await?;
            left = slots(&seen).saturating_sub(tokens);
        }
        Ok(seen)
    }

    /// Removes the semaphore, and waits for holders where what they hold by does not go
    /// with them. Returns how many slots or tokens it had, and how many were held.
    pub async fn destroy(self, target: &Target) -> Result<(u32, u32), Failure> {
        let name = &target.found.name;
        let stay = |left: u32| {
            format!(
                "{left} of {name} are still held, and what they are held by stays: `lockkeeper semaphore destroy {name}` once more removes it when they are released"
            )
        };
        let signal = signalled();
        tokio::pin!(signal);
        let mut before = None;
        loop {
            let (wish, stop) = (SlotWish::new(0), CancellationToken::new());
            let done = target.broker.destroy(name, wish, None, &stop).await;
            let done = done.map_err(|error| failed(&error))?;
            let held = u32::try_from(done.seen.held.len()).unwrap_or(u32::MAX);
            let tokens = if name.has_slots() { 0 } else { done.left };
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
                _ = &mut signal => return Err(Failure::new(Failure::NOT_ACQUIRED, stay(done.left))),
                () = tokio::time::sleep(TRY_AGAIN) => {}
            }
        }
    }
}
