//! Waits for a slot without polling: a consumer on the lock's wait queue, woken by every
//! client that releases a slot or adds one. See `lock` for the attempts.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use lapin::Consumer;
use lapin::message::Delivery;
use lapin::options::{
    BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lockkeeper_amqp::channel::together::in_order;
use lockkeeper_amqp::channel::{Channel, short};
use lockkeeper_amqp::connection::Connection;
use lockkeeper_amqp::error::AmqpError;
use lockkeeper_amqp::lazy::LazyConnection;
use lockkeeper_net::clock::Moment;

use super::facts::fact;
use super::next_waiter::KeptWakeUp;
use super::options::AcquireOptions;
use crate::error::BrokerError;
use crate::queues::wait::{acknowledge, pass_back};

/// Shortest and longest time for which a waiter relies on being woken, before jitter. A holder
/// that died wakes no waiter, and a waiter that was woken may be suspended.
const LOOKS: (Duration, Duration) = (Duration::from_secs(4), Duration::from_secs(12));

/// The same for each slot that it probes then. Many slots need not be probed as often as few.
const LOOK_PER_SLOT: Duration = Duration::from_millis(250);

/// How long a waiter relies on being woken, before jitter, for the first wait behind other
/// waiters, for each of them. Many waiters need not all find out that the woken one is
/// suspended or gone.
const BEHIND_OTHERS: Duration = Duration::from_secs(1);

/// How long the only waiter relies on being woken at first, before jitter, and how often. Within
/// this time, each holder verifies its slot, and then keeps a wake-up (`next_waiter`).
const FIRST_LOOKS: (Duration, u32) = (Duration::from_millis(700), 8);

/// The same for each slot that it probes then, if that is longer.
const FIRST_LOOK_PER_SLOT: Duration = Duration::from_millis(50);

/// First pause between attempts for a slot whose holder has died, and their number. Each further
/// pause is twice as long. The broker may deliver the wake-up
/// that the holder kept before it has freed the slot: each is on a connection of its own.
const AFTER_A_DEATH: (Duration, u32) = (Duration::from_millis(10), 8);

/// How long a slot must stay free before a waiter that was not woken takes it. Until then
/// another waiter may have been woken for it.
const HAND_OVER: Duration = Duration::from_millis(600);

/// Maximum number of wake-ups that a waiter has at a time. Others go to other waiters. The
/// first may be late: for a slot that its waiter has found itself. While this one tries in
/// vain, the next release must still reach it, and not a client that joins later.
const PREFETCH: u16 = 2;

/// A place in the wait queue. Dropping it leaves the queue. An unused wake-up goes to the
/// next waiter.
pub struct Waiter {
    // Declared before the channel, because dropping it cancels on the channel.
    consumer: Consumer,
    /// Its channel, which is closed if the waiter is dropped. Pinned, because its consumer is
    /// bound to it.
    channel: Channel,
    tag: ShortString,
    woken_by: Option<Delivery>,
    /// Number of other waiters when this one joined.
    pub others: u32,
    /// Maximum time until the next probe, before jitter, if it is shorter than usual.
    next_look: Option<Duration>,
    /// Number of [`FIRST_LOOKS`] left.
    first_looks: u32,
    /// Number of attempts with the current wake-up.
    attempts: u32,
    limit: Duration,
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// A slot is free, or was a moment ago: this slot, if one was named.
    Called(Option<u32>),
    /// No wake-up for a long time, or the limit passed: probe anyway.
    Uncalled,
    /// The wait queue or the connection is gone.
    Ended,
}

impl Waiter {
    /// Joins the wait queue, which it declares if there are arguments for that. `None` if the
    /// lock has no wait queue, or if this client may not use it.
    ///
    /// Cancel safe: dropping the future leaves the queue.
    pub async fn join(
        lazy: &LazyConnection,
        declare: Option<FieldTable>,
        wait_queue: &str,
        id: &str,
        options: &AcquireOptions,
    ) -> Result<Option<Self>, BrokerError> {
        let connection = lazy.get().await?;
        if !connection.features.expires_later() {
            return Ok(None);
        }
        let limit = connection.operation_timeout;
        let mut arguments = FieldTable::default();
        arguments.insert("x-priority".into(), AMQPValue::LongInt(i32::from(options.priority)));
        if let Some(identity) = &options.identity {
            arguments.insert("x-lockkeeper-identity".into(), fact(identity));
        }
        let (queue, tag) = (short(wait_queue)?, short(&format!("lockkeeper-{id}"))?);
        // In a task of its own, which leaves the queue if the caller has given up. lapin
        // never cancels a consumer whose basic.consume was dropped before the answer.
        let joining =
            tokio::spawn(Self::consume(Arc::clone(&connection), declare, queue, tag, arguments));
        match tokio::time::timeout(limit, joining).await {
            Ok(Ok(joined)) => joined,
            Ok(Err(_)) => Err(BrokerError::Interrupted),
            // Probably blocked by an alarm. A later operation reports it.
            Err(_) if connection.is_blocked() => Ok(None),
            Err(_) => {
                // If only the wait queue does not answer, because its node is down, the
                // client polls. Otherwise this ends the connection.
                Channel::fresh(&connection).await?;
                tracing::debug!(wait_queue, "the wait queue does not answer: polling instead");
                Ok(None)
            }
        }
    }

    async fn consume(
        connection: Arc<Connection>,
        declare: Option<FieldTable>,
        queue: ShortString,
        tag: ShortString,
        arguments: FieldTable,
    ) -> Result<Option<Self>, BrokerError> {
        let mut channel = Channel::take(&connection).await?;
        let raw = channel.raw().await?;
        channel.pin();
        channel.count_declares(1);
        let qos = raw.basic_qos(PREFETCH, BasicQosOptions::default());
        // The answer contains the number of waiters, which must not include this one: of
        // clients that join an unused wait queue together, at least one then finds itself alone,
        // and looks for a slot. If each of them saw the others, all would wait in vain.
        let (declare, declared) = match declare {
            Some(arguments) => (QueueDeclareOptions::durable(), arguments),
            None => (QueueDeclareOptions::default().passive(), FieldTable::default()),
        };
        let declare = raw.queue_declare(queue.clone(), declare, declared);
        let consume = BasicConsumeOptions::default();
        let consume = raw.basic_consume(queue.clone(), tag.clone(), consume, arguments);
        let (others, consumer) = match in_order(qos, in_order(declare, consume)).await {
            Ok(((), (declared, consumer))) => (declared.consumer_count(), consumer),
            Err(error) => return Self::refused(&mut channel, &error, queue.as_str()),
        };
        let next_look = (others > 0).then(|| BEHIND_OTHERS.saturating_mul(others));
        let first_looks = if others == 0 { FIRST_LOOKS.1 } else { 0 };
        let limit = connection.operation_timeout;
        Ok(Some(Self {
            consumer,
            channel,
            tag,
            woken_by: None,
            others,
            next_look,
            first_looks,
            attempts: 0,
            limit,
        }))
    }

    /// The client polls if the wait queue can't be used. One whose node is down is missing
    /// too.
    fn refused(
        channel: &mut Channel,
        error: &lapin::Error,
        wait_queue: &str,
    ) -> Result<Option<Self>, BrokerError> {
        match channel.refused(error, wait_queue) {
            Ok(_) | Err(AmqpError::NodeDown { .. }) => {
                tracing::debug!(%error, wait_queue, "no wait queue to use: polling instead");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Waits to be woken, at most until `until`, and for a time that depends on the number of
    /// slots that this waiter would probe. Cancel safe.
    pub async fn wait(&mut self, slots: u32, until: Option<Moment>) -> Woken {
        let mut usual = LOOK_PER_SLOT.saturating_mul(slots).clamp(LOOKS.0, LOOKS.1);
        if self.is_first_look() {
            usual = FIRST_LOOK_PER_SLOT.saturating_mul(slots).clamp(FIRST_LOOKS.0, usual);
        }
        self.first_looks = self.first_looks.saturating_sub(1);
        let look = self.next_look.take().map_or(usual, |soon| soon.min(usual));
        let look = rand::random_range(look..look + look / 2);
        self.wait_for(until.map_or(look, |until| until.left().min(look))).await
    }

    /// Whether the next probe only has to show that all slots are held.
    pub fn is_first_look(&self) -> bool {
        self.first_looks > 0
    }

    /// Waits before another attempt with the same wake-up, if it was kept by a holder that has
    /// died. `None` if there is no such wake-up, or it was tried often enough. Cancel safe.
    pub async fn wait_after_a_death(&mut self) -> Option<Woken> {
        let is_kept = self.woken_by.as_ref().is_some_and(|delivery| delivery.redelivered);
        if !is_kept || self.attempts >= AFTER_A_DEATH.1 {
            return None;
        }
        self.attempts += 1;
        let pause = AFTER_A_DEATH.0 * 2_u32.pow(self.attempts - 1);
        let next = tokio::time::timeout(pause, self.consumer.next()).await;
        Some(match next {
            Ok(Some(Ok(next))) => self.called(next).await,
            Ok(_) => Woken::Ended,
            Err(_) => Woken::Uncalled,
        })
    }

    /// Waits to be woken, at most for `limit`. Cancel safe.
    pub async fn wait_for(&mut self, limit: Duration) -> Woken {
        if self.done().await.is_err() {
            return Woken::Ended;
        }
        match tokio::time::timeout(limit, self.consumer.next()).await {
            Ok(Some(Ok(delivery))) => self.called(delivery).await,
            Ok(_) => Woken::Ended,
            Err(_) => Woken::Uncalled,
        }
    }

    /// Replaces the wake-up, which was not used, by the next one.
    async fn called(&mut self, next: Delivery) -> Woken {
        let slot = slot_of(&next);
        self.attempts = 0;
        match self.woken_by.replace(next) {
            Some(old) if acknowledge(&old).await.is_err() => Woken::Ended,
            _ => Woken::Called(slot),
        }
    }

    /// A probe found a free slot for which this waiter was not woken: the next probe
    /// follows soon.
    pub fn look_soon(&mut self) {
        self.next_look = Some(HAND_OVER);
    }

    /// Leaves the wait queue after acquiring `slot`, and waits for the broker's
    /// confirmation. Leaving earlier would let the next client see no waiter and take the
    /// slot for which this one was woken. Best effort, because closing the channel has the
    /// same effect. Returns the wake-up by which the slot was acquired, for the next waiter.
    /// Cancel safe.
    pub async fn leave(mut self, slot: Option<u32>) -> Option<KeptWakeUp> {
        let limit = self.limit;
        match tokio::time::timeout(limit, self.cancel(slot)).await {
            Ok(Ok(())) => {}
            _ => {
                let tag = self.tag.as_str();
                tracing::debug!(tag, "A wait queue was left by closing its channel");
                return None;
            }
        }
        match self.woken_by.take() {
            Some(wake_up) => KeptWakeUp::new(wake_up, self.channel).await,
            None => {
                // Another request may use the channel now.
                self.channel.unpin();
                None
            }
        }
    }

    async fn cancel(&mut self, slot: Option<u32>) -> Result<(), lapin::Error> {
        let Some(raw) = self.channel.current() else { return Ok(()) };
        raw.basic_cancel(self.tag.clone(), BasicCancelOptions::default()).await?;
        // A wake-up that arrived in the meantime goes to the next waiter, unless it is for the
        // slot that was just taken. There it would disturb the next hand-over, because the
        // waiter that it wakes can't be woken by the next release.
        while let Some(delivery) = self.consumer.next().await {
            let delivery = delivery?;
            if slot.is_some() && slot_of(&delivery) == slot {
                if self.woken_by.is_none() {
                    self.woken_by = Some(delivery);
                } else {
                    acknowledge(&delivery).await?;
                }
            } else {
                pass_back(&delivery).await?;
            }
        }
        Ok(())
    }

    /// Acknowledges the wake-up, which was not used.
    async fn done(&mut self) -> Result<(), lapin::Error> {
        match self.woken_by.take() {
            Some(delivery) => acknowledge(&delivery).await,
            None => Ok(()),
        }
    }
}

/// Returns the slot that a wake-up names, if any.
fn slot_of(wake_up: &Delivery) -> Option<u32> {
    wake_up.properties.correlation_id().as_ref()?.as_str().parse().ok()
}
