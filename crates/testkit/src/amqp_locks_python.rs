//! A client and administrator that sends the methods of amqp-locks-python (commit
//! 7da8e94, its default "paranoid" mode), including its weaknesses: it only verifies that
//! A exists, and it loses its connection with every lost race and with every release.
//! Uses no code of Lockkeeper.

use std::time::Duration;

use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection};

use super::rabbitmq::Vhost;

/// The library's `Semaphore`: one connection with one channel, and at most one held slot.
pub struct AmqpLocksPython<'a> {
    vhost: &'a Vhost,
    name: String,
    open: Option<(Connection, Channel)>,
    held: Option<u32>,
    slept: bool,
    /// Number of lost races for a slot.
    pub races_lost: usize,
}

impl<'a> AmqpLocksPython<'a> {
    /// Connects, as its constructor does.
    pub async fn new(vhost: &'a Vhost, name: &str) -> Self {
        let name = name.to_owned();
        let mut client = Self { vhost, name, open: None, held: None, slept: false, races_lost: 0 };
        client.channel().await;
        client
    }

    /// `_get_channel`: a closed channel means a new connection.
    async fn channel(&mut self) -> Channel {
        let connected = |(connection, channel): &(Connection, Channel)| {
            channel.status().connected() && connection.status().connected()
        };
        if !self.open.as_ref().is_some_and(connected) {
            self.clear().await;
            let (connection, channel) = self.vhost.channel().await;
            channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
            self.open = Some((connection, channel));
        }
        self.open.as_ref().unwrap().1.clone()
    }

    /// `_clear_channel`: closes channel and connection, and drops its state of the held
    /// slot.
    async fn clear(&mut self) {
        self.held = None;
        if let Some((connection, channel)) = self.open.take() {
            let _ = channel.close(200, "Normal shutdown".into()).await;
            let _ = connection.close(200, "Normal shutdown".into()).await;
        }
    }

    /// `_ping`: returns whether a queue with this name exists, by a publish to it. RabbitMQ 4.2
    /// and later may end the connection if it is deleted at that moment. The library raises an
    /// error, and its user tries again.
    async fn ping(&mut self, suffix: &str) -> bool {
        loop {
            match self.publish(suffix).await {
                Ok(confirmed) => return matches!(confirmed, Confirmation::Ack(None)),
                Err(error) if self.held.is_none() && is(&error, &DELETED) => {
                    self.clear().await;
                }
                Err(error) => panic!("{suffix}: {error}"),
            }
        }
    }

    async fn publish(&mut self, suffix: &str) -> Result<Confirmation, lapin::Error> {
        let key = format!("{}{suffix}", self.name);
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let properties = BasicProperties::default().with_delivery_mode(1);
        let channel = self.channel().await;
        let sent = channel.basic_publish("".into(), key.as_str().into(), options, &[], properties);
        sent.await?.await
    }

    /// `queue_declare`: returns `false` if rejected with 405.
    async fn declare(&mut self, queue: &str, exclusive: bool) -> bool {
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), AMQPValue::LongInt(0));
        let options = QueueDeclareOptions { exclusive, ..QueueDeclareOptions::default() };
        let channel = self.channel().await;
        match channel.queue_declare(queue.into(), options, arguments).await {
            Ok(_) => true,
            Err(error) if is(&error, &LOCKED) => false,
            Err(error) => panic!("{queue}: {error}"),
        }
    }

    async fn delete(&mut self, queue: &str) -> Result<(), lapin::Error> {
        let channel = self.channel().await;
        channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.map(drop)
    }

    /// `ensure_semaphore_held`: returns the slot that is held now, if any.
    pub async fn acquire(&mut self) -> Option<u32> {
        if self.held.is_some() {
            return self.verify().await;
        }
        loop {
            let mut slot = 1;
            loop {
                if !self.ping(&format!("-A-{slot}")).await {
                    return None;
                }
                if !self.ping(&format!("-B-{slot}")).await {
                    break;
                }
                slot += 1;
            }
            if self.declare(&format!("{}-B-{slot}", self.name), true).await {
                self.held = Some(slot);
                return self.verify().await;
            }
            self.races_lost += 1;
            if !std::mem::replace(&mut self.slept, true) {
                // The library waits 10 s divided by a random number below 75.
                tokio::time::sleep(Duration::from_millis(rand::random_range(1..100))).await;
            }
        }
    }

    /// `_verify_semaphore_held`: it only checks A.
    pub async fn verify(&mut self) -> Option<u32> {
        let slot = self.held?;
        if !self.ping(&format!("-A-{slot}")).await {
            self.release().await;
        }
        self.held
    }

    /// `ensure_semaphore_released`: deletes B, then closes the connection.
    pub async fn release(&mut self) {
        let slot = self.held.take().expect("there it is a KeyError");
        let _ = self.delete(&format!("{}-B-{slot}", self.name)).await;
        self.clear().await;
    }

    /// `_get_max_semaphore`: probes upwards to the first missing slot.
    async fn slots(&mut self) -> u32 {
        let mut slots = 0;
        while self.ping(&format!("-A-{}", slots + 1)).await {
            slots += 1;
        }
        slots
    }

    /// `adjust_semaphore`: adds or removes slots under the mutex. Returns `false` if
    /// another client has the mutex.
    pub async fn adjust(&mut self, by: i32) -> bool {
        let name = self.name.clone();
        let taken = self.declare(&name, true).await;
        if taken {
            let slots = self.slots().await;
            if by > 0 {
                for slot in slots + 1..=slots + by.unsigned_abs() {
                    self.declare(&format!("{name}-A-{slot}"), false).await;
                }
            } else {
                self.remove(slots, by.unsigned_abs()).await;
            }
        }
        // Even if another client has it. That is rejected, and the library raises an
        // error.
        let deleted = self.delete(&name).await;
        assert!(taken || deleted.is_err());
        self.clear().await;
        taken
    }

    /// `ensure_semaphore_destroyed`: removes every slot, and 100 beyond.
    pub async fn destroy(&mut self) -> bool {
        let name = self.name.clone();
        let taken = self.declare(&name, true).await;
        if taken {
            let slots = self.slots().await + 100;
            self.remove(slots, slots).await;
        }
        let _ = self.delete(&name).await;
        self.clear().await;
        taken
    }

    async fn remove(&mut self, slots: u32, count: u32) {
        for slot in (slots.saturating_sub(count) + 1..=slots).rev() {
            let queue = format!("{}-A-{slot}", self.name);
            self.delete(&queue).await.unwrap();
        }
    }
}

/// 506: the queue was deleted during the publish, and the broker has ended the connection.
const DELETED: AMQPErrorKind = AMQPErrorKind::Hard(AMQPHardError::RESOURCEERROR);

/// 405: the queue is another connection's.
const LOCKED: AMQPErrorKind = AMQPErrorKind::Soft(AMQPSoftError::RESOURCELOCKED);

fn is(error: &lapin::Error, kind: &AMQPErrorKind) -> bool {
    matches!(error.kind(), lapin::ErrorKind::ProtocolError(e) if e.kind() == kind)
}
