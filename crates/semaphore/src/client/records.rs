//! Reads and replaces a slot's record, as its holder. See [`lockkeeper_plan::record`] for the
//! content of records. Administrators create and seed the queues.

use std::sync::{Arc, Mutex, PoisonError};

use lapin::options::{BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Confirmation};
use lockkeeper_amqp::channel::{Channel, Refused, short};
use lockkeeper_amqp::connection::Connection;
use lockkeeper_amqp::error::AmqpError;
use lockkeeper_amqp::lazy::LazyConnection;
use lockkeeper_plan::record::SlotRecord;

use super::waiters_seen::WaitersSeen;
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
    connection: Arc<LazyConnection>,
    /// Idle channels with publisher confirms. Each has at most one publish in flight, since
    /// lapin assigns a returned message to another publish of its channel (hazard A2).
    idle: Mutex<Vec<(Arc<Connection>, lapin::Channel)>>,
    /// The known waiters. If a lock's wait queue was missing, wake-ups are sent without
    /// asking, in case the queue exists now.
    pub waiters: WaitersSeen,
}

impl Publisher {
    /// Creates a publisher on `connection`.
    pub fn new(connection: Arc<LazyConnection>) -> Self {
        Self { connection, idle: Mutex::default(), waiters: WaitersSeen::default() }
    }

    /// Returns the connection for probes and messages.
    pub fn connection(&self) -> &Arc<LazyConnection> {
        &self.connection
    }

    /// Publishes a record. Returns whether it was stored. It is refused if the queue already
    /// has one, and returned if the queue is missing. If its node is down, it is refused
    /// (Khepri) or returned (Mnesia). It is mandatory, because it would otherwise be
    /// confirmed then, and lost, and its fencing token given twice.
    async fn publish(&self, queue: &str, body: &[u8]) -> Result<bool, BrokerError> {
        let (connection, raw) = self.raw().await?;
        let publish = async {
            let options = BasicPublishOptions { mandatory: true, immediate: false };
            let persistent = BasicProperties::default().with_delivery_mode(2);
            let name = short(queue)?;
            let default = ShortString::default();
            let sent = raw.basic_publish(default, name, options, body, persistent);
            let confirm = async { sent.await?.await };
            confirm.await.map_err(|error| AmqpError::operating(&error, queue))
        };
        let limit = connection.operation_timeout;
        let stored = match tokio::time::timeout(limit, publish).await {
            Ok(Ok(confirmation)) => matches!(confirmation, Confirmation::Ack(None)),
            Ok(Err(error)) => return Err(connection.found(error).into()),
            Err(_) if connection.is_blocked() => return Err(BrokerError::Blocked),
            Err(_) => {
                let timeout = AmqpError::Timeout { what: "to a record", after: limit };
                return Err(connection.fail(timeout).into());
            }
        };
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push((connection, raw));
        }
        Ok(stored)
    }

    /// Wakes one waiter of a lock, if there is one. A waiter has a consumer on the wait
    /// queue, and an undelivered wake-up expires after a second, unless there `are_waiters`. The
    /// wake-up may name the slot that became free. Best effort.
    pub async fn wake(&self, wait_queue: &str, slot: Option<u32>, are_waiters: bool) {
        if let Err(error) = self.try_wake(wait_queue, slot, are_waiters).await {
            tracing::debug!(%error, wait_queue, "no waiter could be woken");
        }
    }

    async fn try_wake(
        &self,
        wait_queue: &str,
        slot: Option<u32>,
        are_waiters: bool,
    ) -> Result<(), BrokerError> {
        wait::wake(&mut self.connection.publisher().await?, wait_queue, 1, slot, are_waiters).await
    }

    /// Takes an idle channel, or opens one.
    async fn raw(&self) -> Result<(Arc<Connection>, lapin::Channel), BrokerError> {
        let is_open = |(connection, raw): &(Arc<Connection>, lapin::Channel)| {
            connection.is_usable() && raw.status().connected()
        };
        {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.retain(is_open);
            if let Some(open) = idle.pop() {
                return Ok(open);
            }
        }
        let connection = self.connection.get().await?;
        let limit = connection.operation_timeout;
        let opening = async {
            let raw = connection.open_channel().await?;
            raw.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok(raw)
        };
        match tokio::time::timeout(limit, opening).await {
            Ok(Ok(raw)) => Ok((connection, raw)),
            Ok(Err(error)) => Err(connection.unopened(&error).into()),
            Err(_) if connection.is_blocked() => Err(BrokerError::Blocked),
            Err(_) => Err(connection
                .fail(AmqpError::Timeout { what: "to a new channel", after: limit })
                .into()),
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
    channel: &mut Channel,
    publisher: &Publisher,
    queue: &str,
    next: impl Fn(Option<&SlotRecord>) -> (SlotRecord, T),
) -> Result<Option<(SlotRecord, T)>, BrokerError> {
    // Reusing this channel would hide the unacknowledged messages from all other clients.
    channel.raw().await?;
    channel.pin();
    let replaced = replace_on(channel, publisher, queue, next).await?;
    channel.unpin();
    Ok(replaced)
}

async fn replace_on<T>(
    channel: &mut Channel,
    publisher: &Publisher,
    queue: &str,
    next: impl Fn(Option<&SlotRecord>) -> (SlotRecord, T),
) -> Result<Option<(SlotRecord, T)>, BrokerError> {
    let mut found = Vec::new();
    for _ in 0..TRIES {
        if !read_all(channel, queue, &mut found).await? {
            return Ok(None);
        }
        let merged = SlotRecord::merge(found.iter().map(|message| message.data.as_slice()));
        let (record, more) = next(merged.as_ref());
        if publisher.publish(queue, &record.to_json()).await? {
            for message in &found {
                let acked = message.acker.ack(BasicAckOptions::default()).await;
                acked.map_err(|error| AmqpError::operating(&error, queue))?;
            }
            return Ok(Some((record, more)));
        }
        // Fails if its node is down. On another channel, because with Khepri the answer
        // comes late.
        let mut other = Channel::take(channel.connection()).await?;
        if other.look(queue).await?.is_none() {
            return Ok(None);
        }
    }
    Err(BrokerError::Protocol { why: format!("the slot record {queue:?} can't be replaced") })
}

/// Gets all messages of `queue`, unacknowledged. Returns `false` if it doesn't exist. A
/// queue whose node is down results in [`BrokerError::NodeDown`].
async fn read_all(
    channel: &mut Channel,
    queue: &str,
    into: &mut Vec<lapin::message::Delivery>,
) -> Result<bool, BrokerError> {
    loop {
        let raw = channel.raw().await?;
        let get = raw.basic_get(short(queue)?, BasicGetOptions::default());
        match channel.answer("to basic.get", queue, get).await? {
            Ok(Some(message)) => {
                let more = message.message_count;
                into.push(message.delivery);
                if more == 0 {
                    return Ok(true);
                }
            }
            Ok(None) => return Ok(true),
            Err(Refused { code: 404, .. }) => return Ok(false),
            Err(refused) => return Err(refused.error.into()),
        }
    }
}
