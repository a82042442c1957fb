//! The options of a client and of an acquisition.

use std::time::Duration;

use derive_setters::Setters;

/// Options for connections and for watching over held slots.
#[derive(Clone, Debug, Setters)]
#[setters(prefix = "with_", strip_option)]
#[non_exhaustive]
pub struct ClientOptions {
    /// The AMQP heartbeat, at least 1 s, in whole seconds. The broker frees a silent
    /// holder after 2 to 3 heartbeats.
    pub heartbeat: Duration,
    /// Time limit of each operation.
    pub operation_timeout: Duration,
    /// Time limit for connecting, including the login. The first connection is not tried
    /// again, so it has some reserve for a busy machine.
    pub connect_timeout: Duration,
    /// Maximum interval between verifications of a held slot, and for noticing a removed
    /// one. A quarter of the slot's validity is used if that is shorter, and at least 10
    /// ms. The first verification follows after a twentieth of the interval, and each
    /// further one after twice the time.
    pub verify_interval: Duration,
    /// Number of idle connections kept open, so that acquiring needs no connection setup.
    pub warm: usize,
    /// Connection name shown by the broker's management UI.
    #[setters(into)]
    pub client_name: String,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(10),
            operation_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(10),
            verify_interval: Duration::from_secs(5),
            warm: 1,
            client_name: "lockkeeper".to_owned(),
        }
    }
}

/// Which slot to try first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// The lowest slot.
    First,
    /// The slot that this client held last, because it is likely to be free. Without one,
    /// the lowest.
    #[default]
    Last,
    /// A random slot. Many clients that start together collide less often.
    Random,
    /// This slot, without a probe whether it exists and is free. If that fails, the
    /// lowest.
    At(u32),
}

/// Options of an acquisition, and the holder's public description.
#[derive(Clone, Debug, Setters)]
#[setters(prefix = "with_", strip_option)]
#[non_exhaustive]
pub struct AcquireOptions {
    /// Identity of the holder, shown to every user with access to the broker's queues.
    /// This text and the next two are truncated to 500 bytes each.
    #[setters(into)]
    pub identity: Option<String>,
    /// Why the lock is held.
    #[setters(into)]
    pub reason: Option<String>,
    /// URL of more information.
    #[setters(into)]
    pub url: Option<String>,
    /// Which slot to try first.
    pub start: Start,
    /// Priority while waiting, 0 to 255. Higher priorities are served first.
    pub priority: u8,
    /// Takes a free slot even if other clients wait for it, and can therefore starve
    /// them. By default, a client that can wait joins the wait queue unless there are more
    /// free slots than waiters. [`Lock::try_acquire`](super::Lock::try_acquire) can't wait, so it always takes a free slot. Ignored
    /// by protocol Token, where the broker serves the waiters first.
    pub barge: bool,
    /// The lock delay, if known from the lock's resource. It is obeyed, and written into
    /// the slot's record if the slot has one. If `None`, the delay in the record applies.
    pub lock_delay: Option<Duration>,
    /// Maximum number of lost races for a free slot before an attempt ends, at least 1
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
            barge: false,
            lock_delay: None,
            max_races: 5,
        }
    }
}
