//! Making a semaphore's slots as wished, under its admin mutex: look, plan,
//! declare ascending, delete descending, look again. How the mutex is taken is
//! `mutex`'s, what should happen is [`crate::plan::semaphore`]'s.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use futures::future::join_all;
use tokio_util::sync::CancellationToken;

use super::broker::{Broker, Inner};
use super::error::BrokerError;
use super::lane::Lane;
use super::mutex::AdminMutex;
use crate::plan::naming::LockName;
use crate::plan::semaphore::{SlotPlan, SlotWish, SlotsSeen, plan};

/// Most declares in flight, each on its own channel. After a lost connection
/// that many may still be carried out.
const IN_FLIGHT: u32 = 16;

/// Slots above the wish that are checked to be ours in one go.
const CHECKED_TOGETHER: usize = 100;

/// What a change came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converged {
    /// What was there afterwards, up to the end of the sweep.
    pub seen: SlotsSeen,
    /// Slots that were missing and were declared.
    pub declared: u32,
    /// Slots above the wish that were deleted.
    pub deleted: u32,
}

/// One change to one semaphore.
struct Change {
    broker: Arc<Inner>,
    lock: LockName,
    wish: SlotWish,
    sweep_to: u32,
    check_arguments: bool,
    cancel: CancellationToken,
}

impl Broker {
    /// Makes the slots of `lock` as wished, under the admin mutex: observe,
    /// plan, declare what is missing (ascending, at most 16 in flight), delete
    /// what is too much (descending, one at a time, each confirmed), observe
    /// again, release. A wish for 0 slots destroys the semaphore. Holders are
    /// never touched.
    ///
    /// `sweep_to` is [`crate::plan::semaphore::sweep_to`] with the high-water
    /// mark; if the plan for what was observed raises that mark, it must have
    /// been written before. With `check_arguments`, slots that exist are
    /// declared again, so that one with other arguments is found.
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
        check_arguments: bool,
        cancel: &CancellationToken,
    ) -> Result<Converged, BrokerError> {
        let cancel = cancel.child_token();
        let _stop_when_dropped = cancel.clone().drop_guard();
        let change = Change {
            broker: Arc::clone(self.inner()),
            lock: lock.clone(),
            wish,
            sweep_to: sweep_to.max(wish.slots),
            check_arguments,
            cancel,
        };
        tokio::spawn(change.run()).await.map_err(|_| BrokerError::Interrupted)?
    }
}

impl Change {
    async fn run(mut self) -> Result<Converged, BrokerError> {
        let broker = Arc::clone(&self.broker);
        let mut mutex = AdminMutex::take(
            broker.admin_of(&self.lock),
            &broker.turns,
            &broker.local_locks,
            &self.lock,
            broker.options.mutex_patience,
            &self.cancel,
        )
        .await?;
        if broker.take_disturbed(&self.lock) {
            // What the lost connection still had in flight may land higher up.
            self.sweep_to = self.sweep_to.saturating_add(IN_FLIGHT);
        }
        let result = self.under_mutex(&mut mutex.lane).await;
        let conn = Arc::clone(mutex.lane.conn());
        let lost = !conn.is_usable();
        mutex.release().await;
        match result {
            Err(BrokerError::ConnectionLost { why }) if lost => {
                broker.set_disturbed(&self.lock);
                Err(BrokerError::MutexLost { why })
            }
            Err(error) if lost => {
                broker.set_disturbed(&self.lock);
                Err(error)
            }
            result => result,
        }
    }

    async fn under_mutex(&self, lane: &mut Lane) -> Result<Converged, BrokerError> {
        self.go_on(lane)?;
        let before = self.broker.observe(&self.lock, self.sweep_to, 0).await?;
        let plan = plan(self.wish, &before, None);
        let mut in_the_way = None;
        self.check_nodes(lane, &before).await?;
        let declared = self.declare(lane, &plan, &mut in_the_way).await?;
        let deleted = self.delete(lane, &plan, &mut in_the_way).await?;
        if let Some(error) = in_the_way {
            return Err(error);
        }
        self.go_on(lane)?;
        // Nobody holds a slot that can't have existed.
        let holders_to = self.once_there().max(before.highest());
        let seen = self.broker.observe(&self.lock, self.sweep_to, holders_to).await?;
        Ok(Converged { seen, declared, deleted })
    }

    /// The highest slot that was there once or is wished for.
    fn once_there(&self) -> u32 {
        self.sweep_to.saturating_sub(self.wish.overshoot)
    }

