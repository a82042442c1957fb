//! Lock capacity as Kubernetes objects.
//!
//! # Layout
//!
//! - [`plan`]: what should happen, as values. Pure.
//! - [`semaphore`]: how RabbitMQ is touched.
//! - [`pressure`]: how Redis is touched.
//! - [`api`]: what users write: the resource types.
//! - [`operator`]: how Kubernetes is touched: the reconcilers.
//! - [`cli`]: the command line.
//!
//! A room imports only rooms below it; `plan` is at the bottom.

#[cfg(feature = "operator")]
pub mod api;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "operator")]
pub mod operator;
pub mod plan;
#[cfg(feature = "client")]
pub mod pressure;
#[cfg(feature = "client")]
pub mod semaphore;
