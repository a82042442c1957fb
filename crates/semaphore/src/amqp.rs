//! AMQP without any knowledge of locks: connections, pooled channels, probes, and the
//! broker's description of itself.

pub mod channel;
pub mod connection;
pub mod endpoint;
pub mod features;
pub mod identity;
pub mod incoming;
pub mod lazy;
pub mod probe;
pub mod stream;
pub mod unanswered;

/// Returns a random id for an acquisition or a change.
pub fn new_id() -> String {
    format!("{:020x}", rand::random::<u128>() >> 48)
}
