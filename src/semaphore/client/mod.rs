//! The lock client: acquire a slot of a semaphore or a true mutex, prove that it
//! is held, hear of its loss, give it back. What administrators do is in
//! [`Broker`](super::Broker).

mod attempt;
mod keeper;
mod lock;
mod moment;
mod permit;
mod pool;
mod records;
mod search;
mod waiter;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(super) use self::attempt::facts;
pub use self::keeper::LostReason;
pub use self::lock::Lock;
pub(super) use self::lock::new_id;
pub use self::moment::Moment;
pub(super) use self::permit::Begin;
pub use self::permit::{Permit, Verdict};
pub(super) use self::pool::HoldConn;

use self::attempt::Memory;
use self::lock::Kind;
use self::pool::Pool;
use self::records::Publisher;
use super::connect::{Connector, Endpoint};
use super::error::BrokerError;
use super::link::Link;
use super::probe::Prober;
use super::protocol::{Checked, Eyes};
use crate::plan::connection::RabbitmqSettings;
use crate::plan::naming::{LockName, Protocol};

/// Locks remembered at most; beyond that, memory starts anew.
const MAX_REMEMBERED: usize = 4096;

/// How a client connects and watches over what it holds.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The AMQP heartbeat, at least 1 s; whole seconds count. A holder that falls
    /// silent is freed by the broker after 2 to 3 of them.
    pub heartbeat: Duration,
    /// Limit on each operation.
    pub operation_timeout: Duration,
    /// Limit on connecting.
    pub connect_timeout: Duration,
    /// How often a held slot is proved at least, and a removed one noticed; a
    /// quarter of its validity if that is shorter, and 10 ms at least.
    pub verify_interval: Duration,
    /// Connections that are kept ready beyond those in use, so that acquiring
    /// needs no connecting.
    pub warm: usize,
    /// What the broker's management shows as the connections' name.
    pub client_name: String,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(10),
            operation_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(3),
            verify_interval: Duration::from_secs(5),
            warm: 1,
            client_name: "lockkeeper".to_owned(),
        }
    }
}

/// Where to look for a free slot first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// The lowest.
    First,
    /// The one that this client held last, for it is likely to be free; the first,
    /// if there is none.
    #[default]
    Last,
    /// Any: where many begin at once, they meet less often.
    Random,
    /// This one, without looking whether it exists and is free; then the lowest.
    At(u32),
}

/// How to acquire, and what to tell others about it.
#[derive(Clone, Debug)]
pub struct AcquireOptions {
    /// Who holds it; shown to everyone who may see the broker's queues.
    pub identity: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// Where to read more.
    pub url: Option<String>,
    /// Where to look first.
    pub start: Start,
    /// Who goes first among those who wait: the highest, 0 to 255.
    pub priority: u8,
    /// The lock delay, if it is known from the lock's resource: it is obeyed and
    /// written into the slot's record, if the slot has one. Otherwise what the
    /// record says holds.
    pub lock_delay: Option<Duration>,
    /// Lost races for a slot that was free after which an attempt ends, at least 1
    /// (hazard A7).
    pub max_races: u32,
}

impl Default for AcquireOptions {
    fn default() -> Self {
        Self {
            identity: None,
            reason: None,
            url: None,
            start: Start::default(),
            priority: 0,
            lock_delay: None,
            max_races: 5,
        }
    }
}

/// Why no slot was acquired. Nothing is held then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// There is no slot 1: no semaphore of that name, or one with 0 slots.
    #[error("the lock {lock:?} has no slots: create it, or give it slots")]
    NoSlots {
        /// The lock.
        lock: String,
    },
    /// Every slot is held.
    #[error("{}: wait longer, or give it more slots", full(lock, *slots))]
    Full {
        /// The lock.
        lock: String,
        /// How many slots were found; 1 for a true mutex. 0 in protocol Token, where a
        /// client can't count them, nor tell none from none free.
        slots: u32,
    },
    /// Others were faster each time.
    #[error("others took each free slot of the lock {lock:?} first: try again")]
    Contended {
        /// The lock.
        lock: String,
    },
    /// The last holder ended uncleanly, and its slot rests for longer than there was
    /// time.
    #[error(
        "slot {slot} of the lock {lock:?} rests for {rest:?} because its last holder ended uncleanly: wait longer"
    )]
    Resting {
        /// The lock.
        lock: String,
        /// The slot.
        slot: u32,
        /// The lock delay.
        rest: Duration,
    },
    /// The slot was lost while it rested.
    #[error("a slot was acquired and lost again ({reason}): try again")]
    Lost {
        /// Why.
        reason: LostReason,
    },
    /// The broker could not be asked.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

