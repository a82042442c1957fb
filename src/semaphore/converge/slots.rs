//! A change's slots: missing ones declared ascending, several at a time, and
//! those that are too many deleted one at a time, each confirmed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use futures::future::join_all;
use tokio_util::sync::CancellationToken;

use super::{Change, IN_FLIGHT};
use crate::plan::semaphore::{SlotPlan, SlotsSeen};
use crate::semaphore::error::BrokerError;
use crate::semaphore::lane::Lane;
use crate::semaphore::protocol::Holding;

/// Slots above the wish that are checked to be ours in one go.
const CHECKED_TOGETHER: usize = 100;

impl Change {
    pub(super) async fn declare(
        &self,
        how: &dyn Holding,
        lane: &mut Lane,
        before: &SlotsSeen,
        plan: &SlotPlan,
        in_the_way: &mut Option<BrokerError>,
    ) -> Result<u32, BrokerError> {
        let missing: BTreeSet<u32> = plan.declare.iter().copied().collect();
        let highest = before.slots.range(..=self.wish.slots).next_back().copied().unwrap_or(0);
        let all = self.thorough || !how.can_be_held(&self.broker, &self.lock, 1..=highest).await?;
        let mut slots: Vec<u32> =
            if all { (1..=self.wish.slots).collect() } else { plan.declare.clone() };
        let mut declared = 0;
        if let Some(first) = missing.first() {
            // Alone: should a node be down, nothing else has been changed.
            self.go_on(lane)?;
            how.declare_slot(lane, &self.lock, *first).await?;
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
                    match how.declare_slot(&mut lane, &self.lock, *slot).await {
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

    pub(super) async fn delete(
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
