//! A held token: verifies it, receives its revocation, announces the holder and releases
//! it. See `client` for acquiring one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use lapin::Consumer;
use lapin::options::{
    BasicCancelOptions, BasicRejectOptions, ExchangeDeleteOptions, QueueDeclareOptions,
};
use lapin::types::{FieldTable, ShortString};
use lockkeeper_amqp::channel::{Channel, short};
use lockkeeper_amqp::connection::Connection;
use lockkeeper_net::clock::Moment;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::queue::{Ready, ready};
use crate::error::BrokerError;
use crate::protocol::hold::{HeldClaim, News};
use crate::queues::arguments::exclusive;
use crate::queues::ownership::Ownership;
use crate::queues::wait::Waiters;

/// How long a token is held before its holder is announced. One more queue per short hold
/// would cost more than the hold itself.
const ANNOUNCED_AFTER: Duration = Duration::from_secs(1);

/// An unacknowledged token and its channel.
pub struct HeldToken {
    connection: Arc<Connection>,
    /// The channel on which the token was delivered. Closing it requeues the token.
    /// `None` after the release.
    channel: Mutex<Option<Channel>>,
    raw: lapin::Channel,
    delivery_tag: u64,
    queue: TokenQueue,
    /// Whether the broker refuses to this user the request of `reach_majority`.
    is_refused: AtomicBool,
    consuming: Option<Consuming>,
    announcement: Announcement,
}

/// The queue of a token.
pub struct TokenQueue {
    pub name: String,
    /// Whether it is a quorum queue. That returns the token of a holder that it cannot
    /// reach, and leaves the holder's channel open.
    pub is_quorum: bool,
}

/// The consumer that received the token. It stays open to be notified when the queue is
/// deleted. It gets no second token before it releases the first.
struct Consuming {
    consumer: Mutex<Consumer>,
    tag: ShortString,
}

/// A queue that announces the holder. It is exclusive to the connection, so it is deleted
/// with it.
struct Announcement {
    queue: String,
    facts: FieldTable,
    due: Moment,
    task: std::sync::Mutex<Option<JoinHandle<()>>>,
}

/// The announcement's queue name and arguments.
pub struct Announced {
    pub queue: String,
    pub facts: FieldTable,
}

impl HeldToken {
    /// Takes over a token that was delivered on `channel`, which belongs to `channel`, with
    /// this delivery tag from `queue`. `consumer` is `None` if the token came from
    /// `basic.get`.
    pub fn new(
        mut channel: Channel,
        raw: lapin::Channel,
        delivery_tag: u64,
        queue: TokenQueue,
        consumer: Option<(Consumer, ShortString)>,
        announced: Announced,
    ) -> Self {
        channel.pin();
        let connection = Arc::clone(channel.connection());
        let consuming =
            consumer.map(|(consumer, tag)| Consuming { consumer: Mutex::new(consumer), tag });
        let Announced { queue: announcement, mut facts } = announced;
        exclusive(&mut facts);
        let announcement = Announcement {
            queue: announcement,
            facts,
            due: Moment::now() + ANNOUNCED_AFTER,
            task: std::sync::Mutex::default(),
        };
        let channel = Mutex::new(Some(channel));
        let is_refused = AtomicBool::default();
        Self { connection, channel, raw, delivery_tag, queue, is_refused, consuming, announcement }
    }

    /// Announces the holder in the background, on a channel of its own. A refusal must
    /// not close the token's channel.
    fn announce(&self) {
        let (connection, queue) = (Arc::clone(&self.connection), self.announcement.queue.clone());
        let facts = self.announcement.facts.clone();
        let task = tokio::spawn(async move {
            let announcing =
                async { Channel::take(&connection).await?.declare_exclusive(&queue, facts).await };
            if let Err(error) = announcing.await {
                tracing::debug!(%error, queue, "the holder of a token could not be announced");
            }
        });
        *self.announcement.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
    }

    /// Whether the quorum queue has not returned the token. It counts a client that has a token
    /// as a consumer, also after a get.
    async fn counts_as_holder(&self, channel: &mut Channel) -> Result<Ownership, BrokerError> {
        match ready(channel, &self.queue.name).await? {
            Some(Ready { consumers: 1.., .. }) => Ok(Ownership::Held),
            // The broker's answer if the node does not reach the queue's leader.
            Some(Ready { free: 0, .. }) => Err(BrokerError::NodeDown {
                why: format!("the node does not reach the leader of queue '{}'", self.queue.name),
            }),
            Some(_) | None => Ok(Ownership::Gone),
        }
    }

