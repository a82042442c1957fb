//! The bare server operations with lapin alone: the minimum that any implementation would
//! have to send, without observations or checks.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::{join_all, try_join_all};
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Connection};

use crate::Result;
use crate::environment::Environment;

/// Arguments of a slot queue of the guideline.
fn slot_arguments() -> FieldTable {
    let mut arguments = mutex_arguments();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
    arguments
}

/// Arguments of an admin mutex.
fn mutex_arguments() -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(0));
    arguments
}

/// Declares one slot queue.
pub async fn declare(channel: &Channel, name: &str) -> Result<()> {
    channel.queue_declare(name.into(), QueueDeclareOptions::durable(), slot_arguments()).await?;
    Ok(())
}

/// Declares the admin mutex `lock` and one slot queue, and deletes the mutex.
pub async fn make_under_mutex(channel: &Channel, lock: &str, slot: &str) -> Result<()> {
    let exclusive = QueueDeclareOptions::exclusive();
    channel.queue_declare(lock.into(), exclusive, mutex_arguments()).await?;
    declare(channel, slot).await?;
    channel.queue_delete(lock.into(), QueueDeleteOptions::default()).await?;
    Ok(())
}

/// Declares all queues on the given number of channels. Each channel waits for the answer
/// before its next declare.
pub async fn declare_all(channels: &[Channel], names: &[String]) -> Result<Duration> {
    let next = AtomicUsize::new(0);
    let start = Instant::now();
    try_join_all(channels.iter().map(async |channel| {
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            declare(channel, name).await?;
        }
        Result::<()>::Ok(())
    }))
    .await?;
    Ok(start.elapsed())
}

/// Deletes all queues, one at a time, the last one first.
pub async fn delete_all(channel: &Channel, names: &[String]) -> Result<Duration> {
    let start = Instant::now();
    for name in names.iter().rev() {
        channel.queue_delete(name.as_str().into(), QueueDeleteOptions::default()).await?;
    }
    Ok(start.elapsed())
}

/// Probes for missing queues, in batches on one channel. The names must be prepared
/// before, so that only the protocol is measured.
pub async fn probe_all(
    connection: &Connection,
    names: Vec<ShortString>,
) -> Result<(Duration, usize)> {
    /// Enough to keep the channel busy; larger batches are no faster.
    const BATCH: usize = 1000;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let start = Instant::now();
    let mut missing = HashSet::new();
    for batch in names.chunks(BATCH) {
        let answers = join_all(batch.iter().map(async |name| {
            let options = BasicPublishOptions { mandatory: true, immediate: false };
            let properties = BasicProperties::default().with_expiration("0".into());
            let sent = channel.basic_publish("".into(), name.clone(), options, &[], properties);
            sent.await?.await
        }));
        for answer in answers.await {
            if let Confirmation::Ack(Some(returned)) = answer? {
                missing.insert(returned.routing_key.as_str().to_owned());
            }
        }
    }
    Ok((start.elapsed(), missing.len()))
}

/// A client that acquires a lock by declaring one exclusive queue and releases it by
/// deleting that queue: less than any protocol requires.
pub struct Holder {
    queue: String,
    channel: Channel,
    // Kept open for the lifetime of this value.
    _connection: Connection,
}

impl Holder {
    /// Creates several, each with its own connection and queue.
    pub async fn several(environment: &Environment, name: &str, count: usize) -> Result<Vec<Self>> {
        try_join_all((0..count).map(async |number| {
            Self::new(environment.amqp().await, format!("{name}-{number}")).await
        }))
        .await
    }

    /// Creates one.
    pub async fn new(connection: Connection, queue: String) -> Result<Self> {
        let channel = connection.create_channel().await?;
        Ok(Self { queue, channel, _connection: connection })
    }

    /// Declares its queue.
    pub async fn take(&self) -> Result<()> {
        self.declare(&self.queue).await
    }

