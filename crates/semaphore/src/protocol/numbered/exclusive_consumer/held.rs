//! A slot held by an exclusive consumer: verifies it, receives messages of administrators
//! and the broker, and releases it. See `exclusive_consumer` for taking it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use lapin::options::BasicCancelOptions;
use lapin::types::ShortString;
use lapin::{Channel, Consumer};
use lockkeeper_plan::clean_text;
use tokio::sync::Mutex;

use super::administering::{DRAIN, REVOKE};
use crate::amqp::connect::Conn;
use crate::amqp::lane::Lane;
use crate::error::BrokerError;
use crate::protocol::hold::{Hold, News};
use crate::queues::ownership::Standing;
use crate::queues::wait::Waiters;
use crate::queues::{ownership, wait};

/// An exclusive consumer and its channel.
pub struct HeldConsumer {
    conn: Arc<Conn>,
    /// The consumer's own channel. A refusal on it would end the consumer. `None` after
    /// the release.
    lane: Mutex<Option<Lane>>,
    channel: Option<Channel>,
    consumer: Mutex<Consumer>,
    tag: ShortString,
    holder_queue: String,
    slot_queue: String,
}

impl HeldConsumer {
    /// Takes over `consumer`, which consumes on the channel of `lane`.
    pub fn new(
        mut lane: Lane,
        consumer: Consumer,
        tag: ShortString,
        holder_queue: String,
        slot_queue: String,
    ) -> Self {
        lane.pin();
        let (conn, channel) = (Arc::clone(lane.conn()), lane.current());
        let (lane, consumer) = (Mutex::new(Some(lane)), Mutex::new(consumer));
        Self { conn, lane, channel, consumer, tag, holder_queue, slot_queue }
    }

    /// Whether this is the id of the holder's acquisition.
    fn is(&self, id: &str) -> bool {
        self.tag.as_str().strip_prefix("lockkeeper-") == Some(id)
    }

    fn is_open(&self) -> bool {
        self.channel.as_ref().is_some_and(|channel| channel.status().connected())
    }
}

#[async_trait]
impl Hold for HeldConsumer {
    async fn verify(&self, limit: Duration) -> Result<Standing, BrokerError> {
        // On the consumer's own channel, which answers only while it is open. All
        // earlier frames of the broker have then been received.
        let ours = async {
            let mut lane = self.lane.lock().await;
            let Some(lane) = lane.as_mut() else { return Ok(None) };
            lane.set_limit(limit);
            if !self.is_open() {
                return Err(self.conn.closed());
            }
            lane.consumers(&self.holder_queue).await
        };
        let exists = async {
            let mut lane = Lane::take(&self.conn).await?;
            lane.set_limit(limit);
            ownership::slot_exists(&mut lane, &self.slot_queue).await
        };
        let (ours, exists) = futures::join!(ours, exists);
        Ok(match (ours?, exists?) {
            (None | Some(0), _) => Standing::Gone,
            (_, false) => Standing::WithoutSlot,
            (_, true) => Standing::Held,
        })
    }

    async fn give_back(&self, wait_queue: Option<&str>) -> Result<Waiters, BrokerError> {
        let Some(mut lane) = self.lane.lock().await.take() else {
            return Ok(Waiters::Unknown);
        };
        let channel = lane.channel().await?;
        let cancel = channel.basic_cancel(self.tag.clone(), BasicCancelOptions::default());
        let waiters = wait::do_and_count(&mut lane, cancel, &self.holder_queue, wait_queue).await?;
        lane.unpin();
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
            None if self.is_open() && self.conn.is_usable() => News::Gone,
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
