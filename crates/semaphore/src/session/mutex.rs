//! The admin mutex: the exclusive queue with the lock's name, and an in-process lock in
//! front of it. See `converge` for the changes made under it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lapin::types::AMQPValue;
use lockkeeper_amqp::channel::{Channel, Declared};
use lockkeeper_amqp::lazy::LazyConnection;
use lockkeeper_plan::naming::LockName;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::error::BrokerError;
use crate::queues::arguments::exclusive_arguments;
use crate::session::offered;

/// First and longest pause between two attempts, before jitter.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// The queue argument that identifies the change that holds the mutex.
pub const ID: &str = "x-lockkeeper-id";

/// In-process locks, one per mutex queue. Two profiles of one name share the queue.
///
/// Exclusive queues are exclusive to a *connection*. On the shared admin connection a
/// second declare of the same mutex would succeed, and two tasks would both believe that
/// they hold it.
#[derive(Clone, Default)]
pub struct LocalLocks(Arc<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>>);

impl LocalLocks {
    async fn lock(&self, queue: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Unused locks are removed, so that deleted ones don't pile up.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(queue.to_owned()).or_default())
        };
        lock.lock_owned().await
    }
}

/// The held admin mutex. Dropping it without [`AdminMutex::release`] closes the whole
/// connection, which frees the mutex for certain.
pub struct AdminMutex {
    /// A channel of the connection that owns the mutex. All changes under the mutex use
    /// this connection. After it is lost, only frames that were already in flight can
    /// take effect (hazard A16).
    pub channel: Channel,
    queue: String,
    released: bool,
    _turn: OwnedSemaphorePermit,
    _local: OwnedMutexGuard<()>,
}

impl AdminMutex {
    /// Acquires the mutex, retrying for `patience` with full jitter. First waits for a
    /// permit of `turns`, which it keeps while the mutex is held. Between two attempts
    /// another task may use the permit. The mutex's queue has `id` among its arguments.
    pub async fn take(
        lazy: &LazyConnection,
        turns: &Arc<Semaphore>,
        locks: &LocalLocks,
        (lock, id): (&LockName, &str),
        patience: Duration,
        cancel: &CancellationToken,
    ) -> Result<Self, BrokerError> {
        let mut turn = Some(wait_for_turn(turns, cancel).await?);
        let start = Instant::now();
        let queue = lock.admin_mutex().to_owned();
        let busy = || {
            let (queue, waited) = (queue.clone(), start.elapsed());
            BrokerError::MutexBusy { queue, holder: None, waited }
        };
        let local = tokio::select! {
            () = cancel.cancelled() => return Err(BrokerError::Interrupted),
            local = tokio::time::timeout(patience, locks.lock(&queue)) => local.map_err(|_| busy())?,
        };
        let mut pause = PAUSES.0;
        let mut channel = loop {
            let now = match turn.take() {
                Some(first) => first,
                None => wait_for_turn(turns, cancel).await?,
            };
            let (channel, is_taken) = try_to_take(lazy, lock, id).await?;
            if is_taken {
                return Ok(Self { channel, queue, released: false, _turn: now, _local: local });
            }
            let left = patience.saturating_sub(start.elapsed());
            if left.is_zero() {
                break channel;
            }
            drop((channel, now));
            let jittered = rand::random_range(Duration::ZERO..=pause).min(left);
            tokio::select! {
                () = cancel.cancelled() => return Err(BrokerError::Interrupted),
                () = tokio::time::sleep(jittered) => {}
            }
            pause = (pause * 2).min(PAUSES.1);
        };
        // An ordinary queue of that name is refused with the same code, and waiting for
        // it would never end.
        if !channel.connection().is_usable() {
            return Err(busy());
        }
        match channel.look(&queue).await? {
            Some(Declared::Ok) => Err(BrokerError::IncompatibleQueue {
                queue,
                why: "an ordinary queue has the name of the admin mutex".to_owned(),
            }),
            _ => Err(busy()),
        }
    }

    /// Releases the mutex and waits for the broker's confirmation.
    pub async fn release(mut self) {
        match self.channel.delete(&self.queue).await {
            Ok(()) => self.released = true,
            // Dropping it closes the connection.
            Err(error) => tracing::debug!(%error, "admin mutex released by closing its connection"),
        }
    }
}

/// Declares the mutex's queue. Returns the channel, and whether the queue now belongs to its
/// connection.
async fn try_to_take(
    lazy: &LazyConnection,
    lock: &LockName,
    id: &str,
) -> Result<(Channel, bool), BrokerError> {
    let mut connection = lazy.get().await?;
    offered::check(connection.features, lock)?;
    if connection.features.refusal_ends_connection() {
        // With the shared connection, the other changes would end too.
        connection = lazy.separate().await?;
    }
    let mut channel = Channel::take(&connection).await?;
    let mut arguments = exclusive_arguments();
    arguments.insert(ID.into(), AMQPValue::LongString(id.into()));
    let declared = channel.declare_exclusive(lock.admin_mutex(), arguments).await;
    match declared.map_err(BrokerError::from) {
        Ok(Declared::Ok) => Ok((channel, true)),
        Ok(Declared::Locked) => Ok((channel, false)),
        Err(error) if error.is_collision() => Ok((channel, false)),
        Err(error) => Err(error),
    }
}

async fn wait_for_turn(
    turns: &Arc<Semaphore>,
    cancel: &CancellationToken,
) -> Result<OwnedSemaphorePermit, BrokerError> {
    tokio::select! {
        () = cancel.cancelled() => Err(BrokerError::Interrupted),
        // Fails only if the semaphore is closed, which never happens.
        turn = Arc::clone(turns).acquire_owned() => turn.map_err(|_| BrokerError::Interrupted),
    }
}

impl Drop for AdminMutex {
    fn drop(&mut self) {
        if !self.released {
            self.channel.connection().kill();
        }
    }
}
