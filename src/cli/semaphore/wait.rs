//! `lockkeeper semaphore wait`: until a slot is taken or released.

use std::time::{Duration, Instant};

use super::{Failure, Which, failed};
use crate::cli::duration;

/// How often it is looked.
const PAUSE: Duration = Duration::from_millis(250);

/// Arguments of `lockkeeper semaphore wait`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: Which,

    /// The slot, from 1
    #[arg(long, value_name = "NUMBER", help_heading = None, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    slot: u32,

    /// What is waited for
    #[arg(long, value_enum, help_heading = None)]
    until: Until,

    /// Give up after this time [default: wait for ever]
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = None)]
    timeout: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Until {
    /// Somebody holds it
    Taken,
    /// Nobody holds it
    Released,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let target = arguments.which.find().await?;
    let (name, slot) = (&target.found.name, arguments.slot);
    let started = Instant::now();
    loop {
        let seen = target.broker.observe(name, 0, slot).await.map_err(|error| failed(&error))?;
        if seen.held.contains(&slot) == (arguments.until == Until::Taken) {
            return Ok(());
        }
        if arguments.timeout.is_some_and(|limit| started.elapsed() >= limit) {
            let state = if arguments.until == Until::Taken { "free" } else { "held" };
            let message = format!("slot {slot} of {name} is still {state}");
            return Err(Failure::new(Failure::NOT_ACQUIRED, message));
        }
        tokio::time::sleep(PAUSE).await;
    }
}
