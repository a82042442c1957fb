//! The subcommand `steps`: explores every interleaving of a few operations. See `steps` for the
//! search.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::report::Report;
use crate::report::text::Text;
use crate::steps::explore::{End, Explored};
use crate::steps::faults::Faulted;
use crate::steps::request::Request;
use crate::steps::{InjectedFaults, LONGEST, Resizes, StepsOptions, StepsOutcome, Violated, steps};

use super::driven::{Driven, administrator};
use super::exit::FAILED;
use super::judging::{print, put};

#[derive(Debug, clap::Args)]
pub struct StepsArguments {
    #[command(flatten)]
    driven: Driven,

    /// Number of clients. Each client acquires once
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=8))]
    actors: u32,

    /// Number of slots
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    slots: u32,

    /// Each client releases the slot that it was granted
    #[arg(long)]
    release: bool,

    /// Change of the number of slots while the clients acquire
    #[arg(long, value_enum, value_name = "CHANGE", num_args = 0..=1, default_value = "no", default_missing_value = "shrink")]
    resize: Resizes,

    /// Maximum number of executions
    #[arg(long, value_name = "NUMBER", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,

    /// Explore every interleaving, including equivalent ones
    #[arg(long, hide = true)]
    no_sleep_sets: bool,

    /// Faults that are injected into the executions that were found, one in each
    #[arg(long, value_enum, value_name = "FAULTS", default_value = "none")]
    faults: InjectedFaults,

    /// Maximum number of executions with a fault, drawn at random [default: all]
    #[arg(long, value_name = "NUMBER", requires = "faults", value_parser = clap::value_parser!(u64).range(1..))]
    sample: Option<u64>,

    /// Seed of the drawn faults, and of the random schedules that are used if the implementation
    /// does not repeat its requests [default: a random seed, which is printed]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// Write the execution that violates a property to this directory: run.jsonl, report.json
    /// and an SVG picture of each violation
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Explores the interleavings and prints the shortest one that violates a property.
///
/// # Errors
///
/// Fails if the implementation or the broker cannot be used.
pub async fn explore(arguments: StepsArguments) -> Result<ExitCode, String> {
    arguments.driven.check()?;
    let Driven { driver, protocol, administrator: named, url } = arguments.driven;
    let seed = arguments.seed.unwrap_or_else(rand::random);
    let options = StepsOptions {
        driver,
        administrator: administrator(named, protocol),
        url,
        rules: protocol,
        actors: arguments.actors,
        slots: arguments.slots,
        release: arguments.release,
        resizes: arguments.resize,
        limit: arguments.limit,
        sleep_sets: !arguments.no_sleep_sets,
        faults: arguments.faults,
        sample: arguments.sample,
        seed,
        program: std::env::current_exe().map_err(|error| error.to_string())?,
    };
    let outcome = steps(&options).await.map_err(|error| error.to_string())?;
    print(&format!("{}, {}, seed {seed}\n", options.driver, outcome.totals.broker))?;
    print(&summary(&outcome))?;
    let Some((schedule, violated)) = outcome.violation() else {
        if outcome.totals.grants == 0 {
            return Err("no acquire was granted, so nothing can be judged. See the warnings above, or check the driver with `lockkeeper-prove speak`".to_owned());
        }
        return Ok(ExitCode::SUCCESS);
    };
    let report = Report::new(&violated.history, None, &outcome.totals.troubles)
        .map_err(|error| error.to_string())?;
    put(arguments.out.as_deref(), &violated.history, &report)?;
    let steps = schedule.iter().zip(1..).map(|(step, number)| format!("{number:3}  {step}\n"));
    print(&steps.collect::<String>())?;
    print(&Text { report: &report, directory: arguments.out.as_deref() }.to_string())?;
    Ok(ExitCode::from(FAILED))
}

/// Returns a summary of the explored executions.
fn summary(outcome: &StepsOutcome) -> String {
    let explored = &outcome.explored;
    let mut lines = vec![match &explored.end {
        End::Complete if explored.fault.is_none() => {
            format!("{}: every interleaving", counts(explored))
        }
        End::Complete => {
            format!("{}: every interleaving shorter than the violation", counts(explored))
        }
        End::Limit => format!(
            "{}: stopped at --limit before every interleaving was explored",
            counts(explored)
        ),
        End::Diverged(step) => format!(
            "{}: stopped, because the implementation does not repeat its requests: after the same steps, it once sent {step}, and later did not",
            counts(explored)
        ),
    }];
    if let Some(drawn) = &outcome.drawn {
        lines.push(format!("{}: random schedules instead (PCT, depth 3)", counts(drawn)));
    }
    lines.extend(outcome.faulted.as_ref().map(faulted));
    if outcome.totals.freed > 0 {
        lines.push(format!(
            "{} executions had more than {LONGEST} requests of one process; the order of further requests was not controlled",
            outcome.totals.freed
        ));
    }
    let (grants, took) = (outcome.totals.grants, outcome.took.as_secs_f64());
    lines.push(format!("{grants} grants, {took:.1} s"));
    if outcome.violation().is_none() {
        lines.extend(outcome.totals.troubles.iter().map(|trouble| format!("warning: {trouble}")));
    }
    lines.join("\n") + "\n"
}

fn faulted(faulted: &Faulted) -> String {
    let Faulted { possible, executions, effective, violations, killed, .. } = faulted;
    let drawn =
        if possible > executions { format!(", drawn from {possible}") } else { String::new() };
    let silent = if *killed > 0 {
        format!("; in {killed}, a process did not answer and was killed")
    } else {
        String::new()
    };
    format!(
        "{violations} of {executions} executions with one fault caused a violation{drawn}; {effective} faults took effect{silent}"
    )
}

fn counts(explored: &Explored<Request, Violated>) -> String {
    let Explored { executions, cut, steps, .. } = explored;
    format!("{executions} executions, {cut} cut as equivalent or too long, {steps} steps")
}
