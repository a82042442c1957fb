//! The bare operations of each protocol with lapin alone: the minimum that any
//! implementation would have to send, without observations or checks.

use std::time::Instant;

use futures::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicGetOptions, BasicPublishOptions,
    BasicRejectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, Consumer};
use lockkeeper::plan::naming::{LockName, Protocol};

use super::{AT_REST, Site};
use crate::Result;
use crate::bare::Holder;

/// A client that acquires slot 1, or a token, and releases it.
pub struct Bare {
    lock: LockName,
    channel: Channel,
    // Kept open for the lifetime of this value.
    _connection: Connection,
}

impl Bare {
    /// Creates a client with its own connection.
    pub async fn new(site: &Site, lock: &LockName) -> Result<Self> {
        let connection = site.amqp().await?;
        let channel = connection.create_channel().await?;
        Ok(Self { lock: lock.clone(), channel, _connection: connection })
    }

    /// Performs the broker's work for one acquisition and one release.
    pub async fn take_and_give_back(&self) -> Result<()> {
        match self.lock.protocol() {
            Protocol::ExclusiveQueue(_) | Protocol::TrueMutex => {
                let queue = self.lock.holder_queue(1);
                let mut arguments = FieldTable::default();
                arguments.insert("x-max-length".into(), AMQPValue::LongInt(0));
                let exclusive = QueueDeclareOptions::exclusive();
                self.channel.queue_declare(queue.as_str().into(), exclusive, arguments).await?;
                let options = QueueDeleteOptions::default();
                self.channel.queue_delete(queue.as_str().into(), options).await?;
            }
            Protocol::ExclusiveConsumer => {
                let queue = self.lock.holder_queue(1);
                let exclusive =
                    BasicConsumeOptions { exclusive: true, no_ack: true, ..Default::default() };
                let table = FieldTable::default();
                let consume = self.channel.basic_consume(
                    queue.as_str().into(),
                    "bare".into(),
                    exclusive,
                    table,
                );
                let slot = self.lock.slot_queue(1);
                let (consumer, exists) = futures::join!(consume, self.exists(&slot));
                let _consumer = consumer?;
                exists?;
                self.channel.basic_cancel("bare".into(), BasicCancelOptions::default()).await?;
            }
            Protocol::Token(_) => {
                let queue = self.lock.token_queue();
                let got = self
                    .channel
                    .basic_get(queue.as_str().into(), BasicGetOptions::default())
                    .await?;
                let token = got.ok_or("no token")?;
                // A reject has no answer.
                let reject = token.acker.reject(BasicRejectOptions { requeue: true });
                let (rejected, exists) = futures::join!(reject, self.exists(&queue));
                rejected?;
                exists?;
            }
        }
        Ok(())
    }

    /// Performs the broker's work for a proof.
    pub async fn look(&self) -> Result<()> {
        if !self.lock.has_slots() {
            return self.exists(&self.lock.token_queue()).await;
        }
        // In one protocol the holder queue belongs to another connection here. Any queue
        // will do.
        let slot = self.lock.slot_queue(1);
        let (first, second) = futures::join!(self.exists(&slot), self.exists(&slot));
        first?;
        second
    }

    async fn exists(&self, queue: &str) -> Result<()> {
        let passive = QueueDeclareOptions::default().passive();
        self.channel.queue_declare(queue.into(), passive, FieldTable::default()).await?;
        Ok(())
    }
}

/// Measures the time of a message from its publisher to a waiting consumer, in milliseconds.
pub async fn push(site: &Site, times: usize) -> Result<Vec<f64>> {
    let mut messages = Messages::new(site).await?;
    let mut took = Vec::new();
    for _ in 0..times {
        tokio::time::sleep(AT_REST).await;
        let start = Instant::now();
        let message = messages.deliver().await?;
        took.push(start.elapsed().as_secs_f64() * 1e3);
        message.acker.ack(BasicAckOptions::default()).await?;
    }
    messages.end().await?;
    Ok(took)
}

/// Measures the steps of a hand-over of protocol ExclusiveQueue, one after the other, in
/// milliseconds: a client deletes its exclusive queue, a message is delivered, and another
/// client declares the queue.
pub async fn hand_over(site: &Site, times: usize) -> Result<Vec<f64>> {
    let mut messages = Messages::new(site).await?;
    let queue = "bare-hand-over";
    let holders = [
        Holder::new(site.amqp().await?, queue.to_owned()).await?,
        Holder::new(site.amqp().await?, queue.to_owned()).await?,
    ];
    holders[0].take().await?;
    let mut took = Vec::new();
    for turn in 1..=times {
        tokio::time::sleep(AT_REST).await;
        let start = Instant::now();
        holders[(turn - 1) % 2].give_back().await?;
        let message = messages.deliver().await?;
        holders[turn % 2].take().await?;
        took.push(start.elapsed().as_secs_f64() * 1e3);
        message.acker.ack(BasicAckOptions::default()).await?;
    }
    messages.end().await?;
    Ok(took)
}

/// A queue with a waiting consumer.
struct Messages {
    publisher: Channel,
    consumer: Consumer,
    // Kept open for the lifetime of this value.
    _connections: [Connection; 2],
}

impl Messages {
    const QUEUE: &str = "push";

    async fn new(site: &Site) -> Result<Self> {
        let connections = [site.amqp().await?, site.amqp().await?];
        let (publisher, waiter) =
            (connections[0].create_channel().await?, connections[1].create_channel().await?);
        let (durable, none) = (QueueDeclareOptions::durable(), FieldTable::default());
        publisher.queue_declare(Self::QUEUE.into(), durable, none.clone()).await?;
        let consume = BasicConsumeOptions::default();
        let consumer = waiter.basic_consume(Self::QUEUE.into(), "".into(), consume, none).await?;
        Ok(Self { publisher, consumer, _connections: connections })
    }

    async fn deliver(&mut self) -> Result<Delivery> {
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        let queue = Self::QUEUE.into();
        self.publisher.basic_publish("".into(), queue, options, b"token", properties).await?;
        Ok(self.consumer.next().await.ok_or("the consumer ended")??)
    }

    async fn end(self) -> Result<()> {
        self.publisher.queue_delete(Self::QUEUE.into(), QueueDeleteOptions::default()).await?;
        Ok(())
    }
}
