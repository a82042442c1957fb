//! Lock capacity as Kubernetes objects: an operator, a command line, and this library.
//!
//! The library acquires distributed locks in RabbitMQ, and puts and gets elements of
//! bounded queues in Redis. It needs no Kubernetes.
//!
//! A [`Client`] acquires slots of a lock. A [`Permit`] is a slot that is held. It knows
//! when it is lost, and dropping it releases the slot:
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use lockkeeper::{AcquireOptions, Client, ClientOptions, LockName, RabbitmqSettings};
//!
//! let broker = RabbitmqSettings::from_urls("amqp://user:password@localhost/vhost", None)?;
//! let client = Client::new(broker, ClientOptions::default());
//! let lock = client.semaphore(LockName::new("ci.deploy")?);
//! let options = AcquireOptions::default().with_identity("build-42");
//!
//! let permit = lock.acquire(&options).await?;
//! tokio::select! {
//!     () = work() => permit.release().await?,
//!     why = permit.lost() => eprintln!("stop: another client may hold the lock now: {why}"),
//! }
//! # Ok(())
//! # }
//! # async fn work() {}
//! ```
//!
//! A [`Queue`] puts and gets elements. Producers wait while it is full, and consumers
//! while it is empty:
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use lockkeeper::Queue;
//!
//! let queue = Queue::from_env("frames")?; // on the server of REDIS_URL
//! queue.put(b"first").await?;
//! let element = queue.get().await?;
//! # Ok(())
//! # }
//! ```
//!
//! A [`Broker`] and a [`Store`] administer locks and queues: create, resize, observe,
//! delete.
//!
//! # Features
//!
//! - `client`: the library for locks and queues. Pulls in no crate of Kubernetes.
//! - `operator`: the resource types and the operator.
//! - `cli`: the command line. `otel`: its traces.
//!
//! # Modules
//!
//! - [`plan`]: decisions, computed as values. Pure.
//! - [`semaphore`]: access to RabbitMQ.
//! - [`pressure`]: access to Redis.
//! - [`api`]: the resource types that users write.
//! - [`operator`]: access to Kubernetes: the drivers and the kinds.
//! - [`cli`]: the command line.
//!
//! A module imports only modules of lower layers. `plan` is the lowest layer.

// These macros panic if the stream is closed. `cli` has `output::write` and `say` instead.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

#[cfg(feature = "operator")]
pub mod api;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "client")]
mod clock;
// Only the operator sets limits.
#[cfg(feature = "client")]
#[cfg_attr(not(feature = "operator"), allow(dead_code))]
mod opening;
#[cfg(feature = "operator")]
pub mod operator;
pub mod plan;
#[cfg(feature = "client")]
pub mod pressure;
#[cfg(feature = "client")]
mod process_limit;
#[cfg(feature = "client")]
pub mod semaphore;
#[cfg(feature = "client")]
mod tls;

#[cfg(feature = "client")]
pub use self::plan::connection::{Probe, RabbitmqSettings, RedisSettings, SettingsError};
#[cfg(feature = "client")]
pub use self::plan::naming::{LockName, Profile, Protocol, QueueName, QueueType};
#[cfg(feature = "client")]
pub use self::pressure::{
    Limit, Queue, QueueError, QueueOptions, QueueSink, Store, StoreError, StoreOptions, Taken, Wait,
};
#[cfg(feature = "client")]
pub use self::semaphore::{
    AcquireError, AcquireOptions, Broker, BrokerError, BrokerOptions, Client, ClientOptions, Lock,
    LostReason, ManagementError, Permit, Start,
};
