//! Waits for changes of a queue without polling, by `BLMOVE list list RIGHT RIGHT`. Redis
//! answers it as soon as the list has an element, and the list stays unchanged. It wakes
//! all clients that wait in this way, and also those that wait with BRPOP. The
//! operation's script then finds out whether it can proceed.
//!
//! Each list has a connection of its own and at most one BLMOVE in progress, which all
//! its waiters share. A BLMOVE is never cancelled: it may stay pending indefinitely, and
//! the next waiter joins it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use lockkeeper_plan::naming::QueueName;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::{Awaited, QueueOptions, QueueRole};
use crate::connection::{Connection, is_elsewhere};
use crate::{Store, StoreError};

/// Time after which the server has certainly received a BLMOVE on `:closed`, if it has
/// answered a PING that was sent right before it. (A machine under load may delay sending
/// for longer.)
///
/// Earlier, a queue might be deleted after an operation has checked it and before the
/// server receives the BLMOVE. That would wake no waiter. Therefore, a wait ends after
/// this time and the operation checks again.
const SETTLED: Duration = Duration::from_millis(50);

/// Interval of checks where no key signals the change. That is the case for the role of a
/// closed queue, because `:closed` can't signal a deletion then: no client waits while
/// holding a role of a closed queue, so this state ends soon unless its holder is dead. And
/// for the elements in flight, whose leases end by time.
const POLL: Duration = Duration::from_secs(1);

/// The lists of one queue that can be waited for.
pub(super) struct Waiting {
    producer_free: List,
    consumer_free: List,
    not_full: List,
    data: List,
    closed: List,
    /// Cancelled when all waiting ends.
    over: CancellationToken,
}

impl Waiting {
    pub(super) fn new(store: &Store, queue: &QueueName, options: &QueueOptions) -> Self {
        let data = queue.data();
        let list = |suffix: &str| List {
            key: format!("{data}{suffix}"),
            queue: queue.clone(),
            store: store.clone(),
            longest: options.look_interval,
            patience: options.look_interval + options.response_timeout,
            confirms: suffix == ":closed",
            state: Mutex::default(),
        };
        Self {
            producer_free: list(":producer_free"),
            consumer_free: list(":consumer_free"),
            not_full: list(":not_full"),
            data: list(""),
            closed: list(":closed"),
            over: CancellationToken::new(),
        }
    }

    /// Ends all current and future waits.
    pub(super) fn stop(&self) {
        self.over.cancel();
    }

    /// Whether all waiting has ended.
    pub(super) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Returns when all waiting ends. Cancel safe.
    pub(super) async fn over(&self) {
        self.over.cancelled().await;
    }

    /// Whether a BLMOVE on `:closed` is pending. Otherwise it is not safe to wait before
    /// the first attempt.
    pub(super) fn is_settled(&self) -> bool {
        self.closed.is_settled()
    }

    /// Returns when another attempt is due: the awaited list has an element, the queue
    /// was closed or deleted, or enough time has passed: a second if `polls`.
    ///
    /// Cancel safe.
    pub(super) async fn change(&self, awaited: &Awaited, polls: bool) -> Result<(), StoreError> {
        let list = match awaited {
            Awaited::Room => &self.not_full,
            Awaited::Element => &self.data,
            Awaited::Role { role: QueueRole::Producer, .. } => &self.producer_free,
            Awaited::Role { role: QueueRole::Consumer, .. } => &self.consumer_free,
        };
        if polls {
            return timeout(POLL, list.wait()).await.unwrap_or(Ok(()));
        }
        let either = async {
            tokio::select! {
                woken = list.wait() => woken,
                woken = self.closed.wait() => woken,
            }
        };
        if self.closed.is_settled() {
            either.await
        } else {
            timeout(SETTLED, either).await.unwrap_or(Ok(()))
        }
    }
}

/// A BLMOVE in progress. Returns the connection too, if it can be reused.
type Pending = Shared<BoxFuture<'static, (Result<(), StoreError>, Option<Connection>)>>;

/// One list that can be waited for.
struct List {
    key: String,
    queue: QueueName,
    store: Store,
    /// Time after which the server answers in any case.
    longest: Duration,
    /// Time after which the server is considered dead.
    patience: Duration,
    /// Whether to determine when the server has received the BLMOVE.
    confirms: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// With the time when the server had received it, once known.
    pending: Option<(Pending, Arc<OnceLock<Instant>>)>,
    connection: Option<Connection>,
}

impl List {
    /// Whether a BLMOVE is pending, and the server must have received it.
    fn is_settled(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.pending.as_ref().is_some_and(|(pending, known)| {
            pending.peek().is_none() && known.get().is_some_and(|known| known.elapsed() >= SETTLED)
        })
    }

    /// Returns when the list has an element, or after the longest time.
    ///
    /// Cancel safe: the BLMOVE stays pending for the next waiter.
    async fn wait(&self) -> Result<(), StoreError> {
        let pending = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            match &state.pending {
                Some((pending, _)) => pending.clone(),
                None => {
                    let known = Arc::new(OnceLock::new());
                    let pending = self.start(state.connection.take(), Arc::clone(&known));
                    state.pending = Some((pending.clone(), known));
                    pending
                }
            }
        };
        let (woken, connection) = pending.clone().await;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.pending.as_ref().is_some_and(|(now, _)| now.ptr_eq(&pending)) {
            state.pending = None;
            state.connection = connection;
        }
        woken
    }

    fn start(&self, connection: Option<Connection>, known: Arc<OnceLock<Instant>>) -> Pending {
        let (store, queue, key) = (self.store.clone(), self.queue.clone(), self.key.clone());
        let (longest, patience, confirms) = (self.longest, self.patience, self.confirms);
        async move {
            let mut connection = match connection {
                Some(connection) => connection,
                None => match store.open_waiting(&queue, patience).await {
                    Ok(connection) => connection,
                    Err(error) => return (Err(error), None),
                },
            };
            let mut blmove = redis::cmd("BLMOVE");
            blmove.arg(&key).arg(&key).arg("RIGHT").arg("RIGHT").arg(longest.as_secs_f64());
            let mut asking = connection.clone();
            let confirm = async {
                if confirms {
                    let answer = redis::cmd("PING").exec_async(&mut asking).await;
                    // A refusal is an answer too.
                    if !answer.is_err_and(|error| error.is_io_error()) {
                        let _ = known.set(Instant::now());
                    }
                }
            };
            // In this order, without a pause in between.
            let ((), moved) =
                futures::join!(confirm, blmove.query_async::<redis::Value>(&mut connection));
            match moved {
                Ok(_) => (Ok(()), Some(connection)),
                // The next attempt finds the queue's new location.
                Err(error) if is_elsewhere(&error) => (Ok(()), None),
                Err(error) if error.code() == Some("WRONGTYPE") => {
                    (Err(StoreError::WrongType { key }), None)
                }
                Err(error) => (Err(error.into()), None),
            }
        }
        .boxed()
        .shared()
    }
}
