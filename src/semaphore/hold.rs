//! The source document's client: find a free slot, take it, prove that it is
//! held, give it back. One connection per held slot; no pool, no waiting by
//! push, no renewal of permits.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt;
use lapin::types::{AMQPValue, FieldTable};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::connect::{Conn, Endpoint};
use super::error::BrokerError;
use super::lane::{Declared, Lane, Standing, exclusive_arguments};
use super::link::Link;
use super::probe::Prober;
use crate::plan::connection::RabbitmqSettings;
use crate::plan::naming::LockName;

/// Slots looked at together.
const WINDOW: u32 = 16;

/// Lost declare races after which an attempt ends (hazard A7).
const MAX_RACES: u32 = 5;

/// Longest of the one random pause after a first lost race.
const SKEW: Duration = Duration::from_millis(50);

/// First and longest pause between attempts while waiting, before jitter.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// How to hold a slot, and what to tell others about it.
#[derive(Clone, Debug)]
pub struct HoldOptions {
    /// Who holds it; shown to everyone who may see the broker's queues.
    pub identity: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// Where to read more.
    pub url: Option<String>,
    /// The slot to try first, without looking whether it exists and is free;
    /// for instance the one that was held before.
    pub try_first: Option<u32>,
    /// The AMQP heartbeat, at least 1 s; whole seconds count. A holder that
    /// falls silent is freed by the broker after 2 to 3 of them.
    pub heartbeat: Duration,
    /// Limit on each operation.
    pub operation_timeout: Duration,
    /// Limit on connecting.
    pub connect_timeout: Duration,
    /// What the broker's management shows as the connections' name.
    pub client_name: String,
}

impl Default for HoldOptions {
    fn default() -> Self {
        Self {
            identity: None,
            reason: None,
            url: None,
            try_first: None,
            heartbeat: Duration::from_secs(10),
            operation_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(3),
            client_name: "lockkeeper".to_owned(),
        }
    }
}

/// Why no slot was acquired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HoldError {
    /// There is no slot 1: no semaphore of that name, or one with 0 slots.
    #[error("the lock {lock:?} has no slots: create it, or give it slots")]
    NoSlots {
        /// The lock.
        lock: String,
    },
    /// Every slot is held.
    #[error(
        "every slot of the lock {lock:?} is held ({slots} of {slots}): wait longer, or give it more slots"
    )]
    Full {
        /// The lock.
        lock: String,
        /// How many slots were found.
        slots: u32,
    },
    /// Others were faster each time.
    #[error("others took each free slot of the lock {lock:?} first: try again")]
    Contended {
        /// The lock.
        lock: String,
    },
    /// The broker could not be asked.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// Whether a slot is still held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is, and it is among the semaphore's slots.
    Held,
    /// It is, but the semaphore was made smaller: give it back soon.
    Draining,
    /// It is not: somebody else may hold it.
    Lost,
}

/// A held slot. Dropping it closes its connection, which frees the slot.
pub struct Held {
    shared: Arc<Shared>,
    slot: u32,
    id: String,
    lost: watch::Receiver<bool>,
    keeper: JoinHandle<()>,
}

struct Shared {
    conn: Arc<Conn>,
    slot_queue: String,
    holder_queue: String,
    /// When the last operation was *sent* that proved the slot to be ours.
    proven: Mutex<Instant>,
    /// How long after that the broker can't have given it to another.
    valid_for: Duration,
}

