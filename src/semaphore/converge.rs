//! Making a semaphore on the broker as wished, under its admin mutex: look, plan,
//! declare, delete, look again, wake who waits. How the mutex is taken is
//! `mutex`'s, what should happen is [`crate::plan::semaphore`]'s.

mod around;
mod slots;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::broker::{Broker, Inner};
use super::error::BrokerError;
use super::lane::Lane;
use super::mutex::AdminMutex;
use super::protocol::{self, Holding};
use crate::plan::naming::LockName;
use crate::plan::semaphore::{SlotWish, SlotsSeen, plan, sweep_to, wake_ups};

/// Most declares of slots in flight, each on its own channel. After a lost
/// connection that many may still be carried out.
const IN_FLIGHT: u32 = 16;

/// What a change came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converged {
    /// What was there afterwards, up to the end of the sweep.
    pub seen: SlotsSeen,
    /// Slots that were missing and were declared.
    pub declared: u32,
    /// Slots above the wish that were deleted.
    pub deleted: u32,
    /// Slots that got a first record.
    pub seeded: u32,
    /// How many clients waited for a slot afterwards; `None` if there is no wait
    /// queue.
    pub waiting: Option<u32>,
    /// How many holders keep something that is to go and can't go before they
    /// release; of those that nothing stands in the way of, none is counted.
    pub left: u32,
    /// How long the change waited for its turn and the admin mutex.
    pub mutex_wait: Duration,
}

/// One change to one semaphore.
pub(super) struct Change {
    pub broker: Arc<Inner>,
    pub lock: LockName,
    pub wish: SlotWish,
    /// Also what should be as wished already is gone through.
    thorough: bool,
    /// Nothing of the semaphore is to be left but its holders.
    destroy: bool,
    /// How long it waited for its turn and the mutex.
    pub mutex_wait: Duration,
    cancel: CancellationToken,
}

/// What is done under the mutex.
pub(super) type Work<'a, T> = BoxFuture<'a, Result<T, BrokerError>>;

impl Broker {
    /// Makes the semaphore `lock` as wished, under the admin mutex: observe,
    /// plan, declare what is missing (the wait queue, records, then slots
    /// ascending, at most 16 in flight), delete the slots that are too many (one
    /// at a time, each confirmed), observe again, release, and wake a waiter for
    /// each slot that was added. Holders are never touched. With 0 slots the
    /// semaphore stays, and nobody may acquire: [`Broker::destroy`] removes it.
    ///
    /// `sweep_to` is [`crate::plan::semaphore::sweep_to`] with the high-water
    /// mark; if the plan for what was observed raises that mark, it must have
    /// been written before. If `thorough`, slots that exist are declared again,
    /// so that one with other arguments is found, and records that are not
    /// wished for are deleted.
    ///
    /// # Errors
    ///
    /// [`BrokerError::IncompatibleQueue`] only after everything else was done;
    /// [`BrokerError::Interrupted`] when `cancel` fires, which is looked at
    /// between effects; [`BrokerError::MutexBusy`] after the configured
    /// patience. Whatever the error, calling again finishes the rest.
    ///
    /// # Cancel safety
    ///
    /// The change is a task of its own: dropping this future is like firing
    /// `cancel`. The mutex is given back either way.
    pub async fn converge(
        &self,
        lock: &LockName,
        wish: SlotWish,
        sweep_to: u32,
        thorough: bool,
        cancel: &CancellationToken,
    ) -> Result<Converged, BrokerError> {
        let change = Change { thorough, ..self.change(lock, wish, cancel) };
        let sweep_to = sweep_to.max(wish.slots);
        let done = change.run(move |change, lane| change.make(lane, sweep_to).boxed()).await?;
        self.tell_waiters(lock, &done).await;
        Ok(done)
    }

    /// Removes the semaphore: all slots, in the wish's order, then the records
    /// and the wait queue. Whoever holds a slot keeps it until it releases; whoever
    /// waits is told by the broker that its consumer is gone. Where what it is held by
    /// would outlive the holders, [`Converged::left`] says how many there are: call
    /// again when they may have released.
    ///
    /// `mark` is the high-water mark; `None`, it is found under the mutex.
    /// Errors and cancel safety are those of [`Broker::converge`].
    pub async fn destroy(
        &self,
        lock: &LockName,
        wish: SlotWish,
        mark: Option<u32>,
        cancel: &CancellationToken,
    ) -> Result<Converged, BrokerError> {
        let none = SlotWish { slots: 0, records: None, ..wish };
        let change = Change { destroy: true, ..self.change(lock, none, cancel) };
        change.run(move |change, lane| change.remove(lane, mark).boxed()).await
    }

    pub(super) fn change(
        &self,
        lock: &LockName,
        wish: SlotWish,
        cancel: &CancellationToken,
    ) -> Change {
        Change::new(Arc::clone(self.inner()), lock.clone(), wish, cancel)
    }

    /// Wakes a waiter for each slot that was added.
    pub(super) async fn tell_waiters(&self, lock: &LockName, done: &Converged) {
        if let Err(error) = self.wake(lock, wake_ups(done.declared, done.waiting)).await {
            // They look for themselves from time to time.
            tracing::debug!(%error, "Those who wait could not be told of new slots");
        }
    }
}

impl Change {
    /// A change that stops when `cancel` fires.
    pub fn new(
        broker: Arc<Inner>,
        lock: LockName,
        wish: SlotWish,
        cancel: &CancellationToken,
    ) -> Self {
        let cancel = cancel.child_token();
        Self {
            broker,
            lock,
            wish,
            thorough: false,
            destroy: false,
            mutex_wait: Duration::ZERO,
            cancel,
        }
    }

