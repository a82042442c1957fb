//! Administration of locks: the operations of [`Broker`](broker::Broker). Each asks the
//! lock's protocol to do the work. See `protocol` for how.

pub mod broker;
mod converge;
mod identity;
pub mod managed;
pub mod resize;
mod rights;
