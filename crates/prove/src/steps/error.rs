//! The errors of an exploration.

use crate::run::RunError;

/// Error that prevents an exploration from being judged.
#[derive(Debug, thiserror::Error)]
pub enum StepsError {
    /// The implementation or the broker cannot be used.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A process neither sends a request nor answers.
    #[error(
        "process {0} neither sent a request nor answered. It may wait for a request that the prover holds back"
    )]
    Stuck(u32),
    /// The prover is shutting down.
    #[error("the prover is shutting down")]
    Ended,
}
