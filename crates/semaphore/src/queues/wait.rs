//! Queues with client consumers, on a channel: declares the wait queue, and sends
//! messages to consumers. The wait queue is never probed by publishing, because that
//! would wake a client. The caller decides when.

use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicPublishOptions, BasicRejectOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lockkeeper_amqp::channel::{Channel, short};
use lockkeeper_amqp::error::{AmqpError, refusal_code};

use super::arguments::classic_arguments;
use crate::error::BrokerError;

/// How long an undelivered message is kept, in milliseconds. A client that joins later
/// probes first.
const MESSAGE_LIVES: &str = "1000";

/// How long a wake-up is kept if clients wait, in milliseconds. The waiter that it wakes keeps it
/// unacknowledged while it holds the slot, and the broker delivers it again only if it has not
/// expired.
pub const WAKE_UP_OUTLIVES: &str = "1800000";

/// How long a release waits for the number of waiters after the slot was given back.
const FOR_THE_COUNT: Duration = Duration::from_secs(1);

/// The waiters of the lock at the time of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiters {
    /// The broker was not asked.
    Unknown,
    /// The lock has no wait queue.
    NoQueue,
    /// Number of consumers on the wait queue.
    Count(u32),
}

impl From<Option<u32>> for Waiters {
    fn from(consumers: Option<u32>) -> Self {
        consumers.map_or(Self::NoQueue, Self::Count)
    }
}

/// How long the wait queue of a true mutex stays without use, in milliseconds. No client
/// deletes it.
const MUTEX_WAIT_QUEUE_LIVES: i32 = 10_000;

/// Returns the arguments of the wait queue of a true mutex, which its waiters declare. It
/// is durable.
pub fn mutex_wait_arguments() -> FieldTable {
    let mut arguments = classic_arguments();
    arguments.insert("x-expires".into(), AMQPValue::LongInt(MUTEX_WAIT_QUEUE_LIVES));
    arguments
}

/// Inspects the wait queue of that name. `None` if it is missing.
pub async fn inspect(
    channel: &mut Channel,
    name: &str,
) -> Result<Option<lapin::Queue>, BrokerError> {
    channel
        .inspect(name, QueueDeclareOptions::durable(), classic_arguments())
        .await
        .map_err(BrokerError::from)
}

/// Declares the wait queue `name`, unless it exists. An existing queue with other
/// arguments results in [`BrokerError::IncompatibleQueue`], and one whose node is down in
/// [`BrokerError::NodeDown`]: a declare of it might stay unanswered.
pub async fn declare(channel: &mut Channel, name: &str) -> Result<(), BrokerError> {
    match inspect(channel, name).await? {
        Some(_) => Ok(()),
        None => channel
            .declare(name, QueueDeclareOptions::durable(), classic_arguments())
            .await
            .map_err(BrokerError::from),
    }
}

/// Runs the operation `one` on `queue` and then counts the consumers of `wait_queue`,
/// sent together. The count is unknown if the wait queue's node is down.
pub async fn do_and_count<T>(
    channel: &mut Channel,
    one: impl Future<Output = Result<T, lapin::Error>>,
    queue: &str,
    wait_queue: Option<&str>,
) -> Result<Waiters, BrokerError> {
    let raw = channel.raw().await?;
    let count = async {
        let Some(name) = wait_queue else { return Ok(Waiters::Unknown) };
        let passive = QueueDeclareOptions::default().passive();
        let looking = raw.queue_declare(short(name)?, passive, FieldTable::default());
        Ok(match looking.await {
            Ok(queue) => Waiters::Count(queue.consumer_count()),
            Err(error) => match AmqpError::operating(&error, name) {
                AmqpError::NodeDown { .. } => Waiters::Unknown,
                _ if refusal_code(&error) == Some(404) => Waiters::NoQueue,
                _ => Waiters::Unknown,
            },
        })
    };
    channel.count_declares(1);
    let both = async {
        Ok(match select(pin!(one), pin!(count)).await {
            Either::Left((done, count)) => {
                (done, tokio::time::timeout(FOR_THE_COUNT, count).await.ok())
            }
            Either::Right((count, one)) => (one.await, Some(count)),
        })
    };
    let (done, count) = match channel.answer("to giving back", queue, both).await? {
        Ok(answers) => answers,
        Err(refused) => return Err(refused.error.into()),
    };
    if let Err(error) = done {
        return Err(channel.refused(&error, queue)?.error.into());
    }
    match count {
        Some(count) => count,
        None => {
            channel.leave_unanswered(wait_queue.map(str::to_owned).as_slice());
            Ok(Waiters::Unknown)
        }
    }
}

/// Sends `count` wake-ups to the wait queue `name`. They may name the `slot` that
/// became free. If the queue is missing, they are dropped silently. Waiters also poll
/// from time to time. Unless `are_counted`, there may be no waiters, and they expire soon.
pub async fn wake(
    channel: &mut Channel,
    name: &str,
    count: u32,
    slot: Option<u32>,
    are_counted: bool,
) -> Result<(), BrokerError> {
    let slot = slot.map(|slot| slot.to_string());
    let lives = if are_counted { WAKE_UP_OUTLIVES } else { MESSAGE_LIVES };
    let properties = properties(lives, slot.as_deref())?;
    publish(channel, name, &[], count, properties).await
}

/// Sends a wake-up that names `slot` to the client that consumes `name` with the highest
/// priority, which recognises it by its message id.
pub async fn send_kept(
    channel: &mut Channel,
    name: &str,
    slot: &str,
    id: &str,
) -> Result<(), BrokerError> {
    let properties = properties(WAKE_UP_OUTLIVES, Some(slot))?.with_message_id(short(id)?);
    publish(channel, name, &[], 1, properties).await
}

/// Sends `count` messages to the consumers of the queue `name`. They expire after a
/// second without a consumer. `about` is their correlation id.
pub async fn send(
    channel: &mut Channel,
    name: &str,
    body: &[u8],
    count: u32,
    about: Option<&str>,
) -> Result<(), BrokerError> {
    publish(channel, name, body, count, properties(MESSAGE_LIVES, about)?).await
}

fn properties(lives: &str, about: Option<&str>) -> Result<BasicProperties, BrokerError> {
    let properties = BasicProperties::default().with_expiration(lives.into());
    Ok(match about {
        Some(about) => properties.with_correlation_id(short(about)?),
        None => properties,
    })
}

async fn publish(
    channel: &mut Channel,
    name: &str,
    body: &[u8],
    count: u32,
    properties: BasicProperties,
) -> Result<(), BrokerError> {
    let raw = channel.raw().await?;
    let name = short(name)?;
    let publishing = async {
        for _ in 0..count {
            let properties = properties.clone();
            let options = BasicPublishOptions::default();
            let exchange = ShortString::default();
            raw.basic_publish(exchange, name.clone(), options, body, properties).await?;
        }
        Ok(())
    };
    channel
        .answer("to a message", name.as_str(), publishing)
        .await?
        .map_err(|r| r.error)
        .map_err(BrokerError::from)
}

/// Acknowledges a wake-up: it wakes no waiter.
pub async fn acknowledge(wake_up: &Delivery) -> Result<(), lapin::Error> {
    wake_up.acker.ack(BasicAckOptions::default()).await.map(drop)
}

/// Requeues a wake-up for the next waiter.
pub async fn pass_back(wake_up: &Delivery) -> Result<(), lapin::Error> {
    wake_up.acker.reject(BasicRejectOptions { requeue: true }).await.map(drop)
}
