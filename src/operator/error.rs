//! What can go wrong in a reconcile, and what follows from it. One enum over the
//! errors of the steps; each error of a room brings its own reason and class.

use std::sync::Arc;
use std::time::Duration;

use kube::runtime::controller::Action;
use rand::RngExt;

use super::fetch::FetchError;
use crate::api::FORCE_FINALIZE;
use crate::api::conditions::reason;
use crate::api::validate::SpecError;
use crate::plan::ErrorClass;
use crate::plan::quota::OverLimit;
use crate::pressure::StoreError;
use crate::semaphore::BrokerError;

/// The Kubernetes API failed where the reconcile can't go on without it. All
/// other errors become conditions.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// A status could not be written.
    #[error("could not write the status")]
    WriteStatus(#[source] kube::Error),
    /// The object is not any more what was acted on; its newer state is about to be.
    #[error("the object was changed meanwhile")]
    Outdated,
    /// The finalizer could not be added or removed, or the object was changed
    /// meanwhile.
    #[error("could not change the finalizers")]
    Finalizer(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The cleanup is not done yet; tried again after this long.
    #[error("the cleanup is not done yet: {reason}")]
    CleanupPending {
        /// Why, as an event's reason.
        reason: &'static str,
        /// When to look again.
        after: Duration,
    },
}

/// What kept a step from succeeding.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The spec can't be acted on.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The connection's settings could not be had.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// Another resource, older than this one, stands for the same thing.
    #[error(
        "{owner} is older and stands for {what}: delete one of the two, or give this one another name"
    )]
    Conflict {
        /// Namespace and name of the older one.
        owner: String,
        /// What both name.
        what: String,
    },
    /// Its namespace may not have so much.
    #[error(transparent)]
    OverLimit(#[from] OverLimit),
    /// The status could not be written although a step depends on it.
    #[error("the status must be written before slots are added, and could not be: {0}")]
    Announce(#[source] Box<ReconcileError>),
    /// The broker said no, or nothing.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The store said no, or nothing.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The same of a resource that is being deleted, which can go without it.
    #[error(
        "{0}. Or let the resource go and leave the server as it is, by its annotation {FORCE_FINALIZE}=true"
    )]
    Cleanup(#[source] Box<StepError>),
}

impl StepError {
    /// CamelCase, for conditions and events.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Spec(error) => error.reason(),
            Self::Fetch(error) => error.reason(),
            Self::Conflict { .. } => reason::CONFLICT,
            Self::OverLimit(_) => reason::NAMESPACE_QUOTA_EXCEEDED,
            Self::Announce(_) => reason::STATUS_NOT_WRITTEN,
            Self::Broker(error) => error.reason(),
            Self::Store(error) => error.reason(),
            Self::Cleanup(error) => error.reason(),
        }
    }

    /// What it means for the next attempt.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Spec(_) | Self::Conflict { .. } | Self::OverLimit(_) => ErrorClass::Invalid,
            Self::Announce(_) => ErrorClass::Transient,
            Self::Fetch(error) => error.class(),
            Self::Broker(error) => error.class(),
            Self::Store(error) => error.class(),
            Self::Cleanup(error) => error.class(),
        }
    }

    /// What failed, whatever it was done for.
    #[must_use]
    pub fn cause(&self) -> &Self {
        match self {
            Self::Cleanup(error) => error.cause(),
            other => other,
        }
    }
}

const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause between two attempts. Attempts share one connection attempt
/// a server, so a server that is back is found soon without a storm.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// Nobody tells us when a Secret or another resource changes what was invalid
/// (Secrets are not watched), so even that is looked at again.
const INVALID_PAUSE: Duration = Duration::from_secs(30);

/// How long to wait after the n-th failure in a row (from 1), with jitter so that
/// the objects of a server that is down don't come back in step.
#[must_use]
pub fn pause(class: ErrorClass, failures: u32) -> Duration {
    let pause = match class {
        ErrorClass::Invalid => INVALID_PAUSE,
        ErrorClass::Waiting(pause) => pause,
        ErrorClass::Transient => {
            FIRST_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(LONGEST_PAUSE)
        }
    };
    jitter(pause)
}

/// When to try again after an error that could not become a condition.
pub(super) fn on_error<K, C>(_: Arc<K>, error: &ReconcileError, _: Arc<C>) -> Action {
    match error {
        ReconcileError::CleanupPending { after, .. } => Action::requeue(*after),
        // The change itself causes the next reconcile, unless it is only another's
        // status.
        ReconcileError::Outdated => Action::requeue(jitter(Duration::from_millis(250))),
        ReconcileError::WriteStatus(_) | ReconcileError::Finalizer(_) => {
            Action::requeue(jitter(Duration::from_secs(2)))
        }
    }
}

/// Between three quarters of a duration and the whole of it: never later than
/// stated.
#[must_use]
pub fn jitter(duration: Duration) -> Duration {
    duration.mul_f64(rand::rng().random_range(0.75..=1.0))
}

/// Between nine tenths of a duration and the whole of it, for what is done again and
/// again: never later than stated, hardly more often, and soon not all at once.
#[must_use]
pub fn rhythmic(duration: Duration) -> Duration {
    duration.mul_f64(rand::rng().random_range(0.9..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_from_one_second_to_the_longest_and_are_never_longer_than_stated() {
        for (failures, most) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 15), (60, 15)] {
            let most = Duration::from_secs(most);
            let pause = pause(ErrorClass::Transient, failures);
            assert!(pause <= most && pause >= most.mul_f64(0.75), "{failures}: {pause:?}");
        }
    }
}
