//! The operator as a process, against a real API server, RabbitMQ and Redis.
//! One file a subject; the names of the tests are what they show.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

#[path = "../support/audit.rs"]
mod audit;
#[path = "../support/canaries.rs"]
mod canaries;
#[path = "../support/collector.rs"]
mod collector;
#[path = "../support/pressure_text.rs"]
mod pressure_text;
#[path = "../support/redis.rs"]
mod redis_support;
#[path = "../support/redis_tls.rs"]
mod redis_tls;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/world.rs"]
mod world;

use support::{authority, environment, own_server};

mod around;
mod deletion;
mod doctor;
mod drift;
mod encrypted;
mod exec;
mod guard;
mod holders;
mod idle;
mod kinds;
mod leader;
mod lifecycle;
mod metrics;
mod namespaces;
mod outages;
mod owners;
mod pipe;
mod protocols;
mod queues;
mod references;
mod restarts;
mod revoking;
mod rights;
mod settings;
mod slots;
mod traces;
