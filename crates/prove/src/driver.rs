//! The interface between the prover and an implementation. An implementation is a program that
//! answers JSON lines (a driver), or a command that runs another command under the lock. See
//! `docs/proving.md` for how to write a driver.
//!
//! - [`message`]: the JSON lines.
//! - [`process`]: a driver.
//! - [`exec`]: a command that runs another command under the lock. [`witness`]: that other
//!   command.
//! - [`implementation`]: either of the two.
//! - [`group`]: the child processes of both.
//! - [`speak`]: checks whether a driver is understood.

pub mod exec;
pub mod group;
pub mod implementation;
pub mod message;
pub mod process;
pub mod speak;
pub mod witness;
