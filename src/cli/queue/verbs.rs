//! The subcommands of `lockkeeper queue` that are one request each: create, set-bound,
//! length, exists, closed, close and peek. See `delete` for the deletion.

use lockkeeper_plan::pressure_queue::{ObservedQueue, residue};
use lockkeeper_pressure::Queue;

use super::common::{Patience, answer, elements, explained, failed, is_closed, warn_of_eviction};
use super::get::Separated;
use crate::cli::common::say;
use crate::cli::failure::Failure;
use crate::cli::output;
use crate::cli::target::QueueTarget;

/// Arguments of `lockkeeper queue create`.
#[derive(Debug, clap::Args)]
pub struct CreateArguments {
    #[command(flatten)]
    which: QueueTarget,

    /// Maximum number of elements that the queue may hold before a put waits, 0 to
    /// 2147483647; 0 is unbounded
    #[arg(long, value_name = "NUMBER", default_value_t = 0, help_heading = None, value_parser = bound)]
    bound: u64,

    /// Restore a queue that lost its :bound, for example by an eviction, with the elements
    /// that are left. For pq/NAME the operator then sets the bound of the resource
    #[arg(long, help_heading = None)]
    adopt: bool,
}

/// Parses a bound, with the same range as a resource's.
pub(super) fn bound(text: &str) -> Result<u64, String> {
    let bound = text.parse::<i32>().ok().and_then(|bound| u64::try_from(bound).ok());
    bound.ok_or_else(|| format!("a bound is a number from 0 to {}", i32::MAX))
}

/// Creates a queue.
pub(super) async fn create(arguments: CreateArguments) -> Result<(), Failure> {
    if !arguments.adopt {
        arguments.which.must_not_be_the_operators()?;
    }
    let queue = arguments.which.find().await?;
    let error = |error| failed(&queue, &error);
    if arguments.adopt && !queue.stat().await.map_err(error)?.leftovers.is_empty() {
        queue.adopt(arguments.bound).await.map_err(error)?;
        say(restored(&queue, arguments.bound, &queue.stat().await.map_err(error)?));
    } else {
        arguments.which.must_not_be_the_operators()?;
        queue.create(arguments.bound).await.map_err(error)?;
        say(format!("{} was created {}", queue.name(), bounded(arguments.bound)));
    }
    warn_of_eviction(&queue).await;
    Ok(())
}

/// Describes a queue that got its `:bound` back.
fn restored(queue: &Queue, bound: u64, seen: &ObservedQueue) -> String {
    let (name, elements) = (queue.name(), elements(seen.length, seen.in_flight));
    let closed = if seen.closed { "; it is closed" } else { "" };
    let busy = if seen.is_idle() {
        ""
    } else {
        "; a role is not free: if its client has ended, `lockkeeper queue doctor --repair` releases it"
    };
    format!("{name} was restored {} and has {elements}{closed}{busy}", bounded(bound))
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
    if let Err(error) = queue.set_bound(arguments.bound).await {
        return Err(explained(&queue, error).await);
    }
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
    match queue.len().await {
        Ok(length) => output::write(&format!("{length}\n")),
        Err(error) => Err(explained(&queue, error).await),
    }
}

/// Prints whether the queue exists.
pub(super) async fn exists(which: QueueTarget) -> Result<(), Failure> {
    let queue = which.find().await?;
    let exists = queue.exists().await.map_err(|error| failed(&queue, &error))?;
    if !exists {
        let seen = queue.stat().await.map_err(|error| failed(&queue, &error))?;
        if !seen.leftovers.is_empty() {
            say(format!("{}: {}", queue.name(), residue(&seen.leftovers)));
        }
    }
    answer(exists)
}

/// Prints whether the queue is closed for further elements.
pub(super) async fn closed(which: QueueTarget) -> Result<(), Failure> {
    let queue = which.find().await?;
    answer(is_closed(&queue).await?)
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
    if let Err(error) = queue.close(arguments.patience.wait()).await {
        return Err(explained(&queue, error).await);
    }
    say(format!("{} is closed", queue.name()));
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
    let elements = match queue.peek(arguments.count).await {
        Ok(elements) => elements,
        Err(error) => return Err(explained(&queue, error).await),
    };
    let mut text = Vec::new();
    for element in elements {
        text.extend(element);
        text.extend_from_slice(arguments.separated.by());
    }
    output::write(&text)
}
