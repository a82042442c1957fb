//! Acquires a slot by trying and waiting. See `attempt` for one attempt, `fairness` for
//! the order among clients, and `outage` for what happens without a broker.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lockkeeper_amqp::new_id;
use lockkeeper_net::clock::Moment;
use lockkeeper_plan::naming::LockName;
use tokio::task::JoinHandle;

use super::acquisition::{Acquisition, Place};
use super::attempt::SKEW;
use super::error::AcquireError;
use super::fairness::{Approach, called_to};
use super::options::AcquireOptions;
use super::permit::Permit;
use super::shared::Shared;
use super::waiter::{Waiter, Woken};
use crate::protocol::claim::ClientProtocol;
use crate::protocol::interface::Wait;

/// First and longest pause between attempts without a wait queue, before jitter.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Number of contended attempts after which a client joins the wait queue, although there
/// are free slots. It has lost `max_races` races in each.
const PATIENCE: u32 = 3;

/// A client that acquires a slot, between two attempts.
struct Waiting<'a> {
    acquisition: Acquisition<'a>,
    /// Set once the lock was found to exist.
    existed: &'a mut bool,
    turn: Turn,
    /// Which slots the next attempt tries.
    place: Place,
    /// Number of contended attempts left before it joins the wait queue.
    patience: u32,
}

/// How a client waits for its turn.
enum Turn {
    /// It has not joined the wait queue yet.
    Outside,
    Joined(Box<Waiter>),
    /// There is no wait queue. Contains the next pause, before jitter.
    Polling(Duration),
}

/// Acquires a slot with the given protocol. Sets `existed` once the lock was found to exist.
/// Cancel safe.
pub async fn acquire_slot(
    client: &Shared,
    lock: &LockName,
    protocol: &dyn ClientProtocol,
    options: &AcquireOptions,
    wait: Wait,
    existed: &mut bool,
) -> Result<Permit, AcquireError> {
    let (id, until) = (new_id(), wait.until());
    let acquisition = Acquisition { client, lock, protocol, options, id, until };
    if wait == Wait::No {
        return Ok(acquisition.attempt(Place::Any).await?.0);
    }
    let (turn, place) = (Turn::Outside, Place::OrWait { lost: 0 });
    Waiting { acquisition, existed, turn, place, patience: PATIENCE }.run().await
}

/// Leaves the wait queue: sends the requests now, and waits for the answer in the background. If
/// more slots are free, wakes the next waiter then. `None` if there is nothing to wait for.
async fn pass_on(
    acquisition: &Acquisition<'_>,
    waiter: Waiter,
    permit: &Permit,
    more: bool,
) -> Option<JoinHandle<()>> {
    let (slot, next) = (permit.slot_to_wake(), permit.next_waiter());
    let wait_queue = acquisition.lock.wait_queue().filter(|_| more);
    let publisher = Arc::clone(&acquisition.client.publisher);
    let mut leaving = Box::pin(async move {
        let kept = waiter.leave(slot).await;
        if let Some(next) = next {
            next.keep_from_waiting(kept).await;
        }
        if let Some(wait_queue) = wait_queue {
            publisher.wake(&wait_queue, None, false).await;
        }
    });
    match futures::poll!(leaving.as_mut()) {
        Poll::Ready(()) => None,
        Poll::Pending => Some(tokio::spawn(leaving)),
    }
}

