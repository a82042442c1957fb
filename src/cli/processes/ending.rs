//! Kills processes that do not end in time. See `processes` for which these are, and `exec`
//! and `queue run` for the signals that they get before.

use std::time::Duration;

use lockkeeper_net::clock::Moment;

use super::Descendants;

/// Interval of checks whether the ending processes have ended.
pub(in crate::cli) const LOOK: Duration = Duration::from_millis(20);

/// Time limit for killed processes to disappear. Only the kernel can delay those that may
/// be signalled.
const DYING: Duration = Duration::from_secs(5);

/// Processes that are being ended.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Ending {
    kill_at: Moment,
    killed_at: Option<Moment>,
}

/// Whether ending processes have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Progress {
    Ending,
    Gone,
    /// Some are alive seconds after they were killed.
    Survived,
}

impl Ending {
    /// Kills the processes that are left at this moment.
    pub fn killing_at(kill_at: Moment) -> Self {
        Self { kill_at, killed_at: None }
    }

    /// Returns when it is time to kill, and never after that was done. Cancel safe.
    pub async fn due(self) {
        match self.killed_at {
            None => self.kill_at.reached().await,
            Some(_) => std::future::pending().await,
        }
    }

    /// Whether the processes were killed already.
    pub fn is_killing(self) -> bool {
        self.killed_at.is_some()
    }

    /// Kills the processes.
    pub fn kill(&mut self, processes: &Descendants) {
        self.killed_at.get_or_insert_with(Moment::now);
        processes.kill();
    }

    /// Kills the processes if it is due, again if some have started since.
    pub fn advance(&mut self, processes: &Descendants) -> Progress {
        if processes.are_gone() {
            return Progress::Gone;
        }
        if self.killed_at.is_some_and(|killed| killed.elapsed() > DYING) {
            return Progress::Survived;
        }
        if self.kill_at.left().is_zero() {
            self.kill(processes);
        }
        Progress::Ending
    }

    /// Waits for the processes, and kills those that are left when it is due. Returns
    /// `false` if one is still alive seconds later. Cancel safe.
    pub async fn finish(mut self, processes: &Descendants) -> bool {
        loop {
            match self.advance(processes) {
                Progress::Gone => return true,
                Progress::Survived => return false,
                Progress::Ending => tokio::time::sleep(LOOK).await,
            }
        }
    }
}
