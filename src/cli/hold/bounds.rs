//! When `hold` releases its lock by itself: with the end of a process, or after a time. A
//! hold in the background that is forgotten would otherwise have no end.

use std::time::Duration;

use lockkeeper_semaphore::Moment;

use crate::cli::common::duration;
use crate::cli::failure::Failure;
use crate::cli::processes::Watched;

/// Limits of a hold.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Limits of the hold")]
pub(super) struct Bounds {
    /// Release the lock when this process ends, for example that of a pipeline's agent. Also
    /// ends the wait for the lock
    #[arg(long = "while", value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    process: Option<i32>,

    /// Release the lock after this time, whether or not its work is done
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    release_after: Option<Duration>,
}

impl Bounds {
    /// Finds the process.
    pub fn watch(&self) -> Result<Watch, Failure> {
        let find = |pid: i32| {
            Watched::find(pid).ok_or_else(|| {
                let message = format!("--while {pid}: there is no such process");
                Failure::new(Failure::USAGE, message)
            })
        };
        Ok(Watch { process: self.process.map(find).transpose()?, after: self.release_after })
    }
}

/// The limits of a hold that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    process: Option<Watched>,
    after: Option<Duration>,
}

impl Watch {
    /// Waits for the end of the process. Returns a description. Cancel safe.
    pub async fn process_ended(self) -> String {
        let Some(process) = self.process else { return std::future::pending().await };
        process.ended().await;
        format!("process {} (--while) has ended", process.pid())
    }

    /// Waits until a lock that is held since `acquired` is to be released. Returns the reason.
    /// Cancel safe.
    pub async fn reached(self, acquired: Moment) -> String {
        let timeout = async {
            let Some(after) = self.after else { return std::future::pending().await };
            (acquired + after).reached().await;
            format!("the time of --release-after ({after:?}) has passed")
        };
        tokio::select! {
            ended = self.process_ended() => ended,
            passed = timeout => passed,
        }
    }
}
