//! The straw client of protocol Token: the holder keeps a message unacknowledged. It publishes
//! nothing and does not register itself. See docs/protocols/token.md for the protocol.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicGetOptions, BasicPublishOptions,
    BasicQosOptions, BasicRejectOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Consumer};
use lockkeeper_plan::naming::LockName;

use super::bug::Bug;
use super::client::{Held, LazySession, Protocol};
use super::session::{Answer, On, Session, new_id};
use crate::driver::message::Done;

/// The smallest number that is the id of a token.
const FIRST_ID: u64 = 1_000_000_000_000_000;

/// The client side of protocol Token, with a bug.
pub struct Tokens {
    lock: LockName,
    bug: Option<Bug>,
    /// Consumers that a client with a bug does not cancel. Dropping a consumer would cancel it.
    forgotten: Mutex<Vec<Consumer>>,
}

/// A held token.
pub struct Unacknowledged {
    delivery: u64,
    body: Vec<u8>,
    /// `None` if the token was received by `basic.get`.
    consumer: Option<Consumer>,
}

impl Protocol for Tokens {
    type Hold = Unacknowledged;

    async fn acquire(
        &self,
        lazy: &mut LazySession,
        wait: Duration,
    ) -> Result<Option<Held<Unacknowledged>>, lapin::Error> {
        let session = lazy.open().await?;
        if !self.exists(session).await? {
            Ok(None)
        } else if wait.is_zero() {
            self.get(session).await
        } else {
            self.consume(session, wait).await
        }
    }

    fn describe(&self, hold: &Unacknowledged) -> Done {
        let token = str::from_utf8(&hold.body).ok().map(str::to_owned);
        let token = token.filter(|id| id.parse().is_ok_and(|id: u64| id >= FIRST_ID));
        Done { token, ..Done::default() }
    }

    async fn verify(
        &self,
        lazy: &mut LazySession,
        _: &mut Unacknowledged,
    ) -> Result<Option<Done>, lapin::Error> {
        let Some(session) = lazy.holding() else { return Ok(None) };
        let there = session.look(On::Hold, &self.lock.token_queue()).await?.is_ok();
        Ok(there.then(Done::default))
    }

    async fn release(
        &self,
        lazy: &mut LazySession,
        hold: Unacknowledged,
    ) -> Result<bool, lapin::Error> {
        let Some(session) = lazy.holding() else { return Ok(false) };
        // The token may otherwise be delivered to this client again.
        match hold.consumer {
            Some(consumer) if self.bug == Some(Bug::NoCancelBeforeReject) => {
                self.forgotten.lock().unwrap_or_else(PoisonError::into_inner).push(consumer);
            }
            Some(consumer) => cancel(session, &consumer).await?,
            None => {}
        }
        if self.bug == Some(Bug::AckInsteadOfReject) {
            let ack = async |channel: &Channel| {
                channel.basic_ack(hold.delivery, BasicAckOptions::default()).await
            };
            session.ask(On::Hold, ack).await?;
        } else {
            reject(session, hold.delivery).await?;
        }
        // Neither method has an answer. The answer to this probe shows that the broker processed
        // it.
        session.look(On::Hold, &self.lock.token_queue()).await?;
        Ok(true)
    }

    /// Further deliveries stay in the buffer.
    async fn revoked(&self, hold: &mut Unacknowledged) -> String {
        let Some(consumer) = &mut hold.consumer else { return std::future::pending().await };
        while let Some(Ok(_)) = consumer.next().await {}
        "the consumer was cancelled".to_owned()
    }
}

impl Tokens {
    pub fn new(lock: LockName, bug: Option<Bug>) -> Self {
        Self { lock, bug, forgotten: Mutex::default() }
    }

    /// Returns whether the queue exists.
    async fn exists(&self, session: &mut Session) -> Result<bool, lapin::Error> {
        let queue = self.lock.token_queue();
        let looked = session.look(On::Hold, &queue).await?;
        let empty = matches!(looked, Answer::Ok { messages: 0, .. });
        if empty && self.bug == Some(Bug::PublishesAtStart) {
            let publish = async |channel: &Channel| {
                let persistent = BasicProperties::default().with_delivery_mode(2);
                let options = BasicPublishOptions::default();
                channel.basic_publish("".into(), queue.into(), options, b"1", persistent).await
            };
            session.ask(On::Side, publish).await?;
        }
        Ok(looked.is_ok())
    }

    async fn get(
        &self,
        session: &mut Session,
    ) -> Result<Option<Held<Unacknowledged>>, lapin::Error> {
        let queue = self.lock.token_queue();
        let proven = Instant::now();
        let get = async |channel: &Channel| {
            channel.basic_get(queue.into(), BasicGetOptions::default()).await
        };
        let got = session.ask(On::Hold, get).await?;
        Ok(got.map(|message| {
            let (delivery, body) = (message.delivery.delivery_tag, message.delivery.data);
            Held { hold: Unacknowledged { delivery, body, consumer: None }, proven }
        }))
    }

    /// Consumes until a token arrives.
    async fn consume(
        &self,
        session: &mut Session,
        wait: Duration,
    ) -> Result<Option<Held<Unacknowledged>>, lapin::Error> {
        let queue = self.lock.token_queue();
        let prefetch = if self.bug == Some(Bug::Prefetch10) { 10 } else { 1 };
        let begin = async |channel: &Channel| {
            channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
            let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
            let tag = format!("straw-{}", new_id());
            channel.basic_consume(queue.as_str().into(), tag.into(), options, none).await
        };
        let mut consumer = session.ask(On::Hold, begin).await?;
        let arrived = tokio::select! {
            arrived = tokio::time::timeout(wait, consumer.next()) => arrived,
            _ = session.ended() => Ok(None),
        };
        match arrived {
            Ok(Some(delivered)) => {
                let message = delivered?;
                let proven = Instant::now();
                // The broker may have closed the connection while this client waited.
                session.look(On::Hold, &queue).await?;
                let (delivery, body) = (message.delivery_tag, message.data);
                let hold = Unacknowledged { delivery, body, consumer: Some(consumer) };
                Ok(Some(Held { hold, proven }))
            }
            // The queue was deleted, or the connection ended.
            Ok(None) => Ok(None),
            Err(_) => {
                cancel(session, &consumer).await?;
                while let Some(late) = consumer.next().await {
                    reject(session, late?.delivery_tag).await?;
                }
                Ok(None)
            }
        }
    }
}

async fn cancel(session: &mut Session, consumer: &Consumer) -> Result<(), lapin::Error> {
    let (tag, options) = (consumer.tag(), BasicCancelOptions::default());
    session.ask(On::Hold, async |channel| channel.basic_cancel(tag, options).await).await
}

async fn reject(session: &mut Session, delivery: u64) -> Result<(), lapin::Error> {
    let options = BasicRejectOptions { requeue: true };
    session.ask(On::Hold, async |channel| channel.basic_reject(delivery, options).await).await
}
