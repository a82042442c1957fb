//! The program `lockkeeper` as a library, for its tests: the operator and the command line.
//! Programs use the crate `lockkeeper-client` instead.
//!
//! - [`operator`]: access to Kubernetes: the drivers and the kinds.
//! - [`cli`]: the command line.
//!
//! See `crates/` for what both are built on.

// These macros panic if the stream is closed. `cli` has `output::write` and `say` instead.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod cli;
pub mod operator;
