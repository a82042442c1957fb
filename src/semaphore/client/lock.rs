//! One lock, and acquiring it: trying, waiting, running something under it. What
//! one attempt does is `attempt`'s, what its owner gets `permit`'s.

use std::sync::Arc;
use std::time::Duration;

use super::attempt::{Place, SKEW};
use super::moment::Moment;
use super::permit::Permit;
use super::waiter::{Waiter, Woken};
use super::{AcquireError, AcquireOptions, RunError, Shared, Wait};
use crate::plan::naming::LockName;
use crate::semaphore::protocol::{self, Holding};

/// First and longest pause between attempts where nobody can wake us, before
/// jitter.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// What kind of lock a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Semaphore,
    /// One exclusive queue of that name, which nobody administers.
    Mutex,
}

/// One lock on one broker. Cheap to clone.
#[derive(Clone)]
pub struct Lock {
    client: Arc<Shared>,
    name: LockName,
    kind: Kind,
}

impl std::fmt::Debug for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Lock").field(&self.name).finish()
    }
}

impl Lock {
    pub(super) fn new(client: Arc<Shared>, name: LockName, kind: Kind) -> Self {
        Self { client, name, kind }
    }

    pub(in crate::semaphore) fn shared(&self) -> &Shared {
        &self.client
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Acquires a slot, waiting for one as long as it takes.
    ///
    /// Where the lock has a wait queue, waiting asks the broker nothing: a release,
    /// a growth or the operator wakes the waiter of the highest priority. Elsewhere,
    /// and as a safety net, it looks now and then. A lock with 0 slots is waited
    /// for if it has a wait queue, that is, if somebody administers it.
    ///
    /// # Errors
    ///
    /// [`AcquireError::NoSlots`] where there is nothing to wait for, and
    /// [`AcquireError::Broker`]: an acquisition doesn't outlive its connections.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing held: what was being taken goes with its
    /// connection. A place among those who wait is lost.
    pub async fn acquire(&self, options: &AcquireOptions) -> Result<Permit, AcquireError> {
        protocol::of(&self.name).acquire(self, options, Wait::Forever).await
    }

    /// Acquires a slot that is free now, without waiting for another holder. A slot
    /// whose last holder ended uncleanly is rested first where the lock has a lock
    /// delay, so this may take as long as that. Cancel safe like [`Lock::acquire`].
    pub async fn try_acquire(&self, options: &AcquireOptions) -> Result<Permit, AcquireError> {
        protocol::of(&self.name).acquire(self, options, Wait::No).await
    }

    /// Acquires a slot, waiting at most `limit`. Cancel safe like
    /// [`Lock::acquire`].
    pub async fn acquire_timeout(
        &self,
        options: &AcquireOptions,
        limit: Duration,
    ) -> Result<Permit, AcquireError> {
        let wait = Wait::Until(Moment::now() + limit);
        protocol::of(&self.name).acquire(self, options, wait).await
    }

    /// Acquires a slot (waiting at most `limit`, if there is one), runs `body` under
    /// it and gives it back. When the slot is lost, `body` is dropped where it
    /// awaits.
    ///
    /// Cancel safe like [`Lock::acquire`]; dropped later, the slot is given back in
    /// the background.
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

    /// Acquires a slot that is held in this way.
    pub(in crate::semaphore) async fn acquire_slot(
        &self,
        how: &dyn Holding,
        options: &AcquireOptions,
        wait: Wait,
    ) -> Result<Permit, AcquireError> {
        let id = new_id();
        if wait == Wait::No {
            return Ok(self.attempt(how, options, &id, Place::Any, None).await?.0);
        }
        let until = wait.until();
        let mut waiter: Option<Waiter> = None;
        let mut may_join = self.kind == Kind::Semaphore;
        let (mut pause, mut place) = (PAUSES.0, Place::Any);
        if self.is_contended() {
            // It would have to be joined after the first look anyway.
            (waiter, may_join) = (self.join(&id, options).await?, false);
            place = Place::Search;
        }
        loop {
            let error = match self.attempt(how, options, &id, place, until).await {
                Ok((permit, more)) => {
                    if let Some(waiter) = &mut waiter {
                        self.pass_on(waiter, more).await;
                    }
                    return Ok(permit);
                }
                Err(error) => error,
            };
            let can_wait = match &error {
                AcquireError::Full { .. } | AcquireError::Contended { .. } => true,
                AcquireError::NoSlots { .. } => waiter.is_some() || may_join,
                _ => false,
            };
            if !can_wait || until.is_some_and(|until| until.left().is_zero()) {
                return Err(error);
            }
            if may_join {
                (waiter, may_join) = (self.join(&id, options).await?, false);
                if waiter.is_some() {
                    // What was released before we joined woke nobody.
                    place = Place::Search;
                    continue;
                }
            }
            match &mut waiter {
                // Not for others to be woken for: somebody was just faster.
                Some(_) if matches!(error, AcquireError::Contended { .. }) => {
                    tokio::time::sleep(rand::random_range(Duration::ZERO..=SKEW)).await;
                }
                Some(joined) => match joined.wait(until).await {
                    Woken::Called(slot) => {
                        let again = matches!(place, Place::Slot { .. });
                        let slot = slot.map(|slot| Place::Slot { slot, again });
                        place = slot.unwrap_or(Place::Search);
                    }
                    Woken::Uncalled => place = Place::Search,
                    // Destroyed, or its connection went: that shows at once.
                    Woken::Ended => (waiter, may_join, place) = (None, true, Place::Search),
                },
                None if matches!(error, AcquireError::NoSlots { .. }) => return Err(error),
                None => {
                    let left = until.map_or(pause, Moment::left);
                    tokio::time::sleep(rand::random_range(Duration::ZERO..=pause).min(left)).await;
                    pause = (pause * 2).min(PAUSES.1);
                }
            }
        }
    }

    async fn join(
        &self,
        id: &str,
        options: &AcquireOptions,
    ) -> Result<Option<Waiter>, AcquireError> {
        match self.name.wait_queue() {
            Some(queue) => Ok(Waiter::join(&self.client.side, &queue, id, options).await?),
            None => Ok(None),
        }
    }

    /// Our wake-up has had its use; if there is room for another waiter, it is told.
    async fn pass_on(&self, waiter: &mut Waiter, more: bool) {
        // What isn't acknowledged goes to the next waiter by itself.
        let _ = waiter.done().await;
        if more && let Some(wait_queue) = self.name.wait_queue() {
            self.client.publisher.wake(&wait_queue, None).await;
        }
    }
}

/// An id that no other acquisition has.
pub(in crate::semaphore) fn new_id() -> String {
    format!("{:020x}", rand::random::<u128>() >> 48)
}
