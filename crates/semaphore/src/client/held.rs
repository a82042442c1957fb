//! Releases a held slot and wakes the next waiter. See `permit` for the owner's view of a slot, and
//! `next_waiter` for what happens if the owner dies instead.

use std::sync::Arc;

use lockkeeper_amqp::channel::Channel;
use lockkeeper_plan::record::SlotRecord;
use tokio::task::JoinHandle;

use super::facts::now;
use super::heartbeat::PermitState;
use super::pool::HoldConnection;
use super::records::{Publisher, replace};
use super::stoppable::Stoppable;
use crate::error::BrokerError;
use crate::queues::wait::Waiters;

/// The state that a release requires.
pub struct Held {
    pub hold: HoldConnection,
    pub keeper: Stoppable,
    pub publisher: Arc<Publisher>,
    pub wait_queue: Option<String>,
    /// Leaves the wait queue, if the slot was waited for.
    pub leaving: Option<JoinHandle<()>>,
    /// The slot's record and its queue. `None` if the slot has no record.
    pub record: Option<(String, SlotRecord)>,
}

impl Held {
    /// Releases the slot, and wakes the next waiter.
    pub async fn give_back(mut self, inner: &PermitState) {
        // It may be in the middle of a verification. It would take the release for a loss, and
        // close the connection that the next permit uses.
        self.keeper.stop();
        inner.expire();
        // If the slot can't be released, dropping it wakes the next waiter.
        let kept = inner.next.as_ref().and_then(|next| next.end());
        if inner.state.borrow().lost.is_some() || !self.hold.connection().is_usable() {
            return;
        }
        let waiters = match self.try_to_give_back(inner).await {
            Ok(waiters) => {
                self.hold.settle();
                waiters
            }
            Err(error) => {
                // Dropping it closes the connection.
                tracing::debug!(%error, "slot released by closing its connection");
                Waiters::Unknown
            }
        };
        drop(self.hold);
        if let Some(leaving) = self.leaving {
            let _ = leaving.await;
        }
        let Some(wait_queue) = &self.wait_queue else { return };
        // Before the waiter is woken, so that this client's next acquisition does not
        // overtake it.
        self.publisher.waiters.note(wait_queue, waiters);
        match waiters {
            Waiters::NoQueue | Waiters::Count(0) => {}
            Waiters::Count(_) | Waiters::Unknown => {
                let are_waiters = waiters != Waiters::Unknown;
                self.publisher.wake(wait_queue, inner.slot, are_waiters).await;
            }
        }
        if let Some(kept) = kept {
            kept.acknowledge().await;
        }
    }

    async fn try_to_give_back(&mut self, inner: &PermitState) -> Result<Waiters, BrokerError> {
        if let Some((queue, record)) = self.record.take() {
            let mut channel = Channel::take(self.hold.connection()).await?;
            // If this fails, the slot is still released. The next holder then assumes an
            // unclean end, and waits longer than necessary.
            let record = record.given_back(now());
            let released = |found: Option<&SlotRecord>| (record.clone().above(found), ());
            if let Err(error) = replace(&mut channel, &self.publisher, &queue, released).await {
                tracing::debug!(%error, queue, "A clean release could not be recorded");
            }
        }
        // Probing a missing wait queue would cost a channel each time. Before this client has
        // left it, the answer might count this client.
        let has_left = self.leaving.as_ref().is_none_or(JoinHandle::is_finished)
            && !inner.next.as_ref().is_some_and(|next| next.is_consuming());
        let asked = self.wait_queue.as_deref().filter(|_| has_left);
        let asked = asked.filter(|queue| !self.publisher.waiters.is_missing(queue));
        inner.held.give_back(asked).await
    }
}
