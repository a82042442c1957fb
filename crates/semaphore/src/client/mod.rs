//! The lock client: acquires a slot of a semaphore or a true mutex, verifies that it is
//! held, reports its loss, and releases it. See [`Broker`](super::Broker) for
//! administration.

mod acquire;
mod acquisition;
mod attempt;
mod choice;
mod error;
mod facts;
mod fairness;
mod heartbeat;
mod held;
mod lock;
mod memory;
mod next_waiter;
mod options;
mod outage;
mod permit;
mod pool;
mod recorded;
mod records;
mod resting;
mod same_protocol;
mod search;
mod shared;
mod stoppable;
mod token;
mod waiter;
mod waiters_seen;

use std::fmt;
use std::sync::Arc;

use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_plan::naming::{LockName, Protocol};

pub use self::error::{AcquireError, RunError};
pub use self::heartbeat::LostReason;
pub use self::lock::Lock;
pub use self::options::{AcquireOptions, ClientOptions, Start};
pub use self::permit::{Permit, Verdict};
use self::shared::Shared;
use lockkeeper_amqp::connection::until_ended;

/// A client of one virtual host of one broker, as one user. Cheap to clone. All clones
/// share one connection that probes, waits and publishes, and a pool of connections that
/// hold slots, one for each permit.
///
/// ```no_run
/// # async fn work() {}
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_client::{AcquireOptions, Client, ClientOptions, LockName, RabbitmqSettings};
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

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The Debug output of the settings contains no password.
        f.debug_tuple("Client").field(&self.0.settings).finish()
    }
}

impl Client {
    /// Creates a client. It connects on first use.
    #[must_use]
    pub fn new(settings: RabbitmqSettings, options: ClientOptions) -> Self {
        Self(Arc::new(Shared::new(settings, options)))
    }

    /// Returns the semaphore of that name. Sends nothing to the broker. A *persistent
    /// mutex* is a semaphore with one slot.
    #[must_use]
    pub fn semaphore(&self, name: LockName) -> Lock {
        Lock::new(Arc::clone(&self.0), name)
    }

    /// Returns the *true mutex* of that name: an exclusive queue, which needs no setup.
    /// Its name must not be that of a semaphore, whose administrators use the same queue
    /// (hazard A17).
    #[must_use]
    pub fn mutex(&self, name: LockName) -> Lock {
        self.semaphore(name.with_protocol(Protocol::TrueMutex))
    }

    /// Closes all connections without a permit by the AMQP close handshake. Without it,
    /// the broker logs a warning for each connection of a process that ends. Also waits
    /// for the end of acquisitions that were given up, because a process that ends while
    /// the broker handles a claim can take a slot from another client (hazard A49). Later
    /// use connects again. Cancel safe.
    pub async fn close(&self) {
        let given_up = until_ended(self.0.options.operation_timeout);
        futures::join!(self.0.pool.close(), self.0.side.close(), given_up);
    }
}
