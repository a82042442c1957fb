//! Errors of a reconcile and their consequences. One enum covers the errors of all steps;
//! each error of a module has its own reason and class.

use std::fmt;
use std::time::Duration;

use lockkeeper_api::FORCE_FINALIZE;
use lockkeeper_api::conditions::reason;
use lockkeeper_api::validate::SpecError;
use lockkeeper_plan::ErrorClass;
use lockkeeper_plan::quota::OverLimit;
use lockkeeper_pressure::StoreError;
use lockkeeper_semaphore::BrokerError;
use rand::RngExt;

use super::fetch::FetchError;

/// The object that owns a lock or a queue, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Kind, namespace and name of the object.
    pub object: String,
    /// Reason for its precedence.
    pub why: &'static str,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.object)
    }
}

/// Failure of the Kubernetes API that ends the reconcile. All other errors become
/// conditions.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// A status could not be written.
    #[error("could not write the status{}", advice(.0))]
    WriteStatus(#[source] kube::Error),
    /// The object has changed since it was read. Its newer state is about to be
    /// reconciled.
    #[error("the object was changed concurrently")]
    Outdated,
    /// The finalizer could not be added or removed, or the object was changed
    /// concurrently.
    #[error("could not change the finalizers")]
    Finalizer(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The cleanup is not complete. It is retried after this time.
    #[error("the cleanup is not done yet: {reason}")]
    CleanupPending {
        /// Reason, as in an event.
        reason: &'static str,
        /// Time until the next attempt.
        after: Duration,
    },
}

/// Error of a step of a reconcile.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The spec is invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The connection's settings could not be resolved.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// Another resource owns the same lock or queue.
    #[error(
        "{owner} {} and stands for {what}: delete one of the two, or give this one another name",
        owner.why
    )]
    Conflict {
        /// The owner.
        owner: Owner,
        /// The lock or queue that both name.
        what: String,
    },
    /// The namespace's quota is exceeded.
    #[error(transparent)]
    OverLimit(#[from] OverLimit),
    /// The status could not be written although a step depends on it.
    #[error("the status must be written before the server is changed, and could not be: {0}")]
    Announce(#[source] Box<ReconcileError>),
    /// The broker rejected a request or did not respond.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The store rejected a request or did not respond.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An error during cleanup. The resource can be deleted without the cleanup.
    #[error(
        "{0}. To delete the object without cleaning up the server, set the annotation {FORCE_FINALIZE}=true"
    )]
    Cleanup(#[source] Box<StepError>),
}

impl StepError {
    /// Returns the reason for conditions and events, in CamelCase.
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

    /// Returns the class of the error, which determines the next attempt.
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

    /// Returns the underlying error, without its context.
    #[must_use]
    pub fn cause(&self) -> &Self {
        match self {
            Self::Cleanup(error) => error.cause(),
            other => other,
        }
    }
}

const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Longest pause between two attempts. All objects of a server share one connection
/// attempt, so a recovered server is found soon and without a burst of connections.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// Pause after an invalid configuration. It is retried because Secrets and other
/// referenced resources are not watched, so their changes cause no event.
const INVALID_PAUSE: Duration = Duration::from_secs(30);

/// Returns the backoff after the n-th consecutive failure (from 1), with jitter so that
/// the objects of an unreachable server are not retried in lockstep.
#[must_use]
pub fn pause(class: ErrorClass, failures: u32) -> Duration {
    let pause = match class {
        ErrorClass::Invalid => INVALID_PAUSE,
        ErrorClass::Waiting(pause) => pause,
        ErrorClass::Transient => return growing(FIRST_PAUSE, failures.saturating_sub(1)),
    };
    jitter(pause)
}

/// Returns the pause after this number of observations with the same result: `first`,
/// then doubled each time, at most 15 s, with jitter.
#[must_use]
pub fn growing(first: Duration, looks: u32) -> Duration {
    jitter(first.saturating_mul(1 << looks.min(10)).min(LONGEST_PAUSE))
}

/// Returns the pause after an error that could not become a condition. `unwritten` counts
/// consecutive failures to write, because thousands of objects must not keep a recovering
/// API server busy.
pub(super) fn pause_after(error: &ReconcileError, unwritten: &mut u32) -> Duration {
    match error {
        ReconcileError::CleanupPending { after, .. } => *after,
        // The change itself triggers the next reconcile, unless it is only a status
        // written by another process.
        ReconcileError::Outdated => jitter(Duration::from_millis(250)),
        ReconcileError::WriteStatus(_) | ReconcileError::Finalizer(_) => {
            *unwritten = unwritten.saturating_add(1);
            growing(FIRST_PAUSE, *unwritten)
        }
    }
}

/// Returns a random duration between three quarters of `duration` and `duration`: never
/// later than stated.
#[must_use]
pub fn jitter(duration: Duration) -> Duration {
    duration.mul_f64(rand::rng().random_range(0.75..=1.0))
}

/// Returns a random duration between nine tenths of `duration` and `duration`, for
/// recurring work: never later than stated, hardly more often, and soon spread out.
#[must_use]
pub fn rhythmic(duration: Duration) -> Duration {
    duration.mul_f64(rand::rng().random_range(0.9..=1.0))
}

/// Returns what to do about a refused write of a status.
fn advice(error: &kube::Error) -> &'static str {
    match error {
        kube::Error::Api(answer) if answer.message.contains("field not declared in schema") => {
            ". The definition is older than the operator: apply the output of `lockkeeper crds`"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_that_is_older_than_the_operator_is_named() {
        let written = |message: &str| {
            let answer = kube::core::Status::failure(message, "InternalError");
            ReconcileError::WriteStatus(kube::Error::Api(Box::new(answer))).to_string()
        };
        // As the API server says it.
        let older = "failed to create typed patch object (/d; lockkeeper.dev/v1alpha1, \
                     Kind=Semaphore): .status.waiting: field not declared in schema";
        assert!(written(older).ends_with("`lockkeeper crds`"), "{}", written(older));
        assert_eq!(written("etcdserver: request timed out"), "could not write the status");
    }

    #[test]
    fn pauses_grow_from_one_second_to_the_longest_and_are_never_longer_than_stated() {
        for (failures, most) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 15), (60, 15)] {
            let most = Duration::from_secs(most);
            let pause = pause(ErrorClass::Transient, failures);
            assert!(pause <= most && pause >= most.mul_f64(0.75), "{failures}: {pause:?}");
        }
    }

    #[test]
    fn an_api_server_that_accepts_no_writes_is_asked_less_and_less_often() {
        let error = ReconcileError::WriteStatus(kube::Error::TlsRequired);
        let mut unwritten = 0;
        for most in [2, 4, 8, 15, 15] {
            let most = Duration::from_secs(most);
            let pause = pause_after(&error, &mut unwritten);
            assert!(pause <= most && pause >= most.mul_f64(0.75), "{unwritten}: {pause:?}");
        }
        pause_after(&ReconcileError::Outdated, &mut unwritten);
        assert_eq!(unwritten, 5, "a conflict is another failure");
    }
}
