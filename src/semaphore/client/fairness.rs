//! Fairness between clients: when a client joins the wait queue instead of taking a slot,
//! and when a waiter that was not woken takes one. See `waiter` for the wait queue itself
//! and `lock` for the steps of an acquisition.

use super::attempt::Place;
use super::error::AcquireError;
use super::lock::{Kind, Lock};
use super::options::AcquireOptions;
use super::waiter::{Waiter, Woken};
use crate::clock::Moment;
use crate::semaphore::amqp::lane::{Lane, Waiters};
use crate::semaphore::error::BrokerError;
use crate::semaphore::protocol::numbered::holding::Holding;

impl Lock {
    /// Whether an acquisition that may wait joins the wait queue before it tries a slot.
    /// It does if other clients wait, or if no slot was free at the last attempt.
    pub(super) async fn joins_first(&self, options: &AcquireOptions) -> Result<bool, BrokerError> {
        if self.kind() != Kind::Semaphore {
            return Ok(false);
        }
        if options.barge {
            // A contended lock's client would have to join after the first probe anyway.
            return Ok(self.is_contended());
        }
        let Some(wait_queue) = self.name().wait_queue() else { return Ok(self.is_contended()) };
        match self.shared().publisher.waiters.any(&wait_queue) {
            Some(any) => Ok(any || self.is_contended()),
            None => Ok(self.is_contended() || self.has_waiters(&wait_queue).await?),
        }
    }

    /// Asks the broker whether there are waiters.
    async fn has_waiters(&self, wait_queue: &str) -> Result<bool, BrokerError> {
        let conn = self.shared().side.get().await?;
        if conn.is_blocked() {
            // During an alarm the broker would not answer, and no slot can be probed
            // either.
            return Ok(false);
        }
        let waiters = match Lane::take(&conn).await?.consumers(wait_queue).await {
            Ok(count) => Waiters::from(count),
            // A client without permission to wait polls instead.
            Err(BrokerError::AccessRefused { .. }) => Waiters::NoQueue,
            Err(error) => return Err(error),
        };
        self.shared().publisher.waiters.note(wait_queue, waiters);
        Ok(matches!(waiters, Waiters::Count(1..)))
    }

    /// Waits until this waiter should try again, and returns which slots to try. `None`
    /// if the wait queue or the connection is gone.
    ///
    /// A waiter that was not woken for a long time probes the slots itself. A free slot
    /// may be meant for another waiter that was just woken. Therefore it takes only a
    /// slot that is free in two probes a moment apart. Such a slot's holder has died, or
    /// the waiter that was woken for it.
    ///
    /// Cancel safe.
    pub(super) async fn wait_for_turn(
        &self,
        how: &dyn Holding,
        options: &AcquireOptions,
        waiter: &mut Waiter,
        until: Option<Moment>,
    ) -> Result<Option<Place>, AcquireError> {
        let mut seen_free = options.barge;
        loop {
            match waiter.wait(until).await {
                Woken::Called(Some(slot)) => return Ok(Some(Place::Slot(slot))),
                Woken::Called(None) => return Ok(Some(Place::Search { others: 0 })),
                Woken::Ended => return Ok(None),
                Woken::Uncalled if until.is_some_and(|until| until.left().is_zero()) => {
                    let others = if seen_free { 0 } else { waiter.others };
                    return Ok(Some(Place::Search { others }));
                }
                Woken::Uncalled if seen_free => return Ok(Some(Place::Search { others: 0 })),
                Woken::Uncalled => match self.choose(how, options, 0, 0).await {
                    Ok(_) => {
                        seen_free = true;
                        waiter.look_soon();
                    }
                    Err(AcquireError::Full { .. } | AcquireError::NoSlots { .. }) => {}
                    Err(error) => return Err(error),
                },
            }
        }
    }
}
