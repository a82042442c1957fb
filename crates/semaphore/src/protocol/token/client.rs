//! Takes tokens: gets a free one or waits until the broker delivers one. See `held` for
//! held tokens, and `client` for the permits.

use std::sync::Arc;

use futures::StreamExt;
use lapin::message::Delivery;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicGetOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Consumer};
use lockkeeper_net::clock::Moment;
use lockkeeper_plan::naming::{LockName, Protocol, QueueType};

use super::held::{Announced, HeldToken};
use super::{times_delivered, token_id};
use crate::amqp::connect::Conn;
use crate::amqp::lane::{Lane, Refused, short};
use crate::error::BrokerError;
use crate::protocol::hold::Hold;
use crate::protocol::interface::Wait;

/// A request for a token.
pub struct Request<'a> {
    /// The connection that will hold the token.
    pub conn: &'a Arc<Conn>,
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
    pub held: Box<dyn Hold>,
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
    channel: Channel,
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
    let mut lane = Lane::take(request.conn).await?;
    let mut waited = get(&mut lane, &queue).await?;
    *request.existed |= !matches!(waited, Waited::Missing);
    if matches!(waited, Waited::Nothing) && request.wait != Wait::No {
        waited = consume(&mut lane, &queue, &request).await?;
    }
    let none = match waited {
        Waited::Got(got) => return Ok(Taken::Yes(hold(request, lane, queue, *got))),
        Waited::Nothing => Taken::Full,
        Waited::Missing => Taken::Missing,
    };
    // A refusal closed the channel. Opens a new one, so that the next acquisition need
    // not wait for it.
    lane.channel().await?;
    Ok(none)
}

fn hold(request: Request<'_>, lane: Lane, queue: String, got: Got) -> HeldFacts {
    let Got { delivery, channel, consumer, sent } = got;
    let token_id = token_id(&delivery.data);
    let fence = match request.lock.protocol() {
        Protocol::Token(QueueType::Quorum) => {
            let times = times_delivered(&delivery.properties, delivery.redelivered);
            token_id.zip(times).map(|(id, times)| id.saturating_add(times))
        }
        _ => None,
    };
    // A foreign token has no id. Its holder is announced under a random number.
    let number = token_id.unwrap_or_else(rand::random);
    let announced = Announced { queue: request.lock.announcement(number), facts: request.facts };
    let tag = delivery.delivery_tag;
    let held = Box::new(HeldToken::new(lane, channel, tag, queue, consumer, announced));
    HeldFacts { held, token_id, fence, sent }
}

/// Gets a free token, in one round trip.
async fn get(lane: &mut Lane, queue: &str) -> Result<Waited, BrokerError> {
    let channel = lane.channel().await?;
    let sent = Moment::now();
    let getting = channel.basic_get(short(queue)?, BasicGetOptions::default());
    // A token that arrives after this time returns with the connection, which the caller
    // closes after any error.
    match lane.answer_of_queues("to basic.get", &[queue.to_owned()], getting).await? {
        Ok(Some(message)) => {
            let delivery = message.delivery;
            Ok(Waited::Got(Box::new(Got { delivery, channel, consumer: None, sent })))
        }
        Ok(None) => Ok(Waited::Nothing),
        Err(refused) => is_missing(refused),
    }
}

fn is_missing(refused: Refused) -> Result<Waited, BrokerError> {
    match refused {
        Refused { code: 404, .. } => Ok(Waited::Missing),
        refused => Err(refused.error),
    }
}

/// Consumes until the broker delivers a token. The prefetch is one, so that other tokens
/// go to other clients.
async fn consume(
    lane: &mut Lane,
    queue: &str,
    request: &Request<'_>,
) -> Result<Waited, BrokerError> {
    let (until, id) = (request.wait.until(), request.id);
    let channel = lane.channel().await?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-priority".into(), AMQPValue::LongInt(i32::from(request.priority)));
    if let Some(identity) = &request.identity {
        arguments.insert("x-lockkeeper-identity".into(), identity.clone());
    }
    let (name, tag) = (short(queue)?, short(&format!("lockkeeper-{id}"))?);
    let qos = channel.basic_qos(1, BasicQosOptions::default());
    let consuming =
        channel.basic_consume(name, tag.clone(), BasicConsumeOptions::default(), arguments);
    let both = async { futures::try_join!(qos, consuming) };
    let mut consumer = match lane.answer("to basic.consume", queue, both).await? {
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
            lane.pin();
            let exists = lane.look(queue).await?.is_some();
            lane.unpin();
            if !exists {
                return Ok(Waited::Missing);
            }
            let consumer = Some((consumer, tag));
            Ok(Waited::Got(Box::new(Got { delivery, channel, consumer, sent })))
        }
        Some(Some(Err(error))) => is_missing(lane.refused(&error, queue)?),
        // The queue was deleted: the broker cancels its consumers.
        Some(None) if channel.status().connected() && lane.conn().is_usable() => {
            Ok(Waited::Missing)
        }
        Some(None) => {
            let gone = BrokerError::ConnectionLost { why: "while waiting for a token".to_owned() };
            Err(lane.conn().failure().unwrap_or(gone))
        }
        None => leave(lane, queue, channel, consumer, tag).await,
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
    lane: &mut Lane,
    queue: &str,
    channel: Channel,
    mut consumer: Consumer,
    tag: ShortString,
) -> Result<Waited, BrokerError> {
    let sent = Moment::now();
    let cancel = channel.basic_cancel(tag, BasicCancelOptions::default());
    if let Err(refused) = lane.answer("to basic.cancel", queue, cancel).await? {
        return is_missing(refused);
    }
    // No delivery follows cancel-ok.
    match consumer.next().await {
        Some(Ok(delivery)) => {
            Ok(Waited::Got(Box::new(Got { delivery, channel, consumer: None, sent })))
        }
        Some(Err(error)) => is_missing(lane.refused(&error, queue)?),
        None => Ok(Waited::Nothing),
    }
}
