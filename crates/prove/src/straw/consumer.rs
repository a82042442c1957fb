//! The straw client of protocol `ExclusiveConsumer`: the holder of a slot is the only consumer
//! of C. It polls, and publishes nothing. See docs/protocols/exclusive-consumer.md for the
//! protocol.

use std::time::{Duration, Instant};

use futures::StreamExt;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Consumer};
use lockkeeper_plan::naming::LockName;

use super::bug::Bug;
use super::client::{Held, LazySession, Protocol};
use super::session::{Answer, On, Session, new_id, polled};
use crate::driver::message::Done;

/// The client side of protocol `ExclusiveConsumer`, with a bug.
pub struct OnlyConsumer {
    pub lock: LockName,
    pub bug: Option<Bug>,
}

/// A held slot.
pub struct Consuming {
    slot: u32,
    consumer: Consumer,
}

impl Protocol for OnlyConsumer {
    type Hold = Consuming;

    async fn acquire(
        &self,
        lazy: &mut LazySession,
        wait: Duration,
    ) -> Result<Option<Held<Consuming>>, lapin::Error> {
        polled(wait, async || self.try_acquire(lazy).await).await
    }

    fn describe(&self, hold: &Consuming) -> Done {
        Done { slot: Some(hold.slot), ..Done::default() }
    }

    async fn verify(
        &self,
        lazy: &mut LazySession,
        hold: &mut Consuming,
    ) -> Result<Option<Done>, lapin::Error> {
        let (a, c) = (self.lock.slot_queue(hold.slot), self.lock.holder_queue(hold.slot));
        // A probe would open a new channel if the consumer's channel was closed. But then the
        // slot is lost.
        let Some(session) = lazy.holding() else { return Ok(None) };
        if !matches!(session.look(On::Hold, &c).await?, Answer::Ok { consumers: 1.., .. }) {
            return Ok(None);
        }
        let draining = !session.look(On::Side, &a).await?.is_ok();
        Ok(Some(Done { draining, ..Done::default() }))
    }

    async fn release(&self, lazy: &mut LazySession, hold: Consuming) -> Result<bool, lapin::Error> {
        let Some(session) = lazy.holding() else { return Ok(false) };
        cancel(session, &hold.consumer).await?;
        Ok(true)
    }

    /// Messages other than a revocation are hints.
    async fn revoked(&self, hold: &mut Consuming) -> String {
        while let Some(Ok(delivery)) = hold.consumer.next().await {
            if delivery.data.starts_with(b"revoke") {
                return String::from_utf8_lossy(&delivery.data).into_owned();
            }
        }
        "the consumer was cancelled".to_owned()
    }
}

impl OnlyConsumer {
    /// Tries each free slot from 1 up to the first C that does not exist.
    async fn try_acquire(
        &self,
        lazy: &mut LazySession,
    ) -> Result<Option<Held<Consuming>>, lapin::Error> {
        let (looks, shared) =
            (self.bug != Some(Bug::NoLookConsumer), self.bug == Some(Bug::SharedConsumer));
        let session = lazy.open().await?;
        for slot in 1.. {
            let (a, c) = (self.lock.slot_queue(slot), self.lock.holder_queue(slot));
            match session.look(On::Side, &c).await? {
                Answer::Ok { consumers: 0, .. } => {}
                Answer::Ok { .. } if shared => {}
                Answer::Ok { .. } | Answer::Taken => continue,
                Answer::Missing | Answer::Refused => break,
            }
            let proven = Instant::now();
            let consumer = match consume(session, &c, !shared).await {
                Ok(consumer) => consumer,
                Err(error) => match Answer::of(error)? {
                    Answer::Missing => break,
                    _ => continue,
                },
            };
            // Only a classic queue refuses a second exclusive consumer.
            let classic = session.declare_slot(On::Hold, &c).await?.is_ok();
            // The slot may have been removed before the consume.
            if classic && (!looks || session.look(On::Side, &a).await?.is_ok()) {
                return Ok(Some(Held { hold: Consuming { slot, consumer }, proven }));
            }
            if classic {
                cancel(session, &consumer).await?;
            }
        }
        Ok(None)
    }
}

async fn consume(
    session: &mut Session,
    queue: &str,
    exclusive: bool,
) -> Result<Consumer, lapin::Error> {
    let id = new_id();
    let options = BasicConsumeOptions { no_ack: true, exclusive, ..BasicConsumeOptions::default() };
    let mut arguments = FieldTable::default();
    arguments.insert("x-lockkeeper-id".into(), AMQPValue::LongString(id.clone().into()));
    let tag = format!("lockkeeper-{id}");
    let consume = async |channel: &Channel| {
        channel.basic_consume(queue.into(), tag.into(), options, arguments).await
    };
    session.ask(On::Hold, consume).await
}

/// Cancels the consumer and waits for the confirmation.
async fn cancel(session: &mut Session, consumer: &Consumer) -> Result<(), lapin::Error> {
    let (tag, options) = (consumer.tag(), BasicCancelOptions::default());
    session.ask(On::Hold, async |channel| channel.basic_cancel(tag, options).await).await
}
