//! Takes tokens: gets a free one or waits until the broker delivers one. See `held` for
//! held tokens, and `client` for the permits.

use std::sync::Arc;

use futures::StreamExt;
use lapin::Consumer;
use lapin::message::Delivery;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicGetOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lockkeeper_amqp::channel::{Channel, Refused, short};
use lockkeeper_amqp::connection::Connection;
use lockkeeper_amqp::error::AmqpError;
use lockkeeper_net::clock::Moment;
use lockkeeper_plan::naming::{LockName, Protocol, QueueType};

use super::held::{Announced, HeldToken, TokenQueue};
use super::{times_delivered, token_id};
use crate::error::BrokerError;
use crate::protocol::hold::HeldClaim;
use crate::protocol::interface::Wait;

/// A request for a token.
pub struct Request<'a> {
    /// The connection that will hold the token.
    pub connection: &'a Arc<Connection>,
    pub lock: &'a LockName,
    /// The id of this acquisition.
    pub id: &'a str,
    /// The client's identity, shown while it waits.
    pub identity: Option<AMQPValue>,
    /// Priority while waiting.
    pub priority: u8,
    /// The holder's description of itself.
    pub facts: FieldTable,
    pub wait: Wait,
    /// Set once the token queue was found to exist.
    pub existed: &'a mut bool,
}

/// The result of a request.
pub enum Taken {
    /// The token is held.
    Yes(HeldFacts),
    /// No token became free in time. Nothing is left on the connection.
    Full,
    /// The token queue does not exist. Nothing is left on the connection.
    Missing,
}

/// A token that was taken.
pub struct HeldFacts {
    pub held: Box<dyn HeldClaim>,
    /// Its id, if Lockkeeper published it.
    pub token_id: Option<u64>,
    /// The fencing token, if the queue counts deliveries.
    pub fence: Option<u64>,
    /// When a request was sent whose answer arrived after the token.
    pub sent: Moment,
}

/// A delivered token.
struct Got {
    delivery: Delivery,
    raw: lapin::Channel,
    consumer: Option<(Consumer, ShortString)>,
    sent: Moment,
}

/// The result of waiting.
enum Waited {
    Got(Box<Got>),
    /// The time limit passed without a token.
    Nothing,
    /// The queue does not exist, or no longer exists.
    Missing,
}

/// Takes a token, waiting for it if the request says so.
///
/// Cancel safe: a token in flight is requeued when the connection closes.
pub async fn take(request: Request<'_>) -> Result<Taken, BrokerError> {
    let queue = request.lock.token_queue();
    let mut channel = Channel::take(request.connection).await?;
    let mut waited = get(&mut channel, &queue).await?;
    *request.existed |= !matches!(waited, Waited::Missing);
    if matches!(waited, Waited::Nothing) && request.wait != Wait::No {
        waited = consume(&mut channel, &queue, &request).await?;
    }
    let none = match waited {
        Waited::Got(got) => return Ok(Taken::Yes(hold(request, channel, queue, *got))),
        Waited::Nothing => Taken::Full,
        Waited::Missing => Taken::Missing,
    };
    // A refusal closed the channel. Opens a new one, so that the next acquisition need
    // not wait for it.
    channel.raw().await?;
    Ok(none)
}

fn hold(request: Request<'_>, channel: Channel, queue: String, got: Got) -> HeldFacts {
    let Got { delivery, raw, consumer, sent } = got;
    let token_id = token_id(&delivery.data);
    let is_quorum = request.lock.protocol() == Protocol::Token(QueueType::Quorum);
    let fence = if is_quorum {
        let times = times_delivered(&delivery.properties, delivery.redelivered);
        token_id.zip(times).map(|(id, times)| id.saturating_add(times))
    } else {
        None
    };
    let queue = TokenQueue { name: queue, is_quorum };
    // A foreign token has no id. Its holder is announced under a random number.
    let number = token_id.unwrap_or_else(rand::random);
    let announced = Announced { queue: request.lock.announcement(number), facts: request.facts };
    let tag = delivery.delivery_tag;
    let held = Box::new(HeldToken::new(channel, raw, tag, queue, consumer, announced));
    HeldFacts { held, token_id, fence, sent }
}

