//! Holder queues `C[i]` on a channel: declares them, and removes those without a holder.
//! The caller decides when.

use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lockkeeper_amqp::channel::together::together;
use lockkeeper_amqp::channel::{Channel, Refused};

use super::arguments::bare_arguments;
use crate::error::BrokerError;

/// Inspects the holder queue `C[i]` of that name. `None` if it is missing.
///
/// # Errors
///
/// As [`Channel::inspect`].
pub async fn inspect(
    channel: &mut Channel,
    name: &str,
) -> Result<Option<lapin::Queue>, BrokerError> {
    channel
        .inspect(name, QueueDeclareOptions::durable(), bare_arguments())
        .await
        .map_err(BrokerError::from)
}

/// Declares the holder queue `name`. An existing queue with other arguments or of
/// another type results in [`BrokerError::IncompatibleQueue`].
pub async fn declare(channel: &mut Channel, name: &str) -> Result<(), BrokerError> {
    channel
        .declare(name, QueueDeclareOptions::durable(), bare_arguments())
        .await
        .map_err(BrokerError::from)
}

/// Deletes those of these queues that have no consumer, sent together. Missing ones
/// are not an error. Returns `false` if one has a consumer: then some requests were
/// not processed.
pub async fn delete_unused_all(
    channel: &mut Channel,
    names: &[String],
) -> Result<bool, BrokerError> {
    let Some(last) = names.last() else { return Ok(true) };
    let raw = channel.raw().await?;
    let options = QueueDeleteOptions { if_unused: true, if_empty: false, nowait: false };
    let all = together(names, |name| raw.queue_delete(name, options))?;
    match channel.answer("to queue.delete", last, all).await? {
        Ok(_) => Ok(true),
        Err(Refused { code: 406, .. }) => Ok(false),
        Err(refused) => Err(refused.error.into()),
    }
}

/// The same for one queue. Returns `false` if it has a consumer and stays.
pub async fn delete_unused(channel: &mut Channel, name: &str) -> Result<bool, BrokerError> {
    delete_unused_all(channel, &[name.to_owned()]).await
}
