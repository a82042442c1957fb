//! Converges a semaphore to its desired state, removes it, and checks it for faults. See
//! [`lockkeeper_plan::semaphore`] for the plan, and `protocol` for how each protocol applies
//! it.

use std::sync::Arc;

use futures::FutureExt;
use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::{DesiredSlots, sweep_to, wake_ups};
use tokio_util::sync::CancellationToken;

use super::broker::{Broker, Handle};
use super::resize::{ResizeError, ResizeTo, Resized, resize};
use crate::error::BrokerError;
use crate::protocol::fault::{Expected, Fault};
use crate::protocol::mismatch::Presence;
use crate::session::change::{Change, Converged};

impl Broker {
    /// Converges the semaphore `lock` to the desired state, under the admin mutex. The
    /// steps are:
    ///
    /// * Observe the slots and plan the change.
    /// * Declare missing objects: the wait queue, the records, then the slots in
    ///   ascending order, at most 16 in flight.
    /// * Delete surplus slots one at a time, each confirmed.
    /// * Observe again, release the mutex, and wake a waiter for each added slot.
    ///
    /// Holders are never touched. With 0 slots the semaphore stays, and no client can
    /// acquire it. [`Broker::destroy`] removes it.
    ///
    /// If the broker's limit on queues leaves none for the admin mutex, one surplus slot is
    /// deleted before.
    ///
    /// `sweep_to` is [`lockkeeper_plan::semaphore::sweep_to`] with the high-water mark. If
    /// the plan for the observed state raises that mark, the caller must have persisted
    /// it before. `thorough` has two effects: existing slots are declared again to detect
    /// different arguments, and records are deleted if none are desired.
    ///
    /// # Errors
    ///
    /// * [`BrokerError::NothingToAdminister`] without any request, if it is a true mutex.
    /// * [`BrokerError::ProtocolMismatch`] before any change, if the slots belong to
    ///   another protocol.
    /// * [`BrokerError::IncompatibleQueue`] only after all other changes were made.
    /// * [`BrokerError::Interrupted`] when `cancel` fires. It is checked between effects.
    /// * [`BrokerError::MutexBusy`] after the configured patience.
    ///
    /// After any error, calling again completes the rest.
    ///
    /// # Cancel safety
    ///
    /// The change runs as a task of its own. Dropping this future has the same effect as
    /// firing `cancel`. The mutex is released in both cases.
    pub async fn converge(
        &self,
        lock: &LockName,
        desired: DesiredSlots,
        sweep_to: u32,
        thorough: bool,
        cancel: &CancellationToken,
    ) -> Result<Converged, BrokerError> {
        let sweep_to = sweep_to.max(desired.slots);
        let change = || {
            let mut change = self.change(lock, desired, cancel)?;
            change.thorough = thorough;
            Ok(change)
        };
        let done = self.apply(change, Some(sweep_to)).await?;
        self.tell_waiters(lock, &done).await;
        Ok(done)
    }

    /// Removes the semaphore: all slots in the configured order, then the records and the
    /// wait queue. Holders keep their slots until they release. The broker cancels the
    /// consumers of waiting clients. If the queues of holders would outlive them,
    /// [`Converged::left`] returns the number of these holders. Call again when they may
    /// have released.
    ///
    /// `mark` is the high-water mark. If `None`, it is determined under the mutex. Errors
    /// and cancel safety are those of [`Broker::converge`].
    ///
    /// # Errors
    ///
    /// Those of [`Broker::converge`].
    pub async fn destroy(
        &self,
        lock: &LockName,
        desired: DesiredSlots,
        mark: Option<u32>,
        cancel: &CancellationToken,
    ) -> Result<Converged, BrokerError> {
        let none = DesiredSlots { slots: 0, records: None, ..desired };
        let change = || {
            let mut change = self.change(lock, none, cancel)?;
            change.destroy = true;
            Ok(change)
        };
        self.apply(change, mark.map(|mark| sweep_to(none, mark))).await
    }

    /// Applies this change under the admin mutex, after a sweep to `swept_to`. If `None`, the
    /// high-water mark is searched. While the broker's limit on queues leaves none for the
    /// mutex, deletes one surplus slot before, and removes an absent lock without the mutex.
    async fn apply(
        &self,
        change: impl Fn() -> Result<Change, BrokerError>,
        swept_to: Option<u32>,
    ) -> Result<Converged, BrokerError> {
        let mut deleted = 0;
        loop {
            let handle = Arc::clone(self.handle());
            let work = change()?.run(move |change, channel| {
                async move {
                    let to = end_of_sweep(&handle, change, swept_to).await?;
                    handle.administered(&change.lock)?.apply(change, channel, to).await
                }
                .boxed()
            });
            match work.await {
                Err(error) if error.is_limit_of_queues() => {
                    let change = change()?;
                    let to = end_of_sweep(self.handle(), &change, swept_to).await?;
                    let Some(gone) = self.make_room(&change, to).await? else {
                        return self.remove_absent(&change, to).await?.ok_or(error);
                    };
                    deleted += gone;
                }
                done => {
                    return done.map(|done| Converged { deleted: done.deleted + deleted, ..done });
                }
            }
        }
    }

