//! How an operation waits between its attempts: for a missing resource, and for a server
//! that is not reachable. See `waiting.rs` for how a wait is woken.

use std::time::Duration;

use rand::RngExt;
use tokio::time::{Instant, sleep, timeout_at};

use super::waiting::Waiting;
use super::{Awaited, QueueError, Wait};
use crate::StoreError;

/// Interval at which a wait checks the memory limit, where Redis refuses BLMOVE.
const MEMORY_LOOK: Duration = Duration::from_secs(1);

/// First and longest pause before a waiting operation retries a server that was not
/// reachable, before jitter.
const AWAY_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The result of one attempt.
pub(super) enum Attempt<T> {
    /// The operation succeeded.
    Done(T),
    /// The operation must wait.
    NotYet {
        awaited: Awaited,
        /// Whether to check again once a second: no key signals the awaited change.
        polls: bool,
    },
}

/// The waiting state of one operation.
pub(super) struct Pace<'a> {
    waiting: &'a Waiting,
    wait: Wait,
    deadline: Option<Instant>,
    first: Option<Awaited>,
    /// The operation waits, so it also waits for a server that is not reachable.
    is_waiting: bool,
    /// Number of consecutive failures during the wait.
    failures: u32,
}

impl Waiting {
    /// Returns how one operation waits between its attempts. `first` is the condition to
    /// wait for even before its first attempt, because that is likely to fail. It is
    /// ignored where that would not be safe.
    pub(super) fn pace(&self, wait: Wait, first: Option<Awaited>) -> Pace<'_> {
        let first = first.filter(|_| wait != Wait::No && self.is_settled());
        Pace::new(self, wait, first)
    }
}

impl<'a> Pace<'a> {
    /// `first` is the condition for which the operation waits even before its first
    /// attempt.
    pub(super) fn new(waiting: &'a Waiting, wait: Wait, first: Option<Awaited>) -> Self {
        let deadline = match wait {
            Wait::For(duration) => Instant::now().checked_add(duration),
            Wait::No | Wait::Forever => None,
        };
        Self { waiting, wait, deadline, first, is_waiting: false, failures: 0 }
    }

    /// Runs before each attempt.
    pub(super) async fn before(&mut self) -> Result<(), QueueError> {
        let Some(awaited) = self.first.take() else { return Ok(()) };
        match self.until(awaited, false).await {
            // An attempt returns the actual error.
            Err(QueueError::TimedOut { .. }) => Ok(()),
            other => other,
        }
    }

    /// Runs after each attempt. Returns its result, `None` if another attempt is due, or
    /// the error that ends the operation.
    pub(super) async fn after<T>(
        &mut self,
        tried: Result<Attempt<T>, QueueError>,
    ) -> Result<Option<T>, QueueError> {
        match tried {
            Ok(Attempt::Done(done)) => return Ok(Some(done)),
            Ok(Attempt::NotYet { awaited, polls }) => self.until(awaited, polls).await?,
            Err(QueueError::Store(error)) => self.outlast(error).await?,
            Err(error) => return Err(error),
        }
        Ok(None)
    }

    /// Runs after an attempt that has to wait: waits, or returns why it must not.
    async fn until(&mut self, awaited: Awaited, polls: bool) -> Result<(), QueueError> {
        if self.wait == Wait::No || self.waiting.is_over() {
            return Err(at_once(awaited));
        }
        self.is_waiting = true;
        let waiting = self.waiting;
        match self.in_time(waiting.change(&awaited, polls)).await {
            None => Err(QueueError::TimedOut { awaited }),
            Some(Ok(())) => {
                self.failures = 0;
                Ok(())
            }
            Some(Err(error)) => self.outlast(error).await,
        }
    }

    /// Runs after a failure of the server: waits for some time if the failure is
    /// temporary and this operation waits anyway.
    async fn outlast(&mut self, error: StoreError) -> Result<(), QueueError> {
        if !self.is_waiting || !error.passes() || self.waiting.is_over() {
            return Err(error.into());
        }
        let pause = match error {
            StoreError::OutOfMemory => MEMORY_LOOK,
            _ => {
                self.failures += 1;
                tracing::debug!(%error, self.failures, "waiting for Redis to come back");
                away_pause(self.failures)
            }
        };
        let pause = async {
            sleep(pause).await;
            Ok(())
        };
        match self.in_time(pause).await {
            None => Err(error.into()),
            Some(_) => Ok(()),
        }
    }

    /// Waits for this until the deadline, or until all waiting ends.
    async fn in_time(
        &self,
        change: impl Future<Output = Result<(), StoreError>>,
    ) -> Option<Result<(), StoreError>> {
        let change = async {
            tokio::select! {
                change = change => change,
                () = self.waiting.over() => Ok(()),
            }
        };
        match self.deadline {
            None => Some(change.await),
            Some(deadline) => timeout_at(deadline, change).await.ok(),
        }
    }
}

/// Returns a random time between half of the pause after this number of failures and the
/// whole pause, so that the clients of a restarted server do not reconnect in step.
pub(super) fn away_pause(failures: u32) -> Duration {
    let (first, longest) = AWAY_PAUSE;
    let pause = first.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(longest);
    pause.mul_f64(rand::rng().random_range(0.5..=1.0))
}

fn at_once(awaited: Awaited) -> QueueError {
    match awaited {
        Awaited::Room => QueueError::Full,
        Awaited::Element => QueueError::Empty,
        Awaited::Role { role, who } => QueueError::InUse { role, who },
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_plan::connection::RedisSettings;
    use lockkeeper_plan::naming::QueueName;

    use super::*;
    use crate::{QueueOptions, Store, StoreOptions};

    #[tokio::test]
    async fn a_command_that_may_have_been_executed_is_not_sent_again() {
        let settings = RedisSettings::from_url("redis://127.0.0.1:1").unwrap();
        let store = Store::new(settings, StoreOptions::new("test"));
        let (queue, options) = (QueueName::new("p", "q").unwrap(), QueueOptions::default());
        let waiting = Waiting::new(&store, &queue, &options);
        let mut pace = Pace::new(&waiting, Wait::Forever, None);
        pace.is_waiting = true;
        let away = StoreError::Timeout;
        let again = pace.after::<()>(Err(away.clone().into())).await;
        assert_eq!(again, Ok(None), "it was not sent");
        let unanswered = StoreError::Unanswered { why: Box::new(away) };
        let ended = pace.after::<()>(Err(unanswered.clone().into())).await;
        assert_eq!(ended, Err(unanswered.into()));
    }

    #[test]
    fn pauses_grow_to_the_longest_and_differ() {
        let (first, longest) = AWAY_PAUSE;
        for failures in 1..100 {
            let whole = first.saturating_mul(1 << (failures - 1).min(10)).min(longest);
            let pause = away_pause(failures);
            assert!(pause >= whole / 2 && pause <= whole, "{failures}: {pause:?}");
        }
        assert!((0..20).any(|_| away_pause(9) != away_pause(9)));
    }
}
