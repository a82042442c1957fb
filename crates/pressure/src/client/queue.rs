//! The queue for programs: its creation and what only inspects it. See `put`, `get` and
//! `lifecycle` for the other operations.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_plan::connection::RedisSettings;
use lockkeeper_plan::naming::QueueName;
use lockkeeper_plan::pressure_queue::{Applied, ObservedQueue, QueueEffect};
use tokio::sync::Mutex;

use super::batch::BatchSize;
use super::error::QueueError;
use super::options::QueueOptions;
use super::taken::Taken;
use super::waiting::Waiting;
use crate::reply::Verdict;
use crate::scripts::{Call, Script};
use crate::store::Store;
use crate::{StoreError, StoreOptions, scripts};

/// The state of the consumer's side of a [`Queue`].
#[derive(Default)]
pub(super) struct Taking {
    /// Elements whose get was dropped. Locked while a get's script runs, so that the next
    /// get returns these elements before younger ones.
    pub(super) kept: Arc<Mutex<Taken>>,
    /// The last get emptied the queue, so the next one waits first.
    pub(super) is_empty: AtomicBool,
    pub(super) batch: BatchSize,
}

/// The result of the last put.
#[derive(Default)]
pub(super) struct Putting {
    /// It filled the queue, so the next one waits first.
    pub(super) is_full: AtomicBool,
    pub(super) batch: BatchSize,
}

/// One queue of pressure 0.15, for programs that put or get elements. Cheap to clone. The
/// clones share their connections, which are opened on first use: one for the operations,
/// and one for each key that is waited for.
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_client::pressure::{Queue, QueueError, Wait};
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
/// Those of [`QueueError`]. An operation that starts while the server is not reachable
/// fails immediately, as the protocol requires. The next one opens another connection.
///
/// An operation that has started to wait also survives restarts, failovers and closed
/// connections. It reconnects at growing intervals of up to 5 s until its time limit.
/// Permanent errors end it immediately, for example a refused login or a deleted queue.
///
/// An operation that may have succeeded is never sent twice: see
/// [`QueueError::ends_unknown`].
///
/// # Cancel safety
///
/// Every operation may be dropped at any time. Operations that only read leave no trace.
/// A get loses nothing: this value keeps an element that was already taken, and its next
/// get returns it. When the last clone is dropped, the element is given back to the
/// queue. A put, a close or a delete has either happened or not.
///
/// A get can therefore be cancelled at any time, even while a slow or stalled server
/// sends its elements. [`Wait::For`](super::Wait::For) and [`Wait::No`](super::Wait::No) give up after a minute without a
/// byte, or not at all: see [`QueueOptions::answer_silence`].
#[derive(Clone)]
pub struct Queue(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) name: QueueName,
    pub(super) keys: Vec<String>,
    pub(super) store: Store,
    pub(super) options: QueueOptions,
    pub(super) waiting: Waiting,
    pub(super) putting: Putting,
    pub(super) taking: Taking,
    /// The connection attempt for which the user's permission to put was verified, and
    /// the one for getting.
    pub(super) may_put: AtomicU64,
    pub(super) may_get: AtomicU64,
    /// And for getting with a lease.
    pub(super) may_lease: AtomicU64,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.0.name).field("store", &self.0.store).finish()
    }
}

/// The kind of operation, which determines the required permissions.
#[derive(Clone, Copy)]
pub(super) enum Work {
    Put,
    Get,
    /// Get with a lease.
    Lease,
}

impl Queue {
    /// Creates a client of the queue of this name on this server. Does no I/O. The queue
    /// need not exist.
    #[must_use]
    pub fn new(settings: RedisSettings, name: QueueName, options: QueueOptions) -> Self {
        let store = StoreOptions {
            connect_timeout: options.connect_timeout,
            response_timeout: options.response_timeout,
            ..StoreOptions::new(options.client_id.clone())
        };
        Self::over(Store::new(settings, store), name, options)
    }

    /// Returns the server and the database, with credentials.
    #[must_use]
    pub fn settings(&self) -> &RedisSettings {
        self.0.store.settings()
    }

