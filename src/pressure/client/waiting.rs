//! Waiting for something to change in a queue, without asking again and again:
//! `BLMOVE list list RIGHT RIGHT`, which Redis answers as soon as the list has an
//! element, and which leaves list and order as they were. It wakes everyone who
//! waits so, and those who wait with BRPOP as other clients do. Whether what was
//! waited for can then be had is for the operation's script to find out.
//!
//! Each list has a connection of its own and at most one BLMOVE under way, which
//! all who wait for it share. Nobody takes a BLMOVE back: it may stand for ever,
//! and the next who waits joins it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use redis::aio::MultiplexedConnection;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::{Awaited, QueueError, QueueOptions, QueueRole, Wait};
use crate::plan::naming::QueueName;
use crate::pressure::connection::is_elsewhere;
use crate::pressure::{Store, StoreError};

/// A BLMOVE on `:closed` that has stood so long is known to the server, if a PING
/// that was sent right before it has been answered: a machine under load may keep
/// what is sent for longer than this. Before that, a queue might be deleted between
/// an operation's look at it and the server's receipt of the BLMOVE, and that would
/// wake nobody: so a wait ends after this long, for another look.
const SETTLED: Duration = Duration::from_millis(50);

/// How often to look where a closed queue's role is awaited: `:closed` can't tell
/// of a deletion then. Nobody waits with a role of a closed queue, so this passes
/// soon unless its holder is dead.
const CLOSED_LOOK: Duration = Duration::from_secs(1);

/// Broken connections in a row while the server answers otherwise, after which a
/// wait is given up. An outage breaks the two of one wait.
const MAX_FAILURES: u8 = 4;

/// What one try of an operation came to.
pub(super) enum Attempt<T> {
    /// It was done.
    Done(T),
    /// It has to wait.
    NotYet {
        awaited: Awaited,
        /// Whether the queue is closed already.
        is_closed: bool,
    },
}

/// The lists of one queue that can be waited for.
pub(super) struct Waiting {
    producer_free: Lane,
    consumer_free: Lane,
    not_full: Lane,
    data: Lane,
    closed: Lane,
    /// Nobody waits any more.
    over: CancellationToken,
}

impl Waiting {
    pub(super) fn new(store: &Store, queue: &QueueName, options: &QueueOptions) -> Self {
        let data = queue.data();
        let lane = |suffix: &str| Lane {
            key: format!("{data}{suffix}"),
            queue: queue.clone(),
            store: store.clone(),
            longest: options.look_interval,
            patience: options.look_interval + options.response_timeout,
            confirms: suffix == ":closed",
            state: Mutex::default(),
        };
        Self {
            producer_free: lane(":producer_free"),
            consumer_free: lane(":consumer_free"),
            not_full: lane(":not_full"),
            data: lane(""),
            closed: lane(":closed"),
            over: CancellationToken::new(),
        }
    }

    /// Ends all waiting, now and from now on.
    pub(super) fn stop(&self) {
        self.over.cancel();
    }

