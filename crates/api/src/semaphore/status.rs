//! The status of a Semaphore. See `operator::semaphore` for how it is observed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use lockkeeper_plan::semaphore::Holder;
use serde::{Deserialize, Serialize};

/// Observed state of the lock on the broker. A value that is not known is absent,
/// never 0.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SemaphoreStatus {
    /// Generation of the spec that this status refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Name of the lock on the broker. Example: `ci.deploy-prod`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_name: Option<String>,
    /// Broker and virtual host that store the lock, without credentials. Example:
    /// `rabbit:5672/prod`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Last backend that accepted a login for this resource. The resource can own a lock
    /// only on this backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached_backend: Option<String>,
    /// Number of slots on the broker, not counting slots above `spec.slots`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<i32>,
    /// Number of held slots, not counting draining slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<i32>,
    /// Number of slots that can be acquired now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<i32>,
    /// Number of holders of slots above `spec.slots`. No other client can acquire these
    /// slots. With protocol `Token`: number of held tokens above `spec.slots`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draining: Option<i32>,
    /// Number of clients in the lock's wait queue. Clients that only poll are not
    /// counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<i32>,
    /// Highest slot number that may exist on the broker. Sweeps also check the numbers
    /// above it. Absent with protocol `Token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highest_slot: Option<i32>,
    /// Label selector required by the scale subresource. It selects no pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Holders in one line, for `kubectl get`. Long names are shortened, and holders that
    /// do not fit are counted. Example: `deploy-7, deploy-9, +3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holders_summary: Option<String>,
    /// Holders, sorted by slot number, up to 50. With protocol `Token` they are not
    /// sorted, and the identities of Lockkeeper clients appear after about one second.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["id".into()]))]
    pub holders: Vec<HolderStatus>,
    /// True if there are more holders than are listed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub holders_truncated: bool,
    /// Conditions of types `Ready`, `Reconciling`, `Stalled`, `BackendReachable`,
    /// `Drained`, `Saturated` and `Unsafe`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Holder of one slot.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HolderStatus {
    /// Id that the holder chose for this acquisition, otherwise the name of its
    /// connection with the slot, otherwise `slot-<number>`. With protocol `Token`:
    /// `token-<number>` if there is no other id.
    pub id: String,
    /// Number of the slot, starting at 1. Absent with protocol `Token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<i32>,
    /// Identity that the holder declares, otherwise its user on the broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Reason that the holder declares for holding the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// URL that the holder declares, for example to the page of a build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Time at which the holder declares that it acquired the slot, in RFC 3339 format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Name and peer address of the holder's connection to the broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<String>,
    /// True if the slot is above `spec.slots`. The holder keeps it until it releases.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
}

/// Converts a number of slots, or of one, for a status.
#[must_use]
pub fn to_i32(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

impl From<&Holder> for HolderStatus {
    fn from(holder: &Holder) -> Self {
        // Without `..`, so that each new field of a holder must be shown or omitted here
        // explicitly.
        let Holder { id, slot, identity, reason, url, since, connection, draining } =
            holder.clone();
        Self { id, slot: slot.map(to_i32), identity, reason, url, since, connection, draining }
    }
}
