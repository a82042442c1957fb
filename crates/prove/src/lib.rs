//! The prover: tests any implementation of a distributed lock against a real broker, through a
//! proxy that records every request. A verdict names the client, the administrator or the broker
//! as the cause of each violation. See `docs/proving.md` for how to use the program.
//!
//! - [`history`]: a recorded run, as JSON lines.
//! - [`wire`]: the AMQP proxy between an implementation and the broker.
//! - [`driver`]: the interface between the prover and an implementation.
//! - [`check`]: judges a history.
//! - [`cost`]: measures the cost of operations on the wire.
//! - [`straw`]: clients with seeded bugs. [`controls`]: checks that the prover catches them.
//! - [`steps`]: explores every interleaving of a few operations.
//! - [`run`]: runs a random workload with faults.
//! - [`watch`]: records an application that connects to the proxy by itself.
//! - [`report`]: writes the report of a run.
//! - [`cli`]: the command line.

pub mod check;
pub mod cli;
pub mod controls;
pub mod cost;
pub mod driver;
pub mod history;
pub mod report;
pub mod run;
pub mod steps;
pub mod straw;
pub mod watch;
pub mod wire;
