//! Slot records on a channel: declares and deletes their queues, many together, and
//! publishes first records. See [`lockkeeper_plan::record`] for the content of a record. Only
//! a slot's holder replaces it.

use futures::future::try_join_all;
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Confirmation};
use lockkeeper_amqp::channel::together::together;
use lockkeeper_amqp::channel::{Channel, short};

use super::arguments::classic_arguments;
use crate::error::BrokerError;

/// Delivery mode of records, which are as durable as their queue.
const PERSISTENT: u8 = 2;

/// Inspects the record queue of that name. `None` if it is missing.
pub async fn inspect(
    channel: &mut Channel,
    name: &str,
) -> Result<Option<lapin::Queue>, BrokerError> {
    channel
        .inspect(name, QueueDeclareOptions::durable(), record_arguments())
        .await
        .map_err(BrokerError::from)
}

/// Declares the record queues `names`, sent together. Returns those without a record.
/// An existing queue with other arguments results in
/// [`BrokerError::IncompatibleQueue`], which does not show the queue's name.
pub async fn declare(channel: &mut Channel, names: &[String]) -> Result<Vec<String>, BrokerError> {
    let Some(first) = names.first() else { return Ok(Vec::new()) };
    let raw = channel.raw().await?;
    channel.count_declares(names.len());
    let durable = QueueDeclareOptions::durable();
    let all = together(names, |name| raw.queue_declare(name, durable, record_arguments()))?;
    let queues =
        channel.answer("to queue.declare", first, all).await?.map_err(|refused| refused.error)?;
    let empty = names.iter().zip(queues).filter(|(_, queue)| queue.message_count() == 0);
    Ok(empty.map(|(name, _)| name.clone()).collect())
}

/// Publishes a first record to each queue that has none, and waits for the broker's
/// confirms.
pub async fn seed(
    channel: &mut Channel,
    names: &[String],
    record: &[u8],
) -> Result<(), BrokerError> {
    let Some(first) = names.first() else { return Ok(()) };
    // A channel of its own, because pooled channels must not be in confirm mode.
    let mut channel = Channel::fresh(channel.connection()).await?;
    let raw = channel.raw().await?;
    let names = names.iter().map(|name| short(name)).collect::<Result<Vec<_>, _>>()?;
    let publishing = async {
        raw.confirm_select(ConfirmSelectOptions::default()).await?;
        let mut confirms = Vec::with_capacity(names.len());
        for name in names {
            let properties = BasicProperties::default()
                .with_delivery_mode(PERSISTENT)
                .with_content_type("application/json".into());
            let (exchange, options) = (ShortString::default(), BasicPublishOptions::default());
            confirms.push(raw.basic_publish(exchange, name, options, record, properties).await?);
        }
        try_join_all(confirms).await
    };
    let confirms = channel.answer("to slot records", first, publishing).await?;
    let confirms = confirms.map_err(|refused| refused.error)?;
    // A nack means that there is a record: the queue rejects a second one.
    if confirms.contains(&Confirmation::NotRequested) {
        return Err(BrokerError::Protocol { why: "a record without confirm".to_owned() });
    }
    Ok(())
}

/// Deletes queues with any content, sent together and processed in this order.
/// Missing ones are not an error.
pub async fn delete_all(channel: &mut Channel, names: &[String]) -> Result<(), BrokerError> {
    let Some(first) = names.first() else { return Ok(()) };
    let raw = channel.raw().await?;
    let options = QueueDeleteOptions::default();
    let all = together(names, |name| raw.queue_delete(name, options))?;
    channel
        .answer("to queue.delete", first, all)
        .await?
        .map_err(|r| r.error)
        .map(|_| ())
        .map_err(BrokerError::from)
}

/// Returns the arguments of `F[i]`. It holds one message, and rejects a second one
/// instead of dropping the first. Not even a client's probe can displace a record.
pub fn record_arguments() -> FieldTable {
    let mut arguments = classic_arguments();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(1));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    arguments
}
