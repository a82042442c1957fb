//! The queue as programs use it: put, get, close, delete, and a look at it. What
//! an administrator does, above all changing the bound, is in
//! [`Store`](super::Store).
//!
//! Each operation is one script, so a client that dies, at whatever moment, never
//! keeps a role from others, and an element is in the queue or it is not. Waiting
//! costs no round trips: see `waiting.rs`.

mod ending;
mod environment;
mod error;
mod flow;
mod get;
mod put;
mod taken;
mod waiting;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::{Script, ScriptInvocation};

pub use self::environment::EnvironmentError;
pub use self::error::{Awaited, GiveBackError, PutBatchError, QueueError, Wait};
pub use self::flow::QueueSink;
pub use self::get::Limit;
pub use self::put::MAX_ELEMENT_BYTES;
pub use self::taken::Taken;
pub use crate::plan::pressure_queue::QueueRole;

use self::get::Taking;
use self::put::Putting;
use self::waiting::Waiting;
use super::reply::Verdict;
use super::store::{Applied, Store};
use super::{StoreError, StoreOptions, scripts};
use crate::plan::connection::RedisSettings;
use crate::plan::naming::QueueName;
use crate::plan::pressure_queue::{QueueEffect, QueueSeen};

/// How a queue's client connects and waits.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// Who we are, to those who look at the queue: written into `:producer` and
    /// `:consumer`. Default: host, process and thread, `host/4242/4243`.
    pub client_id: String,
    /// Longest time until a connection is open, login included. Default 3 s.
    pub connect_timeout: Duration,
    /// Longest time until an answer. Default 5 s.
    pub response_timeout: Duration,
    /// Whoever waits looks again after this long, in case somebody removed the
    /// queue's keys by other means than the protocol's, which wakes nobody.
    /// Default 60 s.
    pub look_interval: Duration,
}

impl Default for QueueOptions {
    fn default() -> Self {
        let store = StoreOptions::new(environment::client_id());
        Self {
            client_id: store.client_id,
            connect_timeout: store.connect_timeout,
            response_timeout: store.response_timeout,
            look_interval: Duration::from_mins(1),
        }
    }
}

/// One queue of pressure 0.15, for programs that put into it or get from it.
/// Cheap to clone; the clones share their connections, which are opened when
/// they are first needed: one for the operations, and one for each thing that is
/// waited for.
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper::pressure::{Queue, QueueError, Wait};
///
/// let queue = Queue::from_env("frames")?;
/// queue.create(10).await?;
/// queue.put(b"first").await?;
/// queue.close(Wait::Forever).await?;
/// assert_eq!(queue.get().await?, b"first");
/// assert_eq!(queue.get().await, Err(QueueError::Closed));
/// queue.delete(Wait::Forever).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// Those of [`QueueError`]. An operation on a connection that does not work
/// fails at once, as the protocol asks; the next one opens another.
///
/// # Cancel safety
///
/// Every operation may be dropped at any moment. What only reads leaves no
/// trace. A get loses nothing: an element that was taken already is kept by this
/// value, and is what its next get yields; when the last clone is dropped it is
/// given back to the queue. A put, a close or a delete has then happened or not.
#[derive(Clone)]
pub struct Queue(Arc<Inner>);

struct Inner {
    name: QueueName,
    keys: Vec<String>,
    store: Store,
    options: QueueOptions,
    waiting: Waiting,
    putting: Putting,
    taking: Taking,
    /// For which attempt's connection it is known that the user may put, and get.
    may_put: AtomicU64,
    may_get: AtomicU64,
    /// The server's version as one number; 0 before Redis 7.
    version: AtomicU64,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.0.name).field("store", &self.0.store).finish()
    }
}

/// What a client wants to do, and so what its user must be allowed to.
#[derive(Clone, Copy)]
enum Work {
    Put,
    Get,
}

impl Queue {
    /// The queue of this name at this server. Does no I/O: the queue need not
    /// exist.
    #[must_use]
    pub fn new(settings: RedisSettings, name: QueueName, options: QueueOptions) -> Self {
        let store = StoreOptions {
            connect_timeout: options.connect_timeout,
            response_timeout: options.response_timeout,
            ..StoreOptions::new(options.client_id.clone())
        };
        Self::over(Store::new(settings, store), name, options)
    }

    /// The queue of this name in this store.
    fn over(store: Store, name: QueueName, options: QueueOptions) -> Self {
        let waiting = Waiting::new(&store, &name, &options);
        Self(Arc::new(Inner {
            keys: scripts::keys(&name),
            name,
            store,
            options,
            waiting,
            putting: Putting::default(),
            taking: Taking::default(),
            may_put: AtomicU64::new(0),
            may_get: AtomicU64::new(0),
            version: AtomicU64::new(0),
        }))
    }

