//! The queues of a lock, as functions over a channel: declares, inspects and deletes them.
//! The caller decides when. See `amqp::channel` for the channel, which knows no lock.

pub mod arguments;
pub mod holder;
pub mod ownership;
pub mod record;
pub mod slot;
pub mod wait;
