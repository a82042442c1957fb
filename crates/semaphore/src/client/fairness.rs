//! Fairness between clients: when a client joins the wait queue instead of taking a slot,
//! and when a waiter that was not woken takes one. See `waiter` for the wait queue itself
//! and `acquire` for the steps of an acquisition.

use lockkeeper_amqp::channel::Channel;
use lockkeeper_amqp::error::AmqpError;
use lockkeeper_net::clock::Moment;

use super::acquisition::{Acquisition, Place};
use super::choice::choose;
use super::error::AcquireError;
use super::waiter::{Waiter, Woken};
use crate::error::BrokerError;
use crate::queues::wait::Waiters;

/// How an acquisition begins.
pub enum Approach {
    /// It joins the wait queue.
    Join,
    /// It tries these slots first.
    Try(Place),
}

impl Acquisition<'_> {
    /// Returns how an acquisition that may wait begins.
    ///
    /// If other clients wait, it takes a slot only if more slots are free than clients
    /// wait. To find that out, it need not join them: if each client that looks joined,
    /// the next ones would find waiters and look as well, and many clients on many slots
    /// would keep each other busy.
    pub(super) async fn approach(&self) -> Result<Approach, BrokerError> {
        let any = Approach::Try(Place::OrWait { lost: 0 });
        let crowded = self.recall().is_crowded();
        if self.options.barge {
            // It would have to join after the first search anyway.
            return Ok(if crowded { Approach::Join } else { any });
        }
        let Some(wait_queue) = self.lock.wait_queue() else { return Ok(any) };
        let cached = self.client.publisher.waiters.count(&wait_queue);
        let waiters = match cached {
            Some(0) => 0,
            Some(_) if crowded => return Ok(Approach::Join),
            _ => self.count_waiters(&wait_queue).await?,
        };
        Ok(match waiters {
            0 => any,
            others => Approach::Try(Place::Search { others }),
        })
    }

    /// Asks the broker for the number of waiters.
    async fn count_waiters(&self, wait_queue: &str) -> Result<u32, BrokerError> {
        let connection = self.client.side.get().await?;
        if connection.is_blocked() {
            // During an alarm the broker would not answer, and no slot can be probed
            // either.
            return Ok(0);
        }
        let waiters = match Channel::take(&connection).await?.consumers(wait_queue).await {
            Ok(count) => Waiters::from(count),
            // A client without permission to wait polls instead, and so does one whose
            // wait queue is on a node that is down.
            Err(AmqpError::AccessRefused { .. } | AmqpError::NodeDown { .. }) => Waiters::NoQueue,
            Err(error) => return Err(error.into()),
        };
        self.client.publisher.waiters.note(wait_queue, waiters);
        Ok(if let Waiters::Count(waiters) = waiters { waiters } else { 0 })
    }

    /// Waits until this waiter should try again, and returns which slots to try. `None`
    /// if the wait queue or the connection is gone.
    ///
    /// A waiter that was not woken for some seconds probes the slots itself. A free slot
    /// may be meant for another waiter that was just woken. Therefore it takes only a
    /// slot that is free in two probes a moment apart. Such a slot's holder has died, or
    /// the waiter that was woken for it.
    ///
    /// Cancel safe.
    pub(super) async fn wait_for_turn(
        &self,
        waiter: &mut Waiter,
    ) -> Result<Option<Place>, AcquireError> {
        let mut seen_free = self.options.barge;
        loop {
            let is_first_look = waiter.is_first_look();
            let woken = waiter.wait(self.recall().slots, self.until).await;
            if woken != Woken::Ended {
                // A search then probes all slots together.
                self.remember(|memory| memory.crowded = Some(Moment::now()));
            }
            match woken {
                Woken::Called(slot) => return Ok(Some(called_to(slot))),
                Woken::Ended => return Ok(None),
                Woken::Uncalled if self.is_late() => {
                    let others = if seen_free { 0 } else { waiter.others };
                    return Ok(Some(Place::Search { others }));
                }
                Woken::Uncalled if seen_free => return Ok(Some(Place::Search { others: 0 })),
                Woken::Uncalled if self.all_held(is_first_look).await? => {}
                Woken::Uncalled => match choose(self, Place::Any, 0).await {
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

    /// Whether all slots are held, if the protocol can find that out without a search. After a
    /// minute it cannot, because only a search confirms the end of the slots. A first look relies
    /// on the end that a search has just seen.
    async fn all_held(&self, is_first_look: bool) -> Result<bool, BrokerError> {
        let Some(end) = self.recall().known_end() else { return Ok(false) };
        let slots = 1..=end - 1;
        let end = (!is_first_look).then_some(end);
        self.protocol.all_held(self.client.probe_context(), self.lock, slots, end).await
    }
}

/// Returns which slots a woken waiter tries.
pub fn called_to(slot: Option<u32>) -> Place {
    slot.map_or(Place::Search { others: 0 }, Place::Slot)
}
