//! The PressureQueue kind: what its spec may say and what its status tells.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::{DeletionPolicy, SecretReference};
use crate::plan::naming::DEFAULT_PREFIX;

/// What the queue should be: how long it may grow, where, under which name.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, PartialEq, Eq, KubeSchema)]
#[kube(
    group = "lockkeeper.dev",
    version = "v1alpha1",
    kind = "PressureQueue",
    namespaced,
    doc = "A bounded first-in-first-out queue in Redis with one producer and one consumer at a time, as the pressure protocol 0.15 describes. Change spec.bound to let it grow or make it shrink while clients use it.",
    status = "PressureQueueStatus",
    derive = "PartialEq",
    shortname = "pq",
    category = "locks",
    category = "redis",
    printcolumn(
        name = "Length",
        type_ = "integer",
        json_path = ".status.length",
        description = "Elements in the queue"
    ),
    printcolumn(
        name = "Bound",
        type_ = "integer",
        json_path = ".status.bound",
        description = "Elements that the queue may hold; 0 is unbounded"
    ),
    printcolumn(
        name = "Closed",
        type_ = "boolean",
        json_path = ".status.closed",
        description = "Whether nothing more can be put"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether the queue is as wanted"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since creation"
    ),
    printcolumn(
        name = "Produced",
        type_ = "integer",
        json_path = ".status.producedMessages",
        description = "Elements ever put",
        priority = 1
    ),
    printcolumn(
        name = "Consumed",
        type_ = "integer",
        json_path = ".status.consumedMessages",
        description = "Elements ever taken",
        priority = 1
    ),
    printcolumn(
        name = "Producer",
        type_ = "string",
        json_path = ".status.producer.id",
        description = "The last client that was producer",
        priority = 1
    ),
    printcolumn(
        name = "Consumer",
        type_ = "string",
        json_path = ".status.consumer.id",
        description = "The last client that was consumer",
        priority = 1
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        description = "What the operator has to say",
        priority = 1
    )
)]
#[x_kube(
    validation = Rule::new("has(self.queueName) == has(oldSelf.queueName) && (!has(self.queueName) || self.queueName == oldSelf.queueName)").message("queueName can't be changed, added or removed after creation: create another PressureQueue with the new queueName and delete this one").field_path(".queueName"),
    validation = Rule::new("has(self.redisReference) == has(oldSelf.redisReference) && (!has(self.redisReference) || self.redisReference == oldSelf.redisReference)").message("redisReference can't be changed, added or removed after creation: create another PressureQueue for the other server and delete this one").field_path(".redisReference"),
    validation = Rule::new("!(oldSelf.state == 'Closed' && self.state == 'Open')").message("state can't go from Closed back to Open: a queue is closed at most once; delete this PressureQueue and create another").field_path(".state"),
    validation = Rule::new("!has(self.queueName) || !((has(self.redisReference) ? self.redisReference.prefix : '__pressure__') + ':' + self.queueName).matches(':.*:(bound|producer|consumer|producer_free|consumer_free|not_full|closed|stats:(produced|consumed)_(messages|bytes))$')").message("queueName, also with its prefix, must not end in a key suffix of the protocol (:bound, :producer, :consumer, :producer_free, :consumer_free, :not_full, :closed, :stats:…): such names are keys of another queue").field_path(".queueName"),
    validation = Rule::new("!has(self.queueName) || size(bytes(self.queueName)) <= 200").message("queueName must be at most 200 bytes long").field_path(".queueName"),
    validation = Rule::new("!has(self.redisReference) || size(bytes(self.redisReference.prefix)) <= 200").message("redisReference.prefix must be at most 200 bytes long").field_path(".redisReference.prefix"),
)]
#[serde(rename_all = "camelCase")]
pub struct PressureQueueSpec {
    /// How many elements the queue may hold before a put waits, 0 to 2147483647; 0 means no
    /// bound. Can be changed at any time; lowering it loses nothing. Default 0. Example: 100.
    #[serde(default)]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub bound: i64,

    /// Open: elements may be put. Closed: no more, and once the queue is empty its consumer is
    /// told so; this can't be taken back. Default Open.
    #[serde(default = "open")]
    pub state: QueueState,

