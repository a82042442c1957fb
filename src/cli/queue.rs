//! `lockkeeper queue`: a pressure queue as a pipe for the shell, and its administration,
//! without Kubernetes or through a resource. See `get` and `put` for the pipe, and
//! `verbs` for the short subcommands.

mod common;
mod delete;
mod doctor;
mod get;
mod job;
mod progress;
mod put;
mod return_elements;
mod run;
mod spill_file;
mod stat;
mod stdin;
mod stdout;
mod unread;
mod verbs;

use super::common::in_runtime;
use super::failure::Failure;
use super::signals::Signals;
use super::target::QueueTarget;

/// Arguments of `lockkeeper queue`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

/// Exit codes of all subcommands.
const EXIT_CODES: &str = "\
Exit codes: 0 success; 1 the answer of exists or closed is false; 64 invalid usage; 65 an element \
exceeds the maximum length of Redis or of the server; 69 the server is unreachable or rejects the request; 73 the \
output can't be written; 74 the input can't be read; 75 full, empty or in use with --no-wait, or \
--timeout expired: try again later; 81 the queue does not exist; 82 it already exists; 83 it is \
closed; 84 doctor found damage; 85 run moved elements to the queue for dead letters; 126 and 127 the \
command of run can't be started; 141 the reader closed the output; 128+n ended by signal n.";

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Create a queue
    Create(verbs::CreateArguments),
    /// Change the bound of a queue
    SetBound(verbs::SetBoundArguments),
    /// Put elements from standard input, then close the queue
    Put(put::Arguments),
    /// Write elements to standard output until the queue is closed and empty
    Get(get::Arguments),
    /// Run a command for each element, with the element on its standard input
    Run(run::Arguments),
    /// Print the number of elements
    Length(QueueTarget),
    /// Check whether the queue exists: print true or false, and exit with 0 or 1
    Exists(QueueTarget),
    /// Check whether the queue is closed: print true or false, and exit with 0 or 1
    Closed(QueueTarget),
    /// Close a queue permanently: no more elements can be put, the remaining ones can be
    /// taken
    Close(verbs::CloseArguments),
    /// Delete a queue and its elements
    Delete(delete::Arguments),
    /// Print the oldest elements without taking them
    Peek(verbs::PeekArguments),
    /// Print the length, bound, producer, consumer and counters of the queue
    Stat(stat::Arguments),
    /// Diagnose the queue, and repair it with --repair
    Doctor(doctor::Arguments),
}

pub(super) fn run(arguments: Arguments) -> Result<(), Failure> {
    match arguments.verb {
        Verb::Create(arguments) => in_runtime(verbs::create(arguments)),
        Verb::SetBound(arguments) => in_runtime(verbs::set_bound(arguments)),
        Verb::Put(arguments) => in_runtime(put::run(arguments, Signals::ending()?)),
        Verb::Get(arguments) => in_runtime(get::run(arguments, Signals::ending()?)),
        Verb::Run(arguments) => in_runtime(run::run(arguments, Signals::ending()?)),
        Verb::Length(which) => in_runtime(verbs::length(which)),
        Verb::Exists(which) => in_runtime(verbs::exists(which)),
        Verb::Closed(which) => in_runtime(verbs::closed(which)),
        Verb::Close(arguments) => in_runtime(verbs::close(arguments)),
        Verb::Delete(arguments) => in_runtime(delete::run(arguments)),
        Verb::Peek(arguments) => in_runtime(verbs::peek(arguments)),
        Verb::Stat(arguments) => in_runtime(stat::run(arguments)),
        Verb::Doctor(arguments) => in_runtime(doctor::run(arguments)),
    }
}