impl Waiting<'_> {
    async fn run(mut self) -> Result<Permit, AcquireError> {
        match self.acquisition.approach().await? {
            Approach::Join => self.join_behind().await?,
            Approach::Try(place) => self.place = place,
        }
        loop {
            let error = match self.acquisition.attempt(self.place).await {
                Ok((mut permit, more)) => {
                    if let Turn::Joined(waiter) = self.turn {
                        let leaving = pass_on(&self.acquisition, *waiter, &permit, more);
                        permit.leaving(leaving.await);
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
                | AcquireError::Lost { .. } => {
                    *self.existed = true;
                    true
                }
                AcquireError::NoSlots { .. } => !matches!(self.turn, Turn::Polling(_)),
                _ => false,
            };
            if !can_wait || self.acquisition.is_late() {
                return Err(error);
            }
            self.wait(&error).await?;
        }
    }

    /// Joins the wait queue, if there is one. Slots released before that woke no waiter, so
    /// the next attempt does not wait for a wake-up.
    async fn join(&mut self) -> Result<(), AcquireError> {
        let Acquisition { client, lock, protocol, options, ref id, .. } = self.acquisition;
        let joined = match lock.wait_queue() {
            Some(queue) => {
                let declare = protocol.wait_queue_arguments();
                let waiter = Waiter::join(&client.side, declare, &queue, id, options).await?;
                waiter.inspect(|waiter| client.publisher.waiters.joined(&queue, waiter.others))
            }
            None => None,
        };
        let Some(waiter) = joined else {
            self.turn = Turn::Polling(PAUSES.0);
            return Ok(());
        };
        *self.existed = true;
        self.place = first_place(&waiter, options);
        self.turn = Turn::Joined(Box::new(waiter));
        Ok(())
    }

    /// Joins the wait queue of a lock without free slots. Behind other waiters, it waits for its
    /// turn: a slot that was released since then has woken one of them.
    async fn join_behind(&mut self) -> Result<(), AcquireError> {
        self.join().await?;
        if matches!(self.place, Place::Search { others: 1.. }) {
            self.wait_for_turn().await?;
        }
        Ok(())
    }

    /// Waits for this client's turn after an attempt that failed.
    async fn wait(&mut self, error: &AcquireError) -> Result<(), AcquireError> {
        let Acquisition { options, until, .. } = self.acquisition;
        let is_lost = matches!(error, AcquireError::Lost { .. });
        let is_contended = matches!(error, AcquireError::Contended { .. });
        if let Turn::Joined(waiter) = &mut self.turn
            && let Some(woken) = waiter.wait_after_a_death().await
        {
            self.continue_with(woken);
            return Ok(());
        }
        match &mut self.turn {
            // There are enough free slots. A new waiter would make all other clients search.
            Turn::Outside
                if is_contended && self.patience > 0 && !self.acquisition.recall().is_crowded() =>
            {
                self.patience -= 1;
                let lost = (PATIENCE - self.patience).saturating_mul(options.max_races);
                self.place = Place::OrWait { lost };
                tokio::time::sleep(rand::random_range(Duration::ZERO..=SKEW)).await;
            }
            // Slots are free, and may be more than waiters.
            Turn::Outside if is_contended => self.join().await?,
            Turn::Outside => self.join_behind().await?,
            // Another client was just faster. Other slots may be free, without a wake-up.
            Turn::Joined(waiter) if is_contended || is_lost => {
                if is_lost {
                    self.place = first_place(waiter, options);
                }
                let woken = waiter.wait_for(rand::random_range(Duration::ZERO..=SKEW)).await;
                self.continue_with(woken);
            }
            Turn::Joined(_) => self.wait_for_turn().await?,
            Turn::Polling(pause) => {
                let left = until.map_or(*pause, Moment::left);
                let jittered = rand::random_range(Duration::ZERO..=*pause);
                *pause = (*pause * 2).min(PAUSES.1);
                tokio::time::sleep(jittered.min(left)).await;
            }
        }
        Ok(())
    }

    /// Waits until this client is woken, or should try again without that.
    async fn wait_for_turn(&mut self) -> Result<(), AcquireError> {
        let Turn::Joined(waiter) = &mut self.turn else { return Ok(()) };
        match self.acquisition.wait_for_turn(waiter).await? {
            Some(next) => self.place = next,
            // The next attempt shows whether the lock was destroyed or the connection
            // lost.
            None => self.leave(),
        }
        Ok(())
    }

    /// Chooses the slots of the next attempt, after a short pause.
    fn continue_with(&mut self, woken: Woken) {
        match woken {
            Woken::Called(slot) => self.place = called_to(slot),
            Woken::Uncalled => {}
            Woken::Ended => self.leave(),
        }
    }

    fn leave(&mut self) {
        (self.turn, self.place) = (Turn::Outside, Place::Search { others: 0 });
    }
}

/// Returns which slots a client tries first after joining.
fn first_place(waiter: &Waiter, options: &AcquireOptions) -> Place {
    Place::Search { others: if options.barge { 0 } else { waiter.others } }
}