/// Gets a free token, in one round trip.
async fn get(channel: &mut Channel, queue: &str) -> Result<Waited, BrokerError> {
    let raw = channel.raw().await?;
    let sent = Moment::now();
    let getting = raw.basic_get(short(queue)?, BasicGetOptions::default());
    // A token that arrives after this time returns with the connection, which the caller
    // closes after any error.
    match channel.answer_of_queues("to basic.get", &[queue.to_owned()], getting).await? {
        Ok(Some(message)) => {
            let delivery = message.delivery;
            Ok(Waited::Got(Box::new(Got { delivery, raw, consumer: None, sent })))
        }
        Ok(None) => Ok(Waited::Nothing),
        Err(refused) => is_missing(refused),
    }
}

fn is_missing(refused: Refused) -> Result<Waited, BrokerError> {
    match refused {
        Refused { code: 404, .. } => Ok(Waited::Missing),
        refused => Err(refused.error.into()),
    }
}

/// Consumes until the broker delivers a token. The prefetch is one, so that other tokens
/// go to other clients.
async fn consume(
    channel: &mut Channel,
    queue: &str,
    request: &Request<'_>,
) -> Result<Waited, BrokerError> {
    let (until, id) = (request.wait.until(), request.id);
    let raw = channel.raw().await?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-priority".into(), AMQPValue::LongInt(i32::from(request.priority)));
    if let Some(identity) = &request.identity {
        arguments.insert("x-lockkeeper-identity".into(), identity.clone());
    }
    let (name, tag) = (short(queue)?, short(&format!("lockkeeper-{id}"))?);
    let qos = raw.basic_qos(1, BasicQosOptions::default());
    let consuming = raw.basic_consume(name, tag.clone(), BasicConsumeOptions::default(), arguments);
    let both = async { futures::try_join!(qos, consuming) };
    let mut consumer = match channel.answer("to basic.consume", queue, both).await? {
        Ok(((), consumer)) => consumer,
        Err(refused) => return is_missing(refused),
    };
    let come = async {
        tokio::select! {
            // A token that arrived in time wins over the timeout.
            biased;
            came = consumer.next() => Some(came),
            () = time_is_up(until) => None,
        }
    };
    match come.await {
        Some(Some(Ok(delivery))) => {
            // Verify before using the token: the last frame from this client may be old,
            // and the broker may already consider the connection dead.
            let sent = Moment::now();
            channel.pin();
            let exists = channel.look(queue).await?.is_some();
            channel.unpin();
            if !exists {
                return Ok(Waited::Missing);
            }
            let consumer = Some((consumer, tag));
            Ok(Waited::Got(Box::new(Got { delivery, raw, consumer, sent })))
        }
        Some(Some(Err(error))) => is_missing(channel.refused(&error, queue)?),
        // The queue was deleted: the broker cancels its consumers.
        Some(None) if raw.status().connected() && channel.connection().is_usable() => {
            Ok(Waited::Missing)
        }
        Some(None) => {
            let gone = AmqpError::ConnectionLost { why: "while waiting for a token".to_owned() };
            Err(channel.connection().failure().unwrap_or(gone).into())
        }
        None => leave(channel, queue, raw, consumer, tag).await,
    }
}

async fn time_is_up(until: Option<Moment>) {
    match until {
        Some(until) => until.reached().await,
        None => std::future::pending().await,
    }
}

/// Stops waiting. A token that arrived in the meantime is kept instead of requeued.
async fn leave(
    channel: &mut Channel,
    queue: &str,
    raw: lapin::Channel,
    mut consumer: Consumer,
    tag: ShortString,
) -> Result<Waited, BrokerError> {
    let sent = Moment::now();
    let cancel = raw.basic_cancel(tag, BasicCancelOptions::default());
    if let Err(refused) = channel.answer("to basic.cancel", queue, cancel).await? {
        return is_missing(refused);
    }
    // No delivery follows cancel-ok.
    match consumer.next().await {
        Some(Ok(delivery)) => {
            Ok(Waited::Got(Box::new(Got { delivery, raw, consumer: None, sent })))
        }
        Some(Err(error)) => is_missing(channel.refused(&error, queue)?),
        None => Ok(Waited::Nothing),
    }
}
