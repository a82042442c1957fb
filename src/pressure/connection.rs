//! One connection to one database, opened when it is first needed and opened
//! again when it broke. Shared by everything that uses a store; what is sent
//! over it is not decided here.
//!
//! The redis crate's own `ConnectionManager` is not used: it keeps the failure
//! of a refused login for ever, so a corrected password on the server would go
//! unnoticed, and it reports every refusal during the login, "max number of
//! clients" too, as a wrong password.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, ServerErrorKind,
};
use secrecy::ExposeSecret;
use tokio::time::{Instant, timeout};

use super::StoreError;
use crate::plan::clean_text;
use crate::plan::connection::RedisSettings;
use crate::plan::pressure_queue::doctor::OWN_CONNECTIONS;

/// How a store behaves.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Who we are: written into `:producer` when a queue is closed, and shown as
    /// the connection's name in `CLIENT LIST`, after `lockkeeper/`. Should be the same through the
    /// life of the process and different from every other client's.
    pub client_id: String,
    /// Longest time until a connection is open, login included. Default 3 s.
    pub connect_timeout: Duration,
    /// Longest time until an answer. Default 5 s (the redis crate's own is half
    /// a second, which a server that saves its data exceeds).
    pub response_timeout: Duration,
    /// While a queue is deleted: how long a role that is neither free nor was
    /// ever taken must have been so, before it counts as gone. Default 1 s. See
    /// [`Store::delete`](super::Store::delete).
    pub nameless_role_grace: Duration,
}

impl StoreOptions {
    /// The defaults, with this client id.
    #[must_use]
    pub fn new(client_id: impl Into<String>) -> Self {
        Self {
            client_id: client_id.into(),
            connect_timeout: Duration::from_secs(3),
            response_timeout: Duration::from_secs(5),
            nameless_role_grace: Duration::from_secs(1),
        }
    }
}

/// The connection, if there is one, and the number of the attempt that made it.
#[derive(Default)]
struct Slot {
    attempt: u64,
    open: Option<MultiplexedConnection>,
    failed: Option<(Instant, StoreError)>,
}

/// A connection in use. Keeps its attempt's number, so that only this connection
/// is given up when it turns out to be broken, never its successor.
pub(super) struct Lease {
    pub(super) connection: MultiplexedConnection,
    attempt: u64,
    /// Whether it was opened for this caller: a failure is then not that of an
    /// old connection that nobody noticed to be broken.
    pub(super) is_new: bool,
}

/// Opens, shares and replaces the connection.
pub(super) struct Link {
    settings: RedisSettings,
    options: StoreOptions,
    slot: Mutex<Slot>,
    /// Held while connecting: a hundred queues that find the server gone make
    /// one attempt, not a hundred.
    flight: tokio::sync::Mutex<()>,
}

impl Link {
    pub(super) fn new(settings: RedisSettings, options: StoreOptions) -> Self {
        Self { settings, options, slot: Mutex::default(), flight: tokio::sync::Mutex::default() }
    }

    pub(super) fn settings(&self) -> &RedisSettings {
        &self.settings
    }

    pub(super) fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// The open connection, or a new one. Whoever waits for another's attempt
    /// shares its outcome, good or bad.
    ///
    /// Cancel safe: a dropped attempt leaves no trace, the next caller makes its
    /// own.
    pub(super) async fn lease(&self) -> Result<Lease, StoreError> {
        if let Some(lease) = self.present() {
            return Ok(lease);
        }
        let asked = Instant::now();
        let _flight = self.flight.lock().await;
        if let Some(lease) = self.present() {
            return Ok(lease);
        }
        if let Some((at, err)) = &self.slot().failed
            && *at >= asked
        {
            return Err(err.clone());
        }
        let result = self.open(self.options.response_timeout).await;
        let mut slot = self.slot();
        match result {
            Ok(connection) => {
                slot.attempt += 1;
                slot.open = Some(connection.clone());
                slot.failed = None;
                tracing::debug!(server = ?self.settings, "connected to Redis");
                Ok(Lease { connection, attempt: slot.attempt, is_new: true })
            }
            Err(err) => {
                slot.failed = Some((Instant::now(), err.clone()));
                Err(err)
            }
        }
    }

