//! What the operations of one administrator share: its connections, the admin mutex, and
//! one change that runs under it. See `protocol` for what a change does.

pub mod access;
pub mod change;
pub mod endpoint;
pub mod identity;
pub mod mutex;
pub mod offered;
