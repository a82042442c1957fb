//! Why there is no connection to try, as values. Finding out is `reading`'s.

use std::sync::Arc;
use std::time::Duration;

use super::reading::FRESH;
use crate::api::conditions::reason;
use crate::plan::ErrorClass;
use crate::plan::connection::{ALLOWED_NAMESPACES, SettingsError};

/// How long a cluster without nodes is left alone: whoever starts it again is in
/// no hurry for a lock.
const STOPPED: Duration = Duration::from_secs(30);

/// Why there is no connection to try. No value of a Secret is ever in it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FetchError {
    /// Neither the resource nor the operator names a server.
    #[error(
        "the resource names no connection and the operator has no default one: set {field}, or start the operator with {flag}"
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
    /// The Secret's contents don't make a connection.
    #[error("Secret {name:?}: {source}")]
    Settings {
        /// The Secret's name.
        name: String,
        /// What is wrong.
        source: SettingsError,
    },
    /// The API server would not give the Secret.
    #[error("could not read the Secret {name:?}: {source}")]
    Unreadable {
        /// The Secret's name.
        name: String,
        /// What the API server said.
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
    /// Nobody knows what a `RabbitmqCluster` is.
    #[error(
        "there is no kind RabbitmqCluster in this Kubernetes cluster: install the RabbitMQ cluster operator, or name a Secret by rabbitmqClusterReference.connectionSecret"
    )]
    ClusterKindMissing,
    /// The cluster operator has not said yet how the cluster is reached.
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
    /// The API server would not give the `RabbitmqCluster`.
    #[error("could not read the RabbitmqCluster {name:?}: {source}")]
    ClusterUnreadable {
        /// The cluster's name.
        name: String,
        /// What the API server said.
        source: Arc<kube::Error>,
    },
    /// What is named lies in another namespace, whose owners did not allow that.
    #[error(
        "the {kind} {name:?} of the namespace {owner:?} may not be used from {namespace:?}: its owners would have to add {namespace} to its annotation {ALLOWED_NAMESPACES}"
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
    },
}

impl FetchError {
    /// CamelCase, for conditions and events.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoConnection { .. } => reason::NO_CONNECTION,
            Self::SecretNotFound { .. } => reason::SECRET_NOT_FOUND,
            Self::Settings { source: SettingsError::MissingKey { .. }, .. } => {
                reason::SECRET_KEY_MISSING
            }
            Self::Settings { source: SettingsError::BadValue { .. }, .. } => reason::SECRET_INVALID,
            Self::Unreadable { .. } => reason::SECRET_UNREADABLE,
            Self::ClusterNotFound { .. } => reason::CLUSTER_NOT_FOUND,
            Self::ClusterKindMissing => reason::CLUSTER_KIND_MISSING,
            Self::ClusterNotReady { .. } => reason::CLUSTER_NOT_READY,
            Self::ClusterScaledToZero { .. } => reason::CLUSTER_SCALED_TO_ZERO,
            Self::ClusterUnreadable { .. } => reason::CLUSTER_UNREADABLE,
            Self::NotAllowed { .. } => reason::NOT_ALLOWED,
        }
    }

    /// What it means for the next attempt. A Secret or a cluster may be on its way,
    /// so its absence is waited out.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NoConnection { .. } | Self::ClusterKindMissing | Self::NotAllowed { .. } => {
                ErrorClass::Invalid
            }
            Self::SecretNotFound { .. }
            | Self::Settings { .. }
            | Self::ClusterNotFound { .. }
            | Self::ClusterNotReady { .. } => ErrorClass::Waiting(FRESH),
            Self::ClusterScaledToZero { .. } => ErrorClass::Waiting(STOPPED),
            Self::Unreadable { .. } | Self::ClusterUnreadable { .. } => ErrorClass::Transient,
        }
    }

    /// Whether the Secret is gone, or may not be used any more, so that a cleanup has
    /// nothing to connect with.
    #[must_use]
    pub fn is_secret_gone(&self) -> bool {
        matches!(self, Self::SecretNotFound { .. } | Self::NotAllowed { .. })
    }

    /// Whether no broker runs that could be cleaned up: its `RabbitmqCluster` is gone,
    /// or has no nodes.
    #[must_use]
    pub fn is_cluster_gone(&self) -> bool {
        matches!(
            self,
            Self::ClusterNotFound { .. }
                | Self::ClusterKindMissing
                | Self::ClusterScaledToZero { .. }
        )
    }

    /// Whether what is named must not be used, also not over a connection that is
    /// still open.
    #[must_use]
    pub fn forbids(&self) -> bool {
        matches!(self, Self::NotAllowed { .. })
    }
}
