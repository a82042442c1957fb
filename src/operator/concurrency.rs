//! Concurrency limit of the reconciles of each connection, and the order of those that
//! wait. Objects on a slow server only delay those of the same connection. See `runner`
//! for their start.

use std::collections::{HashMap, VecDeque};

/// Maximum number of concurrent reconciles of one connection, equal to the concurrent
/// observations of a broker. A higher limit is not faster.
pub(super) const AT_ONCE: usize = 128;

/// The connection of an object, according to its spec. Two connections may lead to the
/// same server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Connection(String);

impl Connection {
    /// Returns the connection with this description, which must be unique.
    pub fn new(description: String) -> Self {
        Self(description)
    }
}

/// The reconciles of all connections. Pure.
pub struct ConcurrencyLimiter<T> {
    lines: HashMap<Connection, Line<T>>,
    waiting: usize,
}

struct Line<T> {
    running: usize,
    /// In order of arrival.
    waiting: VecDeque<T>,
}

impl<T> Default for ConcurrencyLimiter<T> {
    fn default() -> Self {
        Self { lines: HashMap::new(), waiting: 0 }
    }
}

impl<T> ConcurrencyLimiter<T> {
    /// Returns the item if it may start now. Otherwise, it waits.
    pub fn arrive(&mut self, connection: &Connection, item: T) -> Option<T> {
        let new = || Line { running: 0, waiting: VecDeque::new() };
        let line = self.lines.entry(connection.clone()).or_insert_with(new);
        if line.running == AT_ONCE {
            line.waiting.push_back(item);
            self.waiting += 1;
            return None;
        }
        line.running += 1;
        Some(item)
    }

    /// Ends the turn of an item that had started. Returns the next one, which starts now.
    pub fn leave(&mut self, connection: &Connection) -> Option<T> {
        let line = self.lines.get_mut(connection)?;
        let next = line.waiting.pop_front();
        if next.is_some() {
            self.waiting = self.waiting.saturating_sub(1);
        } else {
            line.running = line.running.saturating_sub(1);
            if line.running == 0 {
                self.lines.remove(connection);
            }
        }
        next
    }

    /// Returns how many items wait, for any connection.
    pub fn waiting(&self) -> usize {
        self.waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::kind::Kind;

    fn semaphore(namespace: &str, spec: &str) -> Connection {
        let text = format!("{{metadata: {{name: x, namespace: {namespace}}}, spec: {{{spec}}}}}");
        serde_yaml::from_str::<lockkeeper_api::Semaphore>(&text).unwrap().connection()
    }

    fn queue(namespace: &str, spec: &str) -> Connection {
        let text = format!("{{metadata: {{name: x, namespace: {namespace}}}, spec: {{{spec}}}}}");
        serde_yaml::from_str::<lockkeeper_api::PressureQueue>(&text).unwrap().connection()
    }

    #[test]
    fn reconciles_that_wait_for_one_connection_do_not_delay_those_of_another() {
        let mut limiter = ConcurrencyLimiter::default();
        let slow = semaphore("a", "rabbitmqClusterReference: {connectionSecret: {name: slow}}");
        for number in 0..AT_ONCE {
            assert_eq!(limiter.arrive(&slow, number), Some(number));
        }
        assert_eq!(limiter.arrive(&slow, 1000), None, "one more than may run");
        assert_eq!(limiter.arrive(&slow, 1001), None);
        let other = semaphore("a", "");
        assert_eq!(limiter.arrive(&other, 2000), Some(2000), "of another connection");
        assert_eq!(limiter.waiting(), 2);
        assert_eq!(limiter.leave(&other), None);
        assert_eq!(limiter.leave(&slow), Some(1000), "the one that has waited longest");
        assert_eq!(limiter.arrive(&slow, 1002), None, "its turn has passed on");
        assert_eq!(limiter.leave(&slow), Some(1001));
        assert_eq!(limiter.leave(&slow), Some(1002));
        assert_eq!(limiter.leave(&slow), None);
        assert_eq!(limiter.arrive(&slow, 1003), Some(1003), "a turn that ended is free again");
        for _ in 0..AT_ONCE {
            assert_eq!(limiter.leave(&slow), None);
        }
        assert_eq!(limiter.waiting(), 0);
        assert!(limiter.lines.is_empty(), "a connection without reconciles costs nothing");
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
