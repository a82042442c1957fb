//! Shared code of the tests and the measurements: real servers, as started by dev/up, programs,
//! foreign clients, and the proxies that inject faults. A test without its server fails and names
//! the command to run.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    clippy::missing_errors_doc,
    reason = "a test fails by panicking, in its helpers too"
)]

pub mod amqp_locks_python;
pub mod api_server;
pub mod audit;
pub mod authority;
pub mod blog;
pub mod built;
pub mod canaries;
pub mod cluster;
pub mod collector;
pub mod environment;
pub mod evaluator;
pub mod hostile;
pub mod management_proxy;
pub mod narrow;
pub mod own_server;
pub mod pressure_pseudo;
pub mod pressure_text;
pub mod pressure_text_unblocked;
pub mod protocols;
pub mod proxy;
pub mod rabbitmq;
pub mod redis;
pub mod redis_cluster;
pub mod redis_sentinel;
pub mod redis_tls;
pub mod register;
pub mod world;
