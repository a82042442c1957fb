//! The command line: the tree of verbs, exit codes, and errors with a next step.
//! One verb is one file.

#![allow(clippy::doc_markdown, rustdoc::bare_urls, reason = "the text of --help is no Markdown")]

mod acquire;
mod apply;
mod completion;
mod crds;
mod doctor;
mod exec;
mod hold;
mod holders;
mod kubernetes;
mod list;
mod man;
mod manifest;
mod operator;
mod output;
mod plan;
mod question;
mod queue;
mod revoke;
mod semaphore;
mod signals;
mod suspend;
mod target;
mod telemetry;
mod validate;
mod waiters;
mod waiting;

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Lock capacity as Kubernetes objects.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper", version, about, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the operator: watch Semaphores and PressureQueues, and make them true
    Operator(operator::Arguments),
    /// Print the resource definitions, or write them to files
    Crds(crds::Arguments),
    /// Run a command while holding a lock, and end it should the lock be lost
    Exec(exec::Arguments),
    /// Take a lock and hold it until a signal comes
    Hold(hold::Arguments),
    /// Administer a semaphore on a broker, or look at one, without Kubernetes
    Semaphore(semaphore::Arguments),
    /// Put lines into a pressure queue in Redis, get them, and administer it
    Queue(queue::Arguments),
    /// Show the Semaphores and PressureQueues of a namespace, with what the operator saw of them
    List(list::Arguments),
    /// Show who holds a Semaphore
    Holders(holders::Arguments),
    /// Show who waits for a Semaphore
    Waiters(waiters::Arguments),
    /// Let the operator observe objects only, and change nothing on their servers
    Suspend(suspend::Arguments),
    /// Let the operator make suspended objects true again
    Resume(suspend::Arguments),
    /// Look for what is wrong with the operator, its rights, the objects and their servers
    Doctor(doctor::Arguments),
    /// Check manifests as the API server would, without one
    Validate(validate::Arguments),
    /// Show what apply would change on brokers and Redis servers, without Kubernetes
    Plan(plan::Arguments),
    /// Make brokers and Redis servers as manifests say, without Kubernetes
    Apply(apply::Arguments),
    /// Tell the operator to take a slot from its holder
    Revoke(revoke::Arguments),
    /// Print what a shell needs to complete these arguments
    Completion(completion::Arguments),
    /// Print the manual page, or write one for each verb
    Man(man::Arguments),
    /// Started by exec
    #[command(hide = true)]
    Guardian(exec::GuardianArguments),
}

/// Why a verb failed: an exit code, of the sysexits range unless a command or a
/// signal chose it, and a text that says what to do next.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: Option<String>,
}

impl Failure {
    /// Wrong usage or input (EX_USAGE).
    pub const USAGE: u8 = 64;
    /// An element is longer than a queue takes (EX_DATAERR).
    pub const DATA: u8 = 65;
    /// A server is unreachable or refuses (EX_UNAVAILABLE).
    pub const UNAVAILABLE: u8 = 69;
    /// A file could not be written (EX_CANTCREAT).
    pub const CANT_CREATE: u8 = 73;
    /// Standard input could not be read (EX_IOERR).
    pub const CANT_READ: u8 = 74;
    /// No slot could be had, or no role, no room or no element of a queue
    /// (EX_TEMPFAIL): try again later.
    pub const NOT_ACQUIRED: u8 = 75;
    /// Who asks may not have it (EX_NOPERM).
    pub const NOT_PERMITTED: u8 = 77;
    /// The lock was lost while it was held. Outside sysexits, so that it can't be
    /// mistaken for anything else.
    pub const LOST: u8 = 80;
    /// The queue does not exist. This and the next two are the protocol's errors,
    /// outside sysexits as well.
    pub const DOES_NOT_EXIST: u8 = 81;
    /// The queue exists already.
    pub const ALREADY_EXISTS: u8 = 82;
    /// The queue is closed: nothing can be put into it.
    pub const CLOSED: u8 = 83;
    /// The queue is damaged.
    pub const DAMAGED: u8 = 84;

    /// The command is there but can't be run, as shells have it.
    pub const NOT_EXECUTABLE: u8 = 126;
    /// There is no such command, as shells have it.
    pub const NOT_FOUND: u8 = 127;

