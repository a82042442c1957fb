//! The errors of a run.

use crate::check::JudgeError;
use crate::driver::process::DriverError;

/// Error that prevents a run from being judged.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The URL of the broker names no host.
    #[error("the URL of the broker has no host. Use amqp://user:password@host:port/vhost")]
    Url,
    /// The proxy could not be started.
    #[error("no port of 127.0.0.1 could be opened: {0}")]
    Proxy(#[from] std::io::Error),
    /// The implementation could not be started, or its answers were not understood.
    #[error("{0}")]
    Driver(#[from] DriverError),
    /// The lock could not be created.
    #[error("the lock could not be created: {0}")]
    Create(String),
    /// The administrator could not create the lock.
    #[error(
        "the administrator {command:?} could not create the lock: {why}. Put the program lockkeeper on the PATH, or name another driver with --administrator"
    )]
    Administrator {
        /// The command.
        command: String,
        /// The cause.
        why: String,
    },
    /// The history cannot be judged.
    #[error("{0}")]
    Judge(#[from] JudgeError),
}
