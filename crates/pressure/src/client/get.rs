//! Get: takes one element or many, with or without waiting, and gives back unused ones.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::pace::Attempt;
use super::queue::{Inner, Queue, Work};
use super::taken::{Limit, Taken};
use super::{Awaited, GiveBackError, QueueError, QueueRole, Wait};
use crate::reply::Verdict;
use crate::{StoreError, scripts};

/// Maximum length of a lease, in milliseconds: a year. The scripts calculate in floating
/// point.
const LONGEST: u64 = 365 * 24 * 60 * 60 * 1000;

/// How long giving back waits for another consumer when the last clone of a queue is
/// dropped.
const LAST_WAIT: Duration = Duration::from_secs(5);

impl Queue {
    /// Takes the oldest element. Waits for an element, and for another consumer.
    ///
    /// The element is removed from the queue. If the process dies before using it, it is
    /// lost.
    ///
    /// Cancel safe: see [`Queue`].
    ///
    /// # Errors
    ///
    /// [`QueueError::DoesNotExist`]; [`QueueError::Closed`] if the queue is closed and
    /// empty, also if that happens during the wait.
    pub async fn get(&self) -> Result<Vec<u8>, QueueError> {
        self.get_one(Wait::Forever).await
    }

    /// Takes the oldest element if there is one.
    ///
    /// # Errors
    ///
    /// As [`Self::get`], [`QueueError::Empty`] and [`QueueError::InUse`].
    pub async fn try_get(&self) -> Result<Vec<u8>, QueueError> {
        self.get_one(Wait::No).await
    }

    /// Takes the oldest element, waiting at most `timeout`.
    ///
    /// # Errors
    ///
    /// As [`Self::get`], and [`QueueError::TimedOut`].
    pub async fn get_timeout(&self, timeout: Duration) -> Result<Vec<u8>, QueueError> {
        self.get_one(Wait::For(timeout)).await
    }

    async fn get_one(&self, wait: Wait) -> Result<Vec<u8>, QueueError> {
        let mut taken = self.get_batch(Limit::ONE, wait).await?;
        taken.pop().ok_or(QueueError::Empty)
    }

    /// Takes the oldest elements, at least one. Returns the available ones up to the
    /// limit without waiting for more, and at most as many as the network carries in
    /// about half a second.
    ///
    /// Cancel safe: see [`Queue`].
    ///
    /// # Errors
    ///
    /// As [`Self::get`] and [`Self::try_get`].
    pub async fn get_batch(&self, limit: Limit, wait: Wait) -> Result<Taken, QueueError> {
        let is_empty = self.0.taking.is_empty.load(Ordering::Relaxed);
        let first = is_empty.then_some(Awaited::Element);
        let first = first.filter(|_| self.0.taking.kept.try_lock().is_ok_and(|k| k.is_empty()));
        let mut pace = self.0.waiting.pace(wait, first);
        loop {
            pace.before().await?;
            let tried = self.or_silence(wait, self.try_take(limit)).await;
            if let Some(taken) = pace.after(tried).await? {
                return Ok(taken);
            }
        }
    }

    /// Awaits an attempt, or unless it waits without a limit, a silence of the server. The
    /// elements of a later answer are kept.
    pub(super) async fn or_silence<T>(
        &self,
        wait: Wait,
        attempt: impl Future<Output = Result<Attempt<T>, QueueError>>,
    ) -> Result<Attempt<T>, QueueError> {
        let (Wait::No | Wait::For(_), Some(limit)) = (wait, self.0.options.answer_silence) else {
            return attempt.await;
        };
        tokio::select! {
            biased;
            tried = attempt => tried,
            () = self.silence(limit) => {
                Err(StoreError::Unanswered { why: Box::new(StoreError::Timeout) }.into())
            }
        }
    }

    async fn try_take(&self, limit: Limit) -> Result<Attempt<Taken>, QueueError> {
        let mut kept = Arc::clone(&self.0.taking.kept).lock_owned().await;
        if !kept.is_empty() {
            return Ok(Attempt::Done(kept.take(limit)));
        }
        self.check(Work::Get).await?;
        let script = self.clone().take(limit, None).boxed();
        let taking = TakingScript {
            script: Some(script),
            kept: Some(kept),
            queue: self.clone(),
            is_sent: false,
        };
        let began = Instant::now();
        let verdict = match taking.await {
            Ok(verdict) => verdict,
            Err(error) => return Err(self.explain(error, Work::Get).await),
        };
        let took = began.elapsed();
        let is_empty = |is| self.0.taking.is_empty.store(is, Ordering::Relaxed);
        match verdict.word.as_str() {
            "got" => {
                is_empty(verdict.number(1) == Some(0));
                let taken = taken(verdict);
                self.0.taking.batch.learn(taken.iter().map(<[u8]>::len).sum(), took);
                Ok(Attempt::Done(taken))
            }
            "empty" => {
                let empty = empty(&verdict);
                is_empty(!matches!(empty, Attempt::NotYet { polls: true, .. }));
                Ok(empty)
            }
            "busy" => Ok(busy(&verdict)),
            "closed" => Err(QueueError::Closed),
            "absent" => Err(QueueError::DoesNotExist),
            _ => Err(self.unexpected(verdict)),
        }
    }

