//! Get with acknowledgement: an element stays in flight until its delivery is
//! acknowledged, so a client that dies loses none. See `get` for gets that remove their
//! elements.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::get::{busy, empty, millis};
use super::pace::{Attempt, away_pause};
use super::queue::{Queue, Work};
use super::taken::Limit;
use super::{QueueError, Wait};
use crate::reply::Verdict;
use crate::{StoreError, scripts};

/// Number of renewals per length of a lease. All but one may fail.
const RENEWALS: u32 = 3;

impl Queue {
    /// Takes the oldest element, and keeps it in flight until the delivery is acknowledged.
    /// Waits for an element, and for another consumer.
    ///
    /// Elements in flight no longer count as elements in the queue. If the client dies or
    /// does not reach the server for [`QueueOptions::lease`](super::QueueOptions::lease),
    /// the element's lease ends, and the next get of any Lockkeeper client returns it
    /// before all younger elements. Each element is thus delivered at least once. Elements
    /// in flight are an extension of the protocol: clients of other origin never get them.
    ///
    /// A background task of tokio renews the leases of all deliveries that exist.
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// use lockkeeper_client::pressure::{Queue, QueueError, Wait};
    ///
    /// let queue = Queue::from_env("frames")?;
    /// loop {
    ///     match queue.get_acked(Wait::Forever).await {
    ///         Ok(frame) => {
    ///             println!("{} bytes, delivered {} times", frame.element().len(), frame.delivery_count());
    ///             frame.ack().await?;
    ///         }
    ///         Err(QueueError::Closed) => break,
    ///         Err(error) => return Err(error.into()),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Cancel safe: an element that arrives too late returns to the queue, and that delivery
    /// does not count.
    ///
    /// # Errors
    ///
    /// As [`Self::get`] and [`Self::try_get`]. The queue is not [`QueueError::Closed`]
    /// while elements are in flight.
    pub async fn get_acked(&self, wait: Wait) -> Result<Delivery, QueueError> {
        let mut all = self.get_acked_batch(Limit::ONE, wait).await?;
        all.pop().ok_or(QueueError::Empty)
    }

    /// Like [`Self::get_acked`], for the oldest elements, at least one: those available up
    /// to the limit, as [`Self::get_batch`] does.
    ///
    /// Cancel safe: elements that arrive too late return to the queue.
    ///
    /// # Errors
    ///
    /// As [`Self::get_acked`].
    pub async fn get_acked_batch(
        &self,
        limit: Limit,
        wait: Wait,
    ) -> Result<Vec<Delivery>, QueueError> {
        let mut pace = self.0.waiting.pace(wait, None);
        loop {
            // A task of its own: if this get is dropped, so are the deliveries once they
            // arrive, which returns them to the queue.
            let trying = tokio::spawn(self.clone().try_get_acked(limit));
            let trying = async {
                let ended = StoreError::unexpected("the runtime ended");
                trying.await.unwrap_or(Err(ended.into()))
            };
            let tried = self.or_silence(wait, trying).await;
            if let Some(mut deliveries) = pace.after(tried).await? {
                for delivery in &mut deliveries {
                    delivery.has_arrived = true;
                }
                return Ok(deliveries);
            }
        }
    }

    async fn try_get_acked(self, limit: Limit) -> Result<Attempt<Vec<Delivery>>, QueueError> {
        self.check(Work::Lease).await?;
        let began = Instant::now();
        let verdict = match self.clone().take(limit, Some(self.0.options.lease)).await {
            Ok(verdict) => verdict,
            Err(error) => return Err(self.explain(error, Work::Lease).await),
        };
        match verdict.word.as_str() {
            "got" => {
                let deliveries = deliveries(&self, verdict)?;
                let bytes = deliveries.iter().map(|delivery| delivery.element.len()).sum();
                self.0.taking.batch.learn(bytes, began.elapsed());
                Ok(Attempt::Done(deliveries))
            }
            "empty" => Ok(empty(&verdict)),
            "busy" => Ok(busy(&verdict)),
            "closed" => Err(QueueError::Closed),
            "absent" => Err(QueueError::DoesNotExist),
            _ => Err(self.unexpected(verdict)),
        }
    }

    /// Acknowledges deliveries of this queue together, in one request. Acknowledging one
    /// that was settled before has no effect.
    ///
    /// Retries while the server is not reachable, until the lease ends. Cancel safe: each
    /// delivery is then acknowledged or requeued.
    ///
    /// # Errors
    ///
    /// [`QueueError::LeaseEnded`] if one of them had ended, or if its acknowledgement was
    /// repeated because the first answer did not arrive. The others are acknowledged.
    /// [`QueueError::Store`]: the elements will be delivered again, unless
    /// [`QueueError::ends_unknown`].
    pub async fn ack_all(&self, deliveries: Vec<Delivery>) -> Result<(), QueueError> {
        none_ended(self.settle_all("ack", deliveries).await?)
    }