    /// A failure with this exit code.
    #[must_use]
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: Some(message.into()) }
    }

    /// Only an exit code, 0 included: whoever chose it has said why.
    #[must_use]
    pub fn silent(code: u8) -> Self {
        Self { code, message: None }
    }

    /// The code of what ended because of this signal, as shells have it.
    fn signalled(signal: i32) -> u8 {
        u8::try_from(128 + signal).unwrap_or(u8::MAX)
    }
}

/// Runs the verb that the arguments name.
#[must_use]
pub fn main() -> ExitCode {
    // Clap's own code for wrong usage is 2; ours are sysexits throughout.
    let matches = command().try_get_matches();
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            // Nothing to do where not even this can be printed.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { Failure::USAGE } else { 0 });
        }
    };
    let result = match cli.verb {
        Verb::Operator(arguments) => operator::run(arguments),
        Verb::Crds(arguments) => crds::run(&arguments),
        Verb::Exec(arguments) => exec::run(&arguments),
        Verb::Hold(arguments) => hold::run(&arguments),
        Verb::Semaphore(arguments) => semaphore::run(arguments),
        Verb::Queue(arguments) => queue::run(arguments),
        Verb::List(arguments) => in_runtime(list::run(arguments)),
        Verb::Holders(arguments) => in_runtime(holders::run(arguments)),
        Verb::Waiters(arguments) => in_runtime(waiters::run(arguments)),
        Verb::Suspend(arguments) => in_runtime(suspend::run(arguments, true)),
        Verb::Resume(arguments) => in_runtime(suspend::run(arguments, false)),
        Verb::Doctor(arguments) => in_runtime(doctor::run(arguments)),
        Verb::Validate(arguments) => validate::run(&arguments),
        Verb::Plan(arguments) => in_runtime(plan::run(arguments)),
        Verb::Apply(arguments) => in_runtime(apply::run(arguments)),
        Verb::Revoke(arguments) => in_runtime(revoke::run(arguments)),
        Verb::Completion(arguments) => completion::run(&arguments),
        Verb::Man(arguments) => man::run(&arguments),
        Verb::Guardian(arguments) => exec::guard(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(message) = failure.message {
                // Even where nobody reads it, the exit code must be right.
                let _ = writeln!(std::io::stderr(), "lockkeeper: {message}");
            }
            ExitCode::from(failure.code)
        }
    }
}

/// The tree of verbs, called as whoever started us did: as a plugin, kubectl's.
fn command() -> clap::Command {
    let command = Cli::command();
    let file = std::env::args_os().next().map(PathBuf::from);
    let file = file.as_deref().and_then(Path::file_name).and_then(OsStr::to_str);
    match file.and_then(|file| file.strip_prefix("kubectl-")) {
        // kubectl turns the dashes of what is typed into underscores of a file's name.
        Some(plugin) => command.bin_name(format!("kubectl {}", plugin.replace('_', "-"))),
        None => command,
    }
}

/// Runs what asks servers, with logs for people.
fn in_runtime(verb: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let _telemetry = telemetry::start(telemetry::LogFormat::Text);
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| Failure::new(Failure::UNAVAILABLE, error.to_string()))?;
    let result = runtime.block_on(verb);
    // A read of a terminal that nobody types at would be waited for.
    runtime.shutdown_background();
    result
}

/// A duration as people write it: `250ms`, `10s`, `5m`, `1h`.
fn duration(text: &str) -> Result<std::time::Duration, String> {
    let duration: jiff::SignedDuration =
        text.parse().map_err(|_| "expected a duration such as 250ms, 10s or 5m".to_owned())?;
    duration.try_into().map_err(|_| "a duration can't be negative".to_owned())
}

/// Says what was done, beside the data.
fn say(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "lockkeeper: {text}");
}

/// The first of SIGTERM and SIGINT.
async fn signalled() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = term.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_of_verbs_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        assert_eq!(duration("250ms"), Ok(std::time::Duration::from_millis(250)));
        assert_eq!(duration("5m"), Ok(std::time::Duration::from_mins(5)));
        assert!(duration("-1s").is_err());
        assert!(duration("soon").is_err());
    }
}
