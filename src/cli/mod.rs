//! The command line: the subcommands, exit codes, and errors with a next step. Each
//! subcommand has its own file.

#![allow(clippy::doc_markdown, rustdoc::bare_urls, reason = "the text of --help is no Markdown")]

mod acquire;
mod apply;
mod asking;
mod common;
mod completion;
mod confirm;
mod crds;
mod doctor;
mod drive;
mod examples;
mod exec;
mod failure;
mod hold;
mod holders;
mod install;
mod kinds;
mod kubernetes;
mod list;
mod man;
mod manifest;
mod mutex;
mod operator;
mod output;
mod plan;
mod probes;
mod processes;
mod queue;
mod release;
mod revoke;
mod script;
mod semaphore;
mod shell;
mod signals;
mod state_file;
mod streams;
mod suspend;
mod target;
mod telemetry;
mod usage;
mod validate;
mod verify;
mod waiters;
mod waiting;
mod within;

use std::ffi::OsStr;
use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use self::common::{in_runtime, say};
pub use self::failure::Failure;

/// Exit codes about the standard streams, which all subcommands share.
const EXIT_CODES: &str = "\
Exit codes of all subcommands: 64 invalid usage; 73 standard output can't be written; 74 standard \
input can't be read; 77 the user lacks a permission in Kubernetes; 141 the reader of standard output has closed it, without a message. Further ones \
are in the help of each subcommand.";

/// Distributed locks in RabbitMQ and bounded queues in Redis, managed as Kubernetes objects
#[derive(Debug, Parser)]
#[command(name = "lockkeeper", version, propagate_version = true, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the operator, which reconciles Semaphores and PressureQueues with their
    /// servers
    Operator(operator::Arguments),
    /// Print the custom resource definitions, or write them to files
    Crds(crds::Arguments),
    /// Run a command while holding a lock, and end the command if the lock is lost
    Exec(exec::Arguments),
    /// Verify that the lock of the surrounding exec, or of a hold in the background, is still held
    Verify(verify::Arguments),
    /// Acquire a lock and hold it until a signal arrives, or in the background until it is released
    Hold(hold::Arguments),
    /// Release the lock of a hold in the background
    Release(release::Arguments),
    /// Answer JSON requests on stdin, as a client and administrator under test by
    /// lockkeeper-prove
    #[command(hide = true)]
    Drive(drive::Arguments),
    /// Administer or inspect a semaphore on a broker, without Kubernetes
    Semaphore(semaphore::Arguments),
    /// Inspect a mutex on a broker, or revoke it from its holder
    Mutex(mutex::Arguments),
    /// Put elements into a queue in Redis, get them, and administer the queue
    Queue(queue::Arguments),
    /// List Semaphores and PressureQueues with their status
    List(list::Arguments),
    /// List the holders of a Semaphore
    Holders(holders::Arguments),
    /// List the clients that wait for a Semaphore
    Waiters(waiters::Arguments),
    /// Suspend objects: the operator observes them but changes nothing on their servers
    Suspend(suspend::Arguments),
    /// Resume suspended objects: the operator reconciles them again
    Resume(suspend::Arguments),
    /// Diagnose the operator, the objects and their servers, or why a client can't hold a lock
    Doctor(doctor::Arguments),
    /// Validate manifests as the API server would, without a connection to one
    Validate(validate::Arguments),
    /// Show the changes that apply would make on brokers and Redis servers, without
    /// Kubernetes
    Plan(plan::Arguments),
    /// Apply manifests to brokers and Redis servers, without Kubernetes
    Apply(apply::Arguments),
    /// Request that the operator revoke a holder's slot
    Revoke(revoke::Arguments),
    /// Print a completion script for a shell
    Completion(completion::Arguments),
    /// Copy this program to a directory, for the image of another container
    Install(install::Arguments),
    /// Print the manual page, or write one page for each command
    Man(man::Arguments),
}

