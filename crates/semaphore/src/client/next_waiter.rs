//! Lets the broker wake the next waiter when a holder dies: the holder keeps a wake-up
//! unacknowledged, and the broker delivers it again when the holder's connections end. See
//! `waiter` for the waiters, and "Taking over from a holder that died" in
//! docs/protocols/persistent-semaphore.md for the rules.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use lapin::Consumer;
use lapin::message::Delivery;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lockkeeper_amqp::channel::together::in_order;
use lockkeeper_amqp::channel::{Channel, short};
use lockkeeper_amqp::error::AmqpError;
use lockkeeper_net::clock::Moment;

use super::records::Publisher;
use crate::error::BrokerError;
use crate::protocol::waiters::KEEPER;
use crate::queues::wait::{self, WAKE_UP_OUTLIVES, acknowledge, pass_back};

/// Priority of a holder that consumes its own wake-up, above that of all waiters.
const ABOVE_WAITERS: i32 = 1000;

/// Maximum number of other wake-ups that such a holder may be sent before its own.
const PREFETCH: u16 = 16;

/// How long a holder waits for its own wake-up.
const OWN_WAKE_UP: Duration = Duration::from_secs(2);

/// How long a wake-up is kept. By default, the broker closes a channel that does not
/// acknowledge a message for 30 minutes.
const RENEWED_AFTER: Duration = Duration::from_mins(20);

/// A wake-up that is not acknowledged while a slot is held. If it is dropped, or its connection
/// ends, the broker delivers it to the next waiter.
pub struct KeptWakeUp {
    delivery: Delivery,
    /// The channel that received it, without a consumer. Pinned, so that a drop closes it.
    channel: Channel,
    since: Moment,
}

impl KeptWakeUp {
    /// Keeps `delivery`, which was received on `channel`. `None` if the broker would discard it
    /// instead of delivering it again, because it expires before that. It is then acknowledged.
    pub async fn new(delivery: Delivery, channel: Channel) -> Option<Self> {
        let expires = delivery.properties.expiration().as_ref();
        let outlives = expires.is_some_and(|after| after.as_str() == WAKE_UP_OUTLIVES);
        let kept = Self { delivery, channel, since: Moment::now() };
        if outlives {
            return Some(kept);
        }
        kept.acknowledge().await;
        None
    }

    /// Acknowledges the wake-up: it wakes no waiter. Best effort.
    pub async fn acknowledge(mut self) {
        if acknowledge(&self.delivery).await.is_ok() {
            self.channel.unpin();
        }
    }
}

/// The wake-up that the holder of a slot keeps for the next waiter.
pub struct NextWaiter {
    publisher: Arc<Publisher>,
    wait_queue: String,
    slot: u32,
    /// The id of the acquisition.
    id: String,
    /// Whether this holder may send itself a wake-up.
    can_send: AtomicBool,
    kept: Mutex<Kept>,
    /// It is about to send itself one.
    is_busy: AtomicBool,
    /// A consumer of this holder may be on the wait queue.
    is_consuming: AtomicBool,
}

enum Kept {
    None,
    WakeUp(Box<KeptWakeUp>),
    /// The permit has ended.
    Ended,
}

impl NextWaiter {
    /// Creates the state of a holder without a wake-up. It sends itself one only if the wait
    /// queue `is_permanent`, or the holder has waited. That of a true mutex exists only while
    /// clients wait, and some seconds longer.
    pub fn new(
        publisher: &Arc<Publisher>,
        wait_queue: &str,
        slot: u32,
        id: &str,
        is_permanent: bool,
    ) -> Self {
        Self {
            publisher: Arc::clone(publisher),
            wait_queue: wait_queue.to_owned(),
            slot,
            id: id.to_owned(),
            can_send: AtomicBool::new(is_permanent),
            kept: Mutex::new(Kept::None),
            is_busy: AtomicBool::new(false),
            is_consuming: AtomicBool::new(false),
        }
    }

    /// Whether the number of consumers of the wait queue may include this holder.
    pub fn is_consuming(&self) -> bool {
        self.is_consuming.load(Ordering::Acquire)
    }

