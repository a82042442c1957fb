//! Creates and removes the auxiliary queues of a lock: the wait queue and the slots'
//! records.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use lockkeeper_amqp::channel::Channel;
use lockkeeper_amqp::connection::Connection;
use lockkeeper_plan::naming::MAX_SLOTS;
use lockkeeper_plan::record::{RecordState, SlotRecord};

use super::converge::IN_FLIGHT;
use super::observe::observe;
use super::slot_protocol::SlotProtocol;
use crate::error::BrokerError;
use crate::queues::{record, wait};
use crate::session::change::Change;
use crate::session::offered;

/// Number of record queues declared together on one channel. A new one takes the broker
/// milliseconds, and all of them share one operation's time limit.
const DECLARED_TOGETHER: usize = 10;

/// Number of records sent together, and of record queues inspected together.
const SENT_TOGETHER: usize = 500;

/// Number of record queues deleted together. All of them share one operation's time limit,
/// and a busy broker takes tens of milliseconds for each.
const DELETED_TOGETHER: usize = 50;

impl Change {
    /// Declares the wait queue, which must exist before any client can find a slot.
    pub async fn declare_wait_queue(
        &self,
        channel: &mut Channel,
        in_the_way: &mut Option<BrokerError>,
    ) -> Result<(), BrokerError> {
        let Some(queue) = self.lock.wait_queue() else { return Ok(()) };
        self.check_cancelled(channel)?;
        deferred(wait::declare(channel, &queue).await, in_the_way).map(drop)
    }

    pub async fn delete_wait_queue(
        &self,
        channel: &mut Channel,
        in_the_way: &mut Option<BrokerError>,
    ) -> Result<(), BrokerError> {
        let Some(queue) = self.lock.wait_queue() else { return Ok(()) };
        self.check_cancelled(channel)?;
        deferred(channel.delete(&queue).await.map_err(BrokerError::from), in_the_way).map(drop)
    }

    /// Declares the record queue of each desired slot, and publishes a first record to
    /// queues without one. Returns how many records were published.
    ///
    /// An existing queue without a record has lost it, and with it how its last holder
    /// ended. Its next holder must wait for the lock delay. A queue whose record a client
    /// has just read looks the same. It receives a seed that has no effect next to that
    /// record ([`SlotRecord::merge`]). The holder of a slot whose queue is just being
    /// declared may end uncleanly without ever having seen the queue.
    pub async fn declare_records(
        &self,
        how: &dyn SlotProtocol,
        channel: &mut Channel,
        in_the_way: &mut Option<BrokerError>,
    ) -> Result<u32, BrokerError> {
        let Some(delay) = self.desired.records else { return Ok(0) };
        let names = self.records(1, self.desired.slots);
        if names.is_empty() {
            return Ok(0);
        }
        let old = self.existing(channel, &names).await?;
        let empty = self.declare_record_queues(channel.connection(), &names, in_the_way).await?;
        if empty.is_empty() {
            return Ok(0);
        }
        let empty = |(_, name): &(u32, &String)| empty.contains(*name);
        let empty: Vec<(u32, &String)> = (1..).zip(&names).filter(empty).collect();
        let held = if empty.iter().all(|(_, name)| old.contains(*name)) {
            BTreeSet::new()
        } else {
            observe(&self.access, how, &self.lock, 0, self.desired.slots).await?.held
        };
        let is_clean = |(slot, name): &(u32, &String)| !old.contains(*name) && !held.contains(slot);
        let (clean, unclean): (Vec<_>, Vec<_>) = empty.iter().partition(|slot| is_clean(slot));
        self.seed(channel, &clean, delay, RecordState::Released).await?;
        self.seed(channel, &unclean, delay, RecordState::Held).await?;
        Ok(u32::try_from(empty.len()).unwrap_or(u32::MAX))
    }

