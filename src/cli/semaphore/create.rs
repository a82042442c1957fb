//! `lockkeeper semaphore create`: a new semaphore.

use super::{Draining, Failure, Form, Records, ResizeTo, Which, resize};

/// Arguments of `lockkeeper semaphore create`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    form: Form,

    /// How many may hold it at once; 0 means nobody for now
    #[arg(long, value_name = "NUMBER", help_heading = None, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    slots: u32,

    #[command(flatten)]
    records: Records,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let to = ResizeTo::Create(arguments.slots);
    resize(&arguments.which, &arguments.form, to, &arguments.records, Draining::default()).await
}
