//! The subcommand `replay`: repeats a recorded run and reports whether the same properties are
//! violated. See `judging` for the original run, and `minimizing` for `--minimize`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use url::Url;

use super::exit::exit;
use super::judging::{granted, print, put, read};
use super::minimizing::minimized;
use crate::check::judge;
use crate::report::Report;
use crate::report::text::Text;
use crate::run::replay::compare;
use crate::run::{RunOptions, run};

#[derive(Debug, clap::Args)]
pub struct ReplayArguments {
    /// Recorded run: run.jsonl, which run --out writes
    file: PathBuf,

    /// URL of the broker. Ignored if the run was recorded without one
    #[arg(long, env = "AMQP_URL", hide_env_values = true)]
    url: Option<Url>,

    /// Maximum number of repetitions
    ///
    /// Stops at the first repetition that shows a recorded violation again. Several may be
    /// necessary, because the same seed does not always lead to the same interleaving.
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    times: u32,

    /// Search for the smallest run with the first recorded violation
    ///
    /// Leaves out the faults, resizes, slots and clients that the violation does not need. With
    /// --out, the smallest run is written to DIR, and can be replayed.
    #[arg(long, conflicts_with = "times")]
    minimize: bool,

    /// Maximum duration of the search for the smallest run, in seconds
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 60, requires = "minimize", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,

    /// Write the last run, its report and pictures of violations to this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Repeats a recorded run.
///
/// # Errors
///
/// Fails if the file cannot be read, or if the implementation or the broker cannot be used.
pub async fn replay(arguments: ReplayArguments) -> Result<ExitCode, String> {
    let history = read(&arguments.file)?;
    let name = arguments.file.display();
    let recorded = judge(&history).map_err(|error| format!("{name}: {error}"))?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let options = RunOptions::again(&history.header, arguments.url, program);
    let options = options.map_err(|error| format!("{name}: {error}"))?;
    if arguments.minimize {
        let limit = Duration::from_secs(arguments.seconds);
        return minimized(&options, &recorded, limit, arguments.out.as_deref()).await;
    }
    for time in 1.. {
        let outcome = run(&options).await.map_err(|error| error.to_string())?;
        let compared = compare(&recorded, &outcome.verdict);
        let found = compared.is_empty() || compared.iter().any(|&(_, again)| again);
        if !found && time < arguments.times {
            print(&format!("run {time}: no recorded violation occurred again\n"))?;
            continue;
        }
        let report = Report::new(&outcome.history, None, &outcome.troubles)
            .map_err(|error| error.to_string())?;
        put(arguments.out.as_deref(), &outcome.history, &report)?;
        print(&Text { report: &report, directory: arguments.out.as_deref() }.to_string())?;
        if compared.is_empty() {
            print("the recorded run has no violation\n")?;
        }
        for (property, again) in compared {
            let result = if again { "violated again" } else { "not violated in this run" };
            print(&format!("{property:?} (violated in the recorded run): {result}\n"))?;
        }
        granted(&report.verdict)?;
        return Ok(exit(&report.verdict));
    }
    // Unreachable: the loop returns in its last iteration.
    Ok(ExitCode::SUCCESS)
}
