//! Waiting for a slot without polling: a consumer on the lock's wait queue, woken
//! by whoever releases a slot or adds one. Trying is `lock`'s.

use std::time::Duration;

use futures::StreamExt;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Consumer};

use super::AcquireOptions;
use super::moment::Moment;
use crate::semaphore::error::{BrokerError, refusal_code};
use crate::semaphore::lane::short;
use crate::semaphore::link::Link;

/// How long a waiter relies on being woken, before jitter: a holder that died
/// wakes nobody, and nobody but the operator would notice.
const SAFETY_NET: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(20));

/// A place among those who wait. Dropping it leaves; a wake-up that was not used
/// goes to the next one.
pub(super) struct Waiter {
    // Before the channel: it is cancelled on it.
    consumer: Consumer,
    _channel: Channel,
    woken_by: Option<Delivery>,
}

/// Why waiting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// A slot is free, or was a moment ago: this one, if it was named.
    Called(Option<u32>),
    /// Nobody called for long, or time is up: look anyway.
    Uncalled,
    /// The wait queue is gone, or the connection is.
    Ended,
}

impl Waiter {
    /// Joins those who wait; `None` if the lock has no wait queue, or it isn't for
    /// us to use.
    ///
    /// Cancel safe: leaves.
    pub async fn join(
        link: &Link,
        wait_queue: &str,
        id: &str,
        options: &AcquireOptions,
    ) -> Result<Option<Self>, BrokerError> {
        let conn = link.get().await?;
        let limit = conn.operation_timeout;
        let mut arguments = FieldTable::default();
        arguments.insert("x-priority".into(), AMQPValue::LongInt(i32::from(options.priority)));
        if let Some(identity) = &options.identity {
            let identity = AMQPValue::LongString(identity.as_str().into());
            arguments.insert("x-lockkeeper-identity".into(), identity);
        }
        let (queue, tag) = (short(wait_queue)?, short(&format!("lockkeeper-{id}"))?);
        let joining = async {
            let channel = conn.lapin().create_channel().await?;
            // One wake-up at a time: others go to others.
            channel.basic_qos(1, BasicQosOptions::default()).await?;
            let consume = BasicConsumeOptions::default();
            let consumer = channel.basic_consume(queue, tag, consume, arguments).await?;
            Ok(Self { consumer, _channel: channel, woken_by: None })
        };
        match tokio::time::timeout(limit, joining).await {
            Ok(Ok(waiter)) => Ok(Some(waiter)),
            Ok(Err(error)) => match refusal_code(&error) {
                Some(403..=406) => {
                    tracing::debug!(%error, wait_queue, "No wait queue to use: polling instead");
                    Ok(None)
                }
                _ => Err(BrokerError::operating(&error, wait_queue)),
            },
            // Blocked by an alarm, most likely; it will show where it matters.
            Err(_) if conn.is_blocked() => Ok(None),
            Err(_) => {
                Err(conn.fail(BrokerError::Timeout { what: "to basic.consume", after: limit }))
            }
        }
    }

    /// Waits to be called, no longer than `until`. Cancel safe.
    pub async fn wait(&mut self, until: Option<Moment>) -> Woken {
        if self.done().await.is_err() {
            return Woken::Ended;
        }
        let net = rand::random_range(SAFETY_NET.0..SAFETY_NET.1);
        let net = until.map_or(net, |until| until.left().min(net));
        match tokio::time::timeout(net, self.consumer.next()).await {
            Ok(Some(Ok(delivery))) => {
                let slot = delivery.properties.correlation_id().as_ref();
                let slot = slot.and_then(|slot| slot.as_str().parse().ok());
                self.woken_by = Some(delivery);
                Woken::Called(slot)
            }
            Ok(_) => Woken::Ended,
            Err(_) => Woken::Uncalled,
        }
    }

    /// The wake-up was used: it is not for anybody else.
    pub async fn done(&mut self) -> Result<(), lapin::Error> {
        match self.woken_by.take() {
            Some(delivery) => delivery.acker.ack(BasicAckOptions::default()).await.map(drop),
            None => Ok(()),
        }
    }
}
