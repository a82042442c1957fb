//! The straw client of protocol `ExclusiveQueue`: the holder of a slot declares B. It polls,
//! probes by passive declares, and publishes nothing. See docs/protocols/persistent-semaphore.md
//! for the protocol.

use std::time::{Duration, Instant};

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeleteOptions};
use lapin::{BasicProperties, Channel};
use lockkeeper_plan::naming::LockName;

use super::bug::Bug;
use super::client::{Held, LazySession, Protocol};
use super::session::{Answer, On, polled};
use crate::driver::message::Done;

/// The client side of protocol `ExclusiveQueue`, with a bug. A hold is the number of a slot.
pub struct Queue {
    pub lock: LockName,
    pub bug: Option<Bug>,
}

impl Protocol for Queue {
    type Hold = u32;

    async fn acquire(
        &self,
        lazy: &mut LazySession,
        wait: Duration,
    ) -> Result<Option<Held<u32>>, lapin::Error> {
        polled(wait, async || self.try_acquire(lazy).await).await
    }

    fn describe(&self, slot: &u32) -> Done {
        Done { slot: Some(*slot), ..Done::default() }
    }

    async fn verify(
        &self,
        lazy: &mut LazySession,
        slot: &mut u32,
    ) -> Result<Option<Done>, lapin::Error> {
        let (a, b) = (self.lock.slot_queue(*slot), self.lock.holder_queue(*slot));
        let held = |yes: bool| Ok(yes.then(Done::default));
        if self.has(Bug::VerifyAOnly) {
            return held(lazy.open().await?.look(On::Hold, &a).await?.is_ok());
        }
        if self.has(Bug::VerifyPublishes) {
            return held(publish_to(lazy, &b).await?);
        }
        // The end of the connection may first be noticed by the probe.
        if self.has(Bug::Reconnects) && !holds(lazy, &b).await {
            lazy.reopen().await?.declare_exclusive(On::Hold, &b).await?;
        }
        let Some(session) = lazy.holding() else { return Ok(None) };
        if !session.look(On::Hold, &b).await?.is_ok() {
            return Ok(None);
        }
        let draining = !session.look(On::Hold, &a).await?.is_ok();
        Ok(Some(Done { draining, ..Done::default() }))
    }

    async fn release(&self, lazy: &mut LazySession, slot: u32) -> Result<bool, lapin::Error> {
        let Some(session) = lazy.holding() else { return Ok(false) };
        if self.has(Bug::ReleaseClosesChannel) {
            session.ask(On::Hold, async |channel| channel.close(200, "".into()).await).await?;
            return Ok(true);
        }
        let b = self.lock.holder_queue(slot);
        Ok(session.delete(On::Hold, &b, QueueDeleteOptions::default()).await?.is_ok())
    }

    fn watches(&self) -> bool {
        !matches!(self.bug, Some(Bug::VerifyAOnly | Bug::VerifyPublishes | Bug::Reconnects))
    }

    fn acquires_twice(&self) -> bool {
        self.has(Bug::TwoPermitsOneConnection)
    }
}

impl Queue {
    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Tries each slot from 1 up to the first one that does not exist.
    async fn try_acquire(&self, lazy: &mut LazySession) -> Result<Option<Held<u32>>, lapin::Error> {
        let session = lazy.open().await?;
        for slot in 1.. {
            let (a, b) = (self.lock.slot_queue(slot), self.lock.holder_queue(slot));
            if !session.look(On::Hold, &a).await?.is_ok() {
                break;
            }
            let proven = Instant::now();
            let declared = session.declare_exclusive(On::Hold, &b).await?;
            let mine = self.has(Bug::AlreadyMine) && declared == Answer::Taken;
            if !declared.is_ok() && !mine {
                continue;
            }
            // The slot may have been removed before the declare.
            if self.has(Bug::NoLook) || session.look(On::Hold, &a).await?.is_ok() {
                return Ok(Some(Held { hold: slot, proven }));
            }
            session.delete(On::Hold, &b, QueueDeleteOptions::default()).await?;
            break;
        }
        Ok(None)
    }
}

/// Returns whether the connection is known to hold this holder queue.
async fn holds(lazy: &mut LazySession, holder_queue: &str) -> bool {
    let Some(session) = lazy.holding() else { return false };
    session.look(On::Hold, holder_queue).await.is_ok_and(Answer::is_ok)
}

/// Returns whether a queue exists, by publishing a mandatory message.
async fn publish_to(lazy: &mut LazySession, queue: &str) -> Result<bool, lapin::Error> {
    let publish = async |channel: &Channel| {
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let mandatory = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let gone = BasicProperties::default().with_expiration("0".into());
        channel.basic_publish("".into(), queue.into(), mandatory, b"", gone).await?.await?;
        Ok(channel.wait_for_confirms().await?.is_empty())
    };
    lazy.open().await?.ask(On::Side, publish).await
}
