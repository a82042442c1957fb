//! Closes connections through the proxy. See `connection` for what each side then observes, and
//! `Proxy::cut_at` for cuts at a method.

use futures::future::join_all;

use super::Proxy;
use super::shared::{State, lock};

impl Proxy {
    /// Closes every connection immediately, on both sides.
    pub fn cut(&self) {
        for (_, state) in lock(&self.shared.connections).drain(..) {
            state.send_replace(State::Cut);
        }
    }

    /// Closes this connection immediately, on both sides. Does nothing if it has ended.
    pub fn cut_connection(&self, connection: usize) {
        lock(&self.shared.connections).retain(|(number, state)| {
            let cut = *number == connection;
            if cut {
                state.send_replace(State::Cut);
            }
            !cut
        });
    }

    /// Resolves when this connection has ended: the proxy has closed the client's side, and the
    /// broker has closed the other side or 1 s has passed. Without a number, awaits all
    /// connections that are open now. A connection that is unknown or was cut before this call
    /// has ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub fn ended(&self, connection: Option<usize>) -> impl Future<Output = ()> + use<> {
        let mut states = Vec::new();
        for (number, state) in lock(&self.shared.connections).iter() {
            if connection.is_none_or(|one| one == *number) {
                states.push(state.clone());
            }
        }
        async move {
            // Each connection subscribes to its state until its end.
            join_all(states.iter().map(tokio::sync::watch::Sender::closed)).await;
        }
    }
}
