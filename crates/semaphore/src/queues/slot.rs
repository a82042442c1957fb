//! Declares, inspects and deletes slot queues, also those of other administrators. The other
//! queues have modules of their own.

use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lockkeeper_plan::naming::Profile;

use super::arguments::{bare_arguments, exclusive_arguments};
use crate::amqp::lane::{Lane, together};
use crate::error::BrokerError;

/// Declares the slot queue `name` with the properties of `profile`. In profile Guideline,
/// an existing durable queue without arguments is adopted, because the source document
/// names no arguments ([`adopt`]).
///
/// # Errors
///
/// [`BrokerError::IncompatibleQueue`] for an existing queue with other properties.
pub async fn declare(lane: &mut Lane, name: &str, profile: Profile) -> Result<(), BrokerError> {
    let (options, arguments) = slot_queue(profile);
    let refused = match lane.declare(name, options, arguments.clone()).await {
        Err(error @ BrokerError::IncompatibleQueue { .. }) => error,
        declared => return declared,
    };
    match adopt(lane, name, profile, refused).await? {
        Some(_) => Ok(()),
        // It was deleted in the meantime.
        None => lane.declare(name, options, arguments).await,
    }
}

/// Inspects the slot queue `name` of that profile. `None` if it is missing.
///
/// # Errors
///
/// Those of [`declare`].
pub async fn inspect(
    lane: &mut Lane,
    name: &str,
    profile: Profile,
) -> Result<Option<lapin::Queue>, BrokerError> {
    let (options, arguments) = slot_queue(profile);
    match lane.inspect(name, options, arguments).await {
        Err(error @ BrokerError::IncompatibleQueue { .. }) => {
            adopt(lane, name, profile, error).await
        }
        inspected => inspected,
    }
}

/// Returns the durable queue without arguments that was refused because of its
/// arguments, or else the error `refused`. A queue with messages or consumers is in use
/// for something else. `None` if it is missing.
async fn adopt(
    lane: &mut Lane,
    name: &str,
    profile: Profile,
    refused: BrokerError,
) -> Result<Option<lapin::Queue>, BrokerError> {
    if profile != Profile::Guideline {
        return Err(refused);
    }
    match lane.inspect(name, QueueDeclareOptions::durable(), FieldTable::default()).await {
        Ok(Some(queue)) if queue.message_count() > 0 || queue.consumer_count() > 0 => {
            Err(BrokerError::IncompatibleQueue {
                queue: name.to_owned(),
                why: "a queue with messages or consumers has the name of a slot".to_owned(),
            })
        }
        Err(BrokerError::IncompatibleQueue { .. }) => Err(refused),
        other => other,
    }
}

/// Declares existing slot queues again, sent together, to detect other arguments. The
/// result does not show which queue differs.
pub async fn check(lane: &mut Lane, names: &[String], profile: Profile) -> Result<(), BrokerError> {
    let Some(first) = names.first() else { return Ok(()) };
    let channel = lane.channel().await?;
    lane.count_declares(names.len());
    let (options, arguments) = slot_queue(profile);
    let arguments = lane.conn().features.arguments(arguments);
    let declare = |name| channel.queue_declare(name, options, arguments.clone());
    let all = together(names, declare)?;
    lane.answer("to queue.declare", first, all).await?.map_err(|r| r.error).map(|_| ())
}

/// Deletes queues that look missing. This is a no-op, except that a queue whose node
/// is down results in [`BrokerError::NodeDown`].
pub async fn delete_missing(lane: &mut Lane, names: &[String]) -> Result<(), BrokerError> {
    let Some(last) = names.last() else { return Ok(()) };
    if lane.conn().features.reports_missing_at_delete() {
        return Ok(());
    }
    let channel = lane.channel().await?;
    // With if-unused and if-empty, in case it exists after all.
    let options = QueueDeleteOptions { if_unused: true, if_empty: true, nowait: false };
    let all = together(names, |name| channel.queue_delete(name, options))?;
    lane.answer("to queue.delete", last, all).await?.map_err(|r| r.error).map(|_| ())
}

/// Returns the properties of `A[i]`.
fn slot_queue(profile: Profile) -> (QueueDeclareOptions, FieldTable) {
    match profile {
        Profile::Guideline => (QueueDeclareOptions::durable(), bare_arguments()),
        // Must be exactly these, or that library's declares are refused.
        Profile::AmqpLocksPython => (QueueDeclareOptions::default(), exclusive_arguments()),
    }
}
