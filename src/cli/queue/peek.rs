//! `lockkeeper queue peek`: the oldest elements, which stay where they are.

use std::io::{Write, stdout};

use super::get::Separated;
use super::{Failure, Which, failed};

/// Arguments of `lockkeeper queue peek`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: Which,

    /// How many to show at most
    #[arg(long, short, value_name = "NUMBER", default_value_t = 10, help_heading = None)]
    count: usize,

    #[command(flatten)]
    separated: Separated,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let queue = arguments.which.find().await?;
    let elements = queue.peek(arguments.count).await.map_err(|error| failed(&queue, &error))?;
    let mut text = Vec::new();
    for element in elements {
        text.extend(element);
        text.extend_from_slice(arguments.separated.by());
    }
    stdout().write_all(&text).map_err(|error| Failure::new(Failure::CANT_CREATE, error.to_string()))
}