/// Acquires a slot of `lock`: tries once, or for `wait`.
///
/// The slot is found by probes over one connection and held by another, which
/// never publishes: an alarm blocks a connection that does, and then the broker
/// would not notice its death (hazard A10).
///
/// # Errors
///
/// When no slot was got; nothing is held then.
///
/// # Cancel safety
///
/// Dropping the future closes its connections, and with them whatever was
/// already taken.
pub async fn hold(
    settings: &RabbitmqSettings,
    lock: &LockName,
    options: &HoldOptions,
    wait: Option<Duration>,
) -> Result<Held, HoldError> {
    let start = Instant::now();
    let heartbeat = u16::try_from(options.heartbeat.as_secs()).unwrap_or(u16::MAX).max(1);
    let endpoint = Arc::new(Endpoint {
        settings: settings.clone(),
        client_name: options.client_name.clone(),
        connect_timeout: options.connect_timeout,
        operation_timeout: options.operation_timeout,
        heartbeat: Some(heartbeat),
    });
    let prober = Prober::new(Arc::new(Link::new(Arc::clone(&endpoint), "probe")));
    let holding = Link::new(endpoint, "hold");
    let mut pause = PAUSES.0;
    loop {
        let error = match attempt(&prober, &holding, lock, options).await {
            Ok(held) => return Ok(held),
            Err(error @ (HoldError::Broker(_) | HoldError::NoSlots { .. })) => return Err(error),
            Err(error) => error,
        };
        let left = wait.unwrap_or_default().saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(error);
        }
        tokio::time::sleep(rand::random_range(Duration::ZERO..=pause).min(left)).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

async fn attempt(
    prober: &Prober,
    holding: &Link,
    lock: &LockName,
    options: &HoldOptions,
) -> Result<Held, HoldError> {
    let conn = holding.get().await?;
    let mut lane = Lane::take(&conn).await?;
    for race in 0..MAX_RACES {
        let slot = match options.try_first.filter(|slot| race == 0 && *slot > 0) {
            Some(slot) => slot,
            None => free_slot(prober, lock).await?,
        };
        let (slot_queue, holder_queue) = (lock.slot_queue(slot), lock.holder_queue(slot));
        let id = format!("{:020x}", rand::random::<u128>() >> 48);
        let sent = Instant::now();
        if lane.declare_exclusive(&holder_queue, facts(&id, options)).await? == Declared::Ok {
            // The slot may have been deleted between the probe and the declare
            // (hazard A8: 1,500 of 1,500 forced races).
            if lane.verify(&holder_queue, &slot_queue).await? == Standing::Held {
                let valid_for = valid_for(conn.lapin().configuration().heartbeat());
                let proven = Mutex::new(sent);
                drop(lane);
                let shared = Arc::new(Shared { conn, slot_queue, holder_queue, proven, valid_for });
                let (tell, lost) = watch::channel(false);
                let keeper = tokio::spawn(keep(Arc::clone(&shared), tell));
                return Ok(Held { shared, slot, id, lost, keeper });
            }
            lane.delete(&holder_queue).await?;
        }
        if race == 0 {
            // Once, as the source document proposes: those who lost together
            // should not meet again.
            tokio::time::sleep(rand::random_range(Duration::ZERO..=SKEW)).await;
        }
    }
    Err(HoldError::Contended { lock: lock.to_string() })
}

/// The lowest slot that exists and has no holder.
async fn free_slot(prober: &Prober, lock: &LockName) -> Result<u32, HoldError> {
    let mut from = 1;
    loop {
        let window = from..from + WINDOW;
        let names: Vec<String> = window
            .clone()
            .flat_map(|slot| [lock.slot_queue(slot), lock.holder_queue(slot)])
            .collect();
        let exist = prober.exist(&names).await?;
        for (slot, pair) in window.zip(exist.chunks(2)) {
            match pair {
                [true, false] => return Ok(slot),
                [true, true] => {}
                _ if slot == 1 => return Err(HoldError::NoSlots { lock: lock.to_string() }),
                _ => return Err(HoldError::Full { lock: lock.to_string(), slots: slot - 1 }),
            }
        }
        from += WINDOW;
    }
}

/// What a holder writes into its queue.
fn facts(id: &str, options: &HoldOptions) -> FieldTable {
    let mut arguments = exclusive_arguments();
    let mut write = |key: &str, text: &str| {
        arguments.insert(key.into(), AMQPValue::LongString(text.into()));
    };
    write("x-lockkeeper-id", id);
    let now = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second());
    write("x-lockkeeper-since", &now.unwrap_or_default().to_string());
    let given = [
        ("x-lockkeeper-identity", &options.identity),
        ("x-lockkeeper-reason", &options.reason),
        ("x-lockkeeper-url", &options.url),
    ];
    for (key, text) in given {
        if let Some(text) = text {
            write(key, text);
        }
    }
    arguments
}