    /// Runs the script of a get, with a lease of this length if there is one.
    pub(super) async fn take(
        self,
        limit: Limit,
        lease: Option<Duration>,
    ) -> Result<Verdict, StoreError> {
        let bytes = limit.bytes.min(self.0.taking.batch.bytes());
        let mut call = self.call(&scripts::GET);
        call.arg(&self.0.options.client_id).arg(limit.elements.max(1)).arg(bytes);
        if let Some(lease) = lease {
            call.arg(millis(lease));
        }
        self.0.store.take(&self.0.name, &call).await
    }

    /// Returns taken elements to their place in the queue, if no client has read any
    /// since. Waits for another consumer's role according to `wait`. The queue may exceed
    /// its bound afterwards, because producers have used the room.
    ///
    /// # Errors
    ///
    /// [`QueueError::Overtaken`], [`QueueError::DoesNotExist`], [`QueueError::InUse`],
    /// [`QueueError::TimedOut`] and [`QueueError::Store`], each with the elements.
    pub async fn give_back(&self, taken: Taken, wait: Wait) -> Result<(), GiveBackError> {
        if taken.is_empty() {
            return Ok(());
        }
        match self.give_back_in_place(&taken, wait).await {
            Ok(()) => Ok(()),
            Err(error) => Err(GiveBackError { taken, error }),
        }
    }

    async fn give_back_in_place(&self, taken: &Taken, wait: Wait) -> Result<(), QueueError> {
        let counted = taken.counted().ok_or(QueueError::Overtaken)?;
        let mut pace = self.0.waiting.pace(wait, None);
        loop {
            if pace.after(self.try_give_back(taken, counted).await).await?.is_some() {
                return Ok(());
            }
        }
    }

    async fn try_give_back(&self, taken: &Taken, counted: u64) -> Result<Attempt<()>, QueueError> {
        let mut call = self.call(&scripts::GIVE_BACK);
        call.arg(&self.0.options.client_id).arg(counted);
        for element in taken.iter() {
            call.arg(element);
        }
        let verdict = match self.0.store.ask(&self.0.name, &call).await {
            Ok(verdict) => verdict,
            Err(error) => return Err(self.explain(error, Work::Get).await),
        };
        match verdict.word.as_str() {
            "done" => Ok(Attempt::Done(())),
            "busy" => Ok(busy(&verdict)),
            "overtaken" => Err(QueueError::Overtaken),
            "absent" => Err(QueueError::DoesNotExist),
            _ => Err(self.unexpected(verdict)),
        }
    }
}

/// Returns a duration in the unit of the scripts.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).clamp(1, LONGEST)
}

/// Converts the reply `empty`. No key signals the end of another client's lease.
pub(super) fn empty<T>(verdict: &Verdict) -> Attempt<T> {
    let polls = verdict.number(0).is_some_and(|in_flight| in_flight > 0);
    Attempt::NotYet { awaited: Awaited::Element, polls }
}

pub(super) fn busy<T>(verdict: &Verdict) -> Attempt<T> {
    Attempt::NotYet {
        awaited: Awaited::Role { role: QueueRole::Consumer, who: verdict.text(0) },
        polls: verdict.number(1).is_some_and(|elements| elements > 0),
    }
}

/// Converts the reply `got`.
fn taken(verdict: Verdict) -> Taken {
    let counted = verdict.number(0);
    Taken::new(verdict.elements(2), counted)
}

/// A get's script in progress. If it is dropped before the answer, a task of its own
/// awaits it, and keeps the elements for the next get.
struct TakingScript {
    script: Option<BoxFuture<'static, Result<Verdict, StoreError>>>,
    kept: Option<OwnedMutexGuard<Taken>>,
    queue: Queue,
    is_sent: bool,
}

impl Future for TakingScript {
    type Output = Result<Verdict, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.is_sent = true;
        let Some(script) = &mut self.script else { return Poll::Pending };
        let answer = std::task::ready!(script.poll_unpin(context));
        self.script = None;
        Poll::Ready(answer)
    }
}

impl Drop for TakingScript {
    fn drop(&mut self) {
        let (Some(script), Some(mut kept), true) =
            (self.script.take(), self.kept.take(), self.is_sent)
        else {
            return;
        };
        // Without a runtime the program is ending.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let queue = self.queue.clone();
        runtime.spawn(async move {
            match script.await {
                Ok(verdict) if verdict.word == "got" => *kept = taken(verdict),
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "the answer to an abandoned get never came: an element may be lost");
                }
            }
            // In this order: dropping the last clone gives back the kept elements.
            drop(kept);
            drop(queue);
        });
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Ok(mut kept) = self.taking.kept.try_lock() else { return };
        let taken = std::mem::take(&mut *kept);
        drop(kept);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if taken.is_empty() {
            return;
        }
        let queue = Queue::over(self.store.clone(), self.name.clone(), self.options.clone());
        runtime.spawn(async move {
            if let Err(error) = queue.give_back(taken, Wait::For(LAST_WAIT)).await {
                tracing::warn!(queue = %queue.name(), %error, "elements of a dropped get could not be returned and are lost");
            }
        });
    }
}
