//! The interface of observers of a proxy. See `recorder` for the one that records a run.

use super::method::Method;
use crate::history::{ConnectionState, Sender};

/// Observes the data of a proxy before it is forwarded. The calls must return soon, because the
/// data waits for them.
pub trait Observer: Send + Sync + 'static {
    /// Called when a method, or the complete body of a message ([`CONTENT`](super::CONTENT)), was read.
    fn method(&self, method: &Method);

    /// Called when the connection with this number, from 1, began or ended. A connection ends
    /// once. Methods that the other side had sent before may still follow.
    fn connection(&self, number: usize, state: ConnectionState);

    /// Called when a complete frame of any kind was read, including heartbeats and parts of
    /// messages. Called before [`Observer::method`] for the same data.
    fn frame(&self, frame: Passed);
}

/// The size of a frame in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The connection, numbered from 1 in the order of acceptance.
    pub connection: usize,
    /// The side that sends it.
    pub sender: Sender,
    /// Its size, including the frame header and the end mark. The protocol header counts as a
    /// frame.
    pub bytes: usize,
    /// Whether it is a heartbeat.
    pub heartbeat: bool,
}

/// An observer that ignores everything.
impl Observer for () {
    fn method(&self, _: &Method) {}

    fn connection(&self, _: usize, _: ConnectionState) {}

    fn frame(&self, _: Passed) {}
}

/// An observer that passes everything to both observers, in order.
impl<A: Observer, B: Observer> Observer for (A, B) {
    fn method(&self, method: &Method) {
        self.0.method(method);
        self.1.method(method);
    }

    fn connection(&self, number: usize, state: ConnectionState) {
        self.0.connection(number, state);
        self.1.connection(number, state);
    }

    fn frame(&self, frame: Passed) {
        self.0.frame(frame);
        self.1.frame(frame);
    }
}
