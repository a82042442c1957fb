//! A foreign client of the guideline, with lapin alone: it uses no code of this crate. It
//! declares slot queues and holder queues as the text describes, on its own connection.

use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, ErrorKind};
use lockkeeper_testkit::world::World;

/// The broker's error for a queue that is exclusive to another connection.
pub const LOCKED: u16 = 405;

/// A client with one connection. Its slots are released when it is dropped.
pub struct Client(Connection);

impl Client {
    pub async fn connect(world: &World) -> Self {
        Self(world.amqp().await)
    }

    /// Connects as another user, or under another name.
    pub async fn connect_as(url: &str, name: &str) -> Self {
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        Self(Connection::connect(url, properties).await.unwrap())
    }

    /// Opens a new channel for each operation, because an error closes its channel.
    async fn channel(&self) -> Channel {
        self.0.create_channel().await.unwrap()
    }

    async fn declare(
        &self,
        queue: &str,
        options: QueueDeclareOptions,
        arguments: FieldTable,
    ) -> Result<(), u16> {
        let channel = self.channel().await;
        let declared = channel.queue_declare(queue.into(), options, arguments).await;
        let outcome = refusal(declared);
        if outcome.is_ok() {
            // Closing a channel releases nothing, and hundreds of open channels are
            // expensive.
            channel.close(200, "OK".into()).await.unwrap();
        }
        outcome
    }

    /// Declares a slot queue as an administrator does.
    pub async fn declare_slot(&self, queue: &str) {
        let mut arguments = no_length();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
        self.declare(queue, QueueDeclareOptions::durable(), arguments).await.unwrap();
    }

    /// Declares a slot queue as an administrator does who follows the amqp-locks guideline,
    /// which names no arguments. Returns how many messages it contains.
    pub async fn declare_plain(&self, queue: &str) -> u32 {
        let (durable, nothing) = (QueueDeclareOptions::durable(), FieldTable::default());
        let channel = self.channel().await;
        let declared = channel.queue_declare(queue.into(), durable, nothing).await.unwrap();
        channel.close(200, "OK".into()).await.unwrap();
        declared.message_count()
    }

    /// Declares a durable queue that can't be a slot.
    pub async fn declare_other(&self, queue: &str) {
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), AMQPValue::LongInt(5));
        self.declare(queue, QueueDeclareOptions::durable(), arguments).await.unwrap();
    }

    /// Declares an exclusive queue, as holders of a slot or of the admin mutex do.
    pub async fn take(&self, queue: &str, facts: &[(&str, &str)]) -> Result<(), u16> {
        let mut arguments = no_length();
        for (key, value) in facts {
            arguments.insert((*key).into(), AMQPValue::LongString((*value).into()));
        }
        self.declare(queue, QueueDeclareOptions::exclusive(), arguments).await
    }

    /// Returns whether a holder queue still belongs to this connection, which is the
    /// broker's only proof of ownership.
    pub async fn owns(&self, queue: &str) -> bool {
        let look = QueueDeclareOptions::default().passive();
        self.declare(queue, look, FieldTable::default()).await.is_ok()
    }

    /// Deletes a queue: a slot's, or one that it holds.
    pub async fn delete(&self, queue: &str) {
        let channel = self.channel().await;
        channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.unwrap();
        channel.close(200, "OK".into()).await.unwrap();
    }

    /// Closes the connection, which releases everything that it holds.
    pub async fn leave(self) {
        self.0.close(200, "OK".into()).await.unwrap();
    }
}

fn no_length() -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(0));
    arguments
}

/// Returns the broker's code of a rejection. Other errors end the test.
fn refusal<T>(result: Result<T, lapin::Error>) -> Result<(), u16> {
    match result {
        Ok(_) => Ok(()),
        Err(error) => match error.kind() {
            ErrorKind::ProtocolError(refused) => Err(refused.get_id()),
            _ => panic!("{error}"),
        },
    }
}
