//! Concurrency limit of the reconciles of one connection. Waiting reconciles have not
//! started and cost little; thousands of started ones would all be kept in memory and end
//! together. Objects on a slow server only delay those of the same connection.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of concurrent reconciles of one connection, equal to the concurrent
/// observations of a broker. A higher limit is not faster.
const AT_ONCE: usize = 128;

/// The concurrency limits of all connections.
#[derive(Default)]
pub struct Turns(Mutex<HashMap<Connection, Arc<Semaphore>>>);

/// The connection of an object, according to its spec. Two connections may lead to the
/// same server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Connection(String);

impl Turns {
    /// Waits for a permit, in order of arrival. Dropping the permit releases it. Cancel
    /// safe. Never returns `None`, because the limits are never closed.
    pub async fn take(&self, connection: Connection) -> Option<OwnedSemaphorePermit> {
        let turns = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if !all.contains_key(&connection) {
                // Remove limits that no reconcile uses or waits for.
                all.retain(|_, turns| Arc::strong_count(turns) > 1);
            }
            let new = || Arc::new(Semaphore::new(AT_ONCE));
            Arc::clone(all.entry(connection).or_insert_with(new))
        };
        turns.acquire_owned().await.ok()
    }
}

impl Connection {
    /// Returns the connection with this description, which must be unique.
    pub fn new(description: String) -> Self {
        Self(description)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::api;
    use crate::operator::kind::Kind;

    fn semaphore(namespace: &str, spec: &str) -> Connection {
        let text = format!("{{metadata: {{name: x, namespace: {namespace}}}, spec: {{{spec}}}}}");
        serde_yaml::from_str::<api::Semaphore>(&text).unwrap().connection()
    }

    fn queue(namespace: &str, spec: &str) -> Connection {
        let text = format!("{{metadata: {{name: x, namespace: {namespace}}}, spec: {{{spec}}}}}");
        serde_yaml::from_str::<api::PressureQueue>(&text).unwrap().connection()
    }

    #[test]
    fn reconciles_that_wait_for_one_connection_do_not_delay_those_of_another() {
        let turns = Turns::default();
        let take = |connection| turns.take(connection).now_or_never().flatten();
        let slow = || semaphore("a", "rabbitmqClusterReference: {connectionSecret: {name: slow}}");
        let mut taken: Vec<_> = (0..AT_ONCE).map(|_| take(slow()).unwrap()).collect();
        assert!(take(slow()).is_none(), "one more than may run");
        let other = take(semaphore("a", ""));
        assert!(other.is_some(), "of another connection");
        assert!(take(slow()).is_none(), "forgotten although they run");
        taken.pop();
        assert!(take(slow()).is_some(), "a turn that ended is free again");
    }

    #[test]
    fn a_connection_is_identified_by_the_references_in_the_spec() {
        let secret = "rabbitmqClusterReference: {connectionSecret: {name: s}}";
        assert_eq!(semaphore("a", "slots: 1"), semaphore("b", "slots: 2"), "the default one");
        assert_ne!(semaphore("a", ""), semaphore("a", "vhost: other"));
        assert_eq!(semaphore("a", secret), semaphore("a", secret));
        assert_ne!(semaphore("a", secret), semaphore("b", secret), "each has its own Secret");
        assert_ne!(semaphore("a", ""), queue("a", ""), "a broker and a store");
        let redis = "redisReference: {connectionSecret: {name: s}}";
        assert_ne!(queue("a", redis), queue("b", redis));
        assert_eq!(queue("a", "redisReference: {prefix: p}"), queue("b", ""));
    }
}
