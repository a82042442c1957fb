//! Acquires a slot by trying and waiting. See `attempt` for one attempt, `fairness` for
//! the order among clients, and `outage` for what happens without a broker.

use std::time::Duration;

use super::attempt::{Place, SKEW};
use super::error::AcquireError;
use super::lock::{Kind, Lock};
use super::options::AcquireOptions;
use super::permit::Permit;
use super::waiter::Waiter;
use crate::clock::Moment;
use crate::semaphore::amqp::lane::Waiters;
use crate::semaphore::amqp::new_id;
use crate::semaphore::protocol::interface::Wait;
use crate::semaphore::protocol::numbered::holding::Holding;

/// First and longest pause between attempts without a wait queue, before jitter.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

impl Lock {
    /// Acquires a slot with the given protocol.
    pub(super) async fn acquire_slot(
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
        let mut may_join = self.kind() == Kind::Semaphore;
        let (mut pause, mut place) = (PAUSES.0, Place::Any);
        if self.joins_first(options).await? {
            (waiter, may_join) = (self.join(&id, options).await?, false);
            place = first_place(waiter.as_ref(), options);
        }
        loop {
            let error = match self.attempt(how, options, &id, place, until).await {
                Ok((permit, more)) => {
                    if let Some(waiter) = waiter {
                        self.pass_on(waiter, permit.slot(), more).await;
                    }
                    return Ok(permit);
                }
                Err(error) => error,
            };
            let can_wait = match &error {
                // The slot was lost during the lock delay. Another client may hold it
                // now.
                AcquireError::Full { .. }
                | AcquireError::Contended { .. }
                | AcquireError::Lost { .. } => true,
                AcquireError::NoSlots { .. } => waiter.is_some() || may_join,
                _ => false,
            };
            if !can_wait || until.is_some_and(|until| until.left().is_zero()) {
                return Err(error);
            }
            if may_join {
                (waiter, may_join) = (self.join(&id, options).await?, false);
                if waiter.is_some() {
                    // Slots released before the client joined woke no waiter.
                    place = first_place(waiter.as_ref(), options);
                    continue;
                }
            }
            match &mut waiter {
                // No wake-up will come for this error: another client was just faster.
                Some(joined)
                    if matches!(
                        error,
                        AcquireError::Contended { .. } | AcquireError::Lost { .. }
                    ) =>
                {
                    if matches!(error, AcquireError::Lost { .. }) {
                        place = first_place(Some(joined), options);
                    }
                    tokio::time::sleep(rand::random_range(Duration::ZERO..=SKEW)).await;
                }
                Some(joined) => {
                    match self.wait_for_turn(how, options, joined, until).await? {
                        Some(next) => place = next,
                        // The lock was destroyed, or the connection was lost. The next
                        // attempt shows which.
                        None => {
                            (waiter, may_join, place) = (None, true, Place::Search { others: 0 });
                        }
                    }
                }
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
        let Some(queue) = self.name().wait_queue() else { return Ok(None) };
        let waiter = Waiter::join(&self.shared().side, &queue, id, options).await?;
        if let Some(waiter) = &waiter {
            // Including this waiter.
            let waiting = Waiters::Count(waiter.others.saturating_add(1));
            self.shared().publisher.waiters.note(&queue, waiting);
        }
        Ok(waiter)
    }

    /// Consumes this client's wake-up. If more slots are free, wakes the next waiter.
    async fn pass_on(&self, waiter: Waiter, slot: Option<u32>, more: bool) {
        waiter.leave(slot).await;
        if more && let Some(wait_queue) = self.name().wait_queue() {
            self.shared().publisher.wake(&wait_queue, None).await;
        }
    }
}

/// Returns which slots a client tries first after joining.
fn first_place(waiter: Option<&Waiter>, options: &AcquireOptions) -> Place {
    let others = waiter.filter(|_| !options.barge).map_or(0, |waiter| waiter.others);
    Place::Search { others }
}
