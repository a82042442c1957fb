//! The subcommands of `lockkeeper queue` that are one request each: create, set-bound,
//! length, exists, closed, close, delete and peek.

use super::common::{Patience, answer, count, failed};
use super::get::Separated;
use crate::cli::common::say;
use crate::cli::failure::Failure;
use crate::cli::output;
use crate::cli::question::confirmed;
use crate::cli::target::QueueTarget;
use crate::pressure::QueueError;

/// Arguments of `lockkeeper queue create`.
#[derive(Debug, clap::Args)]
pub struct CreateArguments {
    #[command(flatten)]
    which: QueueTarget,

    /// Maximum number of elements that the queue may hold before a put waits, 0 to
    /// 2147483647; 0 is unbounded
    #[arg(long, value_name = "NUMBER", default_value_t = 0, help_heading = None, value_parser = bound)]
    bound: u64,
}

/// Parses a bound, with the same range as a resource's.
pub(super) fn bound(text: &str) -> Result<u64, String> {
    let bound = text.parse::<i32>().ok().and_then(|bound| u64::try_from(bound).ok());
    bound.ok_or_else(|| format!("a bound is a number from 0 to {}", i32::MAX))
}

/// Creates a queue.
pub(super) async fn create(arguments: CreateArguments) -> Result<(), Failure> {
    arguments.which.must_not_be_the_operators()?;
    let queue = arguments.which.find().await?;
    queue.create(arguments.bound).await.map_err(|error| failed(&queue, &error))?;
    say(format!("{} was created {}", queue.name(), bounded(arguments.bound)));
    Ok(())
}

/// Arguments of `lockkeeper queue set-bound`.
#[derive(Debug, clap::Args)]
pub struct SetBoundArguments {
    #[command(flatten)]
    which: QueueTarget,

    /// Maximum number of elements that the queue may hold before a put waits, 0 to
    /// 2147483647; 0 is unbounded. Elements beyond a lower bound stay
    #[arg(value_name = "NUMBER", help_heading = None, value_parser = bound)]
    bound: u64,
}

/// Changes the bound of a queue.
pub(super) async fn set_bound(arguments: SetBoundArguments) -> Result<(), Failure> {
    arguments.which.must_not_be_the_operators()?;
    let queue = arguments.which.find().await?;
    queue.set_bound(arguments.bound).await.map_err(|error| failed(&queue, &error))?;
    say(format!("{} is now {}", queue.name(), bounded(arguments.bound)));
    Ok(())
}

fn bounded(bound: u64) -> String {
    match bound {
        0 => "without a bound".to_owned(),
        bound => format!("with the bound {bound}"),
    }
}

/// Prints the number of elements.
pub(super) async fn length(which: QueueTarget) -> Result<(), Failure> {
    let queue = which.find().await?;
    let length = queue.len().await.map_err(|error| failed(&queue, &error))?;
    output::write(&format!("{length}\n"))
}

/// Prints whether the queue exists.
pub(super) async fn exists(which: QueueTarget) -> Result<(), Failure> {
    let queue = which.find().await?;
    answer(queue.exists().await.map_err(|error| failed(&queue, &error))?)
}

/// Prints whether the queue is closed for further elements.
pub(super) async fn closed(which: QueueTarget) -> Result<(), Failure> {
    let queue = which.find().await?;
    answer(queue.closed().await.map_err(|error| failed(&queue, &error))?)
}

/// Arguments of `lockkeeper queue close`.
#[derive(Debug, clap::Args)]
pub struct CloseArguments {
    #[command(flatten)]
    which: QueueTarget,

    #[command(flatten)]
    patience: Patience,
}

/// Closes a queue.
pub(super) async fn close(arguments: CloseArguments) -> Result<(), Failure> {
    let queue = arguments.which.find().await?;
    queue.close(arguments.patience.wait()).await.map_err(|error| failed(&queue, &error))?;
    say(format!("{} is closed", queue.name()));
    Ok(())
}

/// Arguments of `lockkeeper queue delete`.
#[derive(Debug, clap::Args)]
pub struct DeleteArguments {
    #[command(flatten)]
    which: QueueTarget,

    #[command(flatten)]
    patience: Patience,

    /// Do not ask for confirmation if the queue has elements
    #[arg(long, short, help_heading = None)]
    yes: bool,
}

/// Deletes a queue.
pub(super) async fn delete(arguments: DeleteArguments) -> Result<(), Failure> {
    let queue = arguments.which.find().await?;
    let name = queue.name();
    let length = match queue.len().await {
        Ok(length) => length,
        // Leftovers of an abandoned deletion.
        Err(QueueError::DoesNotExist) => 0,
        Err(error) => return Err(failed(&queue, &error)),
    };
    if length > 0 && !arguments.yes {
        let question = format!("Delete the queue {name} with {}?", count(length, "element"));
        if !confirmed(&question).await? {
            return Err(Failure::new(Failure::NOT_ACQUIRED, "nothing was changed"));
        }
    }
    queue.delete(arguments.patience.wait()).await.map_err(|error| failed(&queue, &error))?;
    say(format!("{name} is gone with {}", count(length, "element")));
    Ok(())
}

/// Arguments of `lockkeeper queue peek`.
#[derive(Debug, clap::Args)]
pub struct PeekArguments {
    #[command(flatten)]
    which: QueueTarget,

    /// Maximum number of elements to print
    #[arg(long, short, value_name = "NUMBER", default_value_t = 10, help_heading = None)]
    count: usize,

    #[command(flatten)]
    separated: Separated,
}

/// Prints the oldest elements without taking them.
pub(super) async fn peek(arguments: PeekArguments) -> Result<(), Failure> {
    let queue = arguments.which.find().await?;
    let elements = queue.peek(arguments.count).await.map_err(|error| failed(&queue, &error))?;
    let mut text = Vec::new();
    for element in elements {
        text.extend(element);
        text.extend_from_slice(arguments.separated.by());
    }
    output::write(&text)
}
