//! How many reconciles of one connection are under way at a time. Who waits for a turn
//! has not begun and costs little, where thousands that have begun would all be kept in
//! memory and end together, the first as late as the last. Whose server is slow waits
//! for others of the same connection only.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api;

/// Reconciles of one connection at a time: as many as look at a broker at once. More
/// are no faster.
const AT_ONCE: usize = 128;

/// The turns of all connections.
#[derive(Default)]
pub struct Turns(Mutex<HashMap<Connection, Arc<Semaphore>>>);

/// Which connection an object means, by its spec alone: two of them may turn out to be
/// one server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Connection(String);

impl Turns {
    /// Waits for a turn, in the order of those who ask; it ends when it is dropped.
    /// Cancel safe. None never comes: no turns are closed.
    pub async fn take(&self, connection: Connection) -> Option<OwnedSemaphorePermit> {
        let turns = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if !all.contains_key(&connection) {
                // Nobody has or awaits a turn of these.
                all.retain(|_, turns| Arc::strong_count(turns) > 1);
            }
            let new = || Arc::new(Semaphore::new(AT_ONCE));
            Arc::clone(all.entry(connection).or_insert_with(new))
        };
        turns.acquire_owned().await.ok()
    }
}

impl Connection {
    /// A Semaphore's.
    pub fn of_semaphore(semaphore: &api::Semaphore) -> Self {
        let spec = &semaphore.spec;
        let reference = spec.rabbitmq_cluster_reference.as_ref();
        let namespace = reference.and(semaphore.metadata.namespace.as_ref());
        Self(format!("broker {:?}", (namespace, reference, &spec.vhost)))
    }

    /// A `PressureQueue`'s.
    pub fn of_queue(queue: &api::PressureQueue) -> Self {
        let reference = queue.spec.redis_reference.as_ref();
        let secret = reference.and_then(|reference| reference.connection_secret.as_ref());
        let namespace = secret.and(queue.metadata.namespace.as_ref());
        let database = reference.and_then(|reference| reference.database);
        Self(format!("store {:?}", (namespace, secret, database)))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn semaphore(namespace: &str, spec: &str) -> Connection {
        let text = format!("{{metadata: {{name: x, namespace: {namespace}}}, spec: {{{spec}}}}}");
        Connection::of_semaphore(&serde_yaml::from_str(&text).unwrap())
    }

    fn queue(namespace: &str, spec: &str) -> Connection {
        let text = format!("{{metadata: {{name: x, namespace: {namespace}}}, spec: {{{spec}}}}}");
        Connection::of_queue(&serde_yaml::from_str(&text).unwrap())
    }

    #[test]
    fn who_waits_for_a_turn_holds_nobody_of_another_connection_up() {
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
    fn a_connection_is_told_by_what_the_spec_names() {
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