    /// The number of the attempt that made the connection that is open, if any.
    pub(super) fn attempt(&self) -> Option<u64> {
        let slot = self.slot();
        slot.open.as_ref().map(|_| slot.attempt)
    }

    /// A connection of the caller's own, which waits for answers so long.
    pub(super) async fn open(
        &self,
        patience: Duration,
    ) -> Result<MultiplexedConnection, StoreError> {
        timeout(self.options.connect_timeout, self.connect(patience))
            .await
            .unwrap_or(Err(StoreError::Timeout))
    }

    /// Gives the connection up, unless another has taken its place already.
    pub(super) fn retire(&self, lease: &Lease) {
        let mut slot = self.slot();
        if slot.attempt == lease.attempt {
            slot.open = None;
        }
    }

    fn present(&self) -> Option<Lease> {
        let slot = self.slot();
        let connection = slot.open.clone()?;
        Some(Lease { connection, attempt: slot.attempt, is_new: false })
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Slot> {
        // Nothing in here is left half-changed by a panic.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self, patience: Duration) -> Result<MultiplexedConnection, StoreError> {
        // Login and database are sent by ourselves, to see the server's own
        // refusals; CLIENT SETINFO is unknown to Redis before 7.2.
        let info = ConnectionAddr::Tcp(self.settings.host.clone(), self.settings.port)
            .into_connection_info()?
            .set_tcp_settings(TcpSettings::default().set_nodelay(true))
            .set_redis_settings(RedisConnectionInfo::default().set_skip_set_lib_name());
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.options.connect_timeout))
            .set_response_timeout(Some(patience));
        let mut connection =
            Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await?;
        self.log_in(&mut connection).await?;
        self.select(&mut connection).await?;
        let name: String = format!("{OWN_CONNECTIONS}{}", clean_text(&self.options.client_id, 200))
            .chars()
            // All that CLIENT SETNAME takes.
            .map(|c| if c.is_ascii_graphic() { c } else { '-' })
            .collect();
        let named: Result<(), RedisError> =
            redis::cmd("CLIENT").arg("SETNAME").arg(name).query_async(&mut connection).await;
        // A name is a kindness to whoever reads CLIENT LIST, and an ACL may forbid
        // it; but a server that wants a login, or has no place for one more client,
        // says so here first.
        if let Err(
            err @ (StoreError::AuthenticationFailed { .. }
            | StoreError::Unreachable { .. }
            | StoreError::Unavailable { .. }
            | StoreError::Timeout),
        ) = named.map_err(StoreError::from)
        {
            return Err(err);
        }
        Ok(connection)
    }

    async fn log_in(&self, connection: &mut MultiplexedConnection) -> Result<(), StoreError> {
        let password = self.settings.password.as_ref().map(ExposeSecret::expose_secret);
        let mut auth = redis::cmd("AUTH");
        match (&self.settings.username, password) {
            (None, None) => return Ok(()),
            (None, Some(password)) => auth.arg(password),
            // A user with `nopass` is logged in by any password.
            (Some(username), password) => auth.arg(username).arg(password.unwrap_or_default()),
        };
        let answer: Result<(), RedisError> = auth.query_async(connection).await;
        answer.map_err(|err| match err.kind() {
            // "AUTH called without any password configured" and its like.
            ErrorKind::Server(ServerErrorKind::ResponseError)
                if !err.detail().unwrap_or_default().contains("max number of clients") =>
            {
                let detail = clean_text(err.detail().unwrap_or_default(), 256);
                StoreError::AuthenticationFailed { detail }
            }
            _ => err.into(),
        })
    }

    async fn select(&self, connection: &mut MultiplexedConnection) -> Result<(), StoreError> {
        let database = self.settings.database;
        if database == 0 {
            return Ok(());
        }
        let answer: Result<(), RedisError> =
            redis::cmd("SELECT").arg(database).query_async(connection).await;
        answer.map_err(|err| match StoreError::from(err) {
            // "DB index is out of range", "invalid DB index".
            StoreError::Protocol { .. } => StoreError::DatabaseOutOfRange { database },
            other => other,
        })
    }
}
