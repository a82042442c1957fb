//! How RabbitMQ is touched: connections, probes, the admin mutex and what is
//! done under it, holders, and the guideline's client. Knows nothing of
//! Kubernetes; what should happen is decided in [`crate::plan`].

mod broker;
mod check;
mod client;
mod connect;
mod converge;
mod error;
mod exclusive_consumer;
mod exclusive_queue;
mod holders;
mod identity;
mod lane;
mod link;
mod listing;
mod management;
mod marks;
mod mutex;
mod probe;
mod protocol;
mod resize;
mod revoke;
mod slots;
mod tls;
mod token;
mod waiters;

pub use broker::{Broker, BrokerOptions};
pub use check::Fault;
pub use client::{
    AcquireError, AcquireOptions, Client, ClientOptions, Lock, LostReason, Moment, Permit,
    RunError, Start, Verdict,
};
pub use converge::Converged;
pub use error::BrokerError;
pub use holders::Holders;
pub use identity::BrokerIdentity;
pub use resize::{ResizeError, ResizeTo, Resized};
pub use revoke::{Revocation, RevokeError};
pub use waiters::Waiter;
