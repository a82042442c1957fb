//! Declares, inspects and deletes slot queues, also those of other administrators. The other
//! queues have modules of their own.

use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lockkeeper_amqp::channel::Channel;
use lockkeeper_amqp::channel::together::together;
use lockkeeper_amqp::error::AmqpError;
use lockkeeper_plan::naming::Profile;

use super::arguments::{bare_arguments, exclusive_arguments};
use crate::error::BrokerError;

/// Declares the slot queue `name` with the properties of `profile`. In profile Guideline,
/// an existing durable queue without arguments is adopted, because the guideline
/// names no arguments ([`adopt`]).
///
/// # Errors
///
/// [`BrokerError::IncompatibleQueue`] for an existing queue with other properties.
pub async fn declare(
    channel: &mut Channel,
    name: &str,
    profile: Profile,
) -> Result<(), BrokerError> {
    let (options, arguments) = slot_queue(profile);
    let refused = match channel.declare(name, options, arguments.clone()).await {
        Err(error @ AmqpError::IncompatibleQueue { .. }) => error,
        declared => return declared.map_err(BrokerError::from),
    };
    match adopt(channel, name, profile, refused.into()).await? {
        Some(_) => Ok(()),
        // It was deleted in the meantime.
        None => channel.declare(name, options, arguments).await.map_err(BrokerError::from),
    }
}

/// Inspects the slot queue `name` of that profile. `None` if it is missing.
///
/// # Errors
///
/// Those of [`declare`].
pub async fn inspect(
    channel: &mut Channel,
    name: &str,
    profile: Profile,
) -> Result<Option<lapin::Queue>, BrokerError> {
    let (options, arguments) = slot_queue(profile);
    match channel.inspect(name, options, arguments).await {
        Err(error @ AmqpError::IncompatibleQueue { .. }) => {
            adopt(channel, name, profile, error.into()).await
        }
        inspected => inspected.map_err(BrokerError::from),
    }
}

/// Returns the durable queue without arguments that was refused because of its
/// arguments, or else the error `refused`. A queue with messages or consumers is in use
/// for something else. `None` if it is missing.
async fn adopt(
    channel: &mut Channel,
    name: &str,
    profile: Profile,
    refused: BrokerError,
) -> Result<Option<lapin::Queue>, BrokerError> {
    if profile != Profile::Guideline {
        return Err(refused);
    }
    match channel.inspect(name, QueueDeclareOptions::durable(), FieldTable::default()).await {
        Ok(Some(queue)) if queue.message_count() > 0 || queue.consumer_count() > 0 => {
            Err(BrokerError::IncompatibleQueue {
                queue: name.to_owned(),
                why: "a queue with messages or consumers has the name of a slot".to_owned(),
            })
        }
        Err(AmqpError::IncompatibleQueue { .. }) => Err(refused),
        other => other.map_err(BrokerError::from),
    }
}

/// Declares existing slot queues again, sent together, to detect other arguments. The
/// result does not show which queue differs.
pub async fn check(
    channel: &mut Channel,
    names: &[String],
    profile: Profile,
) -> Result<(), BrokerError> {
    let Some(first) = names.first() else { return Ok(()) };
    let raw = channel.raw().await?;
    channel.count_declares(names.len());
    let (options, arguments) = slot_queue(profile);
    let arguments = channel.connection().features.arguments(arguments);
    let declare = |name| raw.queue_declare(name, options, arguments.clone());
    let all = together(names, declare)?;
    channel
        .answer("to queue.declare", first, all)
        .await?
        .map_err(|r| r.error)
        .map(|_| ())
        .map_err(BrokerError::from)
}

/// Deletes queues that look missing. This is a no-op, except that a queue whose node
/// is down results in [`BrokerError::NodeDown`].
pub async fn delete_missing(channel: &mut Channel, names: &[String]) -> Result<(), BrokerError> {
    let Some(last) = names.last() else { return Ok(()) };
    if channel.connection().features.reports_missing_at_delete() {
        return Ok(());
    }
    let raw = channel.raw().await?;
    // With if-unused and if-empty, in case it exists after all.
    let options = QueueDeleteOptions { if_unused: true, if_empty: true, nowait: false };
    let all = together(names, |name| raw.queue_delete(name, options))?;
    channel
        .answer("to queue.delete", last, all)
        .await?
        .map_err(|r| r.error)
        .map(|_| ())
        .map_err(BrokerError::from)
}

/// Returns the properties of `A[i]`.
fn slot_queue(profile: Profile) -> (QueueDeclareOptions, FieldTable) {
    match profile {
        Profile::Guideline => (QueueDeclareOptions::durable(), bare_arguments()),
        // Must be exactly these, or that library's declares are refused.
        Profile::AmqpLocksPython => (QueueDeclareOptions::default(), exclusive_arguments()),
    }
}
