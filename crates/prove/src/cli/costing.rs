//! The subcommand `cost`: measures the cost of an implementation on the wire. See `cost` for the
//! method.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use crate::cost::table::Table;
use crate::cost::{CostOptions, cost};

use super::driven::{Driven, administrator};

#[derive(Debug, clap::Args)]
pub struct CostArguments {
    #[command(flatten)]
    driven: Driven,

    /// Number of slots that are held while the search for a free slot is measured. The lock has
    /// one more slot
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=63))]
    taken: u32,

    /// Number of measurements of each operation at each delay
    #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    repetitions: u32,

    /// Time for which an idle holder and an idle waiter are observed, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=3600))]
    hold: u64,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Measures an implementation and prints its cost.
///
/// # Errors
///
/// Fails if the implementation or the broker cannot be used.
pub async fn measure(arguments: CostArguments) -> Result<ExitCode, String> {
    arguments.driven.check()?;
    let Driven { driver, protocol, administrator: named, url } = arguments.driven;
    let options = CostOptions {
        driver,
        administrator: administrator(named, protocol),
        url,
        rules: protocol,
        lock: format!("prove.cost-{:016x}", rand::random::<u64>()),
        taken: arguments.taken,
        repetitions: arguments.repetitions,
        hold: Duration::from_secs(arguments.hold),
    };
    let report = cost(&options).await.map_err(|error| error.to_string())?;
    let text = if arguments.json {
        serde_json::to_string_pretty(&report).map_err(|error| error.to_string())? + "\n"
    } else {
        Table(&report).to_string()
    };
    let mut out = std::io::stdout();
    write!(out, "{text}").and_then(|()| out.flush()).map_err(|error| error.to_string())?;
    if report.operations.is_empty() {
        return Err(
            "no operation succeeded. Check the driver with `lockkeeper-prove speak`".to_owned()
        );
    }
    Ok(ExitCode::SUCCESS)
}