fn full(lock: &str, slots: u32) -> String {
    match slots {
        0 => format!("no token of the lock {lock:?} is free"),
        slots => format!("every slot of the lock {lock:?} is held ({slots} of {slots})"),
    }
}

/// Why [`Lock::run`] has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// No slot was acquired; the body was not run.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The slot was lost while the body ran, which was dropped, or just after.
    #[error("the slot was lost: {0}")]
    Lost(#[from] LostReason),
}

/// A client of one virtual host of one broker, as one user. Cheap to clone; all
/// clones share a connection that probes, waits and publishes, and a pool of
/// connections that hold, one for each permit.
///
/// ```no_run
/// # async fn work() {}
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper::plan::connection::RabbitmqSettings;
/// use lockkeeper::plan::naming::LockName;
/// use lockkeeper::semaphore::{AcquireOptions, Client, ClientOptions};
///
/// let settings = RabbitmqSettings::from_urls("amqp://app:secret@rabbitmq:5672/prod", None)?;
/// let client = Client::new(settings, ClientOptions::default());
/// let deploy = client.semaphore(LockName::new("ci.deploy")?);
/// let permit = deploy.acquire(&AcquireOptions::default()).await?;
/// tokio::select! {
///     () = work() => permit.release().await?,
///     reason = permit.lost() => return Err(reason.into()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client(Arc<Shared>);

/// What all clones share.
pub(super) struct Shared {
    options: ClientOptions,
    endpoint: Arc<Endpoint>,
    side: Arc<Link>,
    prober: Prober,
    publisher: Arc<Publisher>,
    pool: Arc<Pool>,
    remembered: Mutex<HashMap<LockName, Memory>>,
    checked: Checked,
}

/// Until when a free slot is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Not at all.
    No,
    /// Until then.
    Until(Moment),
    /// As long as it takes.
    Forever,
}

impl Wait {
    /// Until when, if that is limited.
    pub fn until(self) -> Option<Moment> {
        match self {
            Self::Until(until) => Some(until),
            Self::No | Self::Forever => None,
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The settings' Debug shows no password.
        f.debug_tuple("Client").field(&self.0.endpoint.settings).finish()
    }
}

impl Client {
    /// Connects nothing and starts nothing.
    #[must_use]
    pub fn new(settings: RabbitmqSettings, options: ClientOptions) -> Self {
        let heartbeat = u16::try_from(options.heartbeat.as_secs()).unwrap_or(u16::MAX).max(1);
        let endpoint = Arc::new(Endpoint {
            settings,
            client_name: options.client_name.clone(),
            connect_timeout: options.connect_timeout,
            operation_timeout: options.operation_timeout,
            heartbeat: Some(heartbeat),
            connector: Connector::default(),
        });
        let side = Arc::new(Link::new(Arc::clone(&endpoint), "probe"));
        Self(Arc::new(Shared {
            prober: Prober::new(Arc::clone(&side)),
            publisher: Arc::new(Publisher::new(Arc::clone(&side))),
            side,
            pool: Pool::new(Arc::clone(&endpoint), options.warm),
            endpoint,
            options,
            remembered: Mutex::default(),
            checked: Checked::default(),
        }))
    }

    /// The semaphore of that name. Nothing is looked at yet. A *persistent mutex* is
    /// a semaphore with one slot.
    #[must_use]
    pub fn semaphore(&self, name: LockName) -> Lock {
        Lock::new(Arc::clone(&self.0), name, Kind::Semaphore)
    }

    /// The *true mutex* of that name: an exclusive queue, which nobody has to
    /// create. Its name must not be that of a semaphore, whose administrators use
    /// the same queue (hazard A17).
    #[must_use]
    pub fn mutex(&self, name: LockName) -> Lock {
        let name = name.with_protocol(Protocol::default());
        Lock::new(Arc::clone(&self.0), name, Kind::Mutex)
    }

    /// Closes the connections that no permit is on, by protocol: otherwise a
    /// process that ends leaves a warning in the broker's log for each. What is
    /// used later connects anew. Cancel safe.
    pub async fn close(&self) {
        futures::join!(self.0.pool.close(), self.0.side.close());
    }
}

impl Shared {
    /// A connection to hold something on.
    pub async fn hold(&self) -> Result<HoldConn, BrokerError> {
        self.pool.take().await
    }

    fn eyes(&self) -> Eyes<'_> {
        Eyes { prober: &self.prober, link: &self.side }
    }

    fn memory<T>(&self, lock: &LockName, with: impl FnOnce(&mut Memory) -> T) -> T {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= MAX_REMEMBERED && !remembered.contains_key(lock) {
            remembered.clear();
        }
        with(remembered.entry(lock.clone()).or_default())
    }
}
