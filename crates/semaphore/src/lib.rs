//! Access to RabbitMQ: the lock protocols, for clients and for administrators. This
//! module is independent of Kubernetes. See [`lockkeeper_plan`] for the decisions.
//!
//! Connections, channels and probes are in `lockkeeper_amqp`, which knows no lock. The layers, each of which imports only those above it in this list:
//!
//! - `error`: why a request failed.
//! - `queues`: the queues of a lock, as functions over a channel.
//! - `management`: the requests to the management API.
//! - `session`: what an administrator's operations share: connections, the admin mutex,
//!   and one change under it.
//! - `protocol`: the protocols, behind one interface for each role.
//! - `admin`: [`Broker`], for administrators. `client`: [`Client`], for holders.

mod admin;
mod client;
mod error;
mod management;
mod protocol;
mod queues;
mod session;

pub use self::admin::broker::Broker;
pub use self::admin::managed::{ManagedLock, Source};
pub use self::admin::resize::{ResizeError, ResizeTo, Resized};
pub use self::client::{
    AcquireError, AcquireOptions, Client, ClientOptions, Lock, LostReason, Permit, RunError, Start,
    Verdict,
};
pub use self::error::BrokerError;
pub use self::management::ManagementError;
pub use self::management::risks::Risks;
pub use self::protocol::fault::{Expected, Fault};
pub use self::protocol::holders::Holders;
pub use self::protocol::interface::Wait;
pub use self::protocol::mismatch::Presence;
pub use self::protocol::revoke::{Revocation, RevokeError};
pub use self::protocol::waiters::Waiter;
pub use self::session::access::BrokerOptions;
pub use self::session::change::Converged;
pub use self::session::identity::BrokerIdentity;
pub use lockkeeper_amqp::connection::until_ended;
pub use lockkeeper_net::clock::Moment;
pub use lockkeeper_plan::semaphore::risk::{PolicyEffect, PolicyEffects, Risk};
pub use lockkeeper_plan::semaphore::{
    Counts, DeletionOrder, DesiredSlots, Holder, Observed, ObservedSlots, ObservedTokens, sweep_to,
};
