//! `lockkeeper holders`: lists the holders of a Semaphore, from its status or from its
//! broker.

use lockkeeper_api::Semaphore;

use super::common::say;
use super::completion;
use super::failure::Failure;
use super::output::Format;
use super::semaphore::holders;
use super::semaphore::target::LockOnBroker;
use super::target::{LockLocation, resource};

/// Arguments of `lockkeeper holders`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Semaphore, as sem/NAME or NAME
    #[arg(value_name = "SEMAPHORE", add = completion::semaphores())]
    name: String,

    /// Query the broker instead of the status, which lists up to 50 holders and is some
    /// seconds old
    #[arg(long)]
    live: bool,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Format,

    #[command(flatten)]
    place: LockLocation,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let name = resource::<Semaphore>(&arguments.name).unwrap_or(&arguments.name);
    if arguments.live {
        let target = LockOnBroker::new(arguments.place.find(&format!("sem/{name}")).await?);
        return holders::show(arguments.output, &holders::live(&target).await?);
    }
    let found = arguments.place.kubernetes().find::<Semaphore>(name).await?;
    let Some(status) = found.object.status else {
        say(format!("sem/{name} has no status: is the operator running? see doctor"));
        return holders::show::<lockkeeper_api::semaphore::HolderStatus>(arguments.output, &[]);
    };
    if status.holders_truncated {
        let held = i64::from(status.held.unwrap_or(0)) + i64::from(status.draining.unwrap_or(0));
        let listed = status.holders.len();
        say(format!("the status lists {listed} of {held} holders: --live shows all"));
    }
    holders::show(arguments.output, &status.holders)
}
