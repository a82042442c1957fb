//! (to come)

/// x
pub const DEFAULT_OVERSHOOT: u32 = 16;
