//! Protocols in which a semaphore has numbered slots, each of which may be taken
//! while its slot queue `A[i]` exists: what they have in common, in the terms of
//! [`Protocol`]. How a slot is held is [`Holding`]'s.

use futures::FutureExt;
use futures::future::BoxFuture;

use super::broker::Inner;
use super::check::Fault;
use super::client::{AcquireError, AcquireOptions, Lock, Permit, Wait};
use super::converge::{Change, Converged};
use super::error::BrokerError;
use super::holders::{Facts, Holders};
use super::lane::Lane;
use super::protocol::{Holding, Protocol};
use crate::plan::naming::LockName;
use crate::plan::semaphore::{SlotWish, SlotsSeen};

/// Slots that are held in this way.
pub(super) struct Slots<H>(pub H);

impl<H: Holding> Protocol for Slots<H> {
    fn acquire<'a>(
        &'static self,
        lock: &'a Lock,
        options: &'a AcquireOptions,
        wait: Wait,
    ) -> BoxFuture<'a, Result<Permit, AcquireError>> {
        lock.acquire_slot(&self.0, options, wait).boxed()
    }

    fn observe<'a>(
        &'static self,
        broker: &'a Inner,
        lock: &'a LockName,
        slots_to: u32,
        holders_to: u32,
    ) -> BoxFuture<'a, Result<SlotsSeen, BrokerError>> {
        broker.observe_slots(&self.0, lock, slots_to, holders_to).boxed()
    }

    fn find_mark<'a>(
        &'static self,
        broker: &'a Inner,
        lock: &'a LockName,
        overshoot: u32,
    ) -> BoxFuture<'a, Result<u32, BrokerError>> {
        broker.find_highest_slot(lock, overshoot).boxed()
    }

    fn survey<'a>(
        &'static self,
        change: &'a Change,
        _: &'a mut Lane,
    ) -> BoxFuture<'a, Result<(u32, SlotsSeen), BrokerError>> {
        async move {
            let mark = change.broker.find_mark(&change.lock, change.wish.overshoot).await?;
            Ok((mark, change.broker.observe(&change.lock, mark, 0).await?))
        }
        .boxed()
    }

    fn waiting<'a>(
        &'static self,
        broker: &'a Inner,
        lock: &'a LockName,
    ) -> BoxFuture<'a, Result<Option<u32>, BrokerError>> {
        broker.waiting_for_slots(lock).boxed()
    }

    fn lost_parts<'a>(
        &'static self,
        broker: &'a Inner,
        lock: &'a LockName,
        wish: SlotWish,
    ) -> BoxFuture<'a, Result<Vec<&'static str>, BrokerError>> {
        async move {
            let mut lost = Vec::new();
            if wish.records.is_some() && !broker.has_records(lock, wish.slots).await? {
                lost.push("slot records");
            }
            if !self.0.can_be_held(broker, lock, 1..=wish.slots).await? {
                lost.push("holder queues");
            }
            Ok(lost)
        }
        .boxed()
    }

    fn holders<'a>(
        &'static self,
        broker: &'a Inner,
        lock: &'a LockName,
        seen: &'a SlotsSeen,
        slots: u32,
        limit: usize,
    ) -> BoxFuture<'a, Holders> {
        Facts::holders(&broker.facts, lock, seen, slots, limit).boxed()
    }

    fn make<'a>(
        &'static self,
        change: &'a Change,
        lane: &'a mut Lane,
        swept_to: u32,
    ) -> BoxFuture<'a, Result<Converged, BrokerError>> {
        change.make_slots(&self.0, lane, swept_to).boxed()
    }

    fn exists<'a>(
        &'static self,
        change: &'a Change,
        lane: &'a mut Lane,
        seen: &'a SlotsSeen,
    ) -> BoxFuture<'a, Result<bool, BrokerError>> {
        async move {
            Ok(!seen.slots.is_empty()
                || match change.lock.wait_queue() {
                    Some(queue) => lane.consumers(&queue).await?.is_some(),
                    None => false,
                })
        }
        .boxed()
    }

    fn check<'a>(
        &'static self,
        change: &'a Change,
        lane: &'a mut Lane,
        slots: Option<u32>,
    ) -> BoxFuture<'a, Result<Vec<Fault>, BrokerError>> {
        change.check_slots(&self.0, lane, slots).boxed()
    }
}
