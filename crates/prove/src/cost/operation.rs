//! The operations that are measured. See `scenario` for how each is set up.

use serde::{Deserialize, Serialize};

/// An operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Acquire while all slots are free.
    AcquireFree,
    /// Acquire while only one slot is free.
    AcquireTaken,
    /// Acquire while no slot is free. It is refused.
    AcquireFull,
    /// Acquire while another client takes the slot between the search and the attempt.
    LostRace,
    /// Verify a held slot.
    Verify,
    /// Release a slot for which no client waits.
    Release,
    /// Release and grant of the slot to a waiting client, for both processes together.
    HandOver,
    /// Resize to one more slot.
    Grow,
    /// Resize to one slot less. The removed slot is free.
    Shrink,
}

impl Operation {
    /// All operations, in the order of the report.
    pub const ALL: [Self; 9] = [
        Self::AcquireFree,
        Self::AcquireTaken,
        Self::AcquireFull,
        Self::LostRace,
        Self::Verify,
        Self::Release,
        Self::HandOver,
        Self::Grow,
        Self::Shrink,
    ];
}
