//! What a reconcile and a removal result in, as values. See `status_writer` for how they are
//! written.

use std::time::Duration;

use lockkeeper_api::conditions::{
    BACKEND_REACHABLE, ConditionUpdate, READY, RECONCILING, STALLED, reason,
};
use lockkeeper_plan::ErrorClass;
use lockkeeper_pressure::StoreError;
use lockkeeper_semaphore::BrokerError;

use super::error::StepError;

/// A change that is published as an event in addition to the outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRecord {
    /// True for a repair or a refusal, false for a requested change.
    pub warning: bool,
    /// Reason, in CamelCase.
    pub reason: &'static str,
    /// The action, CamelCase. Events of one object that differ only in their message are
    /// counted as repeats of the first and lose theirs, so this must differ for events
    /// that must stay separate.
    pub action: String,
    /// Message for users.
    pub message: String,
}

impl EventRecord {
    /// Creates an event about the state of the object.
    pub fn new(warning: bool, reason: &'static str, message: impl Into<String>) -> Self {
        Self { warning, reason, action: "Reconcile".to_owned(), message: message.into() }
    }

    /// Sets the action of the event.
    #[must_use]
    pub fn action(self, action: impl Into<String>) -> Self {
        Self { action: action.into(), ..self }
    }
}

/// Outcome of a reconcile, which determines Ready, Reconciling and Stalled.
#[derive(Debug)]
pub enum Outcome {
    /// The actual state is the desired state, or no state is desired any more.
    Ready {
        /// Reason, in CamelCase.
        reason: &'static str,
        /// Message for users.
        message: String,
    },
    /// The actual state differs. Work is in progress or waits for something.
    Working {
        /// Reason, in CamelCase.
        reason: &'static str,
        /// Message for users.
        message: String,
    },
    /// The actual state differs, and the operator cannot proceed by itself.
    Blocked {
        /// Reason, in CamelCase.
        reason: &'static str,
        /// Message for users.
        message: String,
    },
    /// A step failed.
    Failed(StepError),
}

impl Outcome {
    /// Returns whether the object is ready, with reason and message.
    pub fn says(&self) -> (bool, &'static str, String) {
        match self {
            Self::Ready { reason, message } => (true, reason, message.clone()),
            Self::Working { reason, message } | Self::Blocked { reason, message } => {
                (false, reason, message.clone())
            }
            Self::Failed(error) => (false, error.reason(), error.to_string()),
        }
    }

    /// Returns Ready, Reconciling and Stalled as kstatus defines them.
    pub fn conditions(&self) -> Vec<ConditionUpdate> {
        let (ready, reason, message) = self.says();
        let mut said = vec![ConditionUpdate::new(READY, ready, reason, message.clone())];
        let stalled = match self {
            Self::Ready { .. } => return said,
            Self::Working { .. } => false,
            Self::Blocked { .. } => true,
            Self::Failed(error) => error.class() == ErrorClass::Invalid,
        };
        said.push(ConditionUpdate::new(
            if stalled { STALLED } else { RECONCILING },
            true,
            reason,
            message,
        ));
        said
    }

    /// Returns `BackendReachable`, if the outcome determines it.
    pub fn backend(&self, reached: bool) -> Option<ConditionUpdate> {
        if reached {
            return Some(ConditionUpdate::new(
                BACKEND_REACHABLE,
                true,
                reason::CONNECTED,
                "The server answers",
            ));
        }
        let Self::Failed(error) = self else { return None };
        match error.cause() {
            // The server was not asked.
            error @ (StepError::Fetch(_)
            | StepError::Broker(BrokerError::ConnectionDelayed { .. })
            | StepError::Store(StoreError::ConnectionDelayed { .. })) => {
                Some(ConditionUpdate::unknown(BACKEND_REACHABLE, error.reason(), error.to_string()))
            }
            error @ (StepError::Broker(_) | StepError::Store(_)) => Some(ConditionUpdate::new(
                BACKEND_REACHABLE,
                false,
                error.reason(),
                error.to_string(),
            )),
            _ => None,
        }
    }
}

/// Result of a kind's part of a reconcile.
pub struct Applied<O> {
    /// Whether the server accepted the login.
    pub logged_in: bool,
    /// The last observation, which is reported even if a later step failed. `None` if the
    /// server did not answer.
    pub observation: Option<O>,
    /// Outcome, which determines Ready, Reconciling and Stalled.
    pub outcome: Outcome,
    /// Events in addition to the outcome's.
    pub notes: Vec<EventRecord>,
}

impl<O> Applied<O> {
    /// Creates the result of a reconcile that failed before the login.
    pub fn failed(error: impl Into<StepError>) -> Self {
        let outcome = Outcome::Failed(error.into());
        Self { logged_in: false, observation: None, outcome, notes: Vec::new() }
    }
}

/// Status, conditions and events of a reconcile.
pub struct Report<S> {
    /// The status without its conditions.
    pub status: S,
    /// Whether the server answered.
    pub reached: bool,
    /// Outcome, which determines Ready, Reconciling and Stalled.
    pub outcome: Outcome,
    /// Conditions that are specific to the kind.
    pub said: Vec<ConditionUpdate>,
    /// Events in addition to the outcome's.
    pub notes: Vec<EventRecord>,
}

/// Progress of removing a resource with status `S` from its server.
pub enum Removal<S> {
    /// Nothing of the resource is left on the server.
    Gone,
    /// The operator must not remove anything, for this reason.
    NotOurs(String),
    /// Parts of the resource may remain on the server, for this reason.
    LeftBehind(String),
    /// The removal is in progress. Contains its reason for waiting, and the first of the
    /// growing pauses between observations.
    Waiting(String, Duration),
    /// The resource's guard delays the removal. Contains the report, the reason, and the
    /// time until the next observation.
    Guarded(Box<Report<S>>, &'static str, Duration),
}
