//! The numbers of the keys of `repair.lua`. See `doctor` for their content, and `guard` for the
//! ones that are watched.

/// The key `:producer`. Lua counts from 1.
pub const PRODUCER: usize = 3;
/// The key `:consumer`.
pub const CONSUMER: usize = 4;
/// The key `:producer_free`.
pub const PRODUCER_FREE: usize = 5;
/// The key `:consumer_free`.
pub const CONSUMER_FREE: usize = 6;
/// The key `:not_full`.
pub const NOT_FULL: usize = 11;
/// Number of keys.
pub const KEYS: usize = 14;