/// Runs the command given by the arguments.
#[must_use]
pub fn main() -> ExitCode {
    if let Some(result) = exec::as_a_part() {
        return exit_code(result);
    }
    if let Some(result) = completion::answer(command) {
        return exit_code(result);
    }
    signals::notice_children();
    signals::survive_file_size_limit();
    // Clap exits with 2 on invalid usage; this program uses sysexits throughout.
    let matches = command().try_get_matches();
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return printed(&usage::explained(error, command(), std::env::args_os())),
    };
    exit_code(match cli.verb {
        Verb::Operator(arguments) => operator::run(arguments),
        Verb::Crds(arguments) => crds::run(&arguments),
        Verb::Exec(arguments) => exec::run(&arguments),
        Verb::Verify(arguments) => verify::run(&arguments),
        Verb::Hold(arguments) => hold::run(&arguments),
        Verb::Release(arguments) => release::run(&arguments),
        Verb::Drive(arguments) => drive::run(arguments),
        Verb::Semaphore(arguments) => semaphore::run(arguments),
        Verb::Mutex(arguments) => mutex::run(arguments),
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
        Verb::Install(arguments) => install::run(&arguments),
        Verb::Man(arguments) => man::run(&arguments, examples::added(Cli::command())),
    })
}

/// Reports a failure. Returns the exit code.
fn exit_code(result: Result<(), Failure>) -> ExitCode {
    let Err(failure) = result else { return ExitCode::SUCCESS };
    if let Some(message) = failure.message {
        // A closed stderr must not change the exit code.
        say(message);
    }
    ExitCode::from(failure.code)
}

/// Prints what clap has to say: help and version to stdout, invalid usage to stderr.
fn printed(error: &clap::Error) -> ExitCode {
    // The value of an option that is one of several is shown, with U+FFFD.
    let is_not_text = match error.kind() {
        ErrorKind::InvalidUtf8 => true,
        ErrorKind::InvalidValue => error.to_string().contains(char::REPLACEMENT_CHARACTER),
        _ => false,
    };
    if is_not_text
        && std::env::args_os().all(|argument| argument.to_str().is_some())
        && let Some(variable) = variable_that_is_not_text(&Cli::command())
    {
        let message = format!(
            "the environment variable {variable} is not UTF-8 text: correct it, or unset it"
        );
        return exit_code(Err(Failure::new(Failure::USAGE, message)));
    }
    if error.use_stderr() {
        // Nothing more can be done if this can't be printed either.
        let _ = error.print();
        return ExitCode::from(Failure::USAGE);
    }
    exit_code(if stdout().is_terminal() {
        error.print().map_err(|error| streams::unwritable(&error, ""))
    } else {
        streams::write(&error.render().to_string())
    })
}

/// Returns a variable of a command's options or of its subcommands' that is not UTF-8. Clap
/// does not say which one it rejects.
fn variable_that_is_not_text(command: &clap::Command) -> Option<String> {
    let of_options = command.get_arguments().filter_map(clap::Arg::get_env);
    let is_bad = |name: &&OsStr| std::env::var_os(name).is_some_and(|it| it.to_str().is_none());
    let own = of_options.into_iter().find(is_bad).map(|name| name.to_string_lossy().into_owned());
    own.or_else(|| command.get_subcommands().find_map(variable_that_is_not_text))
}

/// Returns the command tree, with the name by which the program was started: for a
/// plugin, kubectl's.
fn command() -> clap::Command {
    let command = examples::added(Cli::command());
    let file = std::env::args_os().next().map(PathBuf::from);
    let file = file.as_deref().and_then(Path::file_name).and_then(OsStr::to_str);
    match file.and_then(|file| file.strip_prefix("kubectl-")) {
        // kubectl replaces dashes of a plugin's command by underscores in its file name.
        Some(plugin) => command.bin_name(format!("kubectl {}", plugin.replace('_', "-"))),
        None => command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_of_verbs_is_consistent() {
        Cli::command().debug_assert();
    }
}