    /// Lists the faults of `lock`, in ascending order of slots. Exactly the expected
    /// slots should exist, as Lockkeeper declares them, with all their queues. Runs under
    /// the admin mutex, so that an unfinished change is not reported as a fault, unless the
    /// broker's limit on queues leaves none for it. Changes nothing. Cancel safe like
    /// [`Broker::converge`].
    ///
    /// # Errors
    ///
    /// Those of [`Broker::converge`].
    pub async fn check(
        &self,
        lock: &LockName,
        expected: Expected,
        cancel: &CancellationToken,
    ) -> Result<Vec<Fault>, BrokerError> {
        let desired = DesiredSlots::new(expected.slots.unwrap_or(0));
        let handle = Arc::clone(self.handle());
        let work = self.change(lock, desired, cancel)?.run(move |change, channel| {
            async move { handle.administered(&change.lock)?.check(change, channel, expected).await }
                .boxed()
        });
        match work.await {
            Err(error) if error.is_limit_of_queues() => {
                let change = self.change(lock, desired, cancel)?;
                let mut channel = change.channel().await?;
                let checked =
                    self.handle().administered(lock)?.check(&change, &mut channel, expected);
                self.named(checked.await).await
            }
            done => done,
        }
    }

    /// Removes a lock that has no queue which clients or administrators use. That needs no
    /// admin mutex, so at the broker's limit on queues a lock that was never created can be
    /// removed. Returns `None` if the change is no removal, or the lock exists.
    async fn remove_absent(
        &self,
        change: &Change,
        sweep_to: u32,
    ) -> Result<Option<Converged>, BrokerError> {
        if !change.destroy || self.presence(&change.lock).await? != Presence::Absent {
            return Ok(None);
        }
        let mut channel = change.channel().await?;
        let protocol = self.handle().administered(&change.lock)?;
        self.named(protocol.apply(change, &mut channel, sweep_to).await).await.map(Some)
    }

    /// Deletes one queue that the change would delete, if the broker's limit on queues leaves
    /// none for the admin mutex. Returns the number of slots deleted, or `None` if nothing was.
    pub(super) async fn make_room(
        &self,
        change: &Change,
        sweep_to: u32,
    ) -> Result<Option<u32>, BrokerError> {
        let mut channel = change.channel().await?;
        let protocol = self.handle().administered(&change.lock)?;
        self.named(protocol.make_room(change, &mut channel, sweep_to).await).await
    }

    /// Prepares a change to a lock that an administrator may change.
    pub(super) fn change(
        &self,
        lock: &LockName,
        desired: DesiredSlots,
        cancel: &CancellationToken,
    ) -> Result<Change, BrokerError> {
        self.handle().administered(lock)?;
        Ok(Change::new(Arc::clone(&self.handle().access), lock.clone(), desired, cancel))
    }

    /// Wakes one waiter for each added slot.
    pub(super) async fn tell_waiters(&self, lock: &LockName, done: &Converged) {
        if let Err(error) = self.wake(lock, wake_ups(done.declared, done.waiting)).await {
            // Waiters also poll from time to time.
            tracing::debug!(%error, "waiters could not be notified of new slots");
        }
    }

    /// Sets the number of slots of `lock` according to `to`. The current number is read
    /// under the admin mutex. If two administrators each add one slot, two are added.
    ///
    /// All fields of `desired` except its number of slots apply. If it has no records,
    /// existing records stay. Waiters are woken, and cancel safety applies, as with
    /// [`Broker::converge`].
    ///
    /// # Errors
    ///
    /// [`ResizeError`]: the new number is out of range, or an error of
    /// [`Broker::converge`].
    pub async fn resize(
        &self,
        lock: &LockName,
        to: ResizeTo,
        desired: DesiredSlots,
        cancel: &CancellationToken,
    ) -> Result<Resized, ResizeError> {
        let (mut to, mut before, mut deleted) = (to, None, 0);
        let mut resized = loop {
            let change = self.change(lock, desired, cancel)?;
            let handle = Arc::clone(self.handle());
            let work = change.run(move |change, channel| {
                async move { resize(&handle, change, channel, to).await }.boxed()
            });
            match work.await {
                Err(error) if error.is_limit_of_queues() => {
                    let change = self.change(lock, desired, cancel)?;
                    let smaller = self.make_room_below(change, to).await?;
                    let (slots, after, gone) = smaller.ok_or(error)?;
                    before.get_or_insert(slots);
                    deleted += gone;
                    to = ResizeTo::Exactly(after);
                }
                done => break done??,
            }
        };
        resized.before = before.unwrap_or(resized.before);
        resized.done.deleted += deleted;
        self.tell_waiters(lock, &resized.done).await;
        Ok(resized)
    }

    /// Deletes one slot above the new number, if that is smaller. Returns the number of slots
    /// before, the new one, and how many slots were deleted. `None` if nothing was.
    async fn make_room_below(
        &self,
        mut change: Change,
        to: ResizeTo,
    ) -> Result<Option<(u32, u32, u32)>, BrokerError> {
        let mut channel = change.channel().await?;
        let (mark, seen) =
            self.handle().administered(&change.lock)?.survey(&change, &mut channel).await?;
        let slots = seen.size();
        let after = match to {
            ResizeTo::Exactly(after) => Some(after),
            ResizeTo::Shrink(fewer) => slots.checked_sub(fewer),
            ResizeTo::Create(_) | ResizeTo::Grow(_) => None,
        };
        let Some(after) = after.filter(|after| *after < slots) else { return Ok(None) };
        change.desired.slots = after;
        let to = sweep_to(change.desired, mark.unwrap_or(slots));
        Ok(self.make_room(&change, to).await?.map(|deleted| (slots, after, deleted)))
    }
}

/// Returns the end of the sweep. Searches the high-water mark if it is not given.
async fn end_of_sweep(
    handle: &Handle,
    change: &Change,
    swept_to: Option<u32>,
) -> Result<u32, BrokerError> {
    if let Some(swept_to) = swept_to {
        return Ok(swept_to);
    }
    let (access, overshoot) = (&change.access, change.desired.overshoot);
    let protocol = handle.administered(&change.lock)?;
    let mark = protocol.find_highest_slot(access, &change.lock, overshoot).await?.unwrap_or(0);
    Ok(sweep_to(change.desired, mark))
}
