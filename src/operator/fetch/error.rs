//! Errors of resolving a connection. See `reading` for how they arise.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::conditions::reason;
use lockkeeper_plan::ErrorClass;
use lockkeeper_plan::connection::{ALLOWED_NAMESPACES, SettingsError};

use crate::operator::api_error::explain;

/// Time for which a read object is cached. Objects with the same Secret share its reads.
/// A rotated password or certificate is used after at most this time.
pub(super) const FRESH: Duration = Duration::from_secs(10);

/// Pause before a cluster without nodes is checked again. A user who scales it up can
/// wait that long for a lock.
const STOPPED: Duration = Duration::from_secs(30);

/// Error of resolving a connection. Never contains a value of a Secret.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FetchError {
    /// Neither the resource nor the operator specifies a server.
    #[error(
        "the resource names no connection and the operator has no default one: set {field}, or give the operator one (the chart's defaultConnections, or {flag})"
    )]
    NoConnection {
        /// The field of the resource.
        field: &'static str,
        /// The flag of the operator.
        flag: &'static str,
    },
    /// The Secret does not exist.
    #[error(
        "there is no Secret {name:?} in the namespace {namespace:?}: create it, or correct the reference"
    )]
    SecretNotFound {
        /// The Secret's namespace.
        namespace: String,
        /// The Secret's name.
        name: String,
    },
    /// The Secret's contents do not describe a connection.
    #[error("Secret {name:?}: {source}")]
    Settings {
        /// The Secret's name.
        name: String,
        /// The problem.
        source: SettingsError,
    },
    /// The operator's own settings do not describe a connection.
    #[error("the operator's default connection: {0}")]
    DefaultSettings(#[source] SettingsError),
    /// The API server did not return the Secret.
    #[error("could not read the Secret {name:?}: {}", explain(&**.source))]
    Unreadable {
        /// The Secret's name.
        name: String,
        /// The API server's response.
        source: Arc<kube::Error>,
    },
    /// The `RabbitmqCluster` does not exist.
    #[error(
        "there is no RabbitmqCluster {name:?} in the namespace {namespace:?}: create it, or correct the reference"
    )]
    ClusterNotFound {
        /// The cluster's namespace.
        namespace: String,
        /// The cluster's name.
        name: String,
    },
    /// The kind `RabbitmqCluster` is not installed.
    #[error(
        "there is no kind RabbitmqCluster in this Kubernetes cluster: install the RabbitMQ cluster operator, or name a Secret by rabbitmqClusterReference.connectionSecret"
    )]
    ClusterKindMissing,
    /// The cluster operator has not yet published how to reach the cluster.
    #[error(
        "the RabbitmqCluster {name:?} has no status.binding yet: see whether the RabbitMQ cluster operator runs, and what the cluster's conditions say; one that keeps its user in Vault is reached by connectionSecret only"
    )]
    ClusterNotReady {
        /// The cluster's name.
        name: String,
    },
    /// The cluster has no nodes.
    #[error(
        "the RabbitmqCluster {name:?} is scaled to zero: the lock is there again once it has replicas"
    )]
    ClusterScaledToZero {
        /// The cluster's name.
        name: String,
    },
    /// The API server did not return the `RabbitmqCluster`.
    #[error("could not read the RabbitmqCluster {name:?}: {}", explain(&**.source))]
    ClusterUnreadable {
        /// The cluster's name.
        name: String,
        /// The API server's response.
        source: Arc<kube::Error>,
    },
    /// The referenced object is in another namespace, and is missing there or must not be
    /// used from here. The message does not reveal which of the two applies.
    #[error(
        "the namespace {owner:?} has no {kind} {name:?} that may be used from {namespace:?}: its owners have to create it, or to add {namespace} to its annotation {ALLOWED_NAMESPACES}"
    )]
    NotAllowed {
        /// `Secret` or `RabbitmqCluster`.
        kind: &'static str,
        /// Its name.
        name: String,
        /// Its namespace.
        owner: String,
        /// The resource's namespace.
        namespace: String,
        /// Whether the object does not exist. Only for cleanup; must never be displayed.
        is_absent: bool,
    },
}

impl FetchError {
    /// Returns the reason for conditions and events, in CamelCase.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoConnection { .. } => reason::NO_CONNECTION,
            Self::SecretNotFound { .. } => reason::SECRET_NOT_FOUND,
            Self::Settings { source, .. } | Self::DefaultSettings(source) => match source {
                SettingsError::MissingKey { .. } | SettingsError::NotEncrypted { .. } => {
                    reason::SECRET_KEY_MISSING
                }
                SettingsError::BadValue { .. } | SettingsError::NotText { .. } => {
                    reason::SECRET_INVALID
                }
            },
            Self::Unreadable { .. } => reason::SECRET_UNREADABLE,
            Self::ClusterNotFound { .. } => reason::CLUSTER_NOT_FOUND,
            Self::ClusterKindMissing => reason::CLUSTER_KIND_MISSING,
            Self::ClusterNotReady { .. } => reason::CLUSTER_NOT_READY,
            Self::ClusterScaledToZero { .. } => reason::CLUSTER_SCALED_TO_ZERO,
            Self::ClusterUnreadable { .. } => reason::CLUSTER_UNREADABLE,
            Self::NotAllowed { .. } => reason::NOT_ALLOWED,
        }
    }

    /// Returns the class of the error, which determines the next attempt. A missing
    /// Secret or cluster is retried, because it may be created soon.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NoConnection { .. } | Self::ClusterKindMissing | Self::NotAllowed { .. } => {
                ErrorClass::Invalid
            }
            Self::SecretNotFound { .. }
            | Self::Settings { .. }
            | Self::DefaultSettings(_)
            | Self::ClusterNotFound { .. }
            | Self::ClusterNotReady { .. } => ErrorClass::Waiting(FRESH),
            Self::ClusterScaledToZero { .. } => ErrorClass::Waiting(STOPPED),
            Self::Unreadable { .. } | Self::ClusterUnreadable { .. } => ErrorClass::Transient,
        }
    }

    /// Returns whether the Secret is gone or no longer permitted, so that a cleanup has
    /// no connection.
    #[must_use]
    pub fn is_secret_gone(&self) -> bool {
        matches!(self, Self::SecretNotFound { .. } | Self::NotAllowed { .. })
    }

    /// Returns whether there is no running broker to clean up: its `RabbitmqCluster` is
    /// gone or has no nodes.
    #[must_use]
    pub fn is_cluster_gone(&self) -> bool {
        matches!(
            self,
            Self::NotAllowed { kind: "RabbitmqCluster", is_absent: true, .. }
                | Self::ClusterNotFound { .. }
                | Self::ClusterKindMissing
                | Self::ClusterScaledToZero { .. }
        )
    }

    /// Returns whether the reference is not permitted, even over a connection that is
    /// still open.
    #[must_use]
    pub fn forbids(&self) -> bool {
        matches!(self, Self::NotAllowed { is_absent: false, .. })
    }
}