    /// Whether to start the next effect.
    fn go_on(&self, lane: &Lane) -> Result<(), BrokerError> {
        if self.cancel.is_cancelled() {
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
    async fn check_nodes(&self, lane: &mut Lane, before: &SlotsSeen) -> Result<(), BrokerError> {
        let missing: Vec<String> = (self.wish.slots + 1..=self.once_there())
            .filter(|slot| !before.slots.contains(slot))
            .map(|slot| self.lock.slot_queue(slot))
            .collect();
        for batch in missing.chunks(1000) {
            self.go_on(lane)?;
            lane.delete_missing(batch).await?;
        }
        Ok(())
    }

    async fn declare(
        &self,
        lane: &mut Lane,
        plan: &SlotPlan,
        in_the_way: &mut Option<BrokerError>,
    ) -> Result<u32, BrokerError> {
        let profile = self.lock.profile();
        let missing: BTreeSet<u32> = plan.declare.iter().copied().collect();
        let mut slots: Vec<u32> = if self.check_arguments {
            (1..=self.wish.slots).collect()
        } else {
            plan.declare.clone()
        };
        let mut declared = 0;
        if let Some(first) = missing.first() {
            // Alone: should a node be down, nothing else has been changed.
            self.go_on(lane)?;
            lane.declare_slot(&self.lock.slot_queue(*first), profile).await?;
            declared += 1;
            slots.retain(|slot| slot != first);
        }
        let width = slots.len().min(IN_FLIGHT as usize);
        if width == 0 {
            return Ok(declared);
        }
        let next = AtomicUsize::new(0);
        let done = AtomicU32::new(declared);
        let failed = CancellationToken::new();
        let conn = Arc::clone(lane.conn());
        let workers = (0..width).map(|_| async {
            let work = async {
                let mut lane = Lane::take(&conn).await?;
                let mut in_the_way = None;
                while !failed.is_cancelled()
                    && let Some(slot) = slots.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    self.go_on(&lane)?;
                    match lane.declare_slot(&self.lock.slot_queue(*slot), profile).await {
                        Ok(()) if missing.contains(slot) => {
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(()) => {}
                        Err(error @ BrokerError::IncompatibleQueue { .. }) => {
                            in_the_way.get_or_insert(error);
                        }
                        Err(error) => return Err(error),
                    }
                }
                Ok(in_the_way)
            };
            work.await.inspect_err(|_| failed.cancel())
        });
        // All are awaited, also after an error: nothing stays in flight.
        for result in join_all(workers).await {
            let found = result?;
            *in_the_way = in_the_way.take().or(found);
        }
        Ok(done.into_inner())
    }

    async fn delete(
        &self,
        lane: &mut Lane,
        plan: &SlotPlan,
        in_the_way: &mut Option<BrokerError>,
    ) -> Result<u32, BrokerError> {
        let names: Vec<String> =
            plan.delete.iter().map(|slot| self.lock.slot_queue(*slot)).collect();
        let mut chunks = names.chunks(CHECKED_TOGETHER);
        let Some(mut chunk) = chunks.next() else { return Ok(0) };
        self.go_on(lane)?;
        let mut second = Lane::take(lane.conn()).await?;
        let mut all_ours = self.are_ours(&mut second, chunk).await?;
        let mut deleted = 0;
        loop {
            // While these are deleted, the next ones are checked already.
            let following = chunks.next();
            let check = async {
                match following {
                    Some(next) => self.are_ours(&mut second, next).await,
                    None => Ok(true),
                }
            };
            let delete = self.delete_chunk(lane, chunk, all_ours, in_the_way);
            let (gone, checked) = futures::join!(delete, check);
            deleted += gone?;
            all_ours = checked?;
            match following {
                Some(next) => chunk = next,
                None => return Ok(deleted),
            }
        }
    }

    async fn delete_chunk(
        &self,
        lane: &mut Lane,
        names: &[String],
        all_ours: bool,
        in_the_way: &mut Option<BrokerError>,
    ) -> Result<u32, BrokerError> {
        let mut deleted = 0;
        for name in names {
            self.go_on(lane)?;
            let ours =
                if all_ours { Ok(()) } else { lane.declare_slot(name, self.lock.profile()).await };
            let gone = match ours {
                Ok(()) => lane.delete(name).await,
                Err(error) => Err(error),
            };
            match gone {
                Ok(()) => deleted += 1,
                Err(error @ BrokerError::IncompatibleQueue { .. }) => {
                    in_the_way.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(deleted)
    }

    /// Whether all of these are slot queues of ours: one with other arguments is
    /// not ours to delete. Asking for many at once costs little; after a refusal,
    /// each is asked for.
    async fn are_ours(&self, lane: &mut Lane, names: &[String]) -> Result<bool, BrokerError> {
        match lane.check_slots(names, self.lock.profile()).await {
            Ok(()) => Ok(true),
            Err(BrokerError::IncompatibleQueue { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
