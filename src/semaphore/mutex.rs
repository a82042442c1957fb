//! The admin mutex: the exclusive queue that carries the lock's name, and the
//! in-process lock beside it. What is done under it is `converge`'s.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::error::BrokerError;
use super::lane::{Declared, Lane, exclusive_arguments};
use super::link::Link;
use crate::plan::naming::LockName;

/// First and longest pause between two tries, before jitter.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// One lock per mutex queue for the tasks of this process: two profiles of one
/// name have the same.
///
/// Exclusive queues are exclusive to a *connection*: on the shared admin
/// connection a second declare of the same mutex would succeed, and two tasks
/// would both believe that they hold it.
#[derive(Clone, Default)]
pub(super) struct LocalLocks(Arc<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>>);

impl LocalLocks {
    async fn lock(&self, queue: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Those that nobody holds or waits for go, lest deleted locks pile up.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(queue.to_owned()).or_default())
        };
        lock.lock_owned().await
    }
}

/// The admin mutex, held. Dropping it without [`AdminMutex::release`] ends the
/// whole connection: that frees it for certain.
pub(super) struct AdminMutex {
    /// A channel of the connection that owns the mutex: whatever is done under
    /// it goes over this connection, so nothing can be done after it is lost
    /// but what was already on its way (hazard A16).
    pub lane: Lane,
    queue: String,
    released: bool,
    _turn: OwnedSemaphorePermit,
    _local: OwnedMutexGuard<()>,
}

impl AdminMutex {
    /// Takes the mutex, trying for `patience` with full jitter. A turn of
    /// `turns` is waited for before that, and kept while the mutex is; between
    /// two tries somebody else may have it.
    pub async fn take(
        link: &Link,
        turns: &Arc<Semaphore>,
        locks: &LocalLocks,
        lock: &LockName,
        patience: Duration,
        cancel: &CancellationToken,
    ) -> Result<Self, BrokerError> {
        let mut turn = Some(wait_for_turn(turns, cancel).await?);
        let start = Instant::now();
        let queue = lock.admin_mutex().to_owned();
        let busy = || BrokerError::MutexBusy { queue: queue.clone(), waited: start.elapsed() };
        let local = tokio::select! {
            () = cancel.cancelled() => return Err(BrokerError::Interrupted),
            local = tokio::time::timeout(patience, locks.lock(&queue)) => local.map_err(|_| busy())?,
        };
        let mut pause = PAUSES.0;
        let mut lane = loop {
            let now = match turn.take() {
                Some(first) => first,
                None => wait_for_turn(turns, cancel).await?,
            };
            let mut lane = Lane::take(&link.get().await?).await?;
            match lane.declare_exclusive(&queue, exclusive_arguments()).await {
                Ok(Declared::Ok) => {
                    return Ok(Self { lane, queue, released: false, _turn: now, _local: local });
                }
                Ok(Declared::Locked(_)) => {}
                Err(error) if error.is_collision() => {}
                Err(error) => return Err(error),
            }
            let left = patience.saturating_sub(start.elapsed());
            if left.is_zero() {
                break lane;
            }
            drop((lane, now));
            let jittered = rand::random_range(Duration::ZERO..=pause).min(left);
            tokio::select! {
                () = cancel.cancelled() => return Err(BrokerError::Interrupted),
                () = tokio::time::sleep(jittered) => {}
            }
            pause = (pause * 2).min(PAUSES.1);
        };
        // An ordinary queue of that name is refused with the same code, and
        // waiting for it would never end.
        match lane.look(&queue).await? {
            Some(Declared::Ok) => Err(BrokerError::IncompatibleQueue {
                queue,
                why: "an ordinary queue has the name of the admin mutex".to_owned(),
            }),
            _ => Err(busy()),
        }
    }

    /// Gives the mutex back and waits until the broker has confirmed it.
    pub async fn release(mut self) {
        match self.lane.delete(&self.queue).await {
            Ok(()) => self.released = true,
            // Then dropping ends the connection.
            Err(error) => tracing::debug!(%error, "Admin mutex released by closing its connection"),
        }
    }
}

async fn wait_for_turn(
    turns: &Arc<Semaphore>,
    cancel: &CancellationToken,
) -> Result<OwnedSemaphorePermit, BrokerError> {
    tokio::select! {
        () = cancel.cancelled() => Err(BrokerError::Interrupted),
        // Fails only if it is closed, which nobody does.
        turn = Arc::clone(turns).acquire_owned() => turn.map_err(|_| BrokerError::Interrupted),
    }
}

impl Drop for AdminMutex {
    fn drop(&mut self) {
        if !self.released {
            self.lane.conn().kill();
        }
    }
}
