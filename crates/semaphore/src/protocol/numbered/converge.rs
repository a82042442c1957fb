//! A change to a semaphore with numbered slots: observe, plan, declare, delete, observe
//! again. See [`lockkeeper_plan::semaphore`] for the plan, and `auxiliary` for the wait queue
//! and the records.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use futures::future::join_all;
use lockkeeper_amqp::channel::Channel;
use lockkeeper_plan::semaphore::{Observed, ObservedSlots, SlotPlan, plan_slots};
use tokio_util::sync::CancellationToken;

use super::observe::{find_highest, observe};
use super::slot_protocol::SlotProtocol;
use crate::error::BrokerError;
use crate::protocol::mismatch;
use crate::queues::slot;
use crate::session::change::{Change, Converged};
use crate::session::offered;

/// Maximum number of slot declares in flight, each on its own channel. After a lost
/// connection, that many may still take effect.
pub const IN_FLIGHT: u32 = 16;

/// Number of surplus slots whose arguments are verified together.
const CHECKED_TOGETHER: usize = 100;

impl Change {
    /// Applies the change with a protocol that has numbered slots.
    pub async fn make_slots(
        &self,
        how: &dyn SlotProtocol,
        channel: &mut Channel,
        swept_to: u32,
    ) -> Result<Converged, BrokerError> {
        self.check_cancelled(channel)?;
        if self.desired.records.is_some() && !self.destroy {
            offered::check_records(channel.connection().features)?;
        }
        // Declares in flight on a lost connection may have created slots above the sweep.
        let disturbed = self.access.take_disturbed(&self.lock);
        let swept_to = swept_to.saturating_add(if disturbed { IN_FLIGHT } else { 0 });
        let (before, swept_to) = self.look_before(how, swept_to).await?;
        let plan = plan_slots(self.desired, &before, None);
        let mut in_the_way = None;
        self.check_nodes(channel, &before, swept_to).await?;
        let mut seeded = 0;
        if !self.destroy {
            self.declare_wait_queue(channel, &mut in_the_way).await?;
            // Before the slot, so that a client that finds the slot also finds its
            // record.
            seeded = self.declare_records(how, channel, &mut in_the_way).await?;
        }
        let declared = self.declare(how, channel, &before, &plan, &mut in_the_way).await?;
        let deleted = self.delete(channel, &plan, &mut in_the_way).await?;
        let left = how.remove_orphans(self, channel, swept_to).await?;
        if self.destroy || self.thorough && self.desired.records.is_none() {
            self.delete_records(channel, swept_to, &mut in_the_way).await?;
        }
        if self.destroy {
            self.delete_wait_queue(channel, &mut in_the_way).await?;
        }
        if let Some(error) = in_the_way {
            return Err(error);
        }
        self.check_cancelled(channel)?;
        // A slot above the highest one that ever existed or is desired can't have a
        // holder.
        let once_there = swept_to.saturating_sub(self.desired.overshoot);
        let holders_to = once_there.max(before.highest());
        let seen = observe(&self.access, how, &self.lock, swept_to, holders_to).await?;
        let waiting = match self.lock.wait_queue() {
            Some(queue) if !self.destroy => channel.consumers(&queue).await?,
            _ => None,
        };
        Ok(Converged {
            seen: Observed::Numbered(seen),
            declared,
            deleted,
            seeded,
            waiting,
            left,
            mutex_wait: self.mutex_wait,
        })
    }

    /// Deletes the first surplus slot, or the wait queue of a lock without slots that is to be
    /// removed. Returns the number of slots deleted, or `None` if nothing was. The change under
    /// the admin mutex follows, and observes the slots again.
    pub async fn delete_one(
        &self,
        how: &dyn SlotProtocol,
        channel: &mut Channel,
        swept_to: u32,
    ) -> Result<Option<u32>, BrokerError> {
        let (before, _) = self.look_before(how, swept_to).await?;
        let mut plan = plan_slots(self.desired, &before, None);
        plan.delete.truncate(1);
        let mut in_the_way = None;
        let deleted = self.delete(channel, &plan, &mut in_the_way).await?;
        let mut is_room = deleted > 0;
        if self.destroy
            && before.slots.is_empty()
            && let Some(queue) = self.lock.wait_queue()
            && channel.consumers(&queue).await?.is_some()
        {
            self.delete_wait_queue(channel, &mut in_the_way).await?;
            is_room = in_the_way.is_none();
        }
        in_the_way.map_or(Ok(is_room.then_some(deleted)), Err)
    }

    /// Observes the slots up to `swept_to`, which must not belong to another protocol. If there
    /// are any above the mark that it was computed from, that mark was wrong. Then it searches
    /// the highest slot, and sweeps further. Returns the end of the sweep too.
    async fn look_before(
        &self,
        how: &dyn SlotProtocol,
        mut swept_to: u32,
    ) -> Result<(ObservedSlots, u32), BrokerError> {
        let (access, lock, overshoot) = (&self.access, &self.lock, self.desired.overshoot);
        let mut before = observe(access, how, lock, swept_to, 0).await?;
        if before.highest().saturating_add(overshoot) > swept_to {
            let listed = Some(before.highest());
            let highest = find_highest(access, how, lock, overshoot, listed).await?;
            swept_to = highest.saturating_add(overshoot).max(swept_to);
            before = observe(access, how, lock, swept_to, 0).await?;
        }
        let (existing, to) = (&before.slots, before.highest().max(self.desired.slots));
        if self.destroy {
            mismatch::check_removal(access, lock, existing, to).await?;
        } else {
            mismatch::check(access, lock, existing, to).await?;
        }
        Ok((before, swept_to))
    }

