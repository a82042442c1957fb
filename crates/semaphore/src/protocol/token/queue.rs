//! Operations on a token queue: declare, inspect, publish and remove tokens. The queue is
//! never probed by publishing, because every message in it is a token. See `admin` for
//! when to run which operation.

use lapin::options::{
    BasicAckOptions, BasicGetOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Confirmation};
use lockkeeper_amqp::channel::{Channel, Refused, short};
use lockkeeper_plan::naming::QueueType;

use crate::error::BrokerError;

/// Delivery mode of tokens, which are as durable as the queue.
const PERSISTENT: u8 = 2;

/// Number of tokens per publish batch.
const TOGETHER: usize = 500;

/// Number of tokens per removal batch. A channel sends a quorum queue at most 32
/// unreplicated acknowledgements, one for each `basic.get`. It buffers further ones and
/// drops them when it is closed (`rabbit_fifo_client` of 3.10 and 4.0; observed: of 40
/// tokens removed together, 7 came back). The next get waits for these acknowledgements.
const REMOVED_TOGETHER: u32 = 16;

/// How long a token of a quorum queue may stay unacknowledged, in milliseconds: one year.
const HELD_FOR: i64 = 365 * 24 * 3600 * 1000;

/// Consumer tag of a drain, which takes surplus tokens and is no waiter.
pub const DRAIN_TAG: &str = "lockkeeper-drain";

/// The counts of a token queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Free tokens.
    pub free: u32,
    /// Consumers, with or without a token.
    pub consumers: u32,
}

/// Returns the major and minor number of a version.
pub fn release(version: &str) -> (u32, u32) {
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Returns the arguments of a token queue on a broker of that release.
pub fn arguments(queue_type: QueueType, release: (u32, u32)) -> FieldTable {
    let mut arguments = FieldTable::default();
    if queue_type == QueueType::Quorum {
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        // Without it RabbitMQ 4 drops a token after 20 deliveries. RabbitMQ 3 has no such
        // limit: with -1, 3.10 drops a token when it is first requeued.
        if release >= (4, 0) {
            arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(-1));
        }
        if release >= (3, 12) {
            arguments.insert("x-consumer-timeout".into(), AMQPValue::LongLongInt(HELD_FOR));
        }
    }
    // A classic queue has no arguments, as the clients of the RabbitMQ blog declare it.
    arguments
}

/// Returns the counts of the queue `name`. `None` if the queue is missing.
pub async fn ready(channel: &mut Channel, name: &str) -> Result<Option<Ready>, BrokerError> {
    match channel.look_at(&[name.to_owned()]).await? {
        Ok(queues) => Ok(queues
            .first()
            .map(|queue| Ready { free: queue.message_count(), consumers: queue.consumer_count() })),
        Err(Refused { code: 404, .. }) => Ok(None),
        Err(refused) => Err(refused.error.into()),
    }
}

/// Publishes `count` tokens with ascending ids from `first_id`, and waits for the
/// broker's confirms. Returns whether the queue accepted all of them. That does not show
/// whether it kept them.
pub async fn publish_tokens(
    channel: &mut Channel,
    name: &str,
    first_id: u64,
    count: u32,
) -> Result<bool, BrokerError> {
    // A channel of its own, because pooled channels must not be in confirm mode. In
    // addition, a channel that knew a queue of that name with another type crashes
    // when it publishes to this one (3.10), and its connection with it.
    let mut channel = Channel::fresh(channel.connection()).await?;
    let raw = channel.raw().await?;
    let queue = short(name)?;
    let ids: Vec<u64> = (first_id..).take(count as usize).collect();
    let select = raw.confirm_select(ConfirmSelectOptions::default());
    channel.answer("to confirm.select", name, select).await?.map_err(|r| r.error)?;
    for ids in ids.chunks(TOGETHER) {
        let publishing = async {
            let mut confirms = Vec::with_capacity(ids.len());
            for id in ids {
                confirms.push(publish(&raw, queue.clone(), *id).await?);
            }
            futures::future::try_join_all(confirms).await
        };
        let confirms = channel.answer("to tokens", name, publishing).await?;
        for confirm in confirms.map_err(|refused| refused.error)? {
            match confirm {
                Confirmation::Ack(None) => {}
                Confirmation::Nack(None) => return Ok(false),
                _ => {
                    let why = "it had no queue for a token".to_owned();
                    return Err(BrokerError::Protocol { why });
                }
            }
        }
    }
    Ok(true)
}

