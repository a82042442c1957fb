//! A lazy connection: opened on first use and reopened after a loss. Concurrent callers
//! share one attempt, and a failure is cached for a moment. See `connection` for the attempt
//! itself.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use lockkeeper_net::clock::token_bucket::TokenBucket;
use tokio::sync::Mutex;

use super::channel::Channel;
use super::connection::Connection;
use super::endpoint::Endpoint;
use crate::error::AmqpError;

/// How long a failed attempt is the answer to all callers. While a broker is down, a
/// thousand objects must not cause a thousand attempts.
const REMEMBER_FAILURE: Duration = Duration::from_secs(1);

/// Number of connections that may be opened in a row, and the time until one more is
/// allowed. A broker that accepts and closes each connection must not receive a storm of
/// logins (hazard K16).
const BURST: u32 = 10;
const ONE_MORE: Duration = Duration::from_secs(1);

/// One lazy connection.
pub struct LazyConnection {
    endpoint: Arc<Endpoint>,
    role: &'static str,
    current: RwLock<Option<Arc<Connection>>>,
    attempts: Mutex<Attempts>,
}

/// The state of the attempts.
struct Attempts {
    last_failure: Option<(Instant, AmqpError)>,
    limit: TokenBucket,
}

impl LazyConnection {
    /// Creates a lazy connection without connecting.
    pub fn new(endpoint: Arc<Endpoint>, role: &'static str) -> Self {
        let limit = TokenBucket::full(BURST, ONE_MORE, Instant::now());
        let attempts = Mutex::new(Attempts { last_failure: None, limit });
        Self { endpoint, role, current: RwLock::default(), attempts }
    }

    /// Returns the open connection, and opens one if there is none, or if the channel numbers of
    /// the open one run out.
    ///
    /// Cancel safe: the next waiting caller takes over the attempt.
    pub async fn get(&self) -> Result<Arc<Connection>, AmqpError> {
        if let Some(connection) = self.usable() {
            return Ok(connection);
        }
        // Held while connecting. The other callers wait here for the result.
        let mut attempts = self.attempts.lock().await;
        if let Some(connection) = self.usable() {
            return Ok(connection);
        }
        if let Some((at, error)) = &attempts.last_failure
            && at.elapsed() < REMEMBER_FAILURE
        {
            return Err(error.clone());
        }
        while let Err(wait) = attempts.limit.take(Instant::now()) {
            tokio::time::sleep(wait).await;
        }
        match Connection::open(&self.endpoint, self.role).await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                connection.record_close_reason();
                attempts.last_failure = None;
                let before = self
                    .current
                    .write()
                    .unwrap_or_else(PoisonError::into_inner)
                    .replace(Arc::clone(&connection));
                drop(before);
                Ok(connection)
            }
            Err(error) => {
                attempts.last_failure = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// Opens a connection besides the shared one, for an operation that may end it
    /// ([`Features::refusal_ends_connection`](super::features::Features)). Cancel safe.
    pub async fn separate(&self) -> Result<Arc<Connection>, AmqpError> {
        Connection::open(&self.endpoint, self.role).await.map(Arc::new)
    }

    /// Returns a channel for publishing. During an alarm the broker reads nothing from
    /// publishers, so this fails immediately.
    pub async fn publisher(&self) -> Result<Channel, AmqpError> {
        let connection = self.get().await?;
        if connection.is_blocked() {
            return Err(AmqpError::Blocked);
        }
        Channel::take(&connection).await
    }

    /// Closes the connection, if there is one, by the AMQP close handshake.
    pub async fn close(&self) {
        let connection = self.current.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(connection) = connection {
            connection.close().await;
        }
    }

    fn usable(&self) -> Option<Arc<Connection>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().filter(|connection| connection.suits_new_work()).cloned()
    }
}
