//! The queue for programs: put, get, close, delete and inspect. See
//! [`Store`](super::Store) for administration, such as changing the bound.
//!
//! Each operation is one script. A client that dies at any point therefore never blocks a
//! role, and an element is either in the queue or not. Waiting costs no round trips: see
//! `waiting.rs`.

mod batch;
mod delivery;
mod environment;
mod error;
mod get;
mod lifecycle;
mod options;
mod pace;
mod put;
mod queue;
mod stream_sink;
mod taken;
mod waiting;

pub use self::delivery::Delivery;
pub use self::environment::EnvironmentError;
pub use self::error::{Awaited, GiveBackError, PutBatchError, QueueError, Wait};
pub use self::options::QueueOptions;
pub use self::put::MAX_ELEMENT_BYTES;
pub use self::queue::Queue;
pub use self::stream_sink::QueueSink;
pub use self::taken::{Limit, Taken};
pub use lockkeeper_plan::pressure_queue::QueueRole;