    /// Gives these deliveries back, in one request: see [`Delivery::give_back`]. Returns
    /// the number of those whose lease had ended.
    ///
    /// # Errors
    ///
    /// [`QueueError::Store`]. The elements are then delivered again at the end of their
    /// leases.
    pub async fn give_back_all(&self, deliveries: Vec<Delivery>) -> Result<usize, QueueError> {
        self.settle_all(&back(Duration::ZERO), deliveries).await
    }

    /// Settles deliveries together. Returns the number of those whose lease had ended.
    async fn settle_all(&self, how: &str, all: Vec<Delivery>) -> Result<usize, QueueError> {
        if all.is_empty() {
            return Ok(0);
        }
        let tags: Vec<&str> = all.iter().map(Delivery::not_renewed).collect();
        let ended = self.settle_in_time(how, &tags).await?;
        all.into_iter().for_each(Delivery::forget);
        Ok(ended.len())
    }

    /// Settles deliveries, and returns those whose lease had ended. Retries until a lease
    /// would end.
    async fn settle_in_time(&self, how: &str, tags: &[&str]) -> Result<Vec<String>, QueueError> {
        let began = Instant::now();
        let mut failures = 0;
        loop {
            let error = match self.settle(how, tags).await {
                Ok(ended) => return Ok(ended),
                Err(error) => error,
            };
            failures += 1;
            let pause = away_pause(failures);
            if !is_temporary(&error) || began.elapsed() + pause >= self.0.options.lease {
                return Err(error);
            }
            sleep(pause).await;
        }
    }

    async fn settle(&self, how: &str, tags: &[&str]) -> Result<Vec<String>, QueueError> {
        let mut call = self.call(&scripts::SETTLE);
        call.arg(how).arg(tags);
        let verdict = self.0.store.ask(&self.0.name, &call).await?;
        match verdict.word.as_str() {
            "done" => {
                let ended = verdict.elements(0).into_iter();
                Ok(ended.map(|tag| String::from_utf8_lossy(&tag).into_owned()).collect())
            }
            _ => Err(self.unexpected(verdict)),
        }
    }
}

/// Returns the argument of `settle.lua` for a delivery that returns after this time.
fn returned(after: Duration) -> String {
    if after.is_zero() { 0 } else { millis(after) }.to_string()
}

/// Likewise for one that does not count.
fn back(after: Duration) -> String {
    format!("back {}", returned(after))
}

fn none_ended(ended: usize) -> Result<(), QueueError> {
    if ended == 0 { Ok(()) } else { Err(QueueError::LeaseEnded) }
}

/// Whether a request may be repeated that has no further effect if it happened already.
fn is_temporary(error: &QueueError) -> bool {
    let QueueError::Store(error) = error else { return false };
    match error {
        StoreError::Unanswered { why } => why.passes(),
        error => error.passes(),
    }
}

/// Converts the reply `got` of a get with a lease.
fn deliveries(queue: &Queue, verdict: Verdict) -> Result<Vec<Delivery>, QueueError> {
    let mut values = verdict.elements(2).into_iter();
    let leases = Leases::start(queue);
    let mut deliveries = Vec::new();
    while let (Some(tag), Some(element)) = (values.next(), values.next()) {
        let tag = String::from_utf8_lossy(&tag).into_owned();
        let count = count(&tag);
        let unexpected = || StoreError::unexpected("a delivery without a count");
        let count = count.ok_or_else(unexpected)?;
        leases.held().insert(tag.clone());
        let leases = Arc::clone(&leases);
        let (has_arrived, is_settled) = (false, false);
        deliveries.push(Delivery { element, tag, count, leases, has_arrived, is_settled });
    }
    Ok(deliveries)
}

/// Returns the number of deliveries that count, from `ID DELIVERIES` or `ID
/// DELIVERIES-GIVEN_BACK`.
fn count(tag: &str) -> Option<u64> {
    let (_, count) = tag.rsplit_once(' ')?;
    let (deliveries, given_back) = count.split_once('-').unwrap_or((count, "0"));
    deliveries.parse::<u64>().ok()?.checked_sub(given_back.parse().ok()?)
}

/// An element in flight. Acknowledge it once it is processed. A delivery that is dropped
/// is requeued: immediately, or without a runtime at the end of the lease.
pub struct Delivery {
    element: Vec<u8>,
    /// The delivery's id and count, as the scripts name it.
    tag: String,
    count: u64,
    leases: Arc<Leases>,
    /// Whether the get has returned it. If the get is dropped before, it does not count.
    has_arrived: bool,
    is_settled: bool,
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery").field("tag", &self.tag).finish_non_exhaustive()
    }
}