/// Takes up to `most` free tokens and removes them permanently. Returns the number
/// removed. If interrupted, only the tokens of completed batches are removed.
pub async fn remove_free(channel: &mut Channel, name: &str, most: u32) -> Result<u32, BrokerError> {
    // A channel of its own, closed at the end, which requeues tokens that were taken
    // and not acknowledged.
    let mut channel = Channel::fresh(channel.connection()).await?;
    let mut removed = 0;
    while removed < most {
        let batch = (most - removed).min(REMOVED_TOGETHER);
        let taken = remove_batch(&mut channel, name, batch).await?;
        removed += taken;
        if taken < batch {
            break;
        }
    }
    Ok(removed)
}

/// Takes and removes up to `most` tokens: all that it took, or none.
async fn remove_batch(channel: &mut Channel, name: &str, most: u32) -> Result<u32, BrokerError> {
    let raw = channel.raw().await?;
    let (queue, mut taken, mut last) = (short(name)?, 0, None);
    while taken < most {
        let get = raw.basic_get(queue.clone(), BasicGetOptions::default());
        let got = channel.answer("to basic.get", name, get).await?.map_err(|r| r.error)?;
        let Some(message) = got else { break };
        last = Some(message.delivery_tag);
        taken += 1;
    }
    if let Some(last) = last {
        let ack = raw.basic_ack(last, BasicAckOptions { multiple: true });
        let proof = raw.basic_qos(0, BasicQosOptions::default());
        let both = async { futures::try_join!(ack, proof) };
        channel.answer("to basic.ack", name, both).await?.map_err(|r| r.error)?;
    }
    Ok(taken)
}

/// Deletes the token queue unless it contains a free token. Its consumers are
/// cancelled. Returns `false` if there is a free token.
pub async fn delete_tokens(
    channel: &mut Channel,
    name: &str,
    queue_type: QueueType,
) -> Result<bool, BrokerError> {
    if ready(channel, name).await?.is_some_and(|ready| ready.free > 0) {
        return Ok(false);
    }
    let raw = channel.raw().await?;
    // A quorum queue does not support `if-empty`, and closes the connection.
    let if_empty = queue_type == QueueType::Classic;
    let options = QueueDeleteOptions { if_unused: false, if_empty, nowait: false };
    let deleting = raw.queue_delete(short(name)?, options);
    match channel.answer("to queue.delete", name, deleting).await? {
        Ok(_) => Ok(true),
        Err(Refused { code: 406, .. }) => Ok(false),
        Err(refused) => Err(refused.error.into()),
    }
}

async fn publish(
    raw: &lapin::Channel,
    queue: ShortString,
    id: u64,
) -> Result<lapin::PublisherConfirm, lapin::Error> {
    let properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_content_type("text/plain".into());
    // Mandatory, so that the broker returns a token whose queue was deleted.
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let body = id.to_string();
    raw.basic_publish(ShortString::default(), queue, options, body.as_bytes(), properties).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quorum_queue_is_declared_so_that_no_release_drops_tokens() {
        let has =
            |release, key: &str| arguments(QueueType::Quorum, release).inner().contains_key(key);
        assert_eq!(release("4.0.5"), (4, 0));
        assert_eq!(release("3.13.7-rc.1"), (3, 13));
        for (version, limit, timeout) in
            [("3.10.8", false, false), ("3.12.0", false, true), ("4.0.5", true, true)]
        {
            assert_eq!(has(release(version), "x-delivery-limit"), limit, "{version}");
            assert_eq!(has(release(version), "x-consumer-timeout"), timeout, "{version}");
        }
        assert_eq!(arguments(QueueType::Classic, (4, 0)), FieldTable::default());
    }
}
