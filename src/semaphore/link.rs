//! A connection made when first needed and made anew after it died: one attempt
//! at a time however many wait, and a failed one remembered for a moment. How
//! an attempt is made is `connect`'s.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::connect::{Conn, Endpoint};
use super::error::BrokerError;
use super::lane::Lane;

/// How long a failed attempt is the answer to everyone who asks: when a broker
/// is down, a thousand objects must not make a thousand attempts.
const REMEMBER_FAILURE: Duration = Duration::from_secs(1);

/// One lazily made connection.
pub(super) struct Link {
    endpoint: Arc<Endpoint>,
    role: &'static str,
    current: RwLock<Option<Arc<Conn>>>,
    last_failure: Mutex<Option<(Instant, BrokerError)>>,
}

impl Link {
    /// Connects nothing yet.
    pub fn new(endpoint: Arc<Endpoint>, role: &'static str) -> Self {
        Self { endpoint, role, current: RwLock::default(), last_failure: Mutex::default() }
    }

    /// The open connection, made if there is none.
    ///
    /// Cancel safe: whoever waits next takes the attempt over.
    pub async fn get(&self) -> Result<Arc<Conn>, BrokerError> {
        if let Some(conn) = self.usable() {
            return Ok(conn);
        }
        // Held while connecting: the others wait here for this attempt's result.
        let mut last_failure = self.last_failure.lock().await;
        if let Some(conn) = self.usable() {
            return Ok(conn);
        }
        if let Some((at, error)) = &*last_failure
            && at.elapsed() < REMEMBER_FAILURE
        {
            return Err(error.clone());
        }
        match Conn::open(&self.endpoint, self.role).await {
            Ok(conn) => {
                let conn = Arc::new(conn);
                *last_failure = None;
                let before = self
                    .current
                    .write()
                    .unwrap_or_else(PoisonError::into_inner)
                    .replace(Arc::clone(&conn));
                drop(before);
                Ok(conn)
            }
            Err(error) => {
                *last_failure = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// A channel to publish on. Under an alarm the broker takes nothing from who
    /// publishes, so nothing is begun.
    pub async fn publisher(&self) -> Result<Lane, BrokerError> {
        let conn = self.get().await?;
        if conn.is_blocked() {
            return Err(BrokerError::Blocked);
        }
        Lane::take(&conn).await
    }

    /// Closes the connection, if there is one, by protocol.
    pub async fn close(&self) {
        let conn = self.current.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(conn) = conn {
            conn.close().await;
        }
    }

    fn usable(&self) -> Option<Arc<Conn>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().filter(|conn| conn.is_usable()).cloned()
    }
}
