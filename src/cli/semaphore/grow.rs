//! `lockkeeper semaphore grow`: more slots.

use super::{Draining, Failure, Form, Records, ResizeTo, Which, resize};

/// Arguments of `lockkeeper semaphore grow`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: Which,

    /// How many to add
    #[arg(value_name = "NUMBER", help_heading = None, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    by: u32,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    records: Records,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let to = ResizeTo::Grow(arguments.by);
    resize(&arguments.which, &arguments.form, to, &arguments.records, Draining::default()).await
}
