//! What a change makes and removes around the slots: the wait queue, and the
//! slots' records.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use jiff::Timestamp;

use super::{Change, IN_FLIGHT};
use crate::plan::naming::MAX_SLOTS;
use crate::plan::record::SlotRecord;
use crate::semaphore::error::BrokerError;
use crate::semaphore::lane::Lane;

/// Record queues declared together on one channel: new ones take the broker
/// milliseconds each, and all of them have one operation's time.
const DECLARED_TOGETHER: usize = 10;

/// Records sent, and record queues deleted, together.
const SENT_TOGETHER: usize = 500;

impl Change {
    /// Makes the wait queue, which must be there before anybody can find a slot.
    pub(super) async fn declare_wait_queue(
        &self,
        lane: &mut Lane,
        in_the_way: &mut Option<BrokerError>,
    ) -> Result<(), BrokerError> {
        let Some(queue) = self.lock.wait_queue() else { return Ok(()) };
        self.go_on(lane)?;
        deferred(lane.declare_wait_queue(&queue).await, in_the_way).map(drop)
    }

    pub(super) async fn delete_wait_queue(
        &self,
        lane: &mut Lane,
        in_the_way: &mut Option<BrokerError>,
    ) -> Result<(), BrokerError> {
        let Some(queue) = self.lock.wait_queue() else { return Ok(()) };
        self.go_on(lane)?;
        deferred(lane.delete(&queue).await, in_the_way).map(drop)
    }

    /// Makes each wished slot's record queue, and puts a first record into those
    /// that have none; how many that were.
    ///
    /// One whose record is in its holder's hands at this moment looks empty too
    /// and gets a second one, which does no harm: tokens only grow.
    pub(super) async fn declare_records(
        &self,
        lane: &mut Lane,
        in_the_way: &mut Option<BrokerError>,
    ) -> Result<u32, BrokerError> {
        let Some(delay) = self.wish.records else { return Ok(0) };
        let names = self.records(1, self.wish.slots);
        if names.is_empty() {
            return Ok(0);
        }
        let conn = lane.conn();
        let chunks: Vec<&[String]> = names.chunks(DECLARED_TOGETHER).collect();
        let next = AtomicUsize::new(0);
        let workers = (0..chunks.len().min(IN_FLIGHT as usize)).map(|_| async {
            let mut lane = Lane::take(conn).await?;
            let mut empty = Vec::new();
            while let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.go_on(&lane)?;
                empty.extend(lane.declare_records(chunk).await?);
            }
            Ok(empty)
        });
        let mut empty = Vec::new();
        // All are awaited, also after an error: nothing stays in flight.
        for found in join_all(workers).await {
            empty.extend(deferred(found, in_the_way)?.into_iter().flatten());
        }
        if empty.is_empty() {
            return Ok(0);
        }
        let now = Timestamp::now();
        let token = u64::try_from(now.as_microsecond()).unwrap_or(0);
        let record = SlotRecord::seed(token, now.to_string(), delay).to_json();
        // Not over the connection that has the mutex: one that publishes is
        // stopped by an alarm.
        let mut publisher = self.broker.publisher().await?;
        for chunk in empty.chunks(SENT_TOGETHER) {
            self.go_on(lane)?;
            publisher.seed(chunk, &record).await?;
        }
        Ok(u32::try_from(empty.len()).unwrap_or(u32::MAX))
    }

    /// Deletes all records, the highest first: cut short, it leaves no gap behind
    /// which the next attempt would not look.
    pub(super) async fn delete_records(
        &self,
        lane: &mut Lane,
        swept_to: u32,
        in_the_way: &mut Option<BrokerError>,
    ) -> Result<(), BrokerError> {
        let mut names = self.records(1, self.records_to(swept_to).await?);
        names.reverse();
        for chunk in names.chunks(SENT_TOGETHER) {
            self.go_on(lane)?;
            deferred(lane.delete_all(chunk).await, in_the_way)?;
        }
        Ok(())
    }

    /// How far there may be records: at least to `swept_to`, and on as long as
    /// there are any. They outlive their slots, and have no gaps but those that a
    /// growth cut short leaves.
    async fn records_to(&self, swept_to: u32) -> Result<u32, BrokerError> {
        let together = u32::try_from(DECLARED_TOGETHER).unwrap_or(1);
        let mut to = swept_to.max(1);
        loop {
            // The next one, and the first of each of those declared together.
            let first = |n| (to / together).saturating_add(n).saturating_mul(together) + 1;
            let ahead = std::iter::once(to + 1).chain((1..=IN_FLIGHT).map(first));
            let ahead: Vec<String> =
                ahead.filter_map(|slot| self.lock.record_queue(slot)).collect();
            if to > 2 * MAX_SLOTS || !self.broker.any_exists(&ahead).await? {
                return Ok(to);
            }
            to += together * IN_FLIGHT;
        }
    }

    fn records(&self, from: u32, to: u32) -> Vec<String> {
        (from..=to).filter_map(|slot| self.lock.record_queue(slot)).collect()
    }
}

/// Keeps an obstacle for later, when everything else was done.
fn deferred<T>(
    result: Result<T, BrokerError>,
    in_the_way: &mut Option<BrokerError>,
) -> Result<Option<T>, BrokerError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error @ BrokerError::IncompatibleQueue { .. }) => {
            in_the_way.get_or_insert(error);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
