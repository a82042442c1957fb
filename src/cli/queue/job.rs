//! One command of `lockkeeper queue run`: started for one element, which it gets on its
//! standard input. See `run` for how many run at a time, and when they end.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_pressure::{Delivery, Queue, QueueError, Wait};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::Signal;
use tokio::process::{Child, Command};
use tokio::sync::watch;

use crate::cli::common::say;
use crate::cli::failure::Failure;
use crate::cli::processes::Awaited;
use crate::cli::script::by_the_shell;

/// First and longest time until an element returns whose command failed.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Time for which a dead letter waits for another producer of its queue.
const PATIENCE: Duration = Duration::from_secs(5);

/// What all commands of one `queue run` share.
pub(super) struct Task {
    pub queue: Queue,
    pub command: Vec<OsString>,
    /// The queue for elements whose command has failed this often.
    pub dead_letters: Option<(Queue, u64)>,
    /// The last signal that was forwarded to the commands.
    pub signals: watch::Receiver<Option<Signal>>,
    /// The commands' first processes.
    pub awaited: Awaited,
}

/// The outcome for an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// Its command succeeded, and it was acknowledged.
    Processed,
    /// It returns to the queue.
    Returned,
    /// It went to the queue for dead letters.
    Dead,
}

/// Whether a delivery counts as an attempt: its command was started, and ended by itself.
#[derive(Clone, Copy, Debug)]
enum Counts {
    Yes,
    No,
}

impl Task {
    /// Runs the command for an element, and settles the delivery.
    pub async fn process(self: Arc<Self>, mut delivery: Delivery) -> Result<Done, Failure> {
        let element = delivery.take_element();
        let count = delivery.delivery_count();
        let most = self.dead_letters.as_ref().map(|(_, most)| *most);
        if let Some(most) = most.filter(|most| count > *most) {
            // Of the last one there is no exit code if its worker died, perhaps with the
            // machine.
            let attempts = super::common::count(most, "attempt");
            let why = format!("its {attempts} failed, or the worker died with the last one");
            return self.dead_letter(delivery, &element, &why, Counts::No).await;
        }
        let status = match self.run(&element, count).await {
            Ok(status) => status,
            // The command did not start.
            Err(failure) => {
                self.requeue(delivery, Duration::ZERO, Counts::No).await;
                return Err(failure);
            }
        };
        if status.success() {
            return self.acknowledge(delivery).await.map(|()| Done::Processed);
        }
        if self.signals.borrow().is_some() {
            // The signal ended it, not the element.
            self.requeue(delivery, Duration::ZERO, Counts::No).await;
            return Ok(Done::Returned);
        }
        let why = format!("the command ended with {status}");
        if most == Some(count) {
            return self.dead_letter(delivery, &element, &why, Counts::Yes).await;
        }
        let pause = retry_after(count);
        say(format!("{why}: the element returns in {} s (delivery {count})", pause.as_secs()));
        self.requeue(delivery, pause, Counts::Yes).await;
        Ok(Done::Returned)
    }

    /// Runs the command to its end.
    async fn run(&self, element: &[u8], count: u64) -> Result<ExitStatus, Failure> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(Failure::new(Failure::USAGE, "there is no command"));
        };
        let start = |mut command: Command| {
            let input = input(element).map_err(|error| {
                Failure::new(Failure::UNAVAILABLE, format!("no room for an element: {error}"))
            })?;
            command.args(arguments).stdin(input).process_group(0);
            command.env("QUEUE_NAME", self.queue.name().as_str());
            command.env("QUEUE_DELIVERIES", count.to_string());
            Ok(self.awaited.start(|| command.spawn(), Child::id))
        };
        let mut started = start(Command::new(program))?;
        if let Err(error) = &started
            && let Some(shell) = by_the_shell(program, error)
        {
            started = start(shell.into())?;
        }
        let mut child = started.map_err(|error| Failure::not_started(program, &error))?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let ended = child.wait().await;
        if let Some(pid) = pid {
            self.awaited.ended(pid);
        }
        ended.map_err(|error| Failure::new(Failure::UNAVAILABLE, error.to_string()))
    }

    async fn acknowledge(&self, delivery: Delivery) -> Result<(), Failure> {
        match delivery.ack().await {
            Ok(()) => Ok(()),
            Err(QueueError::LeaseEnded) => {
                say(if matches!(self.queue.exists().await, Ok(false)) {
                    "the queue was deleted while a command ran"
                } else {
                    "the lease of an element ended while its command ran: it may be processed again"
                });
                Ok(())
            }
            Err(error) => Err(super::common::failed(&self.queue, &error)),
        }
    }

    /// Returns an element to the queue. If that fails, the end of its lease does it.
    async fn requeue(&self, delivery: Delivery, after: Duration, counts: Counts) {
        let returned = match counts {
            Counts::Yes => delivery.requeue(after).await,
            Counts::No => delivery.give_back_after(after).await,
        };
        if let Err(error) = returned {
            let name = self.queue.name();
            say(format!("{name}: an element returns at the end of its lease: {error}"));
        }
    }

    /// Puts an element into the queue for dead letters, and acknowledges it.
    async fn dead_letter(
        &self,
        delivery: Delivery,
        element: &[u8],
        why: &str,
        counts: Counts,
    ) -> Result<Done, Failure> {
        let Some((letters, _)) = &self.dead_letters else { return Ok(Done::Returned) };
        let (name, count) = (letters.name(), delivery.delivery_count());
        // In this order: after a failure in between, it is in both queues, never in none.
        match letters.put_overfill(&[element], Wait::For(PATIENCE)).await {
            Ok(()) => {
                say(format!("{why}: the element was put into {name} (delivery {count})"));
                self.acknowledge(delivery).await.map(|()| Done::Dead)
            }
            Err(failed) => {
                let error = failed.error;
                say(format!("{why}, and the element can't be put into {name}: {error}"));
                self.requeue(delivery, retry_after(count), counts).await;
                Ok(Done::Returned)
            }
        }
    }
}

/// Returns an element as the standard input of a command: a file in memory. From a pipe,
/// the command would read the start of the element and then its end if this process died.
fn input(element: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create("element", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(element)?;
    file.rewind()?;
    Ok(file)
}

/// Returns the time until the element returns after this failed delivery.
fn retry_after(count: u64) -> Duration {
    let (first, longest) = RETRY;
    let doublings = u32::try_from(count.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
    first.saturating_mul(1 << doublings).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_returns_later_after_each_failure_and_within_a_minute() {
        let seconds: Vec<u64> = (1..=8).map(|count| retry_after(count).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(retry_after(u64::MAX), RETRY.1);
    }
}
