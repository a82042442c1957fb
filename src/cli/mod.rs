//! The command line: the tree of verbs, exit codes, and errors with a next step.
//! One verb is one file.

#![allow(clippy::doc_markdown, rustdoc::bare_urls, reason = "the text of --help is no Markdown")]

mod crds;
mod hold;
mod operator;
mod telemetry;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    /// Take a slot of a lock and hold it until a signal comes
    Hold(hold::Arguments),
}

/// Why a verb failed: an exit code of the sysexits range, and a text that says
/// what to do next.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// Wrong usage or input (EX_USAGE).
    pub const USAGE: u8 = 64;
    /// A server is unreachable (EX_UNAVAILABLE).
    pub const UNAVAILABLE: u8 = 69;
    /// A file could not be written (EX_CANTCREAT).
    pub const CANT_CREATE: u8 = 73;
    /// No slot could be had (EX_TEMPFAIL): try again later.
    pub const NOT_ACQUIRED: u8 = 75;
    /// The lock was lost while it was held. Outside sysexits, so that it can't be
    /// mistaken for anything else.
    pub const LOST: u8 = 80;

    /// A failure with this exit code.
    #[must_use]
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// Runs the verb that the arguments name.
#[must_use]
pub fn main() -> ExitCode {
    // Clap's own code for wrong usage is 2; ours are sysexits throughout.
    let cli = match Cli::try_parse() {
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
        Verb::Hold(arguments) => hold::run(arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("lockkeeper: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}

/// A duration as people write it: `250ms`, `10s`, `5m`, `1h`.
fn duration(text: &str) -> Result<std::time::Duration, String> {
    let duration: jiff::SignedDuration =
        text.parse().map_err(|_| "expected a duration such as 250ms, 10s or 5m".to_owned())?;
    duration.try_into().map_err(|_| "a duration can't be negative".to_owned())
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
    use clap::CommandFactory;

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
