//! What several test binaries need: real servers, as the development
//! environment provides them. No fakes, and nothing is skipped: a test without
//! its server fails and says what to run.

// Each test binary uses a part of this. A helper may fail as a test may, but
// clippy.toml's exception is for functions marked as tests only.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod amqp_locks_python;
#[path = "authority.rs"]
pub mod authority;
pub mod blog;
#[path = "environment.rs"]
pub mod environment;
#[path = "own_server.rs"]
pub mod own_server;
pub mod protocols;
pub mod proxy;
pub mod rabbitmq;
pub mod register;
