//! Reading and replacing a slot's record, by its holder. What a record says and
//! which one comes next is [`crate::plan::record`]'s; making and seeding the
//! queues is the administrator's.

use std::sync::Arc;

use lapin::options::{BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel};
use tokio::sync::Mutex;

use crate::plan::record::SlotRecord;
use crate::semaphore::connect::Conn;
use crate::semaphore::error::BrokerError;
use crate::semaphore::lane::{Lane, short};
use crate::semaphore::link::Link;
use crate::semaphore::protocol::Checked;

/// How often a record is tried to be replaced: somebody else's publish into the
/// gap between our reading and ours (an administrator's seed) costs one try.
const TRIES: u32 = 4;

/// Publishes, over the connection that does nothing but publish: the one that
/// holds never does (hazard A10).
pub(super) struct Publisher {
    link: Arc<Link>,
    confirming: Mutex<Option<(Arc<Conn>, Channel)>>,
    /// Wait queues that were missing: waiters are woken unasked, should it be there by
    /// now.
    pub missing: Checked,
}

impl Publisher {
    /// Publishes over `link`.
    pub fn new(link: Arc<Link>) -> Self {
        Self { link, confirming: Mutex::default(), missing: Checked::default() }
    }

    /// Publishes a record; `false` if the queue already has one.
    async fn publish(&self, queue: &str, body: &[u8]) -> Result<bool, BrokerError> {
        let (conn, channel) = self.channel().await?;
        let publish = async {
            let options = BasicPublishOptions::default();
            let persistent = BasicProperties::default().with_delivery_mode(2);
            let name = short(queue)?;
            let default = ShortString::default();
            let sent = channel.basic_publish(default, name, options, body, persistent);
            let confirm = async { sent.await?.await };
            confirm.await.map_err(|error| BrokerError::operating(&error, queue))
        };
        let limit = conn.operation_timeout;
        match tokio::time::timeout(limit, publish).await {
            Ok(Ok(confirmation)) => Ok(confirmation.is_ack()),
            Ok(Err(error)) => Err(error),
            Err(_) if conn.is_blocked() => Err(BrokerError::Blocked),
            Err(_) => Err(conn.fail(BrokerError::Timeout { what: "to a record", after: limit })),
        }
    }

    /// Wakes one waiter of a lock, if there is one: whoever waits has a consumer
    /// on the wait queue, and a wake-up that nobody takes is gone after a second. It
    /// may name the slot that became free. Best effort.
    pub async fn wake(&self, wait_queue: &str, slot: Option<u32>) {
        if let Err(error) = self.try_wake(wait_queue, slot).await {
            tracing::debug!(%error, wait_queue, "No waiter could be woken");
        }
    }

    async fn try_wake(&self, wait_queue: &str, slot: Option<u32>) -> Result<(), BrokerError> {
        self.link.publisher().await?.wake(wait_queue, 1, slot).await
    }

    async fn channel(&self) -> Result<(Arc<Conn>, Channel), BrokerError> {
        let mut kept = self.confirming.lock().await;
        if let Some((conn, channel)) = &*kept
            && conn.is_usable()
            && channel.status().connected()
        {
            return Ok((Arc::clone(conn), channel.clone()));
        }
        let conn = self.link.get().await?;
        let limit = conn.operation_timeout;
        let opening = async {
            let channel = conn.lapin().create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok(channel)
        };
        let channel = match tokio::time::timeout(limit, opening).await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => return Err(BrokerError::operating(&error, "")),
            Err(_) if conn.is_blocked() => return Err(BrokerError::Blocked),
            Err(_) => {
                return Err(
                    conn.fail(BrokerError::Timeout { what: "to a new channel", after: limit })
                );
            }
        };
        *kept = Some((Arc::clone(&conn), channel.clone()));
        Ok((conn, channel))
    }
}

/// Replaces the record in `queue`: `next` says by what, given the one found. Only
/// for the slot's holder. `None` if there is no such queue (any more).
///
/// A crash anywhere leaves the old record, the new one, or both; what counts then
/// is [`SlotRecord::newest`].
pub(super) async fn replace<T>(
    lane: &mut Lane,
    publisher: &Publisher,
    queue: &str,
    next: impl Fn(Option<&SlotRecord>) -> (SlotRecord, T),
) -> Result<Option<(SlotRecord, T)>, BrokerError> {
    let mut found = Vec::new();
    for _ in 0..TRIES {
        if !lane.read_all(queue, &mut found).await? {
            return Ok(None);
        }
        let newest = SlotRecord::newest(found.iter().map(|message| message.data.as_slice()));
        let (record, more) = next(newest.as_ref());
        if publisher.publish(queue, &record.to_json()).await? {
            for message in &found {
                let acked = message.acker.ack(BasicAckOptions::default()).await;
                acked.map_err(|error| BrokerError::operating(&error, queue))?;
            }
            return Ok(Some((record, more)));
        }
    }
    Err(BrokerError::Protocol { why: format!("the slot record {queue:?} can't be replaced") })
}

impl Lane {
    /// Gets all messages of `queue`, unacknowledged; `false` if it doesn't exist.
    async fn read_all(
        &mut self,
        queue: &str,
        into: &mut Vec<lapin::message::Delivery>,
    ) -> Result<bool, BrokerError> {
        loop {
            let channel = self.channel().await?;
            let get = channel.basic_get(short(queue)?, BasicGetOptions::default());
            match self.answer("to basic.get", queue, get).await? {
                Ok(Some(message)) => {
                    let more = message.message_count;
                    into.push(message.delivery);
                    if more == 0 {
                        return Ok(true);
                    }
                }
                Ok(None) => return Ok(true),
                Err(refused) if refused.code == 404 => return Ok(false),
                Err(refused) => return Err(refused.error),
            }
        }
    }
}
