//! A slot that is held by an exclusive consumer: proving it, hearing what
//! administrators and the broker say of it, giving it back. Taking it is the
//! protocol's.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use lapin::options::BasicCancelOptions;
use lapin::types::ShortString;
use lapin::{Channel, Consumer};
use tokio::sync::Mutex;

use super::administering::{DRAIN, REVOKE};
use crate::plan::clean_text;
use crate::semaphore::connect::Conn;
use crate::semaphore::error::BrokerError;
use crate::semaphore::lane::{Declared, Lane, Standing};
use crate::semaphore::protocol::{Hold, News, Waiters};

/// An exclusive consumer, and its channel.
pub(super) struct HeldConsumer {
    conn: Arc<Conn>,
    /// The consumer's own: a refusal on it would end the consumer. Empty once it was
    /// given back.
    lane: Mutex<Option<Lane>>,
    channel: Option<Channel>,
    consumer: Mutex<Consumer>,
    tag: ShortString,
    holder_queue: String,
    slot_queue: String,
}

impl HeldConsumer {
    /// `consumer` consumes on `lane`'s channel.
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

    /// Whether this is the id of its acquisition.
    fn is(&self, id: &str) -> bool {
        self.tag.as_str().strip_prefix("lockkeeper-") == Some(id)
    }

    fn is_open(&self) -> bool {
        self.channel.as_ref().is_some_and(|channel| channel.status().connected())
    }
}

impl Hold for HeldConsumer {
    fn verify(&self, limit: Duration) -> BoxFuture<'_, Result<Standing, BrokerError>> {
        async move {
            // On the consumer's own channel: it is answered only while that is open,
            // and after all that the broker said on it before.
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
                lane.look(&self.slot_queue).await
            };
            let (ours, exists) = futures::join!(ours, exists);
            Ok(match (ours?, exists?) {
                (None | Some(0), _) => Standing::Gone,
                (_, None) => Standing::WithoutSlot,
                (_, Some(Declared::Ok | Declared::Locked(_))) => Standing::Held,
            })
        }
        .boxed()
    }

    fn give_back<'a>(
        &'a self,
        wait_queue: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Waiters, BrokerError>> {
        async move {
            let Some(mut lane) = self.lane.lock().await.take() else {
                return Ok(Waiters::Unknown);
            };
            let channel = lane.channel().await?;
            let cancel = channel.basic_cancel(self.tag.clone(), BasicCancelOptions::default());
            let waiters = lane.do_and_count(cancel, &self.holder_queue, wait_queue).await?;
            lane.unpin();
            Ok(waiters)
        }
        .boxed()
    }

    fn news(&self) -> BoxFuture<'_, News> {
        async move {
            match self.consumer.lock().await.next().await {
                Some(Ok(message)) => {
                    let meant = message.properties.correlation_id().as_ref();
                    match read(&message.data) {
                        // For who held before.
                        News::Revoked(_) if meant.is_some_and(|id| !self.is(id.as_str())) => {
                            News::Look
                        }
                        news => news,
                    }
                }
                Some(Err(error)) => News::Ended(Some(error)),
                None if self.is_open() && self.conn.is_usable() => News::Gone,
                None => News::Ended(None),
            }
        }
        .boxed()
    }
}

/// What a message to the holder says. One that says nothing, such as a probe, is a
/// reason to look.
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
