//! Limits how many connections are being opened at once, for a process that connects to
//! servers of others: until its login has ended, each costs a thread or a socket, and a
//! server that does not answer costs nothing. See `operator/fetch/openings.rs` for the
//! limits.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// Maximum wait for a place.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// The limits for one connection. By default, there are none.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<[Limit]>);

#[derive(Debug)]
struct Limit {
    places: Arc<Semaphore>,
    /// The cause, if there is no place.
    full: &'static str,
}

/// A place for a connection that is being opened. Its drop frees the place.
pub type Place = Vec<OwnedSemaphorePermit>;

impl Gate {
    /// Creates a gate with these limits, the narrowest first, each with the cause to report
    /// when it has no place.
    pub fn new(limits: impl IntoIterator<Item = (Arc<Semaphore>, &'static str)>) -> Self {
        Self(limits.into_iter().map(|(places, full)| Limit { places, full }).collect())
    }

    /// Waits for a place, in order of arrival. Cancel safe.
    ///
    /// # Errors
    ///
    /// The cause, if there is no place in time.
    pub async fn enter(&self) -> Result<Place, &'static str> {
        let deadline = Instant::now() + PATIENCE;
        let mut place = Place::new();
        for Limit { places, full } in &*self.0 {
            match timeout_at(deadline, Arc::clone(places).acquire_owned()).await {
                Ok(Ok(permit)) => place.push(permit),
                Ok(Err(_)) | Err(_) => return Err(full),
            }
        }
        Ok(place)
    }
}