    /// Returns whether both are clients of one queue: the same keys in the same database of
    /// a server with the same address.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let place = |queue: &Self| (queue.settings().address(), queue.name().data());
        place(self) == place(other)
    }

    /// Creates a client of the queue of this name in this store.
    pub(super) fn over(store: Store, name: QueueName, options: QueueOptions) -> Self {
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
            may_lease: AtomicU64::new(0),
        }))
    }

    /// Returns the queue's name and prefix.
    pub fn name(&self) -> &QueueName {
        &self.0.name
    }

    /// Returns the store of the queue, for its administration.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// Returns the id of this client.
    pub fn client_id(&self) -> &str {
        &self.0.options.client_id
    }

    /// Disables waiting for this value and its clones. An operation that is waiting or
    /// would have to wait tries once more, and then ends as with [`Wait::No`](super::Wait::No). Use this
    /// in a program that must stop and report its progress: an operation that is awaited
    /// to its end returns its result, unlike a dropped one.
    pub fn stop_waiting(&self) {
        self.0.waiting.stop();
    }

    /// Returns when no byte has flowed to or from the server for this long, counted from
    /// now at the earliest. Cancel safe.
    pub async fn silence(&self, limit: Duration) {
        self.0.store.silence(&self.0.name, limit).await;
    }

    /// Creates the queue with this bound. 0 means no bound. Errors:
    /// [`QueueError::AlreadyExists`]; [`QueueError::Residue`] if keys of a queue exist
    /// without its `:bound`.
    ///
    /// # Errors
    ///
    /// [`QueueError::Store`]: the server can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn create(&self, bound: u64) -> Result<(), QueueError> {
        created(self.0.store.apply(&self.0.name, &QueueEffect::Create { bound }).await?)
    }

    /// Creates the queue with this bound, also over the rest of one that lost its
    /// `:bound`: see [`Store::adopt`].
    ///
    /// # Errors
    ///
    /// [`QueueError::AlreadyExists`]; [`QueueError::Store`]: the server can't be reached,
    /// does not answer in time, or rejects the request.
    pub async fn adopt(&self, bound: u64) -> Result<(), QueueError> {
        created(self.0.store.adopt(&self.0.name, bound).await?)
    }

    /// Changes the bound. 0 means no bound. Elements beyond a lower bound stay, and no
    /// client has to release its role first. May be repeated.
    ///
    /// # Errors
    ///
    /// [`QueueError::DoesNotExist`]; [`QueueError::Store`]: the server can't be reached,
    /// does not answer in time, or rejects the request.
    pub async fn set_bound(&self, bound: u64) -> Result<(), QueueError> {
        match self.0.store.apply(&self.0.name, &QueueEffect::SetBound { bound }).await? {
            Applied::Done | Applied::AlreadySo => Ok(()),
            _ => Err(QueueError::DoesNotExist),
        }
    }

    /// Whether the queue exists: it was created and not deleted.
    ///
    /// # Errors
    ///
    /// [`QueueError::Store`]: the server can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn exists(&self) -> Result<bool, QueueError> {
        match self.look(0).await {
            Ok(_) => Ok(true),
            Err(QueueError::DoesNotExist) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the number of elements in the queue.
    ///
    /// # Errors
    ///
    /// [`QueueError::DoesNotExist`].
    #[expect(clippy::len_without_is_empty, reason = "the protocol's operation; not a collection")]
    pub async fn len(&self) -> Result<u64, QueueError> {
        Ok(self.look(0).await?.number(0).unwrap_or_default())
    }

    /// Whether the queue is closed, which is permanent. Errors:
    /// [`QueueError::DoesNotExist`].
    ///
    /// # Errors
    ///
    /// [`QueueError::Store`]: the server can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn closed(&self) -> Result<bool, QueueError> {
        Ok(self.look(0).await?.number(1) == Some(1))
    }

    /// Returns up to `most` of the oldest elements, the oldest first, without taking
    /// them. Not part of the protocol. A later get may return other elements. Errors:
    /// [`QueueError::DoesNotExist`].
    ///
    /// # Errors
    ///
    /// [`QueueError::Store`]: the server can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn peek(&self, most: usize) -> Result<Vec<Vec<u8>>, QueueError> {
        Ok(self.look(most).await?.elements(2))
    }

    /// Returns the content of the queue's keys at one moment.
    ///
    /// # Errors
    ///
    /// [`QueueError::Store`]: the server can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn stat(&self) -> Result<ObservedQueue, QueueError> {
        Ok(self.0.store.observe(&self.0.name).await?)
    }

    async fn look(&self, most: usize) -> Result<Verdict, QueueError> {
        let mut call = self.call(&scripts::LOOK);
        call.arg(most);
        let verdict = self.0.store.read(&self.0.name, &call).await?;
        match verdict.word.as_str() {
            "there" => Ok(verdict),
            "absent" => Err(QueueError::DoesNotExist),
            _ => Err(self.unexpected(verdict)),
        }
    }

    /// Prepares a script call with the queue's keys.
    pub(super) fn call(&self, script: &'static Script) -> Call {
        let mut call = script.prepare();
        call.key(&self.0.keys[..]);
        call
    }

    pub(super) fn unexpected(&self, verdict: Verdict) -> QueueError {
        verdict.into_error(&self.0.name.data()).into()
    }

    /// Returns the connection attempt for which the permission for this operation was
    /// verified.
    fn known(&self, work: Work) -> &AtomicU64 {
        match work {
            Work::Put => &self.0.may_put,
            Work::Get => &self.0.may_get,
            Work::Lease => &self.0.may_lease,
        }
    }

    /// Verifies once per connection that the user has the permissions for this operation,
    /// so that no script is interrupted halfway. Also verifies that the server answers if it
    /// has been silent: it may hang, and the outcome of the operation would be uncertain.
    pub(super) async fn check(&self, work: Work) -> Result<(), QueueError> {
        let (store, name, known) = (&self.0.store, &self.0.name, self.known(work));
        let is_known = store.attempt(name) == Some(known.load(Ordering::Relaxed));
        if is_known && !store.is_silent(name) {
            return Ok(());
        }
        let mut call = self.call(&scripts::ALLOWED);
        call.arg(match work {
            Work::Put => "put",
            Work::Get => "get",
            Work::Lease => "lease",
        });
        let verdict = self.0.store.read(&self.0.name, &call).await?;
        if verdict.word != "allowed" {
            return Err(self.unexpected(verdict));
        }
        if let Some(attempt) = self.0.store.attempt(&self.0.name) {
            known.store(attempt, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Converts a script's error. If a key has the wrong type, finds out which.
    pub(super) async fn explain(&self, error: StoreError, work: Work) -> QueueError {
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

fn created(applied: Applied) -> Result<(), QueueError> {
    match applied {
        Applied::Done => Ok(()),
        Applied::Residue { keys } => Err(QueueError::Residue { keys }),
        _ => Err(QueueError::AlreadyExists),
    }
}
