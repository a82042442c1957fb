//! Limits of the connections to servers of tenants that are being opened at once. Any user
//! can name servers that accept connections and stay silent, in as many Secrets as there
//! may be (hazard K16). The default connections are not limited.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use lockkeeper_net::opening::Gate;
use tokio::sync::Semaphore;

/// Maximum number of connections of one namespace that are being opened.
const OF_NAMESPACE: usize = 8;
const NAMESPACE_IS_FULL: &str = "8 connections of this namespace are being opened already, to servers that do not answer: check them and their Secrets";

/// Maximum number of connections of all namespaces that are being opened.
const OF_ALL: usize = 32;
const ALL_IS_FULL: &str = "32 connections of all namespaces are being opened already";

/// The limits of all namespaces.
pub struct Openings {
    all: Arc<Semaphore>,
    by_namespace: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Default for Openings {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(OF_ALL)), by_namespace: Mutex::default() }
    }
}

impl Openings {
    /// Returns the limits for a connection of this namespace.
    pub fn of(&self, namespace: &str) -> Gate {
        let mut known = self.by_namespace.lock().unwrap_or_else(PoisonError::into_inner);
        let places = known.get(namespace).and_then(Weak::upgrade).unwrap_or_else(|| {
            known.retain(|_, places| places.strong_count() > 0);
            let new = Arc::new(Semaphore::new(OF_NAMESPACE));
            known.insert(namespace.to_owned(), Arc::downgrade(&new));
            new
        });
        // A namespace waits for its own places first, so that it has few waiting for those
        // of all.
        Gate::new([(places, NAMESPACE_IS_FULL), (Arc::clone(&self.all), ALL_IS_FULL)])
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use futures::future::join_all;
    use lockkeeper_net::opening::PATIENCE;

    use super::*;

    #[tokio::test]
    async fn a_namespace_with_silent_servers_leaves_places_for_others() {
        let openings = Openings::default();
        let enter = async |namespace: &str| openings.of(namespace).enter().await;
        let enter_often = |namespace: &str, times: usize| {
            let gate = openings.of(namespace);
            join_all((0..times).map(move |_| {
                let gate = gate.clone();
                async move { gate.enter().await }
            }))
        };
        let start = Instant::now();
        // As a connection whose handle is in use, this keeps the namespace's limit.
        let _handle = openings.of("a");
        let (of_a, of_b) = tokio::join!(enter_often("a", 200), enter("b"));
        assert!(of_b.is_ok() && start.elapsed() < 2 * PATIENCE);
        assert_eq!(of_a.iter().filter(|place| place.is_ok()).count(), OF_NAMESPACE);
        assert!(
            of_a.iter().filter_map(|place| place.as_ref().err()).all(|w| *w == NAMESPACE_IS_FULL)
        );
        drop(of_b);
        let mut places = Vec::new();
        for number in 0..3 {
            places.extend(enter_often(&format!("c{number}"), OF_NAMESPACE).await);
        }
        assert!(places.iter().all(Result::is_ok));
        assert_eq!(enter("b").await.map(|_| ()), Err(ALL_IS_FULL));
        drop(of_a);
        assert!(enter("b").await.is_ok(), "places that ended are free again");
        drop(places);
        drop(enter("c").await);
        assert_eq!(openings.by_namespace.lock().unwrap().len(), 1 + 1, "a, and the newest");
    }
}
