//! The token queue on a channel: made, looked at, tokens put into it and taken out of
//! it. Never probed by publishing: whatever is in it is a token. When to do which is
//! `admin`'s.

use lapin::options::{
    BasicAckOptions, BasicGetOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation};

use crate::plan::naming::QueueType;
use crate::semaphore::error::BrokerError;
use crate::semaphore::lane::{Lane, Refused, short};

/// Kept on disk, as the queue is.
const PERSISTENT: u8 = 2;

/// Tokens published together.
const TOGETHER: usize = 500;

/// Tokens removed together. A channel sends a quorum queue at most 32 acknowledgements
/// that are not replicated yet, one for each `basic.get`, keeps the others for later, and
/// forgets them when it is closed (`rabbit_fifo_client` of 3.10 and 4.0; seen: of 40
/// tokens that were removed at once, 7 came back). What is got next waits for these.
const REMOVED_TOGETHER: u32 = 16;

/// How long a token of a quorum queue may stay unacknowledged, in milliseconds: a year.
const HELD_FOR: i64 = 365 * 24 * 3600 * 1000;

/// What a token queue has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ready {
    /// Free tokens.
    pub free: u32,
    /// Who consumes, with or without a token.
    pub consumers: u32,
}

/// The first two numbers of a version.
pub(super) fn release(version: &str) -> (u32, u32) {
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// How a token queue is declared on a broker of that release.
pub(super) fn arguments(queue_type: QueueType, release: (u32, u32)) -> FieldTable {
    let mut arguments = FieldTable::default();
    if queue_type == QueueType::Quorum {
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        // Without it RabbitMQ 4 drops a token that changed hands 20 times. RabbitMQ 3
        // has no such limit; told -1, 3.10 drops a token when it is first given back.
        if release >= (4, 0) {
            arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(-1));
        }
        if release >= (3, 12) {
            arguments.insert("x-consumer-timeout".into(), AMQPValue::LongLongInt(HELD_FOR));
        }
    }
    // A classic one has none: so the clients of the RabbitMQ blog declare it.
    arguments
}

impl Lane {
    /// What the queue `name` has; `None` if it is missing.
    pub(super) async fn ready(&mut self, name: &str) -> Result<Option<Ready>, BrokerError> {
        match self.look_at(&[name.to_owned()]).await? {
            Ok(queues) => Ok(queues.first().map(|queue| Ready {
                free: queue.message_count(),
                consumers: queue.consumer_count(),
            })),
            Err(Refused { code: 404, .. }) => Ok(None),
            Err(refused) => Err(refused.error),
        }
    }

    /// Publishes `count` tokens, with the ids from `first_id` on, and waits until the
    /// broker has them.
    pub(super) async fn publish_tokens(
        &mut self,
        name: &str,
        first_id: u64,
        count: u32,
    ) -> Result<(), BrokerError> {
        // A channel of its own: who takes it next must not get confirms. And one that knew
        // a queue of that name and of another type dies of publishing to this one (3.10),
        // with its connection.
        let mut lane = Self::fresh(self.conn()).await?;
        let channel = lane.channel().await?;
        let queue = short(name)?;
        let ids: Vec<u64> = (first_id..).take(count as usize).collect();
        let select = channel.confirm_select(ConfirmSelectOptions::default());
        lane.answer("to confirm.select", name, select).await?.map_err(|r| r.error)?;
        for ids in ids.chunks(TOGETHER) {
            let publishing = async {
                let mut confirms = Vec::with_capacity(ids.len());
                for id in ids {
                    confirms.push(publish(&channel, queue.clone(), *id).await?);
                }
                futures::future::try_join_all(confirms).await
            };
            let confirms = lane.answer("to tokens", name, publishing).await?;
            for confirm in confirms.map_err(|refused| refused.error)? {
                if !matches!(confirm, Confirmation::Ack(None)) {
                    let why = "it refused a token, or had no queue for it".to_owned();
                    return Err(BrokerError::Protocol { why });
                }
            }
        }
        Ok(())
    }

    /// Takes up to `most` free tokens and removes them for good; returns how many. Cut
    /// short, those are removed that were taken in earlier batches.
    pub(super) async fn remove_free(&mut self, name: &str, most: u32) -> Result<u32, BrokerError> {
        // A channel of its own, which is closed in the end: then whatever was taken and
        // not acknowledged is free again.
        let mut lane = Self::fresh(self.conn()).await?;
        let mut removed = 0;
        while removed < most {
            let batch = (most - removed).min(REMOVED_TOGETHER);
            let taken = lane.remove_batch(name, batch).await?;
            removed += taken;
            if taken < batch {
                break;
            }
        }
        Ok(removed)
    }

    /// Takes and removes up to `most`, all of them or none.
    async fn remove_batch(&mut self, name: &str, most: u32) -> Result<u32, BrokerError> {
        let channel = self.channel().await?;
        let (queue, mut taken, mut last) = (short(name)?, 0, None);
        while taken < most {
            let get = channel.basic_get(queue.clone(), BasicGetOptions::default());
            let got = self.answer("to basic.get", name, get).await?.map_err(|r| r.error)?;
            let Some(message) = got else { break };
            last = Some(message.delivery_tag);
            taken += 1;
        }
        if let Some(last) = last {
            let ack = channel.basic_ack(last, BasicAckOptions { multiple: true });
            let proof = channel.basic_qos(0, BasicQosOptions::default());
            let both = async { futures::try_join!(ack, proof) };
            self.answer("to basic.ack", name, both).await?.map_err(|r| r.error)?;
        }
        Ok(taken)
    }

    /// Deletes the token queue if no token is free; who waits is told. `false` if one
    /// is.
    pub(super) async fn delete_tokens(
        &mut self,
        name: &str,
        queue_type: QueueType,
    ) -> Result<bool, BrokerError> {
        if self.ready(name).await?.is_some_and(|ready| ready.free > 0) {
            return Ok(false);
        }
        let channel = self.channel().await?;
        // A quorum queue can't be asked for that, and ends the connection.
        let if_empty = queue_type == QueueType::Classic;
        let options = QueueDeleteOptions { if_unused: false, if_empty, nowait: false };
        let deleting = channel.queue_delete(short(name)?, options);
        match self.answer("to queue.delete", name, deleting).await? {
            Ok(_) => Ok(true),
            Err(Refused { code: 406, .. }) => Ok(false),
            Err(refused) => Err(refused.error),
        }
    }
}

async fn publish(
    channel: &Channel,
    queue: ShortString,
    id: u64,
) -> Result<lapin::PublisherConfirm, lapin::Error> {
    let properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_content_type("text/plain".into());
    // Mandatory: a queue that went meanwhile must not swallow it.
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let body = id.to_string();
    channel.basic_publish(ShortString::default(), queue, options, body.as_bytes(), properties).await
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
