//! `lockkeeper queue delete`: deletes a queue with its elements, after a confirmation, and
//! reports for which client it waits.

use std::time::Duration;

use lockkeeper_plan::pressure_queue::ObservedQueue;
use lockkeeper_pressure::{Queue, QueueError, Removed, TakenRoles};
use tokio::time::sleep;

use super::common::{Patience, code, elements, explained, failed};
use crate::cli::common::say;
use crate::cli::confirm::confirmed;
use crate::cli::failure::Failure;
use crate::cli::target::QueueTarget;

/// Time after which the clients that the deletion waits for are reported. A client that
/// works on the queue releases its role within milliseconds.
const SOON: Duration = Duration::from_secs(1);

/// Arguments of `lockkeeper queue delete`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Elements in flight are deleted too, also those that a command of run processes at the moment. \
The deletion starts when no client works on the queue. A client that holds a role and has died \
prevents that: `lockkeeper queue doctor --repair` releases its role, and --force deletes the queue \
regardless. With --no-wait, and if --timeout expires before the start, nothing is changed.")]
pub struct Arguments {
    #[command(flatten)]
    which: QueueTarget,

    #[command(flatten)]
    patience: Patience,

    /// Do not ask for confirmation if the queue has elements
    #[arg(long, short, help_heading = None)]
    yes: bool,

    /// Delete the queue even if a client holds a role, for example because it has died. A
    /// living client may leave keys behind, or wait for a queue that is gone
    #[arg(long, help_heading = None)]
    force: bool,
}

/// Deletes a queue.
pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let queue = arguments.which.find().await?;
    let name = queue.name();
    let seen = queue.stat().await.map_err(|error| failed(&queue, &error))?;
    let has_elements = seen.length > 0 || seen.in_flight > 0;
    if has_elements && !arguments.yes {
        let question = question(&queue, &seen);
        match confirmed(&question).await {
            Ok(true) => {}
            Ok(false) => return Err(Failure::new(Failure::NOT_ACQUIRED, "nothing was changed")),
            Err(Failure { code, message }) => {
                let message = message.map(|message| format!("{question} {message}"));
                return Err(Failure { code, message });
            }
        }
    }
    let removed = remove(&queue, &arguments).await?;
    say(format!("{name} is gone with {}", elements(removed.elements, removed.in_flight)));
    Ok(())
}

fn question(queue: &Queue, seen: &ObservedQueue) -> String {
    let (name, elements) = (queue.name(), elements(seen.length, seen.in_flight));
    if seen.bound.is_some() {
        format!("Delete the queue {name} with {elements}?")
    } else {
        format!(
            "The queue {name} lost its :bound, or its deletion was interrupted. Delete the rest of it with {elements}?"
        )
    }
}

/// Removes the queue, and reports for whom it waits.
async fn remove(queue: &Queue, arguments: &Arguments) -> Result<Removed, Failure> {
    let taken = if arguments.force { TakenRoles::Ignore } else { TakenRoles::Wait };
    let removing = queue.remove(arguments.patience.wait(), taken);
    tokio::pin!(removing);
    let removed = tokio::select! {
        removed = &mut removing => removed,
        () = sleep(SOON) => {
            if let Ok(seen) = queue.stat().await
                && let Some(holders) = holders(&seen)
            {
                say(format!("{}: waiting for {holders}. {}", queue.name(), way_on(&seen)));
            }
            removing.await
        }
    };
    match removed {
        Ok(removed) => Ok(removed),
        Err(error @ (QueueError::InUse { .. } | QueueError::TimedOut { .. })) => {
            let way_on = queue.stat().await.map(|seen| way_on(&seen)).unwrap_or_default();
            Err(Failure::new(code(&error), format!("{}: {error}. {way_on}", queue.name())))
        }
        Err(error) => Err(explained(queue, error).await),
    }
}

/// Names the clients that hold a role.
fn holders(seen: &ObservedQueue) -> Option<String> {
    let who = |id: &Option<String>, what| {
        let who = id.as_deref().unwrap_or("a client without a name");
        format!("{who}, which holds the {what} role")
    };
    let producer = (seen.producer_free == 0).then(|| who(&seen.producer.id, "producer"));
    let consumer = (seen.consumer_free == 0).then(|| who(&seen.consumer.id, "consumer"));
    let holders: Vec<String> = producer.into_iter().chain(consumer).collect();
    (!holders.is_empty()).then(|| holders.join(", and for "))
}

/// Says what has happened so far, and what to do about a client that has ended.
fn way_on(seen: &ObservedQueue) -> &'static str {
    if seen.bound.is_some() {
        "Nothing is deleted yet. If that client has ended, `lockkeeper queue doctor --repair` releases its role, and --force deletes the queue regardless"
    } else {
        "The deletion has started. If that client has ended, --force finishes it"
    }
}
