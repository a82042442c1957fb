//! A token that is held: proving it, hearing that the broker took it away, saying who
//! holds it, giving it back. Taking one is `client`'s.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use lapin::options::{BasicCancelOptions, BasicQosOptions, BasicRejectOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Consumer};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::semaphore::client::Moment;
use crate::semaphore::connect::Conn;
use crate::semaphore::error::BrokerError;
use crate::semaphore::lane::{Lane, Standing, exclusive};
use crate::semaphore::protocol::{Hold, News, Waiters};

/// How long a token is held before that is announced: a queue more for each short
/// hold would cost more than the hold itself.
const ANNOUNCED_AFTER: Duration = Duration::from_secs(1);

/// How long after a token was given back the broker is asked for an answer.
const PROVED_AFTER: Duration = Duration::from_millis(100);

/// An unacknowledged token, and its channel.
pub(super) struct HeldToken {
    conn: Arc<Conn>,
    /// The channel that the token was delivered on: when it is closed, the token goes
    /// back. Empty once it was given back.
    lane: Mutex<Option<Lane>>,
    channel: Channel,
    delivery_tag: u64,
    queue: String,
    consuming: Option<Consuming>,
    announcement: Announcement,
}

/// The consumer that the token came to, which stays: it is told when the queue goes.
/// It gets no second token while the first one is not given back.
struct Consuming {
    consumer: Mutex<Consumer>,
    tag: ShortString,
}

/// A queue that says who holds: exclusive to the connection, so it goes with that.
struct Announcement {
    queue: String,
    facts: FieldTable,
    due: Moment,
    task: std::sync::Mutex<Option<JoinHandle<()>>>,
}

/// What to announce, and as what.
pub(super) struct Announced {
    pub queue: String,
    pub facts: FieldTable,
}

impl HeldToken {
    /// The token was delivered on `channel`, which is `lane`'s, with this tag of
    /// `queue`; to `consumer`, unless it was asked for.
    pub fn new(
        mut lane: Lane,
        channel: Channel,
        delivery_tag: u64,
        queue: String,
        consumer: Option<(Consumer, ShortString)>,
        announced: Announced,
    ) -> Self {
        lane.pin();
        let conn = Arc::clone(lane.conn());
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
        let lane = Mutex::new(Some(lane));
        Self { conn, lane, channel, delivery_tag, queue, consuming, announcement }
    }

    /// Says who holds, in the background and on a channel of its own: a refusal must
    /// not close that of the token.
    fn announce(&self) {
        let (conn, queue) = (Arc::clone(&self.conn), self.announcement.queue.clone());
        let facts = self.announcement.facts.clone();
        let task = tokio::spawn(async move {
            let announcing =
                async { Lane::take(&conn).await?.declare_exclusive(&queue, facts).await };
            if let Err(error) = announcing.await {
                tracing::debug!(%error, queue, "The holder of a token could not be announced");
            }
        });
        *self.announcement.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
    }

    fn is_announced(&self) -> bool {
        self.announcement.task.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    async fn withdraw_announcement(&self) -> Result<(), BrokerError> {
        let task = self.announcement.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(task) = task else { return Ok(()) };
        // What was sent on another channel can still be carried out after a delete.
        let _ = task.await;
        Lane::take(&self.conn).await?.delete(&self.announcement.queue).await
    }
}

/// Asks in a moment, on the channel of what was given back, for any answer: that comes
/// after the broker has taken it back. Many who give back one after the other need one.
fn prove_later(conn: &Arc<Conn>, channel: &Channel) {
    if conn.unproved.swap(true, Ordering::AcqRel) {
        return;
    }
    let (conn, channel) = (Arc::clone(conn), channel.clone());
    tokio::spawn(async move {
        tokio::time::sleep(PROVED_AFTER).await;
        // Before it is asked: what is given back from now on is asked for anew.
        conn.unproved.store(false, Ordering::Release);
        let proof = channel.basic_qos(1, BasicQosOptions::default());
        let answer = tokio::time::timeout(conn.operation_timeout, proof).await;
        // A closed channel has given back everything.
        if answer.is_err() {
            conn.kill();
        }
    });
}

impl Hold for HeldToken {
    fn verify(&self, limit: Duration) -> BoxFuture<'_, Result<Standing, BrokerError>> {
        async move {
            // On the token's own channel: answered, it is open, so the token is still
            // ours, of the queue that was there when it was taken.
            let mut lane = self.lane.lock().await;
            let Some(lane) = lane.as_mut() else { return Ok(Standing::Gone) };
            if !self.is_open() {
                return Err(self.conn.closed());
            }
            lane.set_limit(limit);
            let exists = lane.look(&self.queue).await?;
            Ok(if exists.is_some() { Standing::Held } else { Standing::Gone })
        }
        .boxed()
    }

    /// Nobody waits for an answer: a reject has none, and what is sent later on this
    /// connection can't overtake it. That the broker goes on answering is asked for soon;
    /// if it doesn't, the connection is ended, which frees the token for certain.
    fn give_back<'a>(
        &'a self,
        _wait_queue: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Waiters, BrokerError>> {
        async move {
            let Some(mut lane) = self.lane.lock().await.take() else {
                return Ok(Waiters::Unknown);
            };
            let channel = &self.channel;
            let cancel = async {
                // First, or the token would come back to us.
                match &self.consuming {
                    Some(Consuming { tag, .. }) => {
                        let nowait = BasicCancelOptions { nowait: true };
                        channel.basic_cancel(tag.clone(), nowait).await
                    }
                    None => Ok(()),
                }
            };
            let reject =
                channel.basic_reject(self.delivery_tag, BasicRejectOptions { requeue: true });
            let both = async { futures::try_join!(cancel, reject) };
            let sent = lane.answer("to basic.reject", &self.queue, both).await?;
            sent.map_err(|refused| refused.error)?;
            prove_later(&self.conn, channel);
            lane.unpin();
            drop(lane);
            self.withdraw_announcement().await?;
            Ok(Waiters::Unknown)
        }
        .boxed()
    }

    fn news(&self) -> BoxFuture<'_, News> {
        async move {
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
                    // No second token can come; if it does, the broker knows.
                    Some(Ok(_)) => News::Look,
                    Some(Err(error)) => News::Ended(Some(error)),
                    None if self.is_open() && self.conn.is_usable() => News::Gone,
                    None => News::Ended(None),
                }
            };
            tokio::select! {
                () = announce => News::Look,
                news = told => news,
            }
        }
        .boxed()
    }

    fn is_open(&self) -> bool {
        self.channel.status().connected()
    }
}
