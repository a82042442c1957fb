//! A slot held by an exclusive consumer: verifies it, receives messages of administrators
//! and the broker, and releases it. See `exclusive_consumer` for taking it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use lapin::Consumer;
use lapin::options::BasicCancelOptions;
use lapin::types::ShortString;
use lockkeeper_amqp::channel::Channel;
use lockkeeper_amqp::connection::Connection;
use lockkeeper_amqp::lazy::LazyConnection;
use lockkeeper_plan::clean_text;
use tokio::sync::Mutex;

use super::administering::{DRAIN, REVOKE};
use crate::error::BrokerError;
use crate::protocol::hold::{HeldClaim, News};
use crate::queues::ownership::Ownership;
use crate::queues::wait::Waiters;
use crate::queues::{ownership, wait};

/// An exclusive consumer and its channel.
pub struct HeldConsumer {
    connection: Arc<Connection>,
    /// A connection that holds nothing.
    side: Arc<LazyConnection>,
    /// The consumer's own channel. A refusal on it would end the consumer. `None` after
    /// the release.
    channel: Mutex<Option<Channel>>,
    raw: Option<lapin::Channel>,
    consumer: Mutex<Consumer>,
    tag: ShortString,
    holder_queue: String,
    slot_queue: String,
}

impl HeldConsumer {
    /// Takes over `consumer`, which consumes on the channel of `channel`.
    pub fn new(
        mut channel: Channel,
        consumer: Consumer,
        tag: ShortString,
        holder_queue: String,
        slot_queue: String,
        side: Arc<LazyConnection>,
    ) -> Self {
        channel.pin();
        let (connection, raw) = (Arc::clone(channel.connection()), channel.current());
        let (channel, consumer) = (Mutex::new(Some(channel)), Mutex::new(consumer));
        Self { connection, side, channel, raw, consumer, tag, holder_queue, slot_queue }
    }

    /// Whether this is the id of the holder's acquisition.
    fn is(&self, id: &str) -> bool {
        self.tag.as_str().strip_prefix("lockkeeper-") == Some(id)
    }

    fn is_open(&self) -> bool {
        self.raw.as_ref().is_some_and(|raw| raw.status().connected())
    }
}

#[async_trait]
impl HeldClaim for HeldConsumer {
    async fn verify(&self, limit: Duration) -> Result<Ownership, BrokerError> {
        // On the consumer's own channel, which answers only while it is open. All
        // earlier frames of the broker have then been received.
        let ours = async {
            let mut channel = self.channel.lock().await;
            let Some(channel) = channel.as_mut() else { return Ok(None) };
            channel.set_limit(limit);
            if !self.is_open() {
                return Err(self.connection.closed());
            }
            channel.consumers(&self.holder_queue).await
        };
        let exists = async {
            // A refusal would use up another channel number of the connection (hazard A61).
            if self.connection.is_worn() {
                return ownership::with_slot(&self.side, &self.slot_queue, limit).await;
            }
            let mut channel = Channel::take(&self.connection).await?;
            channel.set_limit(limit);
            ownership::of_slot(&mut channel, &self.slot_queue).await
        };
        let (ours, exists) = futures::join!(ours, exists);
        Ok(match (ours?, exists?) {
            (None | Some(0), _) => Ownership::Gone,
            (_, ownership) => ownership,
        })
    }

    async fn give_back(&self, wait_queue: Option<&str>) -> Result<Waiters, BrokerError> {
        let Some(mut channel) = self.channel.lock().await.take() else {
            return Ok(Waiters::Unknown);
        };
        let raw = channel.raw().await?;
        let cancel = raw.basic_cancel(self.tag.clone(), BasicCancelOptions::default());
        let waiters =
            wait::do_and_count(&mut channel, cancel, &self.holder_queue, wait_queue).await?;
        channel.unpin();
        Ok(waiters)
    }

    async fn news(&self) -> News {
        match self.consumer.lock().await.next().await {
            Some(Ok(message)) => {
                let meant = message.properties.correlation_id().as_ref();
                match read(&message.data) {
                    // Meant for a previous holder.
                    News::Revoked(_) if meant.is_some_and(|id| !self.is(id.as_str())) => News::Look,
                    news => news,
                }
            }
            Some(Err(error)) => News::Ended(Some(error)),
            None if self.is_open() && self.connection.is_usable() => News::Gone,
            None => News::Ended(None),
        }
    }
}

/// Parses a message to the holder. Any other message, such as a probe, prompts the holder
/// to verify its slot.
fn read(body: &[u8]) -> News {
    let text = clean_text(&String::from_utf8_lossy(body), 512);
    match text.strip_prefix(REVOKE) {
        Some(reason) => News::Revoked(reason.trim_start_matches([':', ' ']).to_owned()),
        None if text == DRAIN => News::Drain,
        None => News::Look,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_to_a_holder_is_a_word_known_or_a_reason_to_look() {
        assert!(matches!(read(b"drain"), News::Drain));
        let revoked = read(b"revoke: alice rolls back");
        assert!(matches!(revoked, News::Revoked(why) if why == "alice rolls back"));
        for body in ["", "drained", "hello", "\u{1b}"] {
            assert!(matches!(read(body.as_bytes()), News::Look), "{body:?}");
        }
    }
}
