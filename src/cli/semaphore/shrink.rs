//! `lockkeeper semaphore shrink`: fewer slots, or tokens.

use super::{Draining, Failure, Form, Records, ResizeTo, Which, resize};

/// Arguments of `lockkeeper semaphore shrink`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: Which,

    /// How many to remove, the highest slots first; of tokens free ones first, and then those that
    /// are released
    #[arg(value_name = "NUMBER", help_heading = None, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    by: u32,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    draining: Draining,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let to = ResizeTo::Shrink(arguments.by);
    resize(&arguments.which, &arguments.form, to, &Records::default(), arguments.draining).await
}
