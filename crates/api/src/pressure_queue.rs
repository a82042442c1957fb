//! The PressureQueue kind: its spec and its status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use lockkeeper_plan::naming::DEFAULT_PREFIX;

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::{DeletionPolicy, SecretReference};

/// Desired state of the queue: its bound, its server and its name.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, PartialEq, Eq, KubeSchema)]
#[kube(
    group = "lockkeeper.dev",
    version = "v1alpha1",
    kind = "PressureQueue",
    namespaced,
    doc = "A bounded first-in-first-out queue in Redis with one producer and one consumer at a time, as described by the pressure protocol 0.15. `spec.bound` may be changed while clients use the queue.",
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
        description = "Maximum number of elements; 0 is unbounded"
    ),
    printcolumn(
        name = "Closed",
        type_ = "boolean",
        json_path = ".status.closed",
        description = "Whether the queue is closed to further elements"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether the queue is as the spec requires"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since creation"
    ),
    printcolumn(
        name = "Producer",
        type_ = "string",
        json_path = ".status.producer.summary",
        description = "Current or last producer, shortened"
    ),
    printcolumn(
        name = "Consumer",
        type_ = "string",
        json_path = ".status.consumer.summary",
        description = "Current or last consumer, shortened"
    ),
    printcolumn(
        name = "Produced",
        type_ = "integer",
        json_path = ".status.producedMessages",
        description = "Total number of elements put",
        priority = 1
    ),
    printcolumn(
        name = "Consumed",
        type_ = "integer",
        json_path = ".status.consumedMessages",
        description = "Total number of elements taken",
        priority = 1
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        description = "Message of the condition Ready",
        priority = 1
    )
)]
#[x_kube(
    validation = Rule::new("has(self.queueName) == has(oldSelf.queueName) && (!has(self.queueName) || self.queueName == oldSelf.queueName)").message("queueName can't be changed, added or removed after creation: create another PressureQueue with the new queueName and delete this one").field_path(".queueName"),
    validation = Rule::new("has(self.redisReference) == has(oldSelf.redisReference) && (!has(self.redisReference) || self.redisReference == oldSelf.redisReference)").message("redisReference can't be changed, added or removed after creation: create another PressureQueue for the other server and delete this one").field_path(".redisReference"),
    validation = Rule::new("!(oldSelf.state == 'Closed' && self.state == 'Open')").message("state can't go from Closed back to Open: a queue is closed at most once; delete this PressureQueue and create another").field_path(".state"),
    validation = Rule::new("!has(self.queueName) || !((has(self.redisReference) ? self.redisReference.prefix : '__pressure__') + ':' + self.queueName).matches(':.*:(bound|producer|consumer|producer_free|consumer_free|not_full|closed|in_flight|leases|stats:(produced|consumed)_(messages|bytes))$')").message("queueName, also with its prefix, must not end in a key suffix of the protocol (:bound, :producer, :consumer, :producer_free, :consumer_free, :not_full, :closed, :in_flight, :leases, :stats:…): such names are keys of another queue").field_path(".queueName"),
    validation = Rule::new("!has(self.queueName) || size(bytes(self.queueName)) <= 200").message("queueName must be at most 200 bytes long").field_path(".queueName"),
    validation = Rule::new("!has(self.redisReference) || size(bytes(self.redisReference.prefix)) <= 200").message("redisReference.prefix must be at most 200 bytes long").field_path(".redisReference.prefix"),
)]
#[serde(rename_all = "camelCase")]
pub struct PressureQueueSpec {
    /// Maximum number of elements that the queue may hold before a put waits, 0
    /// to 2147483647. `0`: unbounded. May be changed at any time; lowering it removes no
    /// elements. Defaults to 0. Example: 100.
    #[serde(default)]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub bound: i64,

    /// Whether elements may be put. `Open`: elements may be put. `Closed`: no more
    /// elements may be put, and the consumer is notified of the end once the queue is
    /// empty. A closed queue cannot be reopened. Defaults to `Open`.
    #[serde(default = "open")]
    pub state: QueueState,

    /// Name of the queue in Redis, up to 200 bytes. On the operator's default connection
    /// it must start with `<namespace>.`, unless the operator allows any name. Immutable.
    /// Defaults to `<namespace>.<name>`. Example: `media.frames`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200), regex(pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"))]
    pub queue_name: Option<String>,

    /// Redis server that stores the queue. Immutable. Defaults to the operator's default
    /// connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redis_reference: Option<RedisReference>,

