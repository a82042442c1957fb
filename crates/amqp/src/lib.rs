//! AMQP without any knowledge of locks: connections, pooled channels, probes, and the
//! broker's description of itself.

#![expect(clippy::missing_errors_doc, reason = "AmqpError documents each error once")]

pub mod channel;
pub mod connection;
pub mod endpoint;
pub mod error;
pub mod features;
mod frame;
pub mod identity;
mod idle;
mod incoming;
pub mod lazy;
mod outgoing;
pub mod probe;
pub mod refusal;
mod stream;
pub mod unanswered;
mod violation;

/// Returns a random id of 20 hexadecimal digits.
pub fn new_id() -> String {
    format!("{:020x}", rand::random::<u128>() >> 48)
}
