//! All integration tests, in one binary. It is linked once, and one pool of threads runs
//! them, so that no core idles while a slow test of one directory ends. dev/test starts
//! the servers and runs it in three steps: the pool, then `scale::`, which measures and
//! so runs alone, then `last::`, which checks the whole run.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod apiserver;
mod broker;
mod chart;
mod client;
mod clusters;
mod documents;
mod exec;
mod generated;
mod gitops;
mod hazards;
mod imports;
mod kubectl;
mod last;
mod observability;
mod operator;
mod other_brokers;
mod pipe;
mod prover;
mod queue;
mod release;
mod rooms;
mod scale;
mod store;
mod streams;