    /// Checks all slots that are missing and not desired. A slot queue whose node is down
    /// looks missing, and returns with its node. The mark doesn't show how many there are,
    /// because it may come from probes. For desired slots, the declare itself reveals this.
    async fn check_nodes(
        &self,
        channel: &mut Channel,
        before: &ObservedSlots,
        swept_to: u32,
    ) -> Result<(), BrokerError> {
        let missing: Vec<String> = (self.desired.slots + 1..=swept_to)
            .filter(|slot| !before.slots.contains(slot))
            .map(|slot| self.lock.slot_queue(slot))
            .collect();
        for batch in missing.chunks(1000) {
            self.check_cancelled(channel)?;
            slot::delete_missing(channel, batch).await?;
        }
        Ok(())
    }

    /// Declares missing slots in ascending order, several concurrently.
    async fn declare(
        &self,
        how: &dyn SlotProtocol,
        channel: &mut Channel,
        before: &ObservedSlots,
        plan: &SlotPlan,
        in_the_way: &mut Option<BrokerError>,
    ) -> Result<u32, BrokerError> {
        let missing: BTreeSet<u32> = plan.declare.iter().copied().collect();
        let highest = before.slots.range(..=self.desired.slots).next_back().copied().unwrap_or(0);
        let all = self.thorough
            || !how.holder_queues_exist(&self.access, &self.lock, 1..=highest).await?;
        let mut slots: Vec<u32> =
            if all { (1..=self.desired.slots).collect() } else { plan.declare.clone() };
        let mut declared = 0;
        if let Some(first) = missing.first() {
            // The first one is declared alone: if a node is down, nothing else has been
            // changed.
            self.check_cancelled(channel)?;
            how.declare_slot(channel, &self.lock, *first).await?;
            declared += 1;
            slots.retain(|slot| slot != first);
        }
        Ok(declared + self.declare_together(how, channel, &slots, &missing, in_the_way).await?)
    }

    /// Declares these slots, several concurrently. Returns how many of them were missing.
    async fn declare_together(
        &self,
        how: &dyn SlotProtocol,
        channel: &mut Channel,
        slots: &[u32],
        missing: &BTreeSet<u32>,
        in_the_way: &mut Option<BrokerError>,
    ) -> Result<u32, BrokerError> {
        let width = slots.len().min(IN_FLIGHT as usize);
        let (next, done) = (AtomicUsize::new(0), AtomicU32::new(0));
        let failed = CancellationToken::new();
        let connection = Arc::clone(channel.connection());
        let workers = (0..width).map(|_| async {
            let work = async {
                let mut channel = Channel::take(&connection).await?;
                let mut in_the_way = None;
                while !failed.is_cancelled()
                    && let Some(slot) = slots.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    self.check_cancelled(&channel)?;
                    match how.declare_slot(&mut channel, &self.lock, *slot).await {
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
        // All are awaited even after an error, so that nothing stays in flight.
        for result in join_all(workers).await {
            let found = result?;
            *in_the_way = in_the_way.take().or(found);
        }
        Ok(done.into_inner())
    }

    /// Deletes surplus slots one at a time, each confirmed.
    async fn delete(
        &self,
        channel: &mut Channel,
        plan: &SlotPlan,
        in_the_way: &mut Option<BrokerError>,
    ) -> Result<u32, BrokerError> {
        let names: Vec<String> =
            plan.delete.iter().map(|slot| self.lock.slot_queue(*slot)).collect();
        let mut chunks = names.chunks(CHECKED_TOGETHER);
        let Some(mut chunk) = chunks.next() else { return Ok(0) };
        self.check_cancelled(channel)?;
        let mut second = Channel::take(channel.connection()).await?;
        let mut all_ours = self.are_ours(&mut second, chunk).await?;
        let mut deleted = 0;
        loop {
            // While these are deleted, the next ones are already verified.
            let following = chunks.next();
            let check = async {
                match following {
                    Some(next) => self.are_ours(&mut second, next).await,
                    None => Ok(true),
                }
            };
            let delete = self.delete_chunk(channel, chunk, all_ours, in_the_way);
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
        channel: &mut Channel,
        names: &[String],
        all_ours: bool,
        in_the_way: &mut Option<BrokerError>,
    ) -> Result<u32, BrokerError> {
        let mut deleted = 0;
        for name in names {
            self.check_cancelled(channel)?;
            let ours = if all_ours {
                Ok(())
            } else {
                slot::declare(channel, name, self.lock.profile()).await
            };
            let gone = match ours {
                Ok(()) => channel.delete(name).await.map_err(BrokerError::from),
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

    /// Whether all of these are Lockkeeper's slot queues. A queue with other arguments
    /// must not be deleted. Verifying many together costs little. After a refusal, each
    /// one is verified alone.
    async fn are_ours(&self, channel: &mut Channel, names: &[String]) -> Result<bool, BrokerError> {
        match slot::check(channel, names, self.lock.profile()).await {
            Ok(()) => Ok(true),
            Err(BrokerError::IncompatibleQueue { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
