//! Traps: what happens to the connection of an awaited method. See `connection` for how they
//! spring.

use tokio::sync::watch;

use super::method::Method;

/// The side of the awaited method on which a connection is cut or held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum When {
    /// The method does not pass, but all earlier data does.
    Before,
    /// The method passes, but its answer does not.
    After,
}

/// The action of a trap on the connection of the awaited method.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    Hold,
    Cut,
    /// The connection continues with these bytes instead of the method.
    Replace(Vec<u8>),
}

/// Returns whether a method is the awaited one.
pub(super) type Predicate = Box<dyn FnMut(&Method) -> bool + Send>;

/// A trap on the connection of the first method that matches a predicate.
pub(super) struct Trap {
    pub(super) predicate: Predicate,
    pub(super) when: When,
    pub(super) action: Action,
    pub(super) sprung: watch::Sender<bool>,
}
