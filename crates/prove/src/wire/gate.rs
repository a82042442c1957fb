//! Holds the requests of clients and releases them one at a time, so that a program controls the
//! order in which the broker receives them. See `connection` for how other data passes.

use tokio::sync::watch;

use super::method::Method;
use crate::history::Sender;

/// The gate of a proxy. It is open until [`Gate::close`]. While it is closed, each request that
/// concerns a queue waits until it is released, with all later data of its connection. A waiting
/// method has not been observed or counted, and triggers no trap.
///
/// The request of a client that is killed keeps waiting, because the data has been sent. Release
/// the request, or cut the connection.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    state: watch::Sender<State>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    /// The waiting requests, in the order of arrival. At most one for each connection.
    waiting: Vec<Waiting>,
    arrived: u64,
}

/// A request that waits at the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The connection, numbered from 1 in the order of acceptance.
    pub connection: usize,
    /// The channel.
    pub channel: u16,
    /// The name of the method, as in [`Method::name`].
    pub method: String,
    /// The queue that the request concerns. For a cancel or an acknowledgement it is derived
    /// from the tag. Empty if unknown.
    pub queue: String,
    ticket: u64,
}

impl Gate {
    /// Closes the gate. Requests wait from now on.
    pub fn close(&self) {
        self.state.send_modify(|state| state.closed = true);
    }

    /// Opens the gate. Releases all waiting requests and lets later ones pass.
    pub fn open(&self) {
        self.state.send_modify(|state| {
            state.closed = false;
            state.waiting.clear();
        });
    }

    /// Returns the waiting requests, in the order of arrival. There is at most one for each
    /// connection.
    pub fn waiting(&self) -> Vec<Waiting> {
        self.state.borrow().waiting.clone()
    }

    /// Releases the request that waits on this connection. Returns whether there was one.
    pub fn release(&self, connection: usize) -> bool {
        self.remove(|waiting| waiting.connection == connection)
    }

    /// Waits until `condition` is true for the waiting requests, and returns them.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn until(&self, mut condition: impl FnMut(&[Waiting]) -> bool) -> Vec<Waiting> {
        let mut watched = self.state.subscribe();
        let state = watched.wait_for(|state| condition(&state.waiting)).await;
        // `self` contains the sender, so the state always exists.
        state.map(|state| state.waiting.clone()).unwrap_or_default()
    }

    /// Returns whether the method waits while the gate is closed.
    fn concerns(method: &Method) -> bool {
        let basic = ["publish", "get", "consume", "cancel", "reject", "nack", "ack"];
        let about_a_queue = match method.name.split_once('.') {
            Some(("queue", _)) => true,
            Some(("basic", name)) => basic.contains(&name),
            _ => false,
        };
        method.sender == Sender::Client && about_a_queue
    }

    /// Returns a place for the method to wait, or `None` if the method may pass.
    pub(super) fn arrive(&self, method: &Method, queue: impl FnOnce() -> String) -> Option<Place> {
        if !Self::concerns(method) || !self.state.borrow().closed {
            return None;
        }
        let (connection, channel) = (method.connection, method.channel);
        let mut waiting =
            Waiting { connection, channel, method: method.name.clone(), queue: queue(), ticket: 0 };
        let mut place = None;
        self.state.send_if_modified(|state| {
            // The gate may have been opened in the meantime.
            if state.closed {
                state.arrived += 1;
                waiting.ticket = state.arrived;
                place = Some(Place { gate: self.clone(), ticket: state.arrived });
                state.waiting.push(waiting);
            }
            state.closed
        });
        place
    }

    fn remove(&self, which: impl Fn(&Waiting) -> bool) -> bool {
        self.state.send_if_modified(|state| {
            let before = state.waiting.len();
            state.waiting.retain(|waiting| !which(waiting));
            state.waiting.len() < before
        })
    }
}

/// The place of a waiting request. Dropping it removes the request, for example because the
/// connection ended.
pub(super) struct Place {
    gate: Gate,
    ticket: u64,
}

impl Place {
    /// Waits until the request is released.
    pub async fn released(self) {
        let mut watched = self.gate.state.subscribe();
        let waits = |state: &State| state.waiting.iter().any(|one| one.ticket == self.ticket);
        // `self` contains the sender.
        let _ = watched.wait_for(|state| !waits(state)).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gate.remove(|waiting| waiting.ticket == self.ticket);
    }
}