/// How long a slot is surely ours after an operation that proved it was sent.
/// The broker frees a silent holder after 2 to 3 heartbeats; 2, less 2 % for
/// clocks that drift and a margin for whoever acts on the answer. Without
/// heartbeats the broker waits for TCP alone, so nothing can be
/// promised beyond an ordinary one.
fn valid_for(heartbeat_seconds: u16) -> Duration {
    let heartbeat =
        Duration::from_secs(if heartbeat_seconds == 0 { 10 } else { heartbeat_seconds.into() });
    let margin = (heartbeat / 4).min(Duration::from_millis(500));
    (heartbeat * 2 * 49 / 50).saturating_sub(margin)
}

impl Shared {
    fn deadline(&self) -> Instant {
        *self.proven.lock().unwrap_or_else(PoisonError::into_inner) + self.valid_for
    }

    async fn verify(&self) -> Result<Standing, BrokerError> {
        let sent = Instant::now();
        let mut lane = Lane::take(&self.conn).await?;
        let standing = lane.verify(&self.holder_queue, &self.slot_queue).await?;
        if standing != Standing::Gone {
            let mut proven = self.proven.lock().unwrap_or_else(PoisonError::into_inner);
            *proven = sent.max(*proven);
        }
        Ok(standing)
    }
}

/// Proves the slot again and again, and tells when it is lost: at once when the
/// connection dies or the queue is gone, and at the deadline when nobody knows.
async fn keep(shared: Arc<Shared>, tell: watch::Sender<bool>) {
    let mut events = Box::pin(shared.conn.lapin().events_listener());
    let mut ticks = tokio::time::interval(shared.valid_for / 4);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let deadline = shared.deadline();
        let proof = async {
            ticks.tick().await;
            shared.verify().await
        };
        tokio::select! {
            () = tokio::time::sleep_until(deadline.into()) => break,
            _ = events.next() => {}
            proof = proof => {
                if matches!(proof, Ok(Standing::Gone)) {
                    break;
                }
            }
        }
        if !shared.conn.is_usable() || Instant::now() >= shared.deadline() {
            break;
        }
    }
    let _ = tell.send(true);
    // Whatever happened, nothing of ours must stay there.
    shared.conn.kill();
}

impl Held {
    /// The slot, from 1.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// This acquisition's id, as others see it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether the slot is surely still held, as far as can be told without
    /// asking the broker. Look before each use of what the lock guards.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !*self.lost.borrow() && Instant::now() < self.shared.deadline()
    }

    /// Asks the broker, on the connection that holds: its own holder queue must
    /// answer, and the slot must exist. (The source document asks only for the
    /// latter, which stays true after another client took the slot: hazard A6.)
    ///
    /// An error means that nobody knows, until [`Held::lost`] resolves or a
    /// later call answers. Cancel safe.
    pub async fn verify(&self) -> Result<Verdict, BrokerError> {
        if !self.is_valid() {
            return Ok(Verdict::Lost);
        }
        Ok(match self.shared.verify().await? {
            Standing::Held => Verdict::Held,
            Standing::WithoutSlot => Verdict::Draining,
            Standing::Gone => Verdict::Lost,
        })
    }

    /// Resolves when the slot is no longer surely held. Cancel safe.
    pub async fn lost(&self) {
        let mut lost = self.lost.clone();
        // An error means that the keeper is gone, and with it the certainty.
        let _ = lost.wait_for(|lost| *lost).await;
    }

    /// Gives the slot back and waits until the broker has confirmed it; if it
    /// doesn't, by ending the connection. Cancel safe: dropping does the latter.
    pub async fn release(self) {
        self.keeper.abort();
        let conn = &self.shared.conn;
        let released = async { Lane::take(conn).await?.delete(&self.shared.holder_queue).await };
        if released.await.is_ok() {
            conn.close().await;
        }
        // Otherwise dropping ends the connection.
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.keeper.abort();
        self.shared.conn.kill();
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held")
            .field("slot", &self.slot)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_never_believed_held_for_longer_than_the_broker_waits() {
        for heartbeat in 1..=600 {
            let least = Duration::from_secs(u64::from(heartbeat) * 2);
            assert!(valid_for(heartbeat) < least, "{heartbeat}");
            assert!(valid_for(heartbeat) > least / 2, "{heartbeat}");
        }
    }
}