    /// Succeeds if the node reaches the majority of the cluster. If it does not, and has the
    /// queue's former leader, that still counts the holder, although the majority has a leader
    /// that returns the token. With Khepri, only the majority answers a request that can change
    /// metadata: here the deletion of an exchange that does not exist. Sent on another channel,
    /// because a refusal must not close the token's.
    async fn reach_majority(&self, limit: Duration) -> Result<(), BrokerError> {
        if self.is_refused.load(Ordering::Relaxed) {
            return Ok(());
        }
        let name = &self.announcement.queue;
        let mut channel = Channel::take(&self.connection).await?;
        channel.set_limit(limit);
        let options = ExchangeDeleteOptions { if_unused: true, nowait: false };
        let raw = channel.raw().await?;
        let deleting = raw.exchange_delete(short(name)?, options);
        if let Err(refused) = channel.answer("to exchange.delete", name, deleting).await? {
            tracing::debug!(error = %refused.error, name, "only the queue's leader verifies a token");
            self.is_refused.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn is_announced(&self) -> bool {
        self.announcement.task.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    async fn withdraw_announcement(&self) -> Result<(), BrokerError> {
        let task = self.announcement.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(task) = task else { return Ok(()) };
        // A declare sent on another channel may still take effect after a delete.
        let _ = task.await;
        Channel::take(&self.connection)
            .await?
            .delete(&self.announcement.queue)
            .await
            .map_err(BrokerError::from)
    }
}

#[async_trait]
impl HeldClaim for HeldToken {
    async fn verify(&self, limit: Duration) -> Result<Ownership, BrokerError> {
        // On the token's own channel: an answer proves that the channel is open. A classic
        // token is then still held, from the queue that existed when it was taken.
        let mut channel = self.channel.lock().await;
        let Some(channel) = channel.as_mut() else { return Ok(Ownership::Gone) };
        if !self.is_open() {
            return Err(self.connection.closed().into());
        }
        channel.set_limit(limit);
        if !self.queue.is_quorum {
            let exists = channel.look(&self.queue.name).await?;
            return Ok(if exists.is_some() { Ownership::Held } else { Ownership::Gone });
        }
        let (held, ()) =
            tokio::try_join!(self.counts_as_holder(channel), self.reach_majority(limit))?;
        Ok(held)
    }

    /// A reject has no answer. A passive declare on the same channel follows it: its
    /// answer proves that the token is back in the queue, where the next client finds it.
    async fn give_back(&self, _wait_queue: Option<&str>) -> Result<Waiters, BrokerError> {
        let Some(mut channel) = self.channel.lock().await.take() else {
            return Ok(Waiters::Unknown);
        };
        let raw = &self.raw;
        let cancel = async {
            // Cancel first, or the token would be delivered to this consumer again.
            match &self.consuming {
                Some(Consuming { tag, .. }) => {
                    let nowait = BasicCancelOptions { nowait: true };
                    raw.basic_cancel(tag.clone(), nowait).await
                }
                None => Ok(()),
            }
        };
        let reject = raw.basic_reject(self.delivery_tag, BasicRejectOptions { requeue: true });
        let passive = QueueDeclareOptions::default().passive();
        let look = raw.queue_declare(short(&self.queue.name)?, passive, FieldTable::default());
        channel.count_declares(1);
        let all = async {
            let (cancel, reject, look) = futures::join!(cancel, reject, look);
            cancel.and(reject).and(look)
        };
        let sent = channel.answer("to basic.reject", &self.queue.name, all).await?;
        sent.map_err(|refused| refused.error)?;
        channel.unpin();
        drop(channel);
        self.withdraw_announcement().await?;
        Ok(Waiters::Unknown)
    }

    async fn news(&self) -> News {
        let announce = async {
            if !self.is_announced() {
                self.announcement.due.reached().await;
                self.announce();
            }
            std::future::pending::<()>().await;
        };
        let told = async {
            let Some(Consuming { consumer, .. }) = &self.consuming else {
                return std::future::pending().await;
            };
            match consumer.lock().await.next().await {
                // No second token can arrive. If one does, ask the broker.
                Some(Ok(_)) => News::Look,
                Some(Err(error)) => News::Ended(Some(error)),
                None if self.is_open() && self.connection.is_usable() => News::Gone,
                None => News::Ended(None),
            }
        };
        tokio::select! {
            () = announce => News::Look,
            news = told => news,
        }
    }

    fn is_open(&self) -> bool {
        self.raw.status().connected()
    }
}