    /// Whether nothing is to be left but holders.
    pub fn is_destruction(&self) -> bool {
        self.destroy
    }

    /// Sleeps, and stops when the change is to stop.
    pub async fn pause(&self, length: Duration) -> Result<(), BrokerError> {
        tokio::select! {
            () = self.cancel.cancelled() => Err(BrokerError::Interrupted),
            () = tokio::time::sleep(length) => Ok(()),
        }
    }

    /// Does it under the mutex, as a task of its own: when this future is dropped,
    /// it stops between two effects and gives the mutex back.
    pub async fn run<T: Send + 'static>(
        mut self,
        work: impl for<'a> FnOnce(&'a mut Self, &'a mut Lane) -> Work<'a, T> + Send + 'static,
    ) -> Result<T, BrokerError> {
        let _stop_when_dropped = self.cancel.clone().drop_guard();
        let task = async move {
            let broker = Arc::clone(&self.broker);
            let start = Instant::now();
            let mut mutex = AdminMutex::take(
                broker.admin_of(&self.lock),
                &broker.turns,
                &broker.local_locks,
                &self.lock,
                broker.options.mutex_patience,
                &self.cancel,
            )
            .await?;
            self.mutex_wait = start.elapsed();
            let result = work(&mut self, &mut mutex.lane).await;
            let conn = Arc::clone(mutex.lane.conn());
            let lost = !conn.is_usable();
            mutex.release().await;
            if lost && result.is_err() {
                broker.set_disturbed(&self.lock);
            }
            match result {
                Err(BrokerError::ConnectionLost { why }) if lost => {
                    // Of several operations that failed together, some only
                    // found the connection gone; another was told why.
                    Err(BrokerError::MutexLost {
                        why: match conn.failure() {
                            Some(BrokerError::ConnectionLost { why }) => why,
                            _ => why,
                        },
                    })
                }
                result => result,
            }
        };
        tokio::spawn(task).await.map_err(|_| BrokerError::Interrupted)?
    }

    async fn remove(&self, lane: &mut Lane, mark: Option<u32>) -> Result<Converged, BrokerError> {
        let mark = match mark {
            Some(mark) => mark,
            None => self.broker.find_mark(&self.lock, self.wish.overshoot).await?,
        };
        self.make(lane, sweep_to(self.wish, mark)).await
    }

    /// Makes it as wished, with a sweep that ends at `swept_to`.
    pub async fn make(&self, lane: &mut Lane, swept_to: u32) -> Result<Converged, BrokerError> {
        protocol::of(&self.lock).make(self, lane, swept_to).await
    }

    /// The same with slots that are held in this way.
    pub async fn make_slots(
        &self,
        how: &dyn Holding,
        lane: &mut Lane,
        swept_to: u32,
    ) -> Result<Converged, BrokerError> {
        self.go_on(lane)?;
        // What a lost connection still had in flight may have landed higher up.
        let disturbed = self.broker.take_disturbed(&self.lock);
        let swept_to = swept_to.saturating_add(if disturbed { IN_FLIGHT } else { 0 });
        let before = self.broker.observe(&self.lock, swept_to, 0).await?;
        let plan = plan(self.wish, &before, None);
        let mut in_the_way = None;
        // Nobody holds a slot that can't have existed, the highest that was there
        // once or is wished for.
        let once_there = swept_to.saturating_sub(self.wish.overshoot);
        self.check_nodes(lane, &before, once_there).await?;
        let mut seeded = 0;
        if !self.destroy {
            self.declare_wait_queue(lane, &mut in_the_way).await?;
            // Before the slot: who finds it finds its record.
            seeded = self.declare_records(lane, &mut in_the_way).await?;
        }
        let declared = self.declare(how, lane, &before, &plan, &mut in_the_way).await?;
        let deleted = self.delete(lane, &plan, &mut in_the_way).await?;
        let left = how.tidy(self, lane, swept_to).await?;
        if self.destroy || self.thorough && self.wish.records.is_none() {
            self.delete_records(lane, swept_to, &mut in_the_way).await?;
        }
        if self.destroy {
            self.delete_wait_queue(lane, &mut in_the_way).await?;
        }
        if let Some(error) = in_the_way {
            return Err(error);
        }
        self.go_on(lane)?;
        let holders_to = once_there.max(before.highest());
        let seen = self.broker.observe(&self.lock, swept_to, holders_to).await?;
        let waiting = match self.lock.wait_queue() {
            Some(queue) if !self.destroy => lane.consumers(&queue).await?,
            _ => None,
        };
        Ok(Converged {
            seen,
            declared,
            deleted,
            seeded,
            waiting,
            left,
            mutex_wait: self.mutex_wait,
        })
    }

    /// Whether to start the next effect.
    pub fn go_on(&self, lane: &Lane) -> Result<(), BrokerError> {
        if self.cancel.is_cancelled() || !self.broker.options.may_act.now() {
            return Err(BrokerError::Interrupted);
        }
        if lane.conn().is_blocked() {
            return Err(BrokerError::Blocked);
        }
        Ok(())
    }

    /// A slot queue whose node is down looks as if it were missing, and would
    /// be back with its node. Slots that are to be declared tell by that; here
    /// those are asked for that existed once and should not exist any more.
    async fn check_nodes(
        &self,
        lane: &mut Lane,
        before: &SlotsSeen,
        once_there: u32,
    ) -> Result<(), BrokerError> {
        let missing: Vec<String> = (self.wish.slots + 1..=once_there)
            .filter(|slot| !before.slots.contains(slot))
            .map(|slot| self.lock.slot_queue(slot))
            .collect();
        for batch in missing.chunks(1000) {
            self.go_on(lane)?;
            lane.delete_missing(batch).await?;
        }
        Ok(())
    }
}
