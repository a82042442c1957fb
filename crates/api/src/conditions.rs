//! Conditions: their types and reasons, and how new conditions are merged into old ones.
//! Types and reasons are an API, listed in docs/conditions.md, and are never renamed. See
//! `operator::report` for the messages.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use lockkeeper_plan::clean_text;

/// The server matches the spec exactly.
pub const READY: &str = "Ready";
/// Work is in progress or will be retried. Absent otherwise (kstatus).
pub const RECONCILING: &str = "Reconciling";
/// No progress without a change by a user. Absent otherwise (kstatus).
pub const STALLED: &str = "Stalled";
/// The server answers.
pub const BACKEND_REACHABLE: &str = "BackendReachable";
/// No slot above the desired count is held.
pub const DRAINED: &str = "Drained";
/// Every slot is held.
pub const SATURATED: &str = "Saturated";
/// The broker's state or a policy breaks the lock's guarantees.
pub const UNSAFE: &str = "Unsafe";
/// A change waits for a client to release its role.
pub const WAITING_FOR_ROLE: &str = "WaitingForRole";
/// The queue is longer than its bound.
pub const OVERFILLED: &str = "Overfilled";
/// The queue is damaged.
pub const DAMAGED: &str = "Damaged";

/// Reasons that are not derived from an error of a server.
pub mod reason {
    /// The server matches the spec.
    pub const IN_SYNC: &str = "InSync";
    /// The change is in progress.
    pub const RESIZING: &str = "Resizing";
    /// The object becomes the owner of its lock or queue.
    pub const CLAIMING: &str = "Claiming";
    /// `suspend: true`, and the server differs from the spec.
    pub const SUSPENDED: &str = "Suspended";
    /// The name in the spec is invalid.
    pub const INVALID_NAME: &str = "InvalidName";
    /// The namespace may not use this name on the default connection.
    pub const NAME_NOT_ALLOWED: &str = "NameNotAllowed";
    /// The resource sets a virtual host on the default connection.
    pub const VHOST_NOT_ALLOWED: &str = "VhostNotAllowed";
    /// The resource sets a database on the default connection.
    pub const DATABASE_NOT_ALLOWED: &str = "DatabaseNotAllowed";
    /// Another resource owns the same lock or queue.
    pub const CONFLICT: &str = "Conflict";
    /// The namespace's quota of slots or of resources of this kind is exceeded.
    pub const NAMESPACE_QUOTA_EXCEEDED: &str = "NamespaceQuotaExceeded";
    /// The resource specifies no connection, and the operator has no default connection.
    pub const NO_CONNECTION: &str = "NoConnection";
    /// The connection's Secret does not exist.
    pub const SECRET_NOT_FOUND: &str = "SecretNotFound";
    /// The connection's Secret lacks a key.
    pub const SECRET_KEY_MISSING: &str = "SecretKeyMissing";
    /// A value of the connection's Secret is invalid.
    pub const SECRET_INVALID: &str = "SecretInvalid";
    /// The API server did not return the Secret.
    pub const SECRET_UNREADABLE: &str = "SecretUnreadable";
    /// The RabbitmqCluster does not exist.
    pub const CLUSTER_NOT_FOUND: &str = "ClusterNotFound";
    /// The kind RabbitmqCluster is not installed in this Kubernetes cluster.
    pub const CLUSTER_KIND_MISSING: &str = "ClusterKindMissing";
    /// The RabbitmqCluster does not publish its connection details yet.
    pub const CLUSTER_NOT_READY: &str = "ClusterNotReady";
    /// The RabbitmqCluster has no nodes.
    pub const CLUSTER_SCALED_TO_ZERO: &str = "ClusterScaledToZero";
    /// The API server did not return the RabbitmqCluster.
    pub const CLUSTER_UNREADABLE: &str = "ClusterUnreadable";
    /// The reference is to another namespace, which does not permit it.
    pub const NOT_ALLOWED: &str = "NotAllowed";
    /// The status could not be written before a change that depends on it.
    pub const STATUS_NOT_WRITTEN: &str = "StatusNotWritten";
    /// The server answered.
    pub const CONNECTED: &str = "Connected";
    /// Slots above the desired count are held.
    pub const HOLDERS_DRAINING: &str = "HoldersDraining";
    /// No slot above the desired count is held.
    pub const NONE_DRAINING: &str = "NoneDraining";
    /// Every slot is held.
    pub const ALL_SLOTS_HELD: &str = "AllSlotsHeld";
    /// There are no slots.
    pub const NO_SLOTS: &str = "NoSlots";
    /// At least one slot is free.
    pub const SLOTS_FREE: &str = "SlotsFree";
    /// Nothing was found that breaks the lock's guarantees.
    pub const NO_RISK: &str = "NoRisk";
    /// The queue was closed and then deleted by its clients.
    pub const COMPLETED: &str = "Completed";
    /// The observation may be a client's work in progress. It is reported when observed
    /// again.
    pub const CONFIRMING: &str = "Confirming";
    /// The queue is only partially created.
    pub const HALF_CREATED: &str = "HalfCreated";
    /// Keys of a queue exist without its `:bound`.
    pub const RESIDUE: &str = "Residue";
    /// A key of the queue does not have the type that the protocol requires.
    pub const WRONG_TYPE: &str = "WrongType";
    /// A role is taken.
    pub const ROLE_BUSY: &str = "RoleBusy";
    /// No change waits for a role.
    pub const NOT_WAITING: &str = "NotWaiting";
    /// The length exceeds the bound.
    pub const OVER_BOUND: &str = "OverBound";
    /// The length is within the bound.
    pub const WITHIN_BOUND: &str = "WithinBound";
    /// No damage was found.
    pub const NO_DAMAGE: &str = "NoDamage";
    /// The resource is being deleted, and its cleanup on the server is not finished.
    pub const CLEANING_UP: &str = "CleaningUp";
    /// The resource is being deleted, and its deletion guard waits for holders.
    pub const IN_USE: &str = "InUse";
    /// The resource is being deleted, and its deletion guard waits for the queue to
    /// become empty.
    pub const NOT_EMPTY: &str = "NotEmpty";
}

