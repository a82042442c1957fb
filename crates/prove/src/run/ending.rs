//! The end of a run: when it ends, and how. See `workload` for the run itself.

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// How a run ends before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Pending operations are abandoned.
    AtOnce,
    /// As at the end of its time: pending operations end, and each slot is acquired once more, one
    /// of them by a waiter.
    Orderly,
}

/// The end of a run: a time, or earlier if the run is stopped.
#[derive(Clone)]
pub struct End {
    /// The time.
    pub at: Instant,
    told: watch::Receiver<Option<Ending>>,
}

impl End {
    /// Creates the end of a run that can be stopped from now on.
    pub fn new(told: watch::Receiver<Option<Ending>>) -> Self {
        Self { at: Instant::now(), told }
    }

    /// Returns whether the run has ended.
    pub fn is_reached(&self) -> bool {
        self.told.borrow().is_some() || Instant::now() >= self.at
    }

    /// Returns the time until the end.
    pub fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Resolves at the end. Cancel safe.
    pub async fn reached(&self) {
        tokio::select! {
            () = sleep_until(self.at) => {}
            () = self.told(Option::is_some) => {}
        }
    }

    /// Returns whether the run ended at once.
    pub fn is_at_once(&self) -> bool {
        *self.told.borrow() == Some(Ending::AtOnce)
    }

    /// Resolves if the run ends at once. Cancel safe.
    pub async fn reached_at_once(&self) {
        self.told(|&ending| ending == Some(Ending::AtOnce)).await;
    }

    /// Resolves if the run is stopped in this way. Cancel safe.
    async fn told(&self, how: impl FnMut(&Option<Ending>) -> bool) {
        if self.told.clone().wait_for(how).await.is_err() {
            pending::<()>().await;
        }
    }
}
