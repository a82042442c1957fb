//! What a client remembers of a lock between two acquisitions.

use crate::clock::Moment;

/// The cached state of a lock between two acquisitions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// The slot that this client held last.
    pub last: Option<u32>,
    /// True if that slot was free at the last acquisition. It is then taken without a
    /// probe.
    pub calm: bool,
    /// The known number of slots.
    pub slots: u32,
    /// Whether its slots had records, and when that was checked.
    pub records: Option<(bool, Moment)>,
    /// When its slots were verified to use this protocol.
    pub protocol: Option<Moment>,
}
