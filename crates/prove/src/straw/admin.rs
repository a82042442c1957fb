//! The administrator of the straw clients, for all protocols: creates, resizes, counts and
//! deletes a lock, without waking waiters or notifying holders. See docs/protocols for the
//! protocols.

use std::time::{Duration, Instant, SystemTime};

use lapin::options::{
    BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel};
use lockkeeper_plan::naming::{LockName, Protocol};

use super::bug::Bug;
use super::session::{Answer, On, Session};
use crate::driver::message::{Done, Line, UNSUPPORTED};

/// Time limit for acquiring the admin mutex.
const MUTEX_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of attempts until the existing slots are the desired ones.
const ATTEMPTS: u32 = 3;

/// An administrator. Each operation uses its own connection.
pub struct Admin {
    url: String,
    lock: LockName,
    bug: Option<Bug>,
    /// Number of consecutive missing slots after which a sweep ends.
    overshoot: u32,
    /// The highest slot that this administrator declared.
    highest: u32,
}

impl Admin {
    /// Creates the administrator without connecting.
    pub fn new(url: String, lock: LockName, bug: Option<Bug>, overshoot: u32) -> Self {
        Self { url, lock, bug, overshoot, highest: 0 }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn is_consumer(&self) -> bool {
        self.lock.protocol() == Protocol::ExclusiveConsumer
    }

    pub async fn count(&mut self) -> Result<Line, lapin::Error> {
        if !self.lock.has_slots() {
            // AMQP does not report held tokens.
            return Ok(Line::Fail(UNSUPPORTED.to_owned()));
        }
        let mut session = Session::open(&self.url).await?;
        let found = self.sweep(&mut session, 0).await?;
        let _ = session.close().await;
        let slots = u32::try_from(found.len()).ok();
        Ok(Line::Ok(Done { slots, ..Done::default() }))
    }

    pub async fn resize(&mut self, slots: u32) -> Result<Line, lapin::Error> {
        let Some(mut session) = self.begin().await? else { return Ok(busy()) };
        let done = if self.lock.has_slots() {
            self.converge(&mut session, slots).await?
        } else {
            self.create_tokens(&mut session, slots).await?
        };
        self.end(session).await?;
        Ok(done)
    }

    pub async fn destroy(&mut self) -> Result<Line, lapin::Error> {
        let Some(mut session) = self.begin().await? else { return Ok(busy()) };
        let done = if self.lock.has_slots() {
            let done = self.converge(&mut session, 0).await?;
            if let Some(queue) = self.lock.wait_queue() {
                session.delete(On::Hold, &queue, QueueDeleteOptions::default()).await?;
            }
            done
        } else {
            self.destroy_tokens(&mut session).await?
        };
        self.end(session).await?;
        Ok(done)
    }

    /// Acquires the admin mutex on a new connection, which the operation then uses. Returns
    /// `None` if other administrators hold the mutex until the time limit.
    async fn begin(&self) -> Result<Option<Session>, lapin::Error> {
        let mut session = Session::open(&self.url).await?;
        let started = Instant::now();
        if self.has(Bug::NoAdminMutex) {
            return Ok(Some(session));
        }
        while !session.declare_exclusive(On::Hold, self.lock.admin_mutex()).await?.is_ok() {
            if started.elapsed() > MUTEX_TIMEOUT {
                let _ = session.close().await;
                return Ok(None);
            }
            tokio::time::sleep(Duration::from_millis(rand::random_range(10..100))).await;
        }
        Ok(Some(session))
    }

    async fn end(&self, mut session: Session) -> Result<(), lapin::Error> {
        if !self.has(Bug::NoAdminMutex) {
            let mutex = self.lock.admin_mutex();
            session.delete(On::Hold, mutex, QueueDeleteOptions::default()).await?;
        }
        let _ = session.close().await;
        Ok(())
    }

    /// Returns the existing slots, in ascending order. Probes each slot up to `desired` and the
    /// highest known one, then further slots until `overshoot` consecutive ones are missing.
    async fn sweep(
        &mut self,
        session: &mut Session,
        desired: u32,
    ) -> Result<Vec<u32>, lapin::Error> {
        let until = desired.max(self.highest);
        let overshoot = self.overshoot.max(1);
        let mut found: Vec<u32> = Vec::new();
        for slot in 1.. {
            if session.look(On::Side, &self.lock.slot_queue(slot)).await?.is_ok() {
                found.push(slot);
                self.highest = self.highest.max(slot);
            } else if slot >= until.max(found.last().copied().unwrap_or(0)) + overshoot {
                break;
            }
        }
        Ok(found)
    }

    async fn converge(&mut self, session: &mut Session, slots: u32) -> Result<Line, lapin::Error> {
        let mut found = self.sweep(session, slots).await?;
        self.declare_wait_queue(session).await?;
        for _ in 0..ATTEMPTS {
            self.declare_slots(session, &found, slots).await?;
            self.delete_slots(session, &found, slots).await?;
            found = self.sweep(session, slots).await?;
            let as_desired = found.iter().copied().eq(1..=slots);
            if as_desired || self.has(Bug::GrowOnlyLast) {
                return Ok(Line::Ok(Done::default()));
            }
        }
        Ok(Line::Info(format!("after all attempts, the existing slots are {found:?}")))
    }

    async fn declare_wait_queue(&self, session: &mut Session) -> Result<(), lapin::Error> {
        let Some(queue) = self.lock.wait_queue() else { return Ok(()) };
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
        session.declare(On::Hold, &queue, durable, arguments).await.map(drop)
    }

    /// Declares the missing slots, in ascending order.
    async fn declare_slots(
        &mut self,
        session: &mut Session,
        found: &[u32],
        slots: u32,
    ) -> Result<(), lapin::Error> {
        let mut missing: Vec<u32> = (1..=slots).filter(|slot| !found.contains(slot)).collect();
        if self.has(Bug::GrowOnlyLast) {
            missing = missing.split_off(missing.len().saturating_sub(1));
        }
        for slot in missing {
            if self.is_consumer() {
                // C is declared before A, so that a client that finds the slot can hold it.
                session.declare_slot(On::Hold, &self.lock.holder_queue(slot)).await?;
            }
            session.declare_slot(On::Hold, &self.lock.slot_queue(slot)).await?;
            self.highest = self.highest.max(slot);
        }
        Ok(())
    }

    /// Deletes the surplus slots, in descending order. Each deletion is confirmed before the
    /// next one. Holders keep their slots.
    async fn delete_slots(
        &self,
        session: &mut Session,
        found: &[u32],
        slots: u32,
    ) -> Result<(), lapin::Error> {
        let mut surplus: Vec<u32> = found.iter().copied().filter(|slot| *slot > slots).collect();
        surplus.reverse();
        for slot in surplus {
            let a = self.lock.slot_queue(slot);
            session.delete(On::Hold, &a, QueueDeleteOptions::default()).await?;
        }
        if self.is_consumer() {
            // Includes slots that were held during an earlier change.
            let if_unused = !self.has(Bug::ShrinkDeletesHeld);
            let options = QueueDeleteOptions { if_unused, ..QueueDeleteOptions::default() };
            for slot in (slots + 1..=self.highest).rev() {
                // 406: the slot is held, so its queue stays.
                session.delete(On::Side, &self.lock.holder_queue(slot), options).await?;
            }
        }
        Ok(())
    }

    /// Creates the queue with its tokens. Does not change an existing queue, because the number
    /// of its tokens is only available from the management API.
    async fn create_tokens(
        &self,
        session: &mut Session,
        tokens: u32,
    ) -> Result<Line, lapin::Error> {
        let queue = self.lock.token_queue();
        if session.look(On::Side, &queue).await? != Answer::Missing {
            let why = "the queue already exists. The number of its tokens is only available from the management API";
            return Ok(Line::Fail(why.to_owned()));
        }
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        session.declare(On::Hold, &queue, durable, FieldTable::default()).await?;
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let publish = async |channel: &Channel| {
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            for token in 0..tokens {
                let id = (since.as_micros() + u128::from(token)).to_string();
                let persistent = BasicProperties::default().with_delivery_mode(2);
                let options =
                    BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
                let queue = queue.as_str().into();
                let publish =
                    channel.basic_publish("".into(), queue, options, id.as_bytes(), persistent);
                publish.await?.await?;
            }
            Ok(())
        };
        session.ask(On::Side, publish).await?;
        Ok(Line::Ok(Done::default()))
    }

    /// Removes the free tokens and the queue. The caller must ensure that no token is held,
    /// because AMQP does not report held tokens.
    async fn destroy_tokens(&self, session: &mut Session) -> Result<Line, lapin::Error> {
        let queue = self.lock.token_queue();
        if session.look(On::Side, &queue).await? == Answer::Missing {
            return Ok(Line::Ok(Done::default()));
        }
        let remove = async |channel: &Channel| {
            let get = || channel.basic_get(queue.as_str().into(), BasicGetOptions::default());
            while let Some(token) = get().await? {
                channel.basic_ack(token.delivery.delivery_tag, BasicAckOptions::default()).await?;
            }
            Ok(())
        };
        session.ask(On::Side, remove).await?;
        let options = QueueDeleteOptions { if_empty: true, ..QueueDeleteOptions::default() };
        Ok(match session.delete(On::Side, &queue, options).await? {
            Answer::Ok { .. } => Line::Ok(Done::default()),
            _ => Line::Info("a token was released while the lock was destroyed".to_owned()),
        })
    }
}

fn busy() -> Line {
    Line::Fail("another administrator holds the admin mutex".to_owned())
}
