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

/// How many connections may be made one right after the other, and how long it takes
/// until there may be one more: a broker that takes each connection and ends it must not
/// be stormed with logins (hazard K16).
const BURST: u32 = 10;
const ONE_MORE: Duration = Duration::from_secs(1);

/// One lazily made connection.
pub(super) struct Link {
    endpoint: Arc<Endpoint>,
    role: &'static str,
    current: RwLock<Option<Arc<Conn>>>,
    attempts: Mutex<Attempts>,
}

/// What is known of the attempts so far.
#[derive(Default)]
struct Attempts {
    last_failure: Option<(Instant, BrokerError)>,
    pace: Pace,
}

/// How many connections may still be made now.
struct Pace {
    left: u32,
    counted: Instant,
}

impl Default for Pace {
    fn default() -> Self {
        Self { left: BURST, counted: Instant::now() }
    }
}

impl Pace {
    /// Takes one of them, or says how long to wait before asking again.
    fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let since = now.saturating_duration_since(self.counted);
        let more = u32::try_from(since.as_millis() / ONE_MORE.as_millis()).unwrap_or(u32::MAX);
        if more >= BURST - self.left {
            (self.left, self.counted) = (BURST, now);
        } else {
            self.left += more;
            self.counted += ONE_MORE * more;
        }
        if self.left == 0 {
            return Err(ONE_MORE.saturating_sub(now.saturating_duration_since(self.counted)));
        }
        self.left -= 1;
        Ok(())
    }
}

impl Link {
    /// Connects nothing yet.
    pub fn new(endpoint: Arc<Endpoint>, role: &'static str) -> Self {
        Self { endpoint, role, current: RwLock::default(), attempts: Mutex::default() }
    }

    /// The open connection, made if there is none.
    ///
    /// Cancel safe: whoever waits next takes the attempt over.
    pub async fn get(&self) -> Result<Arc<Conn>, BrokerError> {
        if let Some(conn) = self.usable() {
            return Ok(conn);
        }
        // Held while connecting: the others wait here for this attempt's result.
        let mut attempts = self.attempts.lock().await;
        if let Some(conn) = self.usable() {
            return Ok(conn);
        }
        if let Some((at, error)) = &attempts.last_failure
            && at.elapsed() < REMEMBER_FAILURE
        {
            return Err(error.clone());
        }
        while let Err(wait) = attempts.pace.take(Instant::now()) {
            tokio::time::sleep(wait).await;
        }
        match Conn::open(&self.endpoint, self.role).await {
            Ok(conn) => {
                let conn = Arc::new(conn);
                attempts.last_failure = None;
                let before = self
                    .current
                    .write()
                    .unwrap_or_else(PoisonError::into_inner)
                    .replace(Arc::clone(&conn));
                drop(before);
                Ok(conn)
            }
            Err(error) => {
                attempts.last_failure = Some((Instant::now(), error.clone()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_connections_may_be_made_at_once_and_then_one_a_second() {
        let mut pace = Pace::default();
        let start = pace.counted;
        let at = |millis| start + Duration::from_millis(millis);
        assert!((0..BURST).all(|_| pace.take(at(100)).is_ok()));
        assert_eq!(pace.take(at(200)), Err(Duration::from_millis(900)));
        assert_eq!(pace.take(at(1_100)), Ok(()));
        assert_eq!(pace.take(at(1_500)), Err(Duration::from_millis(600)));
        // Over ten seconds no more than ten, whenever they are asked for.
        let made = (1_550..=11_100).step_by(50).filter(|millis| pace.take(at(*millis)).is_ok());
        assert_eq!(made.count(), 10);
        // After a rest a burst again, and not more.
        assert!((0..BURST).all(|_| pace.take(at(60_000)).is_ok()));
        assert!(pace.take(at(60_000)).is_err());
    }
}
