//! Conditions: their types and reasons, which are an API (listed in
//! docs/conditions.md, never renamed), and how new ones are laid over old ones.
//! What a condition says in a given case is decided by whoever reports.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::plan::clean_text;

/// The server has exactly what the resource asks for.
pub const READY: &str = "Ready";
/// Work is under way or will be tried again; absent otherwise (kstatus).
pub const RECONCILING: &str = "Reconciling";
/// Nothing will happen until somebody changes something; absent otherwise (kstatus).
pub const STALLED: &str = "Stalled";
/// The server answers.
pub const BACKEND_REACHABLE: &str = "BackendReachable";
/// No holder is left on a slot above the wanted count.
pub const DRAINED: &str = "Drained";
/// Every slot is held.
pub const SATURATED: &str = "Saturated";
/// A change waits until a client gives its role back.
pub const WAITING_FOR_ROLE: &str = "WaitingForRole";
/// The queue is longer than its bound.
pub const OVERFILLED: &str = "Overfilled";
/// Something about the queue is broken.
pub const DAMAGED: &str = "Damaged";

/// Reasons that don't come from a server's error.
pub mod reason {
    /// The server is as the resource asks.
    pub const IN_SYNC: &str = "InSync";
    /// The change is being made.
    pub const RESIZING: &str = "Resizing";
    /// `suspend: true`, and the server differs from the spec.
    pub const SUSPENDED: &str = "Suspended";
    /// The spec has a name that can't be used.
    pub const INVALID_NAME: &str = "InvalidName";
    /// The name is not one that this namespace may use on the default connection.
    pub const NAME_NOT_ALLOWED: &str = "NameNotAllowed";
    /// An older resource stands for the same lock or queue.
    pub const CONFLICT: &str = "Conflict";
    /// The namespace may not have so many slots, or so many resources of this kind.
    pub const NAMESPACE_QUOTA_EXCEEDED: &str = "NamespaceQuotaExceeded";
    /// The resource names no connection and the operator has no default one.
    pub const NO_CONNECTION: &str = "NoConnection";
    /// The connection's Secret does not exist.
    pub const SECRET_NOT_FOUND: &str = "SecretNotFound";
    /// The connection's Secret lacks a key.
    pub const SECRET_KEY_MISSING: &str = "SecretKeyMissing";
    /// A value of the connection's Secret can't be understood.
    pub const SECRET_INVALID: &str = "SecretInvalid";
    /// The API server would not give the Secret.
    pub const SECRET_UNREADABLE: &str = "SecretUnreadable";
    /// The RabbitmqCluster does not exist.
    pub const CLUSTER_NOT_FOUND: &str = "ClusterNotFound";
    /// RabbitmqCluster is no kind of this Kubernetes cluster.
    pub const CLUSTER_KIND_MISSING: &str = "ClusterKindMissing";
    /// The RabbitmqCluster does not say yet how it is reached.
    pub const CLUSTER_NOT_READY: &str = "ClusterNotReady";
    /// The RabbitmqCluster has no nodes.
    pub const CLUSTER_SCALED_TO_ZERO: &str = "ClusterScaledToZero";
    /// The API server would not give the RabbitmqCluster.
    pub const CLUSTER_UNREADABLE: &str = "ClusterUnreadable";
    /// What is named lies in another namespace, which does not allow that.
    pub const NOT_ALLOWED: &str = "NotAllowed";
    /// The status could not be written before a change that depends on it.
    pub const STATUS_NOT_WRITTEN: &str = "StatusNotWritten";
    /// The server answered.
    pub const CONNECTED: &str = "Connected";
    /// Holders keep slots above the wanted count.
    pub const HOLDERS_DRAINING: &str = "HoldersDraining";
    /// Nobody keeps a slot above the wanted count.
    pub const NONE_DRAINING: &str = "NoneDraining";
    /// Every slot is held.
    pub const ALL_SLOTS_HELD: &str = "AllSlotsHeld";
    /// There is no slot.
    pub const NO_SLOTS: &str = "NoSlots";
    /// A slot may be taken.
    pub const SLOTS_FREE: &str = "SlotsFree";
    /// The queue was closed and then deleted by its clients.
    pub const COMPLETED: &str = "Completed";
    /// What was seen may be a client's work under way: believed when seen again.
    pub const CONFIRMING: &str = "Confirming";
    /// The queue is only half made.
    pub const HALF_CREATED: &str = "HalfCreated";
    /// Keys of a deleted queue are left.
    pub const RESIDUE: &str = "Residue";
    /// A key of the queue has another type than the protocol's.
    pub const WRONG_TYPE: &str = "WrongType";
    /// A role is taken.
    pub const ROLE_BUSY: &str = "RoleBusy";
    /// No role is awaited.
    pub const NOT_WAITING: &str = "NotWaiting";
    /// The length exceeds the bound.
    pub const OVER_BOUND: &str = "OverBound";
    /// The length is within the bound.
    pub const WITHIN_BOUND: &str = "WithinBound";
    /// Nothing about the queue was found to be broken.
    pub const NO_DAMAGE: &str = "NoDamage";
    /// The resource is being deleted and its server's part is not gone yet.
    pub const CLEANING_UP: &str = "CleaningUp";
    /// The resource is being deleted, and its guard waits for holders.
    pub const IN_USE: &str = "InUse";
    /// The resource is being deleted, and its guard waits for elements.
    pub const NOT_EMPTY: &str = "NotEmpty";
}

/// Longest message of a condition, in bytes: a server's text can be anything.
const MAX_MESSAGE_BYTES: usize = 1024;

/// What one condition should say; times and generation are added by [`merge`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Say {
    /// The condition's type.
    pub type_: &'static str,
    /// True, False, or nothing known.
    pub status: Option<bool>,
    /// CamelCase.
    pub reason: &'static str,
    /// For people; what to do next, where there is something to do.
    pub message: String,
}

impl Say {
    /// A condition that is known to be true or false.
    pub fn new(
        type_: &'static str,
        status: bool,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self { type_, status: Some(status), reason, message: message.into() }
    }

    /// A condition about which nothing is known.
    pub fn unknown(type_: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { type_, status: None, reason, message: message.into() }
    }
}

/// The new list of conditions: exactly those said, each keeping its
/// transition time while its status stays.
#[must_use]
pub fn merge(
    old: &[Condition],
    said: Vec<Say>,
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

/// The condition of a type.
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
        let say = |status, message: &str| vec![Say::new(READY, status, reason::IN_SYNC, message)];
        let first = merge(&[], say(true, "a"), Some(1), &at(1));
        let second = merge(&first, say(true, "b"), Some(2), &at(2));
        assert_eq!(second[0].last_transition_time, at(1));
        assert_eq!((second[0].message.as_str(), second[0].observed_generation), ("b", Some(2)));
        let third = merge(&second, say(false, "b"), Some(2), &at(3));
        assert_eq!(third[0].last_transition_time, at(3));
    }

    #[test]
    fn a_condition_that_is_not_said_any_more_is_removed() {
        let old = merge(&[], vec![Say::new(STALLED, true, reason::CONFLICT, "")], None, &at(1));
        assert!(merge(&old, vec![], None, &at(2)).is_empty());
    }
}
