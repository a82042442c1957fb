//! The idle channels of one connection, each with the number of declares on it. See `channel`
//! for a channel in use.

use std::sync::{Mutex, PoisonError};

/// Maximum number of idle channels. Further ones are closed.
const MAX_IDLE: usize = 64;

/// Idle channels of one connection.
#[derive(Default)]
pub struct IdleChannels(Mutex<Vec<(lapin::Channel, u32)>>);

impl IdleChannels {
    /// Takes one.
    pub fn pop(&self) -> Option<(lapin::Channel, u32)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Keeps one for reuse, or closes it.
    pub fn push(&self, raw: lapin::Channel, declares: u32) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push((raw, declares));
        }
    }
}
