//! The state that a proxy shares with its connections. See `connection` for its use.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::gate::Gate;
use super::method::Method;
use super::observer::Observer;
use super::trap::Trap;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Everything passes.
    Open,
    /// Nothing passes.
    Held,
    /// The connection ends immediately, on both sides.
    Cut,
}

/// The state of a proxy that its connections share.
pub(super) struct Shared {
    pub(super) observer: Box<dyn Observer>,
    pub(super) gate: Gate,
    pub(super) frozen: watch::Sender<bool>,
    /// Additional delays of the client's data and of the broker's data.
    pub(super) delays: Mutex<(Duration, Duration)>,
    pub(super) traps: Mutex<Vec<Trap>>,
    pub(super) connections: Mutex<Vec<(usize, watch::Sender<State>)>>,
    pub(super) log: Mutex<Log>,
}

/// The methods and connections since the start or the last reset.
#[derive(Default)]
pub(super) struct Log {
    pub(super) methods: Vec<Method>,
    pub(super) opened: usize,
    pub(super) unreadable: Option<String>,
}

/// Locks a mutex and ignores poisoning, because every change under these locks is complete in
/// itself.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
