//! `lockkeeper queue create`: a new queue.

use super::{Failure, Which, failed, say};

/// Arguments of `lockkeeper queue create`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: Which,

    /// How many elements it may hold before a put waits; 0 is no bound
    #[arg(long, value_name = "NUMBER", default_value_t = 0, help_heading = None, value_parser = bound)]
    bound: u64,
}

/// What a resource's bound may be, too.
pub(super) fn bound(text: &str) -> Result<u64, String> {
    let bound = text.parse::<i32>().ok().and_then(|bound| u64::try_from(bound).ok());
    bound.ok_or_else(|| format!("a bound is a number from 0 to {}", i32::MAX))
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    arguments.which.must_not_be_the_operators()?;
    let queue = arguments.which.find().await?;
    queue.create(arguments.bound).await.map_err(|error| failed(&queue, &error))?;
    let bound = match arguments.bound {
        0 => "without a bound".to_owned(),
        bound => format!("with the bound {bound}"),
    };
    say(format!("{} was created {bound}", queue.name()));
    Ok(())
}
