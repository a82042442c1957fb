//! What the subcommands of `lockkeeper queue` share: how long they wait, their exit codes,
//! and their output.

use std::fmt;
use std::time::Duration;

use lockkeeper_plan::pressure_queue::{DATA_LABEL, ObservedQueue, eviction, residue};
use lockkeeper_pressure::{Queue, QueueError, StoreError, Wait};
use nix::sys::signal::Signal;

use crate::cli::common::{duration, say};
use crate::cli::failure::Failure;
use crate::cli::output;

/// How long to wait.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Patience {
    /// Give up after no progress for this long [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "no_wait", help_heading = None)]
    pub timeout: Option<Duration>,

    /// Give up immediately if the queue is full or empty, or in use by another client
    #[arg(long, help_heading = None)]
    pub no_wait: bool,
}

impl Patience {
    pub fn wait(&self) -> Wait {
        match (self.no_wait, self.timeout) {
            (true, _) => Wait::No,
            (false, Some(timeout)) => Wait::For(timeout),
            (false, None) => Wait::Forever,
        }
    }
}

/// Parses a lease. A shorter one would end while a machine is busy.
pub(super) fn lease(text: &str) -> Result<Duration, String> {
    let lease = duration(text)?;
    if lease >= Duration::from_secs(1) { Ok(lease) } else { Err("at least 1s".to_owned()) }
}

/// Exit code of an error.
pub(super) fn code(error: &QueueError) -> u8 {
    match error {
        QueueError::DoesNotExist => Failure::DOES_NOT_EXIST,
        QueueError::AlreadyExists | QueueError::Residue { .. } => Failure::ALREADY_EXISTS,
        QueueError::Closed => Failure::CLOSED,
        QueueError::Full
        | QueueError::Empty
        | QueueError::InUse { .. }
        | QueueError::TimedOut { .. }
        | QueueError::LeaseEnded
        | QueueError::Overtaken => Failure::NOT_ACQUIRED,
        QueueError::TooLarge { .. } | QueueError::Store(StoreError::ValueTooLarge { .. }) => {
            Failure::DATA
        }
        // The server works; the request is invalid.
        QueueError::Store(
            StoreError::WrongType { .. }
            | StoreError::ClusterUnsafe { .. }
            | StoreError::DatabaseOutOfRange { .. },
        ) => Failure::USAGE,
        QueueError::Store(_) => Failure::UNAVAILABLE,
    }
}

/// Returns the failure for a queue that has no usable `:bound`, and names the way back if
/// anything is left of it.
pub(super) fn absent(queue: &Queue, seen: &ObservedQueue) -> Failure {
    let name = queue.name();
    match seen.wrong_types.first() {
        Some(label) => {
            let key = format!("{}{}", name.data(), label.strip_prefix(DATA_LABEL).unwrap_or(label));
            failed(queue, &StoreError::WrongType { key }.into())
        }
        None if seen.leftovers.is_empty() => failed(queue, &QueueError::DoesNotExist),
        None => {
            let message = format!("{name}: {}", residue(&seen.leftovers));
            Failure::new(Failure::DOES_NOT_EXIST, message)
        }
    }
}

/// Returns the failure for an error, as [`absent`] if the queue does not exist.
pub(super) async fn explained(queue: &Queue, error: QueueError) -> Failure {
    match error {
        QueueError::DoesNotExist => match queue.stat().await {
            Ok(seen) if seen.bound.is_none() => absent(queue, &seen),
            Ok(_) | Err(_) => failed(queue, &error),
        },
        error => failed(queue, &error),
    }
}

/// Returns whether the queue is closed, or why a command on it can't start.
pub(super) async fn is_closed(queue: &Queue) -> Result<bool, Failure> {
    match queue.closed().await {
        Ok(closed) => Ok(closed),
        Err(error) => Err(explained(queue, error).await),
    }
}

/// Warns of a server that may remove keys of queues at its memory limit.
pub(super) async fn warn_of_eviction(queue: &Queue) {
    if let Ok(identity) = queue.store().identity().await
        && let Some(policy) = identity.eviction()
    {
        say(format!("warning: {}", eviction(policy)));
    }
}

pub(super) fn failed(queue: &Queue, error: &QueueError) -> Failure {
    Failure::new(code(error), format!("{}: {error}", queue.name()))
}

/// Failure after a signal, with a message about the work done until then.
pub(super) fn stopped_by(signal: Signal, done: &str) -> Failure {
    Failure::new(Failure::signalled(signal as i32), format!("stopped by {signal}. {done}"))
}

/// Prints true or false and exits accordingly, for use in `if`.
pub(super) fn answer(is_so: bool) -> Result<(), Failure> {
    /// As in test(1).
    const NO: u8 = 1;
    output::write(&format!("{is_so}\n"))?;
    if is_so { Ok(()) } else { Err(Failure::silent(NO)) }
}

/// Number of elements and of their bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub elements: u64,
    pub bytes: u64,
}

impl Tally {
    pub fn add(&mut self, elements: usize, bytes: usize) {
        self.elements += elements as u64;
        self.bytes += bytes as u64;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", count(self.elements, "element"), count(self.bytes, "byte"))
    }
}

/// Formats the number of elements, and of those in flight if there are any.
pub(super) fn elements(length: u64, in_flight: u64) -> String {
    let elements = count(length, "element");
    match in_flight {
        0 => elements,
        in_flight => format!("{elements} and {in_flight} in flight"),
    }
}

/// Formats a count: `1 element`, `2 elements`.
pub(super) fn count(number: u64, what: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {what}{ending}")
}
