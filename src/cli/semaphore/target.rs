//! The semaphore of a subcommand: found by name or resource, and observed.

use lockkeeper_api::Semaphore;
use lockkeeper_plan::semaphore::{DEFAULT_OVERSHOOT, Observed};
use lockkeeper_semaphore::{AcquireError, Broker, BrokerError, BrokerOptions, Presence};

use crate::cli::completion;
use crate::cli::failure::Failure;
use crate::cli::output::Format;
use crate::cli::target::{FoundLock, LockLocation, resource};

/// The semaphore.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct SemaphoreTarget {
    /// Name of the semaphore on the broker, for example ci.deploy, or sem/NAME for a resource,
    /// which only kubectl changes
    #[arg(add = completion::semaphores())]
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
    /// Fails unless the lock exists, with this protocol.
    pub async fn must_exist(&self) -> Result<(), Failure> {
        let name = &self.found.name;
        match self.broker.presence(name).await.map_err(|error| failed(&error))? {
            Presence::Absent => Err(missing(name.as_str())),
            _ => Ok(()),
        }
    }

    /// Whether there is anything to remove. Whether it may be removed, the removal itself
    /// decides: a lock may also be in part one of another protocol.
    pub async fn may_exist(&self) -> Result<bool, Failure> {
        match self.broker.presence(&self.found.name).await {
            Ok(presence) => Ok(presence != Presence::Absent),
            Err(BrokerError::ProtocolMismatch { .. }) => Ok(true),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Observes the slots on the broker.
    pub async fn look(&self) -> Result<Observed, Failure> {
        let name = &self.found.name;
        let mark =
            self.broker.find_highest_slot(name, DEFAULT_OVERSHOOT).await.map_err(|e| failed(&e))?;
        let to = mark.unwrap_or_default() + DEFAULT_OVERSHOOT;
        self.broker.observe(name, to, to).await.map_err(|error| failed(&error))
    }
}

/// The failure for a semaphore that does not exist.
pub(in crate::cli) fn missing(name: &str) -> Failure {
    if name.contains(['/', ' ']) {
        let message = format!(
            "there is no semaphore {name}: a lock's name is <namespace>.<name>, for example demo.deploy; for a resource, use sem/deploy -n demo"
        );
        return Failure::new(Failure::USAGE, message);
    }
    let error = AcquireError::Missing { lock: name.to_owned() };
    Failure::new(Failure::DOES_NOT_EXIST, error.to_string())
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
