//! The bare operations of each protocol with lapin alone: the minimum that any
//! implementation would have to send, without observations or checks.

use std::time::Instant;

use futures::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicGetOptions, BasicPublishOptions,
    BasicRejectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection};
use lockkeeper::plan::naming::{LockName, Protocol};

use super::{AT_REST, Site};
use crate::Result;
use crate::table::median;

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

/// Measures the time of a message from its publisher to a waiting consumer, as the median
/// in milliseconds.
pub async fn push(connection: &Connection, times: usize) -> Result<f64> {
    const QUEUE: &str = "push";
    let (publisher, waiter) =
        (connection.create_channel().await?, connection.create_channel().await?);
    publisher
        .queue_declare(QUEUE.into(), QueueDeclareOptions::durable(), FieldTable::default())
        .await?;
    let consume = BasicConsumeOptions::default();
    let mut consumer =
        waiter.basic_consume(QUEUE.into(), "".into(), consume, FieldTable::default()).await?;
    let mut took = Vec::new();
    for _ in 0..times {
        tokio::time::sleep(AT_REST).await;
        let start = Instant::now();
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        publisher.basic_publish("".into(), QUEUE.into(), options, b"token", properties).await?;
        let message = consumer.next().await.ok_or("the consumer ended")??;
        took.push(start.elapsed().as_secs_f64() * 1e3);
        message.acker.ack(BasicAckOptions::default()).await?;
    }
    publisher.queue_delete(QUEUE.into(), QueueDeleteOptions::default()).await?;
    Ok(median(took.into_iter()))
}