    /// Declares and deletes its queue.
    pub async fn take_and_give_back(&self) -> Result<()> {
        self.take_and_give_back_queue(&self.queue).await
    }

    async fn declare(&self, queue: &str) -> Result<()> {
        let exclusive = QueueDeclareOptions::exclusive();
        self.channel.queue_declare(queue.into(), exclusive, mutex_arguments()).await?;
        Ok(())
    }

    async fn take_and_give_back_queue(&self, queue: &str) -> Result<()> {
        self.declare(queue).await?;
        self.delete(queue).await
    }

    async fn delete(&self, queue: &str) -> Result<()> {
        self.channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
        Ok(())
    }

    /// Probes its queue and another queue concurrently.
    pub async fn look_twice(&self, other: &str) -> Result<()> {
        let look = |queue: &str| {
            let passive = QueueDeclareOptions::default().passive();
            self.channel.queue_declare(queue.into(), passive, FieldTable::default())
        };
        let (own, other) = futures::join!(look(&self.queue), look(other));
        own?;
        other?;
        Ok(())
    }
}

/// A client that waits for a message, which names a free slot. It declares that slot's queue
/// exclusive, deletes it, and sends the message to the next waiting client. Any contended lock
/// needs these steps, one after the other.
pub struct Contender {
    holder: Holder,
    waits: Channel,
    messages: String,
    // Kept open for the lifetime of this value.
    _connection: Connection,
}

impl Contender {
    /// Creates several, with two connections each, for a lock of which `slots` are free.
    pub async fn several(
        environment: &Environment,
        name: &str,
        count: usize,
        slots: u32,
    ) -> Result<Vec<Self>> {
        let messages = format!("{name}-W");
        let clients = try_join_all(
            Holder::several(environment, name, count).await?.into_iter().map(async |holder| {
                let connection = environment.amqp().await;
                let waits = connection.create_channel().await?;
                waits.basic_qos(1, BasicQosOptions::default()).await?;
                let messages = messages.clone();
                Result::<Self>::Ok(Self { holder, waits, messages, _connection: connection })
            }),
        )
        .await?;
        if let Some(first) = clients.first() {
            let mut expires = FieldTable::default();
            expires.insert("x-expires".into(), AMQPValue::LongInt(60_000));
            let durable = QueueDeclareOptions::durable();
            first.waits.queue_declare(messages.as_str().into(), durable, expires).await?;
            for slot in 1..=slots {
                first.send(&format!("{name}-B{slot}")).await?;
            }
        }
        Ok(clients)
    }

    async fn send(&self, slot: &str) -> Result<()> {
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        let (exchange, body) = (ShortString::default(), slot.as_bytes());
        self.waits
            .basic_publish(exchange, self.messages.as_str().into(), options, body, properties)
            .await?;
        Ok(())
    }

    /// Waits for a slot, takes it and gives it back, this many times.
    pub async fn take_turns(&self, times: u32) -> Result<()> {
        let (queue, tag) = (self.messages.as_str(), self.holder.queue.as_str());
        let consume = BasicConsumeOptions::default();
        let mut waiting = self
            .waits
            .basic_consume(queue.into(), tag.into(), consume, FieldTable::default())
            .await?;
        for turn in 1..=times {
            let message = waiting.next().await.ok_or("the queue of messages is gone")??;
            let slot = std::str::from_utf8(&message.data)?;
            self.holder.take_and_give_back_queue(slot).await?;
            self.send(slot).await?;
            if turn == times {
                // The next message is for another client.
                self.waits.basic_cancel(tag.into(), BasicCancelOptions::default()).await?;
            }
            message.acker.ack(BasicAckOptions::default()).await?;
        }
        Ok(())
    }
}

/// Opens channels.
pub async fn channels(connection: &Connection, count: usize) -> Result<Vec<Channel>> {
    Ok(try_join_all((0..count).map(|_| connection.create_channel())).await?)
}
