//! The bare operations of each protocol with lapin alone: the minimum that any
//! implementation would have to send, without observations or checks.

use std::time::{Duration, Instant};

use futures::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicGetOptions, BasicPublishOptions,
    BasicRejectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Acker, BasicProperties, Channel, Connection, Consumer};
use lockkeeper_plan::naming::{LockName, Protocol};
use lockkeeper_testkit::rabbitmq::Vhost;
use tokio::sync::Mutex;

use crate::Result;

/// Idle time before each hand-over, ours and bare. Long enough for the waiter to join and
/// to observe once more.
pub const AT_REST: Duration = Duration::from_millis(60);

/// A client that acquires slot 1, or a token, and releases it.
pub struct Bare {
    lock: LockName,
    channel: Channel,
    held: Mutex<Option<Held>>,
    // Kept open for the lifetime of this value.
    _connection: Connection,
}

/// What a client keeps while it holds.
enum Held {
    Queue,
    Consumer(Consumer),
    Token(Acker),
}

impl Bare {
    /// Creates a client with its own connection.
    pub async fn new(vhost: &Vhost, lock: &LockName) -> Result<Self> {
        let connection = vhost.connect().await;
        let channel = connection.create_channel().await?;
        Ok(Self { lock: lock.clone(), channel, held: Mutex::default(), _connection: connection })
    }

    /// Performs the broker's work for one acquisition and one release.
    pub async fn take_and_give_back(&self) -> Result<()> {
        self.take().await?;
        self.give_back().await
    }

    /// Performs the broker's work for one acquisition.
    pub async fn take(&self) -> Result<()> {
        let held = match self.lock.protocol() {
            Protocol::ExclusiveQueue(_) | Protocol::TrueMutex => {
                let queue = self.lock.holder_queue(1);
                let mut arguments = FieldTable::default();
                arguments.insert("x-max-length".into(), AMQPValue::LongInt(0));
                let exclusive = QueueDeclareOptions::exclusive();
                self.channel.queue_declare(queue.as_str().into(), exclusive, arguments).await?;
                Held::Queue
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
                exists?;
                Held::Consumer(consumer?)
            }
            Protocol::Token(_) => {
                let queue = self.lock.token_queue();
                let got = self
                    .channel
                    .basic_get(queue.as_str().into(), BasicGetOptions::default())
                    .await?;
                Held::Token(got.ok_or("no token")?.delivery.acker)
            }
        };
        *self.held.lock().await = Some(held);
        Ok(())
    }

    /// Performs the broker's work for one release.
    pub async fn give_back(&self) -> Result<()> {
        match self.held.lock().await.take().ok_or("not held")? {
            Held::Queue => {
                let options = QueueDeleteOptions::default();
                let queue = self.lock.holder_queue(1);
                self.channel.queue_delete(queue.as_str().into(), options).await?;
            }
            Held::Consumer(_consumer) => {
                self.channel.basic_cancel("bare".into(), BasicCancelOptions::default()).await?;
            }
            Held::Token(token) => {
                // A reject has no answer.
                let reject = token.reject(BasicRejectOptions { requeue: true });
                let queue = self.lock.token_queue();
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
pub async fn push(vhost: &Vhost, times: usize) -> Result<Vec<f64>> {
    let mut messages = Messages::new(vhost).await?;
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

/// Measures the steps of a hand-over of this lock, one after the other, in milliseconds: a client
/// releases, a message is delivered, and another client acquires.
pub async fn hand_over(vhost: &Vhost, lock: &LockName, times: usize) -> Result<Vec<f64>> {
    let mut messages = Messages::new(vhost).await?;
    let clients = [Bare::new(vhost, lock).await?, Bare::new(vhost, lock).await?];
    clients[0].take().await?;
    let mut took = Vec::new();
    for turn in 1..=times {
        tokio::time::sleep(AT_REST).await;
        let start = Instant::now();
        clients[(turn - 1) % 2].give_back().await?;
        let message = messages.deliver().await?;
        clients[turn % 2].take().await?;
        took.push(start.elapsed().as_secs_f64() * 1e3);
        message.acker.ack(BasicAckOptions::default()).await?;
    }
    clients[times % 2].give_back().await?;
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

    async fn new(vhost: &Vhost) -> Result<Self> {
        let connections = [vhost.connect().await, vhost.connect().await];
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
