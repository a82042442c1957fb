//! What a Semaphore's status tells. How it is found out is the operator's.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// What the operator saw on the broker. A value that is not known is absent, never 0.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SemaphoreStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The lock's name on the broker. Example: ci.deploy-prod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_name: Option<String>,
    /// The broker and virtual host that keep the lock, without credentials.
    /// Example: rabbit:5672/prod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// How many slots within the wanted count exist on the broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<i32>,
    /// How many slots within the wanted count are held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<i32>,
    /// How many slots may be taken now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<i32>,
    /// How many holders keep a slot above the wanted count. Nobody else gets those slots. In
    /// protocol Token, how many more tokens are held than are wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draining: Option<i32>,
    /// How many clients wait for a slot in the lock's wait queue; those that only look from time to
    /// time are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<i32>,
    /// The highest slot number that may exist on the broker; sweeps reach beyond it. Absent in
    /// protocol Token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highest_slot: Option<i32>,
    /// The label selector that the scale subresource must name; no pod needs to match it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The holders in one line, for kubectl. Example: 1:deploy-7, 2:deploy-9.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holders_summary: Option<String>,
    /// Who holds a slot, by slot number, at most 50. In protocol Token in no order, and Lockkeeper's
    /// clients say who they are after a second.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["id".into()]))]
    pub holders: Vec<HolderStatus>,
    /// true when there are more holders than listed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub holders_truncated: bool,
    /// Ready, Reconciling, Stalled, BackendReachable, Drained and Saturated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// One holder of a slot.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HolderStatus {
    /// The holder's own id for this acquisition, else its connection's name with the slot, else
    /// slot-<number>; in protocol Token, token-<number>.
    pub id: String,
    /// The slot that it holds, from 1. Absent in protocol Token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<i32>,
    /// Who it says it is, else its user on the broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Why it says that it holds the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Where it says that more can be read, such as a build's page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// When it says that it acquired the slot, in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Its connection to the broker: name and peer address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<String>,
    /// true: its slot is above the wanted count; it keeps the slot until it releases.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
}
