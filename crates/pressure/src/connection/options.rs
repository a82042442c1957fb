//! The options of a store. See `connection` for the limits that they set.

use std::time::Duration;

use derive_setters::Setters;
use lockkeeper_net::opening::Gate;

/// Options of a store.
#[derive(Clone, Debug, Setters)]
#[setters(prefix = "with_", strip_option)]
#[non_exhaustive]
pub struct StoreOptions {
    /// The id of this client, written into `:producer` when a queue is closed. `CLIENT
    /// LIST` shows it as the connection's name, after `lockkeeper/`. It should stay the
    /// same for the life of the process and differ from every other client's.
    #[setters(into)]
    pub client_id: String,
    /// Maximum time for opening a connection, login included. Default 3 s.
    pub connect_timeout: Duration,
    /// Maximum silence of the server while an answer is awaited. An answer may take
    /// longer while bytes flow. Default 5 s (the redis crate's own limit, on the whole
    /// answer, is half a second).
    pub response_timeout: Duration,
    /// Maximum size of an answer in memory, in bytes. The connection ends at a larger one: a
    /// hostile server could otherwise fill this process's memory. Default 1 GiB: an answer
    /// may have several elements, of up to 512 MiB each. A program that reads no elements
    /// needs 8 MiB, for the list of 10,000 clients.
    pub longest_answer: usize,
    /// During a deletion, how long a role must have been neither free nor ever taken
    /// before it counts as gone. Default 1 s. See
    /// [`Store::delete`](crate::Store::delete).
    pub nameless_role_grace: Duration,
    /// Limits of the connections that are being opened.
    pub gate: Gate,
}

impl StoreOptions {
    /// Returns the defaults with this client id.
    #[must_use]
    pub fn new(client_id: impl Into<String>) -> Self {
        Self {
            client_id: client_id.into(),
            connect_timeout: Duration::from_secs(3),
            response_timeout: Duration::from_secs(5),
            longest_answer: 1024 * 1024 * 1024,
            nameless_role_grace: Duration::from_secs(1),
            gate: Gate::default(),
        }
    }
}