    /// Returns which of these queues exist. Full ones answer a probe slowly. Usually all
    /// exist or none does, and then none is probed.
    async fn existing(
        &self,
        channel: &mut Channel,
        names: &[String],
    ) -> Result<HashSet<String>, BrokerError> {
        let mut existing = HashSet::new();
        for chunk in names.chunks(SENT_TOGETHER) {
            self.check_cancelled(channel)?;
            let exist = if channel.all_exist(chunk).await? {
                vec![true; chunk.len()]
            } else {
                self.access.exist(chunk).await?
            };
            existing.extend(chunk.iter().zip(exist).filter(|(_, is)| *is).map(|(n, _)| n.clone()));
        }
        Ok(existing)
    }

    /// Declares these queues on several channels concurrently. Returns those without a
    /// record.
    async fn declare_record_queues(
        &self,
        connection: &Arc<Connection>,
        names: &[String],
        in_the_way: &mut Option<BrokerError>,
    ) -> Result<HashSet<String>, BrokerError> {
        let chunks: Vec<&[String]> = names.chunks(DECLARED_TOGETHER).collect();
        let next = AtomicUsize::new(0);
        let workers = (0..chunks.len().min(IN_FLIGHT as usize)).map(|_| async {
            let mut channel = Channel::take(connection).await?;
            let mut empty = Vec::new();
            while let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.check_cancelled(&channel)?;
                empty.extend(record::declare(&mut channel, chunk).await?);
            }
            Ok(empty)
        });
        let mut empty = HashSet::new();
        // All are awaited even after an error, so that nothing stays in flight.
        for found in join_all(workers).await {
            empty.extend(deferred(found, in_the_way)?.into_iter().flatten());
        }
        Ok(empty)
    }

    /// Publishes a first record of this state to each of these queues.
    async fn seed(
        &self,
        channel: &Channel,
        slots: &[&(u32, &String)],
        delay: Duration,
        state: RecordState,
    ) -> Result<(), BrokerError> {
        if slots.is_empty() {
            return Ok(());
        }
        let now = Timestamp::now();
        let token = u64::try_from(now.as_microsecond()).unwrap_or(0);
        let first = SlotRecord::seed(token, now.to_string(), delay, state).to_json();
        let names: Vec<String> = slots.iter().map(|(_, name)| (*name).clone()).collect();
        // Not over the connection that holds the mutex: an alarm stops connections that
        // publish.
        let mut publisher = self.access.publisher().await?;
        for chunk in names.chunks(SENT_TOGETHER) {
            self.check_cancelled(channel)?;
            record::seed(&mut publisher, chunk, &first).await?;
        }
        Ok(())
    }

    /// Deletes all records in descending order. If interrupted, it leaves no gap at which
    /// the next attempt would stop.
    pub async fn delete_records(
        &self,
        channel: &mut Channel,
        swept_to: u32,
        in_the_way: &mut Option<BrokerError>,
    ) -> Result<(), BrokerError> {
        if offered::check_records(channel.connection().features).is_err() {
            return Ok(());
        }
        let mut names = self.records(1, self.records_to(swept_to).await?);
        names.reverse();
        for chunk in names.chunks(DELETED_TOGETHER) {
            self.check_cancelled(channel)?;
            deferred(record::delete_all(channel, chunk).await, in_the_way)?;
        }
        Ok(())
    }

    /// Returns up to which slot records may exist: at least `swept_to`, and further until
    /// none is found. Records outlive their slots. Their only gaps are those that an
    /// interrupted growth leaves.
    async fn records_to(&self, swept_to: u32) -> Result<u32, BrokerError> {
        let together = u32::try_from(DECLARED_TOGETHER).unwrap_or(1);
        let mut to = swept_to.max(1);
        loop {
            // The next one, and the first one of each group declared together.
            let first = |n| (to / together).saturating_add(n).saturating_mul(together) + 1;
            let ahead = std::iter::once(to + 1).chain((1..=IN_FLIGHT).map(first));
            let ahead: Vec<String> =
                ahead.filter_map(|slot| self.lock.record_queue(slot)).collect();
            if to > 2 * MAX_SLOTS || !self.access.any_exists(&ahead).await? {
                return Ok(to);
            }
            to += together * IN_FLIGHT;
        }
    }

    fn records(&self, from: u32, to: u32) -> Vec<String> {
        (from..=to).filter_map(|slot| self.lock.record_queue(slot)).collect()
    }
}

/// Keeps an obstacle until everything else was done.
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