/// Maximum length of a condition's message, in bytes: it may contain text from a server.
const MAX_MESSAGE_BYTES: usize = 1024;

/// A condition to report; [`merge`] adds times and generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionUpdate {
    /// The condition's type.
    pub type_: &'static str,
    /// Status, or `None` for Unknown.
    pub status: Option<bool>,
    /// Reason, in CamelCase.
    pub reason: &'static str,
    /// Message for people, with the next step if there is one.
    pub message: String,
}

impl ConditionUpdate {
    /// Creates a condition with status True or False.
    pub fn new(
        type_: &'static str,
        status: bool,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self { type_, status: Some(status), reason, message: message.into() }
    }

    /// Creates a condition with status Unknown.
    pub fn unknown(type_: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { type_, status: None, reason, message: message.into() }
    }
}

/// Returns the new list of conditions. Each keeps its transition time while its status
/// does not change.
#[must_use]
pub fn merge(
    old: &[Condition],
    said: Vec<ConditionUpdate>,
    generation: Option<i64>,
    now: &Time,
) -> Vec<Condition> {
    said.into_iter()
        .map(|say| {
            let status = match say.status {
                Some(true) => "True",
                Some(false) => "False",
                None => "Unknown",
            };
            let last_transition_time = old
                .iter()
                .find(|c| c.type_ == say.type_ && c.status == status)
                .map_or_else(|| now.clone(), |c| c.last_transition_time.clone());
            Condition {
                type_: say.type_.to_owned(),
                status: status.to_owned(),
                reason: say.reason.to_owned(),
                message: clean_text(&say.message, MAX_MESSAGE_BYTES),
                observed_generation: generation,
                last_transition_time,
            }
        })
        .collect()
}

/// Returns the condition of the given type.
#[must_use]
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::jiff::Timestamp;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn a_condition_keeps_its_transition_time_while_its_status_stays() {
        let say = |status, message: &str| {
            vec![ConditionUpdate::new(READY, status, reason::IN_SYNC, message)]
        };
        let first = merge(&[], say(true, "a"), Some(1), &at(1));
        let second = merge(&first, say(true, "b"), Some(2), &at(2));
        assert_eq!(second[0].last_transition_time, at(1));
        assert_eq!((second[0].message.as_str(), second[0].observed_generation), ("b", Some(2)));
        let third = merge(&second, say(false, "b"), Some(2), &at(3));
        assert_eq!(third[0].last_transition_time, at(3));
    }

    #[test]
    fn a_condition_that_is_no_longer_reported_is_removed() {
        let old = merge(
            &[],
            vec![ConditionUpdate::new(STALLED, true, reason::CONFLICT, "")],
            None,
            &at(1),
        );
        assert!(merge(&old, vec![], None, &at(2)).is_empty());
    }
}
