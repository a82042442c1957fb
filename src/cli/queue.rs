//! `lockkeeper queue`: a pressure queue as a pipe for the shell, and its
//! administration, without Kubernetes or by way of a resource. One verb is one
//! file; here is what they share.

mod close;
mod closed;
mod create;
mod delete;
mod doctor;
mod exists;
mod get;
mod length;
mod outlet;
mod peek;
pub(super) mod place;
mod progress;
mod put;
mod reading;
mod rescue;
mod returning;
mod stat;

use std::fmt;
use std::io::Write;
use std::time::Duration;

use nix::sys::signal::Signal;

use self::place::Which;
use super::signals::{ENDING, Signals};
use super::{Failure, duration, in_runtime, say};
use crate::pressure::{Queue, QueueError, StoreError, Wait};

/// Arguments of `lockkeeper queue`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

/// What all verbs' codes mean.
const EXIT_CODES: &str = "\
Exit codes: 0 done; 1 the answer of exists or closed is no; 64 wrong usage; 65 an element is longer \
than Redis takes; 69 the server can't be reached, or refuses; 73 the output can't be written; 74 the \
input can't be read; 75 full, empty or in use with --no-wait, or the time was over: try again later; \
81 the queue does not exist; 82 it exists already; 83 it is closed; 84 doctor found damage; 141 nobody reads the output any \
more; 128+n ended by signal n.";

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Make a queue
    Create(create::Arguments),
    /// Put elements from standard input, then close the queue
    Put(put::Arguments),
    /// Get elements to standard output, until the queue is closed and empty
    Get(get::Arguments),
    /// How many elements there are
    Length(Which),
    /// Whether the queue exists: prints true or false, and ends with 0 or 1
    Exists(Which),
    /// Whether the queue is closed: prints true or false, and ends with 0 or 1
    Closed(Which),
    /// Close a queue for ever: nothing more in, the rest out
    Close(close::Arguments),
    /// Remove a queue with all that is in it
    Delete(delete::Arguments),
    /// The oldest elements, without taking them
    Peek(peek::Arguments),
    /// How full the queue is, who works on it, and what went through
    Stat(stat::Arguments),
    /// What is wrong with the queue, and mending it
    Doctor(doctor::Arguments),
}

/// How long to wait.
#[derive(Clone, Debug, clap::Args)]
struct Patience {
    /// Give up when nothing could be done for this long [default: wait for ever]
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "no_wait", help_heading = None)]
    timeout: Option<Duration>,

    /// Give up at once where there is no room, no element, or another client at work
    #[arg(long, help_heading = None)]
    no_wait: bool,
}

impl Patience {
    fn wait(&self) -> Wait {
        match (self.no_wait, self.timeout) {
            (true, _) => Wait::No,
            (false, Some(timeout)) => Wait::For(timeout),
            (false, None) => Wait::Forever,
        }
    }
}

pub(super) fn run(arguments: Arguments) -> Result<(), Failure> {
    in_runtime(async {
        match arguments.verb {
            Verb::Create(arguments) => create::run(arguments).await,
            Verb::Put(arguments) => put::run(arguments).await,
            Verb::Get(arguments) => get::run(arguments).await,
            Verb::Length(which) => length::run(which).await,
            Verb::Exists(which) => exists::run(which).await,
            Verb::Closed(which) => closed::run(which).await,
            Verb::Close(arguments) => close::run(arguments).await,
            Verb::Delete(arguments) => delete::run(arguments).await,
            Verb::Peek(arguments) => peek::run(arguments).await,
            Verb::Stat(arguments) => stat::run(arguments).await,
            Verb::Doctor(arguments) => doctor::run(arguments).await,
        }
    })
}

/// The exit code of what went wrong.
fn code(error: &QueueError) -> u8 {
    match error {
        QueueError::DoesNotExist => Failure::DOES_NOT_EXIST,
        QueueError::AlreadyExists | QueueError::Residue { .. } => Failure::ALREADY_EXISTS,
        QueueError::Closed => Failure::CLOSED,
        QueueError::Full
        | QueueError::Empty
        | QueueError::InUse { .. }
        | QueueError::TimedOut { .. }
        | QueueError::Overtaken => Failure::NOT_ACQUIRED,
        QueueError::TooLarge { .. } => Failure::DATA,
        // Where the server is as it should be, and what it was asked for is not.
        QueueError::Store(
            StoreError::WrongType { .. }
            | StoreError::ClusterUnsafe { .. }
            | StoreError::DatabaseOutOfRange { .. },
        ) => Failure::USAGE,
        QueueError::Store(_) => Failure::UNAVAILABLE,
    }
}

/// Whether the operation that ended so may have happened all the same.
fn ends_unknown(error: &QueueError) -> bool {
    matches!(
        error,
        QueueError::Store(
            StoreError::Unreachable { .. } | StoreError::Timeout | StoreError::Protocol { .. }
        )
    )
}

fn failed(queue: &Queue, error: &QueueError) -> Failure {
    Failure::new(code(error), format!("{}: {error}", queue.name()))
}

/// Hears of the signals that ask to end.
fn listen() -> Result<Signals, Failure> {
    Signals::listen(&ENDING).map_err(|error| Failure::new(Failure::UNAVAILABLE, error.to_string()))
}

/// What was done when a signal came.
fn stopped_by(signal: Signal, done: &str) -> Failure {
    Failure::new(Failure::signalled(signal as i32), format!("stopped by {signal}. {done}"))
}

/// An answer for people and for `if`.
fn answer(is_so: bool) -> Result<(), Failure> {
    /// As test(1) has it.
    const NO: u8 = 1;
    print(&format!("{is_so}\n"))?;
    if is_so { Ok(()) } else { Err(Failure::silent(NO)) }
}

fn print(text: &str) -> Result<(), Failure> {
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| Failure::new(Failure::CANT_CREATE, error.to_string()))
}

/// Elements, and their bytes together.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    elements: u64,
    bytes: u64,
}

impl Tally {
    fn add(&mut self, elements: usize, bytes: usize) {
        self.elements += elements as u64;
        self.bytes += bytes as u64;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", count(self.elements, "element"), count(self.bytes, "byte"))
    }
}

/// A number and what it counts: `1 element`, `2 elements`.
fn count(number: u64, what: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {what}{ending}")
}
