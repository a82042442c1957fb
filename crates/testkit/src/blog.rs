//! Clients written as in the RabbitMQ blog's "Distributed Semaphores with RabbitMQ". A
//! client that finds no queue creates it (durable, without arguments) and publishes the
//! tokens. A client that needs a token consumes with prefetch 1, and never acknowledges.

use std::time::Duration;

use futures::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, BasicRejectOptions,
    ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, Consumer};

use super::rabbitmq::Vhost;

/// Creates the semaphore if it does not exist: one token is a binary semaphore, several a
/// counting one.
pub async fn set_up(vhost: &Vhost, resource: &str, tokens: u32) {
    set_up_with(vhost, resource, tokens, b"resource").await;
}

/// The same with tokens of this text.
pub async fn set_up_with(vhost: &Vhost, resource: &str, tokens: u32, text: &[u8]) {
    let (_connection, channel) = vhost.channel().await;
    let queue: ShortString = format!("{resource}.semaphore").as_str().into();
    let passive = QueueDeclareOptions::default().passive();
    let there = channel.queue_declare(queue.clone(), passive, FieldTable::default()).await;
    if there.is_ok() {
        return;
    }
    let (_connection, channel) = vhost.channel().await;
    let durable = QueueDeclareOptions::durable();
    channel.queue_declare(queue.clone(), durable, FieldTable::default()).await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    for _ in 0..tokens {
        let (exchange, options) = (ShortString::default(), BasicPublishOptions::default());
        let properties = BasicProperties::default();
        let sent = channel.basic_publish(exchange, queue.clone(), options, text, properties);
        sent.await.unwrap().await.unwrap();
    }
}

/// A process that requires access to the resource.
pub struct BlogClient {
    _connection: Connection,
    /// The channel that consumes the tokens.
    pub channel: Channel,
    consumer: Consumer,
}

impl BlogClient {
    /// Consumes from the semaphore's queue, with a consumer priority if given. Declares
    /// the queue as the blog does, which must not fail.
    pub async fn start(vhost: &Vhost, resource: &str, priority: Option<i32>) -> Self {
        let (connection, channel) = vhost.channel().await;
        let queue: ShortString = format!("{resource}.semaphore").as_str().into();
        let durable = QueueDeclareOptions::durable();
        channel.queue_declare(queue.clone(), durable, FieldTable::default()).await.unwrap();
        channel.basic_qos(1, BasicQosOptions::default()).await.unwrap();
        let mut arguments = FieldTable::default();
        if let Some(priority) = priority {
            arguments.insert("x-priority".into(), AMQPValue::LongInt(priority));
        }
        let (tag, options) = (ShortString::default(), BasicConsumeOptions::default());
        let consumer = channel.basic_consume(queue, tag, options, arguments).await.unwrap();
        Self { _connection: connection, channel, consumer }
    }

    /// Waits for the token.
    pub async fn next(&mut self) -> Delivery {
        let next = tokio::time::timeout(Duration::from_secs(15), self.consumer.next()).await;
        next.expect("the broker gives it a token").unwrap().unwrap()
    }

    /// Returns the token if one arrives within this time.
    pub async fn gets_one_within(&mut self, limit: Duration) -> Option<Delivery> {
        tokio::time::timeout(limit, self.consumer.next()).await.ok().map(|d| d.unwrap().unwrap())
    }
}

/// `shouldStopProcessing()`: returns the token to the queue.
pub async fn stop_processing(token: &Delivery) {
    token.acker.reject(BasicRejectOptions { requeue: true }).await.unwrap();
}
