//! The semaphore of a subcommand: found by name or resource, and observed.

use crate::api::Semaphore;
use crate::cli::failure::Failure;
use crate::cli::output::Format;
use crate::cli::target::{FoundLock, LockLocation, resource};
use crate::plan::semaphore::{DEFAULT_OVERSHOOT, Observed};
use crate::semaphore::{Broker, BrokerError, BrokerOptions};

/// The semaphore.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct SemaphoreTarget {
    /// Name of the semaphore on the broker, for example ci.deploy; commands that change
    /// nothing also accept sem/NAME
    pub name: String,

    #[command(flatten)]
    place: LockLocation,
}

/// Output options.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Form {
    /// Output format
    #[arg(long, short, value_enum, default_value_t, help_heading = None)]
    pub output: Format,
}

/// A semaphore and its broker.
pub(in crate::cli) struct LockOnBroker {
    pub found: FoundLock,
    pub broker: Broker,
}

impl LockOnBroker {
    /// Creates the target without connecting.
    pub fn new(found: FoundLock) -> Self {
        let broker = Broker::new(found.settings.clone(), BrokerOptions::default());
        Self { found, broker }
    }
}

impl SemaphoreTarget {
    /// Finds the semaphore for a command that changes nothing.
    pub async fn find(&self) -> Result<LockOnBroker, Failure> {
        Ok(LockOnBroker::new(self.place.find(&self.name).await?))
    }

    /// Finds the semaphore for a change. Rejects a resource, which the operator manages.
    /// `instead` is the command to use for that.
    pub async fn find_to_change(&self, instead: &str) -> Result<LockOnBroker, Failure> {
        if resource::<Semaphore>(&self.name).is_some() {
            let message = format!(
                "a resource's slots are the operator's to change: use {instead} {}",
                self.name
            );
            return Err(Failure::new(Failure::USAGE, message));
        }
        self.find().await
    }
}

impl LockOnBroker {
    /// Observes the slots on the broker.
    pub async fn look(&self) -> Result<Observed, Failure> {
        let name = &self.found.name;
        let mark = self.broker.find_mark(name, DEFAULT_OVERSHOOT).await.map_err(|e| failed(&e))?;
        let to = mark.unwrap_or_default() + DEFAULT_OVERSHOOT;
        self.broker.observe(name, to, to).await.map_err(|error| failed(&error))
    }
}

pub(in crate::cli) fn failed(error: &BrokerError) -> Failure {
    let code = match error {
        BrokerError::IncompatibleQueue { .. } | BrokerError::ProtocolMismatch { .. } => {
            Failure::USAGE
        }
        BrokerError::MutexBusy { .. } => Failure::NOT_ACQUIRED,
        _ => Failure::UNAVAILABLE,
    };
    Failure::new(code, error.to_string())
}