impl Delivery {
    /// Returns the element.
    pub fn element(&self) -> &[u8] {
        &self.element
    }

    /// Moves the element out and leaves an empty one. The delivery must still be settled.
    pub fn take_element(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.element)
    }

    /// Returns how often the element was delivered, this time included. Above 1, an
    /// earlier delivery was requeued, or its lease ended. Deliveries that were given back
    /// do not count.
    pub fn delivery_count(&self) -> u64 {
        self.count
    }

    /// Whether the lease is known to have ended, so that another client may process the
    /// element. Found by the next renewal after the end, within a third of the lease.
    pub fn has_ended(&self) -> bool {
        !self.leases.held().contains(&self.tag)
    }

    /// Ends the renewals, and returns how the scripts name the delivery.
    fn not_renewed(&self) -> &str {
        self.leases.held().remove(&self.tag);
        &self.tag
    }

    /// Drops a delivery that was settled.
    fn forget(mut self) {
        self.is_settled = true;
        drop(self);
    }

    /// Acknowledges the delivery: the element is removed. See [`Queue::ack_all`].
    ///
    /// # Errors
    ///
    /// [`QueueError::LeaseEnded`] and [`QueueError::Store`].
    pub async fn ack(self) -> Result<(), QueueError> {
        let queue = self.leases.queue.clone();
        queue.ack_all(vec![self]).await
    }

    /// Returns the element to the queue, at its front, after this time. The next get then
    /// delivers it before all younger elements. Cancel safe: the element may then return
    /// immediately.
    ///
    /// # Errors
    ///
    /// [`QueueError::LeaseEnded`] and [`QueueError::Store`]. The element is then delivered
    /// again in any case, at the end of the lease at the latest.
    pub async fn requeue(self, after: Duration) -> Result<(), QueueError> {
        let queue = self.leases.queue.clone();
        none_ended(queue.settle_all(&returned(after), vec![self]).await?)
    }

    /// Returns the element to the queue, at its front, as if it had not been delivered:
    /// the next delivery has the same [`Self::delivery_count`]. For elements whose
    /// processing was not started, or was stopped for a reason of the consumer's. Cancel
    /// safe: the element may then return as by [`Self::requeue`].
    ///
    /// # Errors
    ///
    /// As [`Self::requeue`].
    pub async fn give_back(self) -> Result<(), QueueError> {
        self.give_back_after(Duration::ZERO).await
    }

    /// Like [`Self::give_back`], after this time.
    ///
    /// # Errors
    ///
    /// As [`Self::requeue`].
    pub async fn give_back_after(self, after: Duration) -> Result<(), QueueError> {
        let queue = self.leases.queue.clone();
        none_ended(queue.settle_all(&back(after), vec![self]).await?)
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.leases.held().remove(&self.tag);
        if self.is_settled {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (queue, tag) = (self.leases.queue.clone(), std::mem::take(&mut self.tag));
        let how = if self.has_arrived { returned } else { back }(Duration::ZERO);
        runtime.spawn(async move {
            if let Err(error) = queue.settle(&how, &[tag.as_str()]).await {
                tracing::debug!(%error, "a dropped delivery returns at the end of its lease");
            }
        });
    }
}

/// The leases of the deliveries of one get, which are renewed together.
struct Leases {
    queue: Queue,
    /// The deliveries that exist and whose lease is not known to have ended.
    held: Mutex<BTreeSet<String>>,
}

impl Leases {
    /// Creates an empty set, and renews its leases until it is dropped.
    fn start(queue: &Queue) -> Arc<Self> {
        let leases = Arc::new(Self { queue: queue.clone(), held: Mutex::default() });
        tokio::spawn(renew(Arc::downgrade(&leases), queue.0.options.lease));
        leases
    }

    fn held(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn renew(leases: Weak<Leases>, lease: Duration) {
    let until = millis(lease).to_string();
    loop {
        sleep(lease / RENEWALS).await;
        let Some(leases) = leases.upgrade() else { return };
        let held: Vec<String> = leases.held().iter().cloned().collect();
        if held.is_empty() {
            continue;
        }
        let tags: Vec<&str> = held.iter().map(String::as_str).collect();
        match leases.queue.settle(&until, &tags).await {
            Ok(ended) => {
                // Those that are being settled are no longer in the set.
                let mut held = leases.held();
                let ended = ended.iter().filter(|tag| held.remove(*tag)).count();
                if ended > 0 {
                    tracing::warn!(ended, "leases of elements in flight have ended");
                }
            }
            Err(error) => tracing::debug!(%error, "leases could not be renewed"),
        }
    }
}
