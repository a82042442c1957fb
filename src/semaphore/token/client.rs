//! Taking a token: asking for one, waiting for the broker to give one. What is held
//! then is `held`'s.

use futures::StreamExt;
use lapin::message::Delivery;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicGetOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Consumer};

use super::held::{Announced, HeldToken};
use super::{times_delivered, token_id};
use crate::plan::naming::{Protocol, QueueType};
use crate::semaphore::client::{
    AcquireError, AcquireOptions, Begin, HoldConn, Lock, Moment, Permit, Wait, facts, new_id,
};
use crate::semaphore::error::BrokerError;
use crate::semaphore::lane::{Lane, Refused, short};

/// A token that was delivered, and how.
struct Got {
    delivery: Delivery,
    channel: Channel,
    consumer: Option<(Consumer, ShortString)>,
    /// When something was sent that was answered after the token had come.
    sent: Moment,
}

/// How waiting ended.
enum Waited {
    Got(Box<Got>),
    /// Time is up, and nothing came.
    Nothing,
    /// The queue is not there, or not any more.
    Missing,
}

/// Acquires a token, from the first look to the permit.
///
/// Cancel safe: whatever was on its way to us goes back with the connection.
pub(super) async fn acquire(
    lock: &Lock,
    options: &AcquireOptions,
    wait: Wait,
) -> Result<Permit, AcquireError> {
    let id = new_id();
    let queue = lock.name().token_queue();
    let none = || AcquireError::Full { lock: lock.name().to_string(), slots: 0 };
    let missing = || AcquireError::NoSlots { lock: lock.name().to_string() };
    let mut hold = lock.shared().hold().await?;
    let mut lane = Lane::take(hold.conn()).await?;
    hold.begin();
    let got = match get(&mut lane, &queue).await? {
        Waited::Got(got) => got,
        Waited::Nothing if wait != Wait::No => {
            match consume(&mut lane, &queue, &id, options, wait.until()).await? {
                Waited::Got(got) => got,
                Waited::Nothing => return settle(hold, lane, none()).await,
                Waited::Missing => return settle(hold, lane, missing()).await,
            }
        }
        Waited::Nothing => return settle(hold, lane, none()).await,
        Waited::Missing => return settle(hold, lane, missing()).await,
    };
    Ok(permit(lock, options, id, hold, lane, queue, *got))
}

/// Nothing is left on the connection: it is as good as before.
async fn settle(
    mut hold: HoldConn,
    mut lane: Lane,
    error: AcquireError,
) -> Result<Permit, AcquireError> {
    // A refusal closed the channel: who wants one next is not to wait for it.
    lane.channel().await?;
    drop(lane);
    hold.settle();
    Err(error)
}

fn permit(
    lock: &Lock,
    options: &AcquireOptions,
    id: String,
    hold: HoldConn,
    lane: Lane,
    queue: String,
    got: Got,
) -> Permit {
    let Got { delivery, channel, consumer, sent } = got;
    let token_id = token_id(&delivery.data);
    let fence = match lock.name().protocol() {
        Protocol::Token(QueueType::Quorum) => {
            let times = times_delivered(&delivery.properties, delivery.redelivered);
            token_id.zip(times).map(|(id, times)| id.saturating_add(times))
        }
        _ => None,
    };
    // A foreign token has no id, and its holder is announced under any.
    let number = token_id.unwrap_or_else(rand::random);
    let announced =
        Announced { queue: lock.name().announcement(number), facts: facts(&id, options) };
    let tag = delivery.delivery_tag;
    let begin = Begin {
        id,
        fence,
        slot: None,
        token_id,
        hold,
        held: Box::new(HeldToken::new(lane, channel, tag, queue, consumer, announced)),
        sent,
        wait_queue: None,
        record: None,
    };
    Permit::begin(lock.shared(), begin)
}

/// Asks for a free token: one round trip.
async fn get(lane: &mut Lane, queue: &str) -> Result<Waited, BrokerError> {
    let channel = lane.channel().await?;
    let sent = Moment::now();
    let getting = channel.basic_get(short(queue)?, BasicGetOptions::default());
    match lane.answer("to basic.get", queue, getting).await? {
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
        Refused { code: 404, error: error @ BrokerError::NodeDown { .. } } => Err(error),
        Refused { code: 404, .. } => Ok(Waited::Missing),
        refused => Err(refused.error),
    }
}

/// Waits for the broker to give us a token, by consumer. One at a time: others go to
/// others.
async fn consume(
    lane: &mut Lane,
    queue: &str,
    id: &str,
    options: &AcquireOptions,
    until: Option<Moment>,
) -> Result<Waited, BrokerError> {
    let channel = lane.channel().await?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-priority".into(), AMQPValue::LongInt(i32::from(options.priority)));
    if let Some(identity) = &options.identity {
        let identity = AMQPValue::LongString(identity.as_str().into());
        arguments.insert("x-lockkeeper-identity".into(), identity);
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
            // A token that came in time is taken, whichever is noticed first.
            biased;
            came = consumer.next() => Some(came),
            () = time_is_up(until) => None,
        }
    };
    match come.await {
        Some(Some(Ok(delivery))) => {
            // Before it is believed to be ours: what we sent last may be long ago, and
            // the broker may take us for dead already.
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
        // The queue is gone: so says the broker to who consumes from it.
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

/// Ends waiting. A token that came meanwhile is ours, rather than on its way back.
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
    // After cancel-ok nothing comes any more.
    match consumer.next().await {
        Some(Ok(delivery)) => {
            Ok(Waited::Got(Box::new(Got { delivery, channel, consumer: None, sent })))
        }
        Some(Err(error)) => is_missing(lane.refused(&error, queue)?),
        None => Ok(Waited::Nothing),
    }
}
