//! An implementation under test: a driver, or a command that runs another command under the
//! lock. See `process` and `exec` for each kind.

use std::time::Duration;

use super::exec::Exec;
use super::group::Control;
use super::message::{Line, Request};
use super::process::{Driver, DriverError};

/// A running implementation.
#[derive(Debug)]
pub enum Implementation {
    /// A driver: a program that answers JSON lines.
    Driver(Driver),
    /// A command that runs another command under the lock.
    Exec(Exec),
}

impl Implementation {
    /// Sends one request and waits for its answer.
    ///
    /// # Errors
    ///
    /// [`DriverError`] if the implementation cannot be used any more. Kill it then.
    pub async fn ask(&mut self, request: &Request, limit: Duration) -> Result<Line, DriverError> {
        match self {
            Self::Driver(driver) => driver.ask(request, limit).await,
            Self::Exec(exec) => exec.ask(request, limit).await,
        }
    }

    /// Kills the implementation and its children (SIGKILL), and waits for their end.
    pub async fn kill(&mut self) {
        match self {
            Self::Driver(driver) => driver.kill().await,
            Self::Exec(exec) => exec.kill().await,
        }
    }

    /// Kills a command that runs another one under the lock (SIGKILL), and waits until the other
    /// one has ended too, but not longer than `limit`. Does nothing to a driver.
    pub async fn kill_alone(&mut self, limit: Duration) {
        if let Self::Exec(exec) = self {
            exec.kill_alone(limit).await;
        }
    }

    /// Returns a handle that suspends, resumes or kills its processes, even while a request is
    /// unanswered.
    pub fn control(&self) -> Control {
        match self {
            Self::Driver(driver) => driver.control(),
            Self::Exec(exec) => exec.control(),
        }
    }
}