    /// Keeps a wake-up until the permit ends. Returns it if that has happened, or if there is one
    /// already.
    fn put(&self, wake_up: KeptWakeUp) -> Option<KeptWakeUp> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Kept::Ended => return Some(wake_up),
            Kept::WakeUp(old) if old.channel.is_open() => return Some(wake_up),
            Kept::WakeUp(_) | Kept::None => {}
        }
        *kept = Kept::WakeUp(Box::new(wake_up));
        None
    }

    /// Keeps the wake-up by which a waiter acquired the slot. The wait queue exists then.
    pub async fn keep_from_waiting(&self, wake_up: Option<KeptWakeUp>) {
        self.can_send.store(true, Ordering::Release);
        self.keep(wake_up).await;
    }

    async fn keep(&self, wake_up: Option<KeptWakeUp>) {
        if let Some(surplus) = wake_up.and_then(|wake_up| self.put(wake_up)) {
            surplus.acknowledge().await;
        }
    }

    /// Ends keeping, because the slot is released, or its permit dropped. Returns the wake-up,
    /// which wakes the next waiter when it is dropped. After a loss that is when the work under
    /// the lock has ended, unless a waiter has found the slot before.
    pub fn end(&self) -> Option<KeptWakeUp> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *kept, Kept::Ended) {
            Kept::WakeUp(wake_up) => Some(*wake_up),
            Kept::None | Kept::Ended => None,
        }
    }

    /// Takes a wake-up away that is due for renewal. Returns whether there is none to keep
    /// then, and one is needed.
    fn needs_one(&self) -> (bool, Option<KeptWakeUp>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *kept, Kept::None) {
            Kept::WakeUp(wake_up) if !wake_up.channel.is_open() => (true, None),
            Kept::WakeUp(wake_up) if wake_up.since.elapsed() > RENEWED_AFTER => {
                (true, Some(*wake_up))
            }
            Kept::None => (true, None),
            as_before => {
                *kept = as_before;
                (false, None)
            }
        }
    }

    /// Sends this holder a wake-up to keep, if it has none and clients wait, in the background.
    pub fn keep_one(self: &Arc<Self>) {
        if !self.can_send.load(Ordering::Acquire) || self.is_busy.load(Ordering::Acquire) {
            return;
        }
        let (needs_one, old) = self.needs_one();
        if !needs_one {
            return;
        }
        self.is_busy.store(true, Ordering::Release);
        let this = Arc::clone(self);
        tokio::spawn(async move {
            if let Some(old) = old {
                old.acknowledge().await;
            }
            match this.send_one().await {
                Ok(wake_up) => this.keep(wake_up).await,
                Err(error) => {
                    if matches!(error, BrokerError::AccessRefused { .. }) {
                        this.can_send.store(false, Ordering::Release);
                    }
                    let queue = &this.wait_queue;
                    tracing::debug!(%error, queue, "no wake-up can be kept for the next waiter");
                }
            }
            this.is_busy.store(false, Ordering::Release);
        });
    }

    async fn send_one(&self) -> Result<Option<KeptWakeUp>, BrokerError> {
        let connection = self.publisher.connection().get().await?;
        if connection.is_blocked() || !connection.features.expires_later() {
            return Ok(None);
        }
        match Channel::take(&connection).await?.consumers(&self.wait_queue).await? {
            Some(0) => return Ok(None),
            Some(_) => {}
            None => {
                // Each further question would cost a channel.
                self.can_send.store(false, Ordering::Release);
                return Ok(None);
            }
        }
        let mut channel = Channel::take(&connection).await?;
        self.is_consuming.store(true, Ordering::Release);
        let own = self.receive_own(&mut channel).await;
        self.is_consuming.store(false, Ordering::Release);
        Ok(match own? {
            Some(delivery) => KeptWakeUp::new(delivery, channel).await,
            // Its channel is closed, and the broker delivers its messages to waiters.
            None => None,
        })
    }

    /// Sends a wake-up over `channel`, and receives it before all waiters.
    async fn receive_own(&self, channel: &mut Channel) -> Result<Option<Delivery>, BrokerError> {
        let raw = channel.raw().await?;
        channel.pin();
        let (queue, tag) = (short(&self.wait_queue)?, short(&format!("{KEEPER}{}", self.id))?);
        let mut arguments = FieldTable::default();
        arguments.insert("x-priority".into(), AMQPValue::LongInt(ABOVE_WAITERS));
        let qos = raw.basic_qos(PREFETCH, BasicQosOptions::default());
        let consume = BasicConsumeOptions::default();
        let consume = raw.basic_consume(queue, tag.clone(), consume, arguments);
        let consuming = in_order(qos, consume);
        let answer = channel.answer("to basic.consume", &self.wait_queue, consuming).await?;
        let ((), mut consumer) = answer.map_err(|refused| refused.error)?;
        let slot = self.slot.to_string();
        wait::send_kept(channel, &self.wait_queue, &slot, &self.id).await?;
        let receiving = self.receive(&mut consumer, &raw, tag);
        match tokio::time::timeout(OWN_WAKE_UP, receiving).await {
            Ok(Ok(own)) => Ok(own),
            Ok(Err(error)) => {
                let error = AmqpError::operating(&error, &self.wait_queue);
                Err(channel.connection().found(error).into())
            }
            Err(_) => Ok(None),
        }
    }

    /// Receives this holder's own wake-up, and leaves the wait queue. Others go to waiters.
    async fn receive(
        &self,
        consumer: &mut Consumer,
        raw: &lapin::Channel,
        tag: ShortString,
    ) -> Result<Option<Delivery>, lapin::Error> {
        let is_own = |delivery: &Delivery| {
            let id = delivery.properties.message_id().as_ref();
            id.is_some_and(|id| id.as_str() == self.id)
        };
        let (mut own, mut others) = (None, Vec::new());
        while own.is_none() {
            match consumer.next().await.transpose()? {
                Some(delivery) if is_own(&delivery) => own = Some(delivery),
                Some(delivery) => others.push(delivery),
                None => return Ok(None),
            }
        }
        raw.basic_cancel(tag, BasicCancelOptions::default()).await?;
        while let Some(delivery) = consumer.next().await.transpose()? {
            others.push(delivery);
        }
        for delivery in others {
            pass_back(&delivery).await?;
        }
        Ok(own)
    }
}