    /// What happens to the queue when this resource is deleted. `Retain`: leave the queue
    /// and its data. `Delete`: remove the queue and its data as defined by the protocol,
    /// which also ends blocked clients. Defaults to `Retain`.
    #[serde(default = "retain")]
    pub deletion_policy: DeletionPolicy,

    /// Delays deletion of this resource. `None`: delete immediately. `Empty`: wait until
    /// the queue has no elements. While the deletion waits, the operator changes nothing
    /// in Redis, even with deletion policy `Retain`. Namespace deletion is never delayed.
    /// May be changed at any time, including while the deletion waits. Defaults to
    /// `None`.
    #[serde(default = "unguarded")]
    pub deletion_guard: QueueGuard,

    /// What the operator does about damage left by a dead client: a role that is still
    /// taken, a lost or surplus token, or a partially created or deleted queue. `Report`:
    /// report the damage in the condition `Damaged`. `Repair`: also repair it once no
    /// client is left that could. Neither removes elements, except from a queue whose
    /// deletion has already started. Defaults to `Report`.
    #[serde(default = "report")]
    pub repair_policy: RepairPolicy,

    /// If true, the operator observes and reports but makes no changes in Redis. Defaults
    /// to `false`.
    #[serde(default)]
    pub suspend: bool,
}

/// Reference to a Redis server, a database and a key prefix.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RedisReference {
    /// Secret in the namespace of this resource with the address of the server and the
    /// credentials of a user. Keys: `redisUri` or `uri` (redis://user:password@host:6379/0), or
    /// `host`, `port`, `username`, `password` and `db`. With rediss:// or `tls: "true"`, the keys
    /// `ca.crt`, `tls.crt` and `tls.key` configure TLS. Unset: the operator's default connection
    /// is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_secret: Option<SecretReference>,

    /// Number of the Redis database, 0 to 65535. Rejected on the operator's default
    /// connection, unless the operator allows it. Defaults to that of the connection,
    /// otherwise 0. Example: 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub database: Option<i32>,

    /// Prefix of every key of the queue, up to 200 bytes. All clients of the queue must
    /// use the same prefix. Defaults to `__pressure__`, which is also the default of the
    /// clients. Example: `team-a`.
    #[serde(default = "default_prefix")]
    #[schemars(length(min = 1, max = 200), regex(pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"))]
    pub prefix: String,
}

/// Whether elements may be put.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, schemars::JsonSchema)]
pub enum QueueState {
    /// Elements may be put.
    Open,
    /// No more elements may be put. Cannot be reverted.
    Closed,
}

/// Condition that delays deletion of the resource.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, schemars::JsonSchema)]
pub enum QueueGuard {
    /// Delete immediately.
    None,
    /// Wait until the queue has no elements.
    Empty,
}

/// What the operator does about a damaged queue.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, schemars::JsonSchema)]
pub enum RepairPolicy {
    /// Report the damage.
    Report,
    /// Report and repair the damage.
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

/// Observed state of the queue in Redis. A value that is not known is absent, never 0.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PressureQueueStatus {
    /// Generation of the spec that this status refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Name of the queue in Redis, without prefix. Example: `media.frames`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_name: Option<String>,
    /// Server and database that store the queue, without credentials. Example:
    /// `redis:6379/0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Last backend from which this resource's queue could be read. The resource can own
    /// a queue only on this backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached_backend: Option<String>,
    /// Number of elements in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<i64>,
    /// Number of elements that consumers got with a lease and have not acknowledged. They
    /// do not count as elements in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<i64>,
    /// Maximum number of elements that the queue may hold. `0`: unbounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<i64>,
    /// Whether the queue is closed, so that no more elements may be put.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<bool>,
    /// The producer role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub producer: Option<RoleStatus>,
    /// The consumer role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer: Option<RoleStatus>,
    /// Total number of elements put, as counted by the clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub produced_messages: Option<i64>,
    /// Total number of bytes put, as far as the clients count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub produced_bytes: Option<i64>,
    /// Total number of elements taken, as counted by the clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumed_messages: Option<i64>,
    /// Total number of bytes taken, as far as the clients count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumed_bytes: Option<i64>,
    /// Conditions of types `Ready`, `Reconciling`, `Stalled`, `BackendReachable`,
    /// `WaitingForRole`, `Overfilled` and `Damaged`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// State of one of the queue's two roles.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoleStatus {
    /// Id of the client that has the role, or had it last, as declared by the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The id, shortened to fit into a table, for `kubectl get`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Whether the role is currently taken.
    pub busy: bool,
}
