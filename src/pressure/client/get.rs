//! Getting: one element or many, with or without waiting, and giving back what
//! could not be used.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::waiting::Attempt;
use super::{Awaited, GiveBackError, Inner, Queue, QueueError, QueueRole, Taken, Wait, Work};
use crate::pressure::reply::Verdict;
use crate::pressure::{StoreError, scripts};

/// From this version on a script may run at the memory limit.
const REDIS_7: u64 = 0x0007_0000;

/// How long giving back waits for another consumer when the last clone of a queue
/// is dropped.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// How much one get may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Elements at most; 0 counts as 1.
    pub elements: usize,
    /// No further element is taken once there are so many bytes.
    pub bytes: usize,
}

impl Limit {
    /// One element.
    pub const ONE: Self = Self { elements: 1, bytes: 1 };
}

/// The consumer's side of a [`Queue`].
#[derive(Default)]
pub(super) struct Taking {
    /// What a get took whose caller was gone. Locked while a get's script runs, so
    /// that the next one yields these elements before younger ones.
    kept: Arc<Mutex<Taken>>,
    /// The last get emptied the queue: the next one waits first.
    is_empty: AtomicBool,
}

impl Queue {
    /// Takes the oldest element; waits for one, and for another consumer.
    ///
    /// The element is gone from the queue: a process that dies with it in hand
    /// takes it along.
    ///
    /// Errors: [`QueueError::DoesNotExist`], [`QueueError::Closed`] when the queue
    /// is closed and empty, also when that happens while it waits.
    ///
    /// Cancel safe: see [`Queue`].
    pub async fn get(&self) -> Result<Vec<u8>, QueueError> {
        self.get_one(Wait::Forever).await
    }

    /// Takes the oldest element if there is one. Errors: as [`Self::get`],
    /// [`QueueError::Empty`] and [`QueueError::InUse`].
    pub async fn try_get(&self) -> Result<Vec<u8>, QueueError> {
        self.get_one(Wait::No).await
    }

    /// Takes the oldest element; waits at most so long. Errors: as [`Self::get`],
    /// and [`QueueError::TimedOut`].
    pub async fn get_timeout(&self, timeout: Duration) -> Result<Vec<u8>, QueueError> {
        self.get_one(Wait::For(timeout)).await
    }

    async fn get_one(&self, wait: Wait) -> Result<Vec<u8>, QueueError> {
        let mut taken = self.get_batch(Limit::ONE, wait).await?;
        taken.pop().ok_or(QueueError::Empty)
    }

    /// Takes the oldest elements, at least one: what is there up to the limit,
    /// without waiting for more. Errors: as [`Self::get`] and [`Self::try_get`].
    ///
    /// Cancel safe: see [`Queue`].
    pub async fn get_batch(&self, limit: Limit, wait: Wait) -> Result<Taken, QueueError> {
        let is_empty = self.0.taking.is_empty.load(Ordering::Relaxed);
        let first = is_empty.then_some(Awaited::Element);
        let first = first.filter(|_| self.0.taking.kept.try_lock().is_ok_and(|k| k.is_empty()));
        let mut pace = self.0.waiting.pace(wait, first);
        loop {
            pace.before().await?;
            match self.try_take(limit).await? {
                Attempt::Done(taken) => return Ok(taken),
                Attempt::NotYet { awaited, is_closed } => pace.until(awaited, is_closed).await?,
            }
        }
    }

    async fn try_take(&self, limit: Limit) -> Result<Attempt<Taken>, QueueError> {
        let mut kept = Arc::clone(&self.0.taking.kept).lock_owned().await;
        if !kept.is_empty() {
            return Ok(Attempt::Done(kept.take(limit)));
        }
        self.check(Work::Get).await?;
        let script = self.clone().take(limit).boxed();
        let taking = TakingScript {
            script: Some(script),
            kept: Some(kept),
            queue: self.clone(),
            is_sent: false,
        };
        let verdict = match taking.await {
            Ok(verdict) => verdict,
            Err(error) => return Err(self.explain(error, Work::Get).await),
        };
        let is_empty = |is| self.0.taking.is_empty.store(is, Ordering::Relaxed);
        match verdict.word.as_str() {
            "got" => {
                is_empty(verdict.number(1) == Some(0));
                Ok(Attempt::Done(taken(verdict)))
            }
            "empty" => {
                is_empty(true);
                Ok(Attempt::NotYet { awaited: Awaited::Element, is_closed: false })
            }
            "busy" => Ok(busy(&verdict)),
            "closed" => Err(QueueError::Closed),
            "absent" => Err(QueueError::DoesNotExist),
            _ => Err(self.unexpected(verdict)),
        }
    }

    async fn take(self, limit: Limit) -> Result<Verdict, StoreError> {
        let is_new = self.0.version.load(Ordering::Relaxed) >= REDIS_7;
        let script = if is_new { &scripts::GET_AT_MEMORY_LIMIT } else { &scripts::GET };
        let mut call = self.call(script);
        call.arg(&self.0.options.client_id).arg(limit.elements.max(1)).arg(limit.bytes);
        self.0.store.ask(&self.0.name, &call).await
    }

    /// Puts elements that a get took back to where they were, if no client got
    /// any since; waits for another consumer's role as it is told. The queue may
    /// be longer than its bound afterwards: producers used the room.
    ///
    /// Errors: [`QueueError::Overtaken`], [`QueueError::DoesNotExist`],
    /// [`QueueError::InUse`], [`QueueError::TimedOut`] and
    /// [`QueueError::Store`], each with the elements.
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
            match self.try_give_back(taken, counted).await? {
                Attempt::Done(()) => return Ok(()),
                Attempt::NotYet { awaited, is_closed } => pace.until(awaited, is_closed).await?,
            }
        }
    }

    async fn try_give_back(&self, taken: &Taken, counted: u64) -> Result<Attempt<()>, QueueError> {
        let mut call = self.call(&scripts::GIVE_BACK);
        call.arg(&self.0.options.client_id).arg(counted);
        for element in taken.iter() {
            call.arg(element);
        }
        let verdict = self.0.store.ask(&self.0.name, &call).await?;
        match verdict.word.as_str() {
            "done" => Ok(Attempt::Done(())),
            "busy" => Ok(busy(&verdict)),
            "overtaken" => Err(QueueError::Overtaken),
            "absent" => Err(QueueError::DoesNotExist),
            _ => Err(self.unexpected(verdict)),
        }
    }
}

fn busy<T>(verdict: &Verdict) -> Attempt<T> {
    Attempt::NotYet {
        awaited: Awaited::Role { role: QueueRole::Consumer, who: verdict.text(0) },
        is_closed: verdict.number(1).is_some_and(|elements| elements > 0),
    }
}

/// What the reply `got` brought.
fn taken(verdict: Verdict) -> Taken {
    let counted = verdict.number(0);
    Taken::new(verdict.elements(2), counted)
}

/// A get's script on its way. Dropped before the answer is there, it is awaited by
/// a task of its own, which keeps the elements for the next get.
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
        // Without a runtime the program is at its end.
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
            // In this order: the last clone gives back what is kept.
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
                tracing::warn!(queue = %queue.name(), %error, "elements that nobody waited for any more are lost");
            }
        });
    }
}