    /// How one operation waits between its tries. `first` is what it waits for even
    /// before its first try, because that is likely to fail; that is safe only
    /// while a BLMOVE on `:closed` stands, so else it does not.
    pub(super) fn pace(&self, wait: Wait, first: Option<Awaited>) -> Pace<'_> {
        let deadline = match wait {
            Wait::For(duration) => Instant::now().checked_add(duration),
            Wait::No | Wait::Forever => None,
        };
        let first = first.filter(|_| wait != Wait::No && self.closed.is_settled());
        Pace { waiting: self, wait, deadline, first, failures: 0 }
    }

    /// Returns when it is worthwhile to try again: the awaited list has an
    /// element, the queue was closed or deleted, or enough time has passed.
    ///
    /// Cancel safe.
    async fn change(&self, awaited: &Awaited, is_closed: bool) -> Result<(), StoreError> {
        let lane = match awaited {
            Awaited::Room => &self.not_full,
            Awaited::Element => &self.data,
            Awaited::Role { role: QueueRole::Producer, .. } => &self.producer_free,
            Awaited::Role { role: QueueRole::Consumer, .. } => &self.consumer_free,
        };
        if is_closed {
            return timeout(CLOSED_LOOK, lane.wait()).await.unwrap_or(Ok(()));
        }
        let either = async {
            tokio::select! {
                woken = lane.wait() => woken,
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

/// How one operation waits between its tries.
pub(super) struct Pace<'a> {
    waiting: &'a Waiting,
    wait: Wait,
    deadline: Option<Instant>,
    first: Option<Awaited>,
    /// So many waits in a row ended with a broken connection.
    failures: u8,
}

impl Pace<'_> {
    /// Before each try.
    pub(super) async fn before(&mut self) -> Result<(), QueueError> {
        let Some(awaited) = self.first.take() else { return Ok(()) };
        match self.until(awaited, false).await {
            // What was really missing, a try tells.
            Err(QueueError::TimedOut { .. }) => Ok(()),
            other => other,
        }
    }

    /// After a try that could not be done yet: waits, or says why not.
    pub(super) async fn until(
        &mut self,
        awaited: Awaited,
        is_closed: bool,
    ) -> Result<(), QueueError> {
        if self.wait == Wait::No || self.waiting.over.is_cancelled() {
            return Err(at_once(awaited));
        }
        let change = async {
            tokio::select! {
                change = self.waiting.change(&awaited, is_closed) => change,
                () = self.waiting.over.cancelled() => Ok(()),
            }
        };
        let woken = match self.deadline {
            None => change.await,
            Some(deadline) => match tokio::time::timeout_at(deadline, change).await {
                Ok(woken) => woken,
                Err(_) => return Err(QueueError::TimedOut { awaited }),
            },
        };
        match woken {
            Ok(()) => self.failures = 0,
            // The next try tells whether the server is there.
            Err(error) if error.spoils_connection() && self.failures < MAX_FAILURES => {
                self.failures += 1;
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

fn at_once(awaited: Awaited) -> QueueError {
    match awaited {
        Awaited::Room => QueueError::Full,
        Awaited::Element => QueueError::Empty,
        Awaited::Role { role, who } => QueueError::InUse { role, who },
    }
}

/// A BLMOVE under way. Yields the connection too, if it can be used again.
type Pending = Shared<BoxFuture<'static, (Result<(), StoreError>, Option<MultiplexedConnection>)>>;

/// One list that can be waited for.
struct Lane {
    key: String,
    queue: QueueName,
    store: Store,
    /// After this long the server answers in any case.
    longest: Duration,
    /// After this long the server is taken for dead.
    patience: Duration,
    /// Whether to find out when the server knows of the BLMOVE.
    confirms: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// With the time when the server had it, once that is known.
    pending: Option<(Pending, Arc<OnceLock<Instant>>)>,
    connection: Option<MultiplexedConnection>,
}

impl Lane {
    /// Whether a BLMOVE stands, and the server must know of it by now.
    fn is_settled(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.pending.as_ref().is_some_and(|(pending, known)| {
            pending.peek().is_none() && known.get().is_some_and(|known| known.elapsed() >= SETTLED)
        })
    }

    /// Returns when the list has an element, or after the longest time.
    ///
    /// Cancel safe: the BLMOVE stands on for the next who waits.
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

    fn start(
        &self,
        connection: Option<MultiplexedConnection>,
        known: Arc<OnceLock<Instant>>,
    ) -> Pending {
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
            // In this order, without a pause between the two.
            let ((), moved) =
                futures::join!(confirm, blmove.query_async::<redis::Value>(&mut connection));
            match moved {
                Ok(_) => (Ok(()), Some(connection)),
                // The next try finds out where the queue is now.
                Err(error) if is_elsewhere(&error) => (Ok(()), None),
                Err(error) => (Err(error.into()), None),
            }
        }
        .boxed()
        .shared()
    }
}
