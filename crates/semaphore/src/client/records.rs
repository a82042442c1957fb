//! Reads and replaces a slot's record, as its holder. See [`lockkeeper_plan::record`] for the
//! content of records. Administrators create and seed the queues.

use std::sync::{Arc, Mutex, PoisonError};

use lapin::options::{BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation};
use lockkeeper_plan::record::SlotRecord;

use super::waiters_seen::WaitersSeen;
use crate::amqp::connect::Conn;
use crate::amqp::lane::{Lane, Refused, short};
use crate::amqp::link::Link;
use crate::error::BrokerError;
use crate::queues::wait;

/// Number of attempts to replace a record. A foreign publish between the read and the
/// publish (an administrator's seed) costs one attempt.
const TRIES: u32 = 4;

/// Maximum number of idle channels. Further ones are closed.
const MAX_IDLE: usize = 8;

/// Publishes on the connection for probes and messages. The connection that holds a slot
/// never publishes (hazard A10).
pub struct Publisher {
    link: Arc<Link>,
    /// Idle channels with publisher confirms. Each has at most one publish in flight, since
    /// lapin assigns a returned message to another publish of its channel (hazard A2).
    idle: Mutex<Vec<(Arc<Conn>, Channel)>>,
    /// The known waiters. If a lock's wait queue was missing, wake-ups are sent without
    /// asking, in case the queue exists now.
    pub waiters: WaitersSeen,
}

impl Publisher {
    /// Creates a publisher on `link`.
    pub fn new(link: Arc<Link>) -> Self {
        Self { link, idle: Mutex::default(), waiters: WaitersSeen::default() }
    }

    /// Publishes a record. Returns whether it was stored. It is refused if the queue already
    /// has one, and returned if the queue is missing. If its node is down, it is refused
    /// (Khepri) or returned (Mnesia). It is mandatory, because it would otherwise be
    /// confirmed then, and lost, and its fencing token given twice.
    async fn publish(&self, queue: &str, body: &[u8]) -> Result<bool, BrokerError> {
        let (conn, channel) = self.channel().await?;
        let publish = async {
            let options = BasicPublishOptions { mandatory: true, immediate: false };
            let persistent = BasicProperties::default().with_delivery_mode(2);
            let name = short(queue)?;
            let default = ShortString::default();
            let sent = channel.basic_publish(default, name, options, body, persistent);
            let confirm = async { sent.await?.await };
            confirm.await.map_err(|error| BrokerError::operating(&error, queue))
        };
        let limit = conn.operation_timeout;
        let stored = match tokio::time::timeout(limit, publish).await {
            Ok(Ok(confirmation)) => matches!(confirmation, Confirmation::Ack(None)),
            Ok(Err(error)) => return Err(conn.found(error)),
            Err(_) if conn.is_blocked() => return Err(BrokerError::Blocked),
            Err(_) => {
                let timeout = BrokerError::Timeout { what: "to a record", after: limit };
                return Err(conn.fail(timeout));
            }
        };
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push((conn, channel));
        }
        Ok(stored)
    }

    /// Wakes one waiter of a lock, if there is one. A waiter has a consumer on the wait
    /// queue, and an undelivered wake-up expires after a second. The wake-up may name the
    /// slot that became free. Best effort.
    pub async fn wake(&self, wait_queue: &str, slot: Option<u32>) {
        if let Err(error) = self.try_wake(wait_queue, slot).await {
            tracing::debug!(%error, wait_queue, "No waiter could be woken");
        }
    }

    async fn try_wake(&self, wait_queue: &str, slot: Option<u32>) -> Result<(), BrokerError> {
        wait::wake(&mut self.link.publisher().await?, wait_queue, 1, slot).await
    }

    /// Takes an idle channel, or opens one.
    async fn channel(&self) -> Result<(Arc<Conn>, Channel), BrokerError> {
        let is_open = |(conn, channel): &(Arc<Conn>, Channel)| {
            conn.is_usable() && channel.status().connected()
        };
        {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.retain(is_open);
            if let Some(open) = idle.pop() {
                return Ok(open);
            }
        }
        let conn = self.link.get().await?;
        let limit = conn.operation_timeout;
        let opening = async {
            let channel = conn.lapin().create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok(channel)
        };
        match tokio::time::timeout(limit, opening).await {
            Ok(Ok(channel)) => Ok((conn, channel)),
            Ok(Err(error)) => Err(conn.unopened(&error)),
            Err(_) if conn.is_blocked() => Err(BrokerError::Blocked),
            Err(_) => {
                Err(conn.fail(BrokerError::Timeout { what: "to a new channel", after: limit }))
            }
        }
    }
}

/// Replaces the record in `queue` by the result of `next`, which gets the current record.
/// Only the slot's holder may call this. Returns `None` if the queue does not exist, or
/// no longer exists.
///
/// A crash at any point leaves the old record, the new one, or both.
/// [`SlotRecord::merge`] decides which one counts.
///
/// # Cancel safety
///
/// Dropping the future closes the channel, which requeues the messages read on it.
pub async fn replace<T>(
    lane: &mut Lane,
    publisher: &Publisher,
    queue: &str,
    next: impl Fn(Option<&SlotRecord>) -> (SlotRecord, T),
) -> Result<Option<(SlotRecord, T)>, BrokerError> {
    // Reusing this channel would hide the unacknowledged messages from all other clients.
    lane.channel().await?;
    lane.pin();
    let replaced = replace_on(lane, publisher, queue, next).await?;
    lane.unpin();
    Ok(replaced)
}

async fn replace_on<T>(
    lane: &mut Lane,
    publisher: &Publisher,
    queue: &str,
    next: impl Fn(Option<&SlotRecord>) -> (SlotRecord, T),
) -> Result<Option<(SlotRecord, T)>, BrokerError> {
    let mut found = Vec::new();
    for _ in 0..TRIES {
        if !read_all(lane, queue, &mut found).await? {
            return Ok(None);
        }
        let merged = SlotRecord::merge(found.iter().map(|message| message.data.as_slice()));
        let (record, more) = next(merged.as_ref());
        if publisher.publish(queue, &record.to_json()).await? {
            for message in &found {
                let acked = message.acker.ack(BasicAckOptions::default()).await;
                acked.map_err(|error| BrokerError::operating(&error, queue))?;
            }
            return Ok(Some((record, more)));
        }
        // Fails if its node is down. On another channel, because with Khepri the answer
        // comes late.
        let mut other = Lane::take(lane.conn()).await?;
        if other.look(queue).await?.is_none() {
            return Ok(None);
        }
    }
    Err(BrokerError::Protocol { why: format!("the slot record {queue:?} can't be replaced") })
}

/// Gets all messages of `queue`, unacknowledged. Returns `false` if it doesn't exist. A
/// queue whose node is down results in [`BrokerError::NodeDown`].
async fn read_all(
    lane: &mut Lane,
    queue: &str,
    into: &mut Vec<lapin::message::Delivery>,
) -> Result<bool, BrokerError> {
    loop {
        let channel = lane.channel().await?;
        let get = channel.basic_get(short(queue)?, BasicGetOptions::default());
        match lane.answer("to basic.get", queue, get).await? {
            Ok(Some(message)) => {
                let more = message.message_count;
                into.push(message.delivery);
                if more == 0 {
                    return Ok(true);
                }
            }
            Ok(None) => return Ok(true),
            Err(Refused { code: 404, .. }) => return Ok(false),
            Err(refused) => return Err(refused.error),
        }
    }
}
