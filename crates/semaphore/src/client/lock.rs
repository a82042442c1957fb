//! One lock: acquires it by trying and waiting, and runs a closure under it. See
//! `attempt` for one attempt and `permit` for the result.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_net::clock::Moment;
use lockkeeper_plan::naming::LockName;

use super::error::{AcquireError, RunError};
use super::options::AcquireOptions;
use super::permit::Permit;
use super::shared::Shared;
use crate::protocol::interface::Wait;

/// One lock on one broker. Cheap to clone.
///
/// ```no_run
/// # async fn deploy() {}
/// # async fn run(client: lockkeeper_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use lockkeeper_client::{AcquireError, AcquireOptions, LockName};
///
/// let lock = client.semaphore(LockName::new("ci.deploy")?);
/// let options = AcquireOptions::default().with_identity("build-42").with_priority(10);
/// // Waits for a minute at most. `deploy` is dropped if the slot is lost.
/// lock.run(&options, Some(Duration::from_secs(60)), async |_| deploy().await).await?;
///
/// match lock.try_acquire(&options).await {
///     Ok(permit) => permit.release().await?,
///     Err(AcquireError::Full { .. }) => println!("all slots are held"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Lock {
    client: Arc<Shared>,
    name: LockName,
}

impl std::fmt::Debug for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Lock").field(&self.name).finish()
    }
}

impl Lock {
    pub(super) fn new(client: Arc<Shared>, name: LockName) -> Self {
        Self { client, name }
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.client
    }

    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Acquires a slot, waiting without a time limit.
    ///
    /// With a wait queue, a release, a growth or the operator wakes the waiter of the
    /// highest priority. Among equal priorities, the one that has waited longest is woken.
    /// If a holder dies, the broker wakes the next waiter by the wake-up that the holder kept.
    /// A waiter that is not woken looks for a slot itself after 4 to 6 s, or after up to 18 s
    /// if the lock has many slots. Without a wait queue, the client polls. A lock with 0
    /// slots is waited for if it has a wait queue, that is, if it is administered.
    ///
    /// Acquisitions are fair: if other clients wait, this one joins them, even right
    /// after a release of its own. [`AcquireOptions::barge`] disables this.
    ///
    /// Once this client has been connected, waiting survives broker restarts, closed
    /// connections, failovers and blocked publishers. It also survives a limit on
    /// connections or channels, and the deletion of a lock that this call has found: it
    /// waits until the lock is created again. The client retries after pauses of up to 5 s.
    /// The place in the wait queue is lost each time.
    ///
    /// # Errors
    ///
    /// * [`AcquireError::Missing`] if the lock does not exist when the call begins.
    /// * [`AcquireError::Broker`] if the client was never connected, or if a person must
    ///   act, for example because the broker rejects the user, or because this process has
    ///   too many open files.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no slot held. A slot that was being taken is freed with
    /// its connection. The place in the wait queue is lost.
    pub async fn acquire(&self, options: &AcquireOptions) -> Result<Permit, AcquireError> {
        self.acquire_through_outages(options, Wait::Forever, &|_| {}).await
    }

    /// Acquires a slot that is free now, without waiting for another holder. Takes a free
    /// slot even if other clients wait for it.
    ///
    /// If the last holder of that slot ended without releasing it, the call waits for the
    /// lock delay. Use [`Lock::acquire_timeout`] to limit this time. A broker that does not
    /// answer ends the call after [`ClientOptions::connect_timeout`] or
    /// [`ClientOptions::operation_timeout`]. Cancel safe like [`Lock::acquire`].
    ///
    /// [`ClientOptions::connect_timeout`]: super::ClientOptions::connect_timeout
    /// [`ClientOptions::operation_timeout`]: super::ClientOptions::operation_timeout
    ///
    /// # Errors
    ///
    /// Those of [`Lock::acquire`]; [`AcquireError::Full`] if no slot is free.
    pub async fn try_acquire(&self, options: &AcquireOptions) -> Result<Permit, AcquireError> {
        self.acquire_through_outages(options, Wait::No, &|_| {}).await
    }

    /// Acquires a slot, waiting at most `limit`, which includes connecting and the lock
    /// delay. If the broker does not answer, the call ends at `limit` while it connects for
    /// the first time, which takes 3 s at least, and otherwise up to 2 s after `limit`, or 5
    /// s after its begin. Cancel safe like [`Lock::acquire`].
    ///
    /// # Errors
    ///
    /// Those of [`Lock::acquire`]. After `limit`, the error is the reason why there was
    /// no slot. Examples are [`AcquireError::Full`], [`AcquireError::NoSlots`] if the lock
    /// was deleted, and [`AcquireError::Unavailable`] if the broker was not reachable.
    ///
    /// If `limit` ends during the lock delay, the error is [`AcquireError::Resting`]. The
    /// elapsed part of the delay is saved on the broker. Attempts with short limits
    /// therefore succeed once their waits add up to the lock delay.
    pub async fn acquire_timeout(
        &self,
        options: &AcquireOptions,
        limit: Duration,
    ) -> Result<Permit, AcquireError> {
        let wait = Wait::Until(Moment::now() + limit);
        self.acquire_through_outages(options, wait, &|_| {}).await
    }

    /// Acquires a slot, runs `body` under it and releases it. Waits at most `limit`, if
    /// set. If the slot is lost, `body` is dropped at its current await point.
    ///
    /// # Errors
    ///
    /// * [`RunError::Acquire`] if no slot was acquired. `body` did not run.
    /// * [`RunError::Lost`] if the slot was lost before `body` ended. This includes a
    ///   suspension of this process that is only noticed after `body` has ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe like [`Lock::acquire`]. If the future is dropped while `body` runs,
    /// the slot is released in the background.
    pub async fn run<T>(
        &self,
        options: &AcquireOptions,
        limit: Option<Duration>,
        body: impl AsyncFnOnce(&Permit) -> T,
    ) -> Result<T, RunError> {
        let permit = match limit {
            Some(limit) => self.acquire_timeout(options, limit).await?,
            None => self.acquire(options).await?,
        };
        let done = tokio::select! {
            biased;
            reason = permit.lost() => return Err(RunError::Lost(reason)),
            done = body(&permit) => done,
        };
        permit.release().await?;
        Ok(done)
    }
}
