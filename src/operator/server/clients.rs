//! The limits of what clients of the HTTP server cost, because any pod of the cluster may
//! be one (hazard K31). A connection carries one request. If there are too many, the
//! oldest one is closed, so that idle and slow clients never keep out the kubelet and
//! Prometheus. See `server` for the answers.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// Time within which a client must have sent the header of its request.
pub const HEADER_TIME: Duration = Duration::from_secs(5);

/// Maximum length of a header.
pub const HEADER_BYTES: usize = 16 * 1024;

/// Time after which a connection is closed, for clients that do not read their answer.
pub const WHOLE_TIME: Duration = Duration::from_secs(30);

/// Maximum number of connections.
pub const AT_ONCE: usize = 64;

/// Maximum number of concurrent answers with metrics. With thousands of objects, each one
/// has several MB.
const METRICS_AT_ONCE: usize = 4;

/// What a client has asked for.
const NOTHING: u8 = 0;
const STATE: u8 = 1;
const METRICS: u8 = 2;

/// The open connections.
#[derive(Clone, Default)]
pub struct Clients(Arc<Mutex<Vec<Weak<Client>>>>);

/// One connection.
pub struct Client {
    asked: AtomicU8,
    end: CancellationToken,
}

impl Client {
    /// Waits until the place of this connection is needed for another one.
    pub async fn must_end(&self) {
        self.end.cancelled().await;
    }

    fn has_asked(&self) -> u8 {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Clients {
    /// Returns a place for a new connection, until the place is dropped. If there is none,
    /// another connection ends: the oldest one that has not sent its request, or the oldest.
    pub fn admit(&self) -> Arc<Client> {
        let new = Arc::new(Client { asked: AtomicU8::new(NOTHING), end: CancellationToken::new() });
        let open = self.open();
        if open.len() >= AT_ONCE {
            let silent = open.iter().find(|client| client.has_asked() == NOTHING);
            if let Some(client) = silent.or(open.first()) {
                client.end.cancel();
            }
        }
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|client| client.strong_count() > 0);
        all.push(Arc::downgrade(&new));
        new
    }

    /// Records that a client has sent its request. One for metrics too many ends the oldest
    /// of them.
    pub fn asked(&self, client: &Arc<Client>, for_metrics: bool) {
        client.asked.store(if for_metrics { METRICS } else { STATE }, Ordering::Relaxed);
        let mut open = self.open();
        open.retain(|client| client.has_asked() == METRICS);
        let excess = open.len().saturating_sub(METRICS_AT_ONCE);
        open.iter().take(excess).for_each(|client| client.end.cancel());
    }

    /// Ends the connections that have not sent their request.
    pub fn end_silent(&self) {
        let open = self.open();
        let silent = open.iter().filter(|client| client.has_asked() == NOTHING);
        silent.for_each(|client| client.end.cancel());
    }

    /// Returns the connections that are open and not about to end, the oldest first.
    fn open(&self) -> Vec<Arc<Client>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let open = all.iter().filter_map(Weak::upgrade);
        open.filter(|client| !client.end.is_cancelled()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(clients: &[Arc<Client>]) -> Vec<usize> {
        (0..clients.len()).filter(|number| clients[*number].end.is_cancelled()).collect()
    }

    #[test]
    fn the_oldest_connection_without_a_request_gives_its_place_to_a_new_one() {
        let all = Clients::default();
        let mut clients: Vec<_> = (0..AT_ONCE).map(|_| all.admit()).collect();
        assert!(ended(&clients).is_empty());
        all.asked(&clients[0], false);
        clients.push(all.admit());
        assert_eq!(ended(&clients), [1]);
        for client in &clients {
            all.asked(client, false);
        }
        clients.push(all.admit());
        assert_eq!(ended(&clients), [0, 1]);
        clients.drain(..2);
        clients.remove(5);
        clients.push(all.admit());
        assert!(ended(&clients).is_empty(), "the place of one that has ended is free");
        all.end_silent();
        assert_eq!(ended(&clients).len(), 2, "those without a request");
    }

    #[test]
    fn a_request_for_metrics_too_many_ends_the_oldest_one() {
        let all = Clients::default();
        let clients: Vec<_> = (0..METRICS_AT_ONCE + 2).map(|_| all.admit()).collect();
        all.asked(&clients[0], false);
        for client in clients[1..].iter().rev() {
            all.asked(client, true);
        }
        assert_eq!(ended(&clients), [1]);
    }
}
