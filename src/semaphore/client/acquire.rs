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

/// A client that acquires a slot, between two attempts.
struct Acquisition<'a> {
    lock: &'a Lock,
    how: &'a dyn Holding,
    options: &'a AcquireOptions,
    id: String,
    until: Option<Moment>,
    turn: Turn,
    /// Which slots the next attempt tries.
    place: Place,
}

/// How a client waits for its turn.
enum Turn {
    /// It has not joined the wait queue yet.
    Outside,
    Joined(Box<Waiter>),
    /// There is no wait queue. Contains the next pause, before jitter.
    Polling(Duration),
}

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
        let turn = match self.kind() {
            Kind::Semaphore => Turn::Outside,
            Kind::Mutex => Turn::Polling(PAUSES.0),
        };
        let (until, place) = (wait.until(), Place::Any);
        Acquisition { lock: self, how, options, id, until, turn, place }.run().await
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

impl Acquisition<'_> {
    async fn run(mut self) -> Result<Permit, AcquireError> {
        let Self { lock, how, options, until, .. } = self;
        if lock.joins_first(options).await? {
            self.join().await?;
        }
        loop {
            let error = match lock.attempt(how, options, &self.id, self.place, until).await {
                Ok((permit, more)) => {
                    if let Turn::Joined(waiter) = self.turn {
                        lock.pass_on(*waiter, permit.slot(), more).await;
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
                AcquireError::NoSlots { .. } => !matches!(self.turn, Turn::Polling(_)),
                _ => false,
            };
            if !can_wait || until.is_some_and(|until| until.left().is_zero()) {
                return Err(error);
            }
            self.wait(&error).await?;
        }
    }

    /// Joins the wait queue, if there is one. Slots released before that woke no waiter, so
    /// the next attempt does not wait.
    async fn join(&mut self) -> Result<(), AcquireError> {
        self.turn = match self.lock.join(&self.id, self.options).await? {
            Some(waiter) => {
                self.place = first_place(&waiter, self.options);
                Turn::Joined(Box::new(waiter))
            }
            None => Turn::Polling(PAUSES.0),
        };
        Ok(())
    }

    /// Waits for this client's turn after an attempt that failed.
    async fn wait(&mut self, error: &AcquireError) -> Result<(), AcquireError> {
        let Self { lock, how, options, until, .. } = *self;
        match &mut self.turn {
            Turn::Outside => self.join().await?,
            // No wake-up will come for these errors: another client was just faster.
            Turn::Joined(waiter)
                if matches!(error, AcquireError::Contended { .. } | AcquireError::Lost { .. }) =>
            {
                if matches!(error, AcquireError::Lost { .. }) {
                    self.place = first_place(waiter, options);
                }
                tokio::time::sleep(rand::random_range(Duration::ZERO..=SKEW)).await;
            }
            Turn::Joined(waiter) => match lock.wait_for_turn(how, options, waiter, until).await? {
                Some(next) => self.place = next,
                // The lock was destroyed, or the connection was lost. The next attempt
                // shows which.
                None => (self.turn, self.place) = (Turn::Outside, Place::Search { others: 0 }),
            },
            Turn::Polling(pause) => {
                let left = until.map_or(*pause, Moment::left);
                let jittered = rand::random_range(Duration::ZERO..=*pause);
                *pause = (*pause * 2).min(PAUSES.1);
                tokio::time::sleep(jittered.min(left)).await;
            }
        }
        Ok(())
    }
}

/// Returns which slots a client tries first after joining.
fn first_place(waiter: &Waiter, options: &AcquireOptions) -> Place {
    Place::Search { others: if options.barge { 0 } else { waiter.others } }
}
