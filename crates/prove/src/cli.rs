//! The command line of `lockkeeper-prove`: its subcommands and exit codes. See `cli/judging` and
//! its siblings for the options of each subcommand.

#![allow(clippy::doc_markdown, reason = "the text of --help is not Markdown")]

mod costing;
mod driven;
mod exit;
mod judging;
mod minimizing;
mod replaying;
mod rules;
mod steps;
mod watching;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::driver::message::schema;
use crate::driver::speak::speak;
use crate::driver::witness;
use crate::history::{Rules, Variables};
use crate::straw::Bug;
use crate::straw::serve::{StrawOptions, serve};
use exit::{FAILED, NOT_DONE};

/// Tests any implementation of a distributed lock, and names the cause of each violation.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper-prove", version, about)]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "only one value exists")]
enum Verb {
    /// Check within 2 s that a driver is understood, and list the operations that it supports
    Speak(SpeakArguments),
    /// Run a random workload with faults, and report violations of the lock's properties
    Run(judging::RunArguments),
    /// Measure the cost of each operation on the wire, and compare it with the minimum
    Cost(costing::CostArguments),
    /// Explore every interleaving of a few operations, and judge each
    Steps(steps::StepsArguments),
    /// Record an application that connects to the proxy, and judge the broker's side
    Watch(watching::WatchArguments),
    /// Judge a recorded run again, without running the implementation
    Check(judging::CheckArguments),
    /// Print the JSON Schema of the messages between the prover and a driver
    Schema,
    /// Repeat a recorded run, and report whether the same properties are violated
    Replay(replaying::ReplayArguments),
    /// Print the rules of docs/protocols, and how each is judged
    Rules,
    /// Run as the witness: the command that an implementation runs under the lock with --exec
    #[command(hide = true)]
    Witness(WitnessArguments),
    /// Run a reference client with or without a seeded bug (a straw client)
    #[command(hide = true)]
    Straw(StrawArguments),
}

#[derive(Debug, clap::Args)]
struct SpeakArguments {
    /// Command that starts the driver. The driver reads the URL of the broker from AMQP_URL
    #[arg(long, value_name = "COMMAND")]
    driver: String,

    /// URL of the broker, passed to the driver in AMQP_URL
    #[arg(long, env = "AMQP_URL", hide_env_values = true)]
    url: Option<String>,

    /// Name of the lock, which no other program may use. The lock is created and deleted
    /// [default: a random name]
    #[arg(long, value_name = "NAME")]
    lock: Option<String>,
}

#[derive(Debug, clap::Args)]
struct WitnessArguments {
    /// Port of the prover on 127.0.0.1
    port: u16,

    #[command(flatten)]
    variables: Variables,
}

#[derive(Debug, clap::Args)]
struct StrawArguments {
    /// Protocol of the client
    #[arg(long, value_enum)]
    protocol: Rules,

    /// Seeded bug of the client [default: none]
    #[arg(long, value_enum)]
    bug: Option<Bug>,

    /// URL of the broker
    #[arg(long, env = "AMQP_URL", hide_env_values = true)]
    url: String,

    /// Number of consecutive missing slots after which a sweep for slots ends
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    overshoot: u32,
}

/// Parses the command line and runs the subcommand.
#[must_use]
pub fn main() -> ExitCode {
    let done = match Cli::parse().verb {
        Verb::Witness(arguments) => witness::run(arguments.port, &arguments.variables)
            .map(|()| ExitCode::SUCCESS)
            .map_err(|error| error.to_string()),
        Verb::Speak(arguments) => in_runtime(run_speak(arguments)),
        Verb::Run(arguments) => in_runtime(judging::play(arguments)),
        Verb::Cost(arguments) => in_runtime(costing::measure(arguments)),
        Verb::Steps(arguments) => in_runtime(steps::explore(arguments)),
        Verb::Check(arguments) => judging::check(&arguments),
        Verb::Watch(arguments) => in_runtime(watching::watch(arguments)),
        Verb::Schema => print_schema(),
        Verb::Rules => rules::print(),
        Verb::Replay(arguments) => in_runtime(replaying::replay(arguments)),
        Verb::Straw(arguments) => in_runtime(async {
            let StrawArguments { protocol, bug, url, overshoot } = arguments;
            let options = StrawOptions { url, protocol, bug, overshoot };
            serve(&options).await.map(|()| ExitCode::SUCCESS).map_err(|error| error.to_string())
        }),
    };
    done.unwrap_or_else(|error| {
        // A closed stderr must not change the exit code.
        let _ = writeln!(std::io::stderr(), "lockkeeper-prove: {error}");
        ExitCode::from(NOT_DONE)
    })
}

fn in_runtime(verb: impl Future<Output = Result<ExitCode, String>>) -> Result<ExitCode, String> {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let done = runtime.block_on(verb);
    // A normal shutdown would wait for a pending read of stdin.
    runtime.shutdown_background();
    done
}

fn print_schema() -> Result<ExitCode, String> {
    let schema = schema().map_err(|error| error.to_string())?;
    write!(std::io::stdout(), "{schema}").map_err(|error| error.to_string())?;
    Ok(ExitCode::SUCCESS)
}

async fn run_speak(arguments: SpeakArguments) -> Result<ExitCode, String> {
    let SpeakArguments { driver, url, lock } = arguments;
    let environment = url.map(|url| ("AMQP_URL".to_owned(), url)).into_iter().collect();
    let lock = lock.unwrap_or_else(|| format!("prove.speak-{:016x}", rand::random::<u64>()));
    let report = speak(&driver, &environment, &lock).await;
    let mut out = std::io::stdout();
    write!(out, "{report}").map_err(|error| error.to_string())?;
    Ok(if report.is_understood() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn only_properties_and_rules_are_known() {
        let parse = |name: &str| {
            let run =
                ["lockkeeper-prove", "run", "--protocol", "None", "--exec", "x", "--known", name];
            Cli::try_parse_from(run).map(|_| ()).map_err(|error| error.kind())
        };
        assert_eq!((parse("S5"), parse("PS-6")), (Ok(()), Ok(())));
        assert_eq!(parse("PS-600"), Err(clap::error::ErrorKind::ValueValidation));
    }
}