    /// The queue's name and prefix.
    pub fn name(&self) -> &QueueName {
        &self.0.name
    }

    /// The store that keeps it, for its administration.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// How we call ourselves.
    pub fn client_id(&self) -> &str {
        &self.0.options.client_id
    }

    /// From now on nobody waits with this value or a clone of it: an operation that
    /// waits just now, or would have to, tries once more and then ends as with
    /// [`Wait::No`]. For a program that is told to end and must know what it has
    /// done: an operation that is awaited to its end, rather than dropped, tells.
    pub fn stop_waiting(&self) {
        self.0.waiting.stop();
    }

    /// Makes the queue with this bound; 0 is no bound. Errors:
    /// [`QueueError::AlreadyExists`]; [`QueueError::Residue`] where a deletion has
    /// left keys behind.
    pub async fn create(&self, bound: u64) -> Result<(), QueueError> {
        match self.0.store.apply(&self.0.name, &QueueEffect::Create { bound }).await? {
            Applied::Done => Ok(()),
            Applied::Residue { keys } => Err(QueueError::Residue { keys }),
            _ => Err(QueueError::AlreadyExists),
        }
    }

    /// Whether the queue exists: it was created and not deleted.
    pub async fn exists(&self) -> Result<bool, QueueError> {
        match self.look(0).await {
            Ok(_) => Ok(true),
            Err(QueueError::DoesNotExist) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// How many elements are in the queue. Errors: [`QueueError::DoesNotExist`].
    #[expect(clippy::len_without_is_empty, reason = "the protocol's operation; not a collection")]
    pub async fn len(&self) -> Result<u64, QueueError> {
        Ok(self.look(0).await?.number(0).unwrap_or_default())
    }

    /// Whether the queue is closed, which is for ever. Errors:
    /// [`QueueError::DoesNotExist`].
    pub async fn closed(&self) -> Result<bool, QueueError> {
        Ok(self.look(0).await?.number(1) == Some(1))
    }

    /// The oldest elements, at most so many, the oldest first; takes none. Not
    /// part of the protocol, and no promise that a get yields the same. Errors:
    /// [`QueueError::DoesNotExist`].
    pub async fn peek(&self, most: usize) -> Result<Vec<Vec<u8>>, QueueError> {
        Ok(self.look(most).await?.elements(2))
    }

    /// All that the queue's keys say, at one moment.
    pub async fn stat(&self) -> Result<QueueSeen, QueueError> {
        Ok(self.0.store.observe(&self.0.name).await?)
    }

    async fn look(&self, most: usize) -> Result<Verdict, QueueError> {
        let mut call = self.call(&scripts::LOOK);
        call.arg(most);
        let verdict = self.0.store.ask(&self.0.name, &call).await?;
        match verdict.word.as_str() {
            "there" => Ok(verdict),
            "absent" => Err(QueueError::DoesNotExist),
            _ => Err(self.unexpected(verdict)),
        }
    }

    /// A script's call with the queue's keys.
    fn call<'a>(&self, script: &'a Script) -> ScriptInvocation<'a> {
        let mut call = script.prepare_invoke();
        call.key(&self.0.keys[..]);
        call
    }

    fn unexpected(&self, verdict: Verdict) -> QueueError {
        verdict.into_error(&self.0.name.data()).into()
    }

    /// For which attempt's connection it is known that the user may do this work.
    fn known(&self, work: Work) -> &AtomicU64 {
        match work {
            Work::Put => &self.0.may_put,
            Work::Get => &self.0.may_get,
        }
    }

    /// Learns once for each connection whether the user may do this work, so
    /// that no script is stopped half way; and which server it is.
    async fn check(&self, work: Work) -> Result<(), QueueError> {
        let known = self.known(work);
        if self.0.store.attempt(&self.0.name) == Some(known.load(Ordering::Relaxed)) {
            return Ok(());
        }
        let mut call = self.call(&scripts::ALLOWED);
        call.arg(match work {
            Work::Put => "put",
            Work::Get => "get",
        });
        let verdict = self.0.store.ask(&self.0.name, &call).await?;
        if verdict.word != "allowed" {
            return Err(self.unexpected(verdict));
        }
        self.0.version.store(verdict.number(0).unwrap_or_default(), Ordering::Relaxed);
        if let Some(attempt) = self.0.store.attempt(&self.0.name) {
            known.store(attempt, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What a script's failure means. A key of another type is named.
    async fn explain(&self, error: StoreError, work: Work) -> QueueError {
        if matches!(&error, StoreError::Protocol { detail } if detail.contains("wrong kind of value"))
        {
            self.known(work).store(0, Ordering::Relaxed);
            if let Err(named @ QueueError::Store(StoreError::WrongType { .. })) =
                self.check(work).await
            {
                return named;
            }
        }
        error.into()
    }
}
