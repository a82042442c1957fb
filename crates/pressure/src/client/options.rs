//! The options of a queue client, and its default id.

use std::time::Duration;

use derive_setters::Setters;

use crate::StoreOptions;

/// Options for a queue client's connections and waits.
#[derive(Clone, Debug, Setters)]
#[setters(prefix = "with_", strip_option)]
#[non_exhaustive]
pub struct QueueOptions {
    /// The id of this client, written into `:producer` and `:consumer`. Default: host,
    /// process and thread, `host/4242/4243`.
    #[setters(into)]
    pub client_id: String,
    /// Maximum time for opening a connection, login included. Default 3 s.
    pub connect_timeout: Duration,
    /// Maximum silence of the server while an answer is awaited. An answer may take
    /// longer while bytes flow. Default 5 s. The answer to a get contains its elements
    /// and is awaited until the connection ends: see [`Queue`](super::Queue), "Cancel safety".
    pub response_timeout: Duration,
    /// Silence of the server after which a get with no or limited waiting fails, although
    /// elements may be on their way to it. `None`: it awaits the answer until the connection
    /// ends. Default 1 min.
    #[setters(strip_option = false)]
    pub answer_silence: Option<Duration>,
    /// Interval at which a waiting operation checks the queue again. This detects keys
    /// that were removed outside of the protocol, which wakes no client. Default 60 s.
    pub look_interval: Duration,
    /// How long an element got with [`Queue::get_acked`](super::Queue::get_acked) stays in
    /// flight without a renewal. Other clients get the elements of a dead client after that
    /// time. A lease is renewed at a third of it, and must be longer than the transfer of an
    /// element. Default 30 s; at least 1 ms.
    pub lease: Duration,
}

impl Default for QueueOptions {
    fn default() -> Self {
        let store = StoreOptions::new(client_id());
        Self {
            client_id: store.client_id,
            connect_timeout: store.connect_timeout,
            response_timeout: store.response_timeout,
            answer_silence: Some(Duration::from_mins(1)),
            look_interval: Duration::from_mins(1),
            lease: Duration::from_secs(30),
        }
    }
}

/// Returns machine, process and thread, as in pressure 0.15, "Clients". A [`Queue`](super::Queue)
/// keeps its id, on whichever threads its tasks run.
fn client_id() -> String {
    let host = nix::unistd::gethostname().unwrap_or_default();
    let host = host.to_string_lossy();
    let host = if host.is_empty() { "localhost".into() } else { host };
    format!("{host}/{}/{}", std::process::id(), nix::unistd::gettid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_named_by_host_process_and_thread() {
        let id = client_id();
        let parts: Vec<&str> = id.rsplitn(3, '/').collect();
        assert_eq!(parts[1], std::process::id().to_string());
        assert!(parts[0].parse::<u32>().is_ok() && !parts[2].is_empty(), "{id}");
        let other = std::thread::spawn(client_id).join().unwrap();
        assert_ne!(other, id);
    }
}
