//! The library for programs: the public items of the other crates under one name.
//!
#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! - [`semaphore`]: everything about locks.
//! - [`pressure`]: everything about queues.
//! - [`plan`]: the values of both, such as settings and names.

pub use lockkeeper_plan as plan;
pub use lockkeeper_plan::connection::{Probe, RabbitmqSettings, RedisSettings, SettingsError};
pub use lockkeeper_plan::naming::{LockName, Profile, Protocol, QueueName, QueueType};
pub use lockkeeper_pressure as pressure;
pub use lockkeeper_pressure::{
    Limit, Queue, QueueError, QueueOptions, QueueSink, Store, StoreError, StoreOptions, Taken, Wait,
};
pub use lockkeeper_semaphore as semaphore;
pub use lockkeeper_semaphore::{
    AcquireError, AcquireOptions, Broker, BrokerError, BrokerOptions, Client, ClientOptions, Lock,
    LostReason, ManagementError, Permit, Start,
};
