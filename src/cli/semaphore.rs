//! `lockkeeper semaphore`: administers and inspects semaphores on a broker, without
//! Kubernetes. See `target` for how the semaphore is found, and the other modules for the
//! subcommands.

pub(super) mod count;
mod destroy;
mod draining;
pub(super) mod holders;
mod resize;
pub(super) mod revoke;
pub(super) mod target;
mod verify;
pub(super) mod wait;

use super::common::in_runtime;
use super::failure::Failure;

/// Arguments of `lockkeeper semaphore`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Create a semaphore
    Create(resize::CreateArguments),
    /// Set the number of slots or tokens, whether the semaphore exists or not; may be
    /// repeated
    Set(resize::SetArguments),
    /// Add slots or tokens
    Grow(resize::GrowArguments),
    /// Remove slots or tokens; holders keep theirs until they release, which is waited for
    Shrink(resize::ShrinkArguments),
    /// Remove a semaphore; holders keep their slots until they release
    Destroy(destroy::Arguments),
    /// Print the number of slots, held slots and free slots
    Count(count::Arguments),
    /// List the holders of slots or tokens
    Holders(holders::Arguments),
    /// List the clients that wait for a slot or token
    Waiters(count::Arguments),
    /// Revoke a slot or token from its holder
    Revoke(revoke::Arguments),
    /// Verify that the semaphore exists and is intact: no missing or surplus slots, no
    /// foreign queues, and all auxiliary queues
    Verify(verify::Arguments),
    /// Wait until the semaphore, or one of its slots, is taken or released
    Wait(wait::Arguments),
}

pub(super) fn run(arguments: Arguments) -> Result<(), Failure> {
    in_runtime(async {
        match arguments.verb {
            Verb::Create(arguments) => resize::create(arguments).await,
            Verb::Set(arguments) => resize::set(arguments).await,
            Verb::Grow(arguments) => resize::grow(arguments).await,
            Verb::Shrink(arguments) => resize::shrink(arguments).await,
            Verb::Destroy(arguments) => destroy::run(arguments).await,
            Verb::Count(arguments) => count::run(arguments).await,
            Verb::Holders(arguments) => holders::run(arguments).await,
            Verb::Waiters(arguments) => count::waiters(arguments).await,
            Verb::Revoke(arguments) => revoke::run(arguments).await,
            Verb::Verify(arguments) => verify::run(arguments).await,
            Verb::Wait(arguments) => wait::run(arguments).await,
        }
    })
}