    /// The queue's name in Redis, at most 200 bytes; clients use it. Can't be changed.
    /// Default: <namespace>.<name>. Example: media.frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200), regex(pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"))]
    pub queue_name: Option<String>,

    /// The Redis server that keeps the queue. Absent: the operator's default connection. Can't
    /// be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redis_reference: Option<RedisReference>,

    /// What happens to the queue when this resource is deleted: Retain leaves it with its data,
    /// Delete removes it and its data in the protocol's way, so that blocked clients end.
    /// Default Retain.
    #[serde(default = "retain")]
    pub deletion_policy: DeletionPolicy,

    /// What a deletion of this resource waits for: None, nothing; Empty, that the queue has no
    /// elements. Until then the resource stays, with its deletion time, and nothing in Redis is
    /// touched, also with deletionPolicy Retain. A namespace that is deleted is not held up. Can be
    /// changed at any time, also then. Default None.
    #[serde(default = "unguarded")]
    pub deletion_guard: QueueGuard,

    /// What happens to a role that a dead client has left taken, to a lost or doubled token, and
    /// to what a dead client has half created or half deleted: Report says so in the condition
    /// Damaged, Repair also mends it once nobody is left who could. Elements are never removed,
    /// but for those of a deletion that a client had begun. Default Report.
    #[serde(default = "report")]
    pub repair_policy: RepairPolicy,

    /// true: observe and report, but change nothing in Redis. Default false.
    #[serde(default)]
    pub suspend: bool,
}

/// Where the Redis server is and which of its keys are meant.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RedisReference {
    /// A Secret of this namespace with the server's address and a user. Keys: uri
    /// (redis://user:password@host:6379/0), or host, port, username, password and db. Absent:
    /// the operator's default connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_secret: Option<SecretReference>,

    /// The number of the database, 0 to 65535. Default: that of the connection, else 0.
    /// Example: 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub database: Option<i32>,

    /// What every key of the queue starts with, at most 200 bytes. Default __pressure__, as in
    /// every client. Example: team-a.
    #[serde(default = "default_prefix")]
    #[schemars(length(min = 1, max = 200), regex(pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"))]
    pub prefix: String,
}

/// Whether elements may be put.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, schemars::JsonSchema)]
pub enum QueueState {
    /// Elements may be put.
    Open,
    /// No more elements, for ever.
    Closed,
}

/// What the resource's deletion waits for.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, schemars::JsonSchema)]
pub enum QueueGuard {
    /// Nothing.
    None,
    /// That the queue has no elements.
    Empty,
}

/// What is done about a damaged queue.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, schemars::JsonSchema)]
pub enum RepairPolicy {
    /// It is reported.
    Report,
    /// It is mended, and that is reported.
    Repair,
}

fn report() -> RepairPolicy {
    RepairPolicy::Report
}

fn open() -> QueueState {
    QueueState::Open
}

fn unguarded() -> QueueGuard {
    QueueGuard::None
}

fn retain() -> DeletionPolicy {
    DeletionPolicy::Retain
}

fn default_prefix() -> String {
    DEFAULT_PREFIX.to_owned()
}

/// What the operator saw in Redis. A value that is not known is absent, never 0.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PressureQueueStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The queue's name in Redis, without prefix. Example: media.frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_name: Option<String>,
    /// The server and database that keep the queue, without credentials. Example: redis:6379/0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// How many elements are in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<i64>,
    /// How many elements it may hold; 0 means no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<i64>,
    /// Whether the queue is closed: nothing more can be put.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<bool>,
    /// The producer role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub producer: Option<RoleStatus>,
    /// The consumer role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer: Option<RoleStatus>,
    /// How many elements were ever put, as the clients count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub produced_messages: Option<i64>,
    /// How many bytes were ever put, as far as the clients count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub produced_bytes: Option<i64>,
    /// How many elements were ever taken, as the clients count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumed_messages: Option<i64>,
    /// How many bytes were ever taken, as far as the clients count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumed_bytes: Option<i64>,
    /// Ready, Reconciling, Stalled, BackendReachable, WaitingForRole, Overfilled and Damaged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// One of the queue's two roles.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoleStatus {
    /// The client that has the role, or had it last, as it names itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Whether the role is taken now.
    pub busy: bool,
}
