//! The Semaphore kind: its spec. See `status` for its status.

mod ending;
mod protocol;
mod status;

use kube::{CustomResource, KubeSchema};
use lockkeeper_plan::connection::BrokerReference;
use lockkeeper_plan::naming;
use lockkeeper_plan::semaphore::{DEFAULT_OVERSHOOT, DeletionOrder};
use serde::{Deserialize, Serialize};

use self::ending::unguarded;
pub use self::ending::{Drain, SemaphoreGuard};
pub use self::protocol::{Profile, Protocol, QueueType, Token};
pub use self::status::{HolderStatus, SemaphoreStatus, to_i32};
use super::{DeletionPolicy, SecretReference};

/// Maximum number of holders listed in a status. The counts cover all of them (hazard K10).
pub const MAX_LISTED_HOLDERS: usize = 50;

/// Desired state of the semaphore: its slots, its broker and its name.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, PartialEq, Eq, KubeSchema)]
#[kube(
    group = "lockkeeper.dev",
    version = "v1alpha1",
    kind = "Semaphore",
    namespaced,
    doc = "A lock in RabbitMQ that up to `spec.slots` clients may hold at the same time. `spec.slots` may be changed while clients hold the lock.",
    status = "SemaphoreStatus",
    derive = "PartialEq",
    shortname = "sem",
    category = "locks",
    category = "rabbitmq",
    scale(
        spec_replicas_path = ".spec.slots",
        status_replicas_path = ".status.slots",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Slots",
        type_ = "integer",
        json_path = ".status.slots",
        description = "Slots that exist on the broker"
    ),
    printcolumn(
        name = "Held",
        type_ = "integer",
        json_path = ".status.held",
        description = "Slots that are held, not counting draining slots"
    ),
    printcolumn(
        name = "Free",
        type_ = "integer",
        json_path = ".status.free",
        description = "Slots that can be acquired now"
    ),
    printcolumn(
        name = "Waiting",
        type_ = "integer",
        json_path = ".status.waiting",
        description = "Clients in the wait queue"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether the broker has exactly the desired slots"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since creation"
    ),
    printcolumn(
        name = "Holders",
        type_ = "string",
        json_path = ".status.holdersSummary",
        description = "Holders of the lock, shortened"
    ),
    printcolumn(
        name = "Draining",
        type_ = "integer",
        json_path = ".status.draining",
        description = "Holders of draining slots",
        priority = 1
    ),
    printcolumn(
        name = "Lock",
        type_ = "string",
        json_path = ".status.lockName",
        description = "Name of the lock on the broker",
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
    validation = Rule::new("has(self.lockName) == has(oldSelf.lockName) && (!has(self.lockName) || self.lockName == oldSelf.lockName)").message("lockName can't be changed, added or removed after creation: create another Semaphore with the new lockName and delete this one").field_path(".lockName"),
    validation = Rule::new("has(self.rabbitmqClusterReference) == has(oldSelf.rabbitmqClusterReference) && (!has(self.rabbitmqClusterReference) || self.rabbitmqClusterReference == oldSelf.rabbitmqClusterReference)").message("rabbitmqClusterReference can't be changed, added or removed after creation: create another Semaphore for the other broker and delete this one").field_path(".rabbitmqClusterReference"),
    validation = Rule::new("has(self.vhost) == has(oldSelf.vhost) && (!has(self.vhost) || self.vhost == oldSelf.vhost)").message("vhost can't be changed, added or removed after creation: create another Semaphore in the other vhost and delete this one").field_path(".vhost"),
    validation = Rule::new("self.protocol == oldSelf.protocol").message("protocol can't be changed after creation: create another Semaphore with the other protocol and another lockName, and delete this one").field_path(".protocol"),
    validation = Rule::new("(has(self.token) ? self.token.queueType : 'Classic') == (has(oldSelf.token) ? oldSelf.token.queueType : 'Classic')").message("token.queueType can't be changed after creation: create another Semaphore with the other queueType and another lockName, and delete this one").field_path(".token"),
    validation = Rule::new("self.protocol == 'Token' || !has(self.token)").message("token is only for protocol Token: leave it out, or set protocol: Token").field_path(".token"),
    validation = Rule::new("self.protocol == 'ExclusiveQueue' || self.profile == 'Guideline'").message("profile AmqpLocksPython is only for protocol ExclusiveQueue, which is all that its clients know: leave profile or protocol out").field_path(".profile"),
    validation = Rule::new("self.protocol != 'Token' || !self.fencing || (has(self.token) && self.token.queueType == 'Quorum')").message("fencing with protocol Token needs token.queueType: Quorum, since only such a queue counts how often a token changed hands").field_path(".fencing"),
    validation = Rule::new("self.protocol != 'Token' || self.lockDelay.matches('^(0{1,7}(h|m|s|ms))+$')").message("lockDelay is not possible with protocol Token: the broker hands a released token to the next client immediately. Use another protocol, or leave lockDelay out").field_path(".lockDelay"),
    validation = Rule::new("self.profile == oldSelf.profile").message("profile can't be changed after creation: create another Semaphore with the other profile and delete this one").field_path(".profile"),
    validation = Rule::new("self.profile != 'AmqpLocksPython' || !self.fencing").message("fencing is not possible with profile AmqpLocksPython: its clients don't support the records that store fencing tokens").field_path(".fencing"),
    validation = Rule::new("self.profile != 'AmqpLocksPython' || self.lockDelay.matches('^(0{1,7}(h|m|s|ms))+$')").message("lockDelay is not possible with profile AmqpLocksPython: its clients don't support the records that store the delay").field_path(".lockDelay"),
    validation = Rule::new("!has(self.drain) || !has(self.drain.revokeAfter) || self.drain.revokeAfter.matches('^([0-9]{1,4}h)?([0-9]{1,4}m)?([0-9]{1,4}s)?([0-9]{1,7}ms)?$')").message("drain.revokeAfter must be a duration such as 10m or 1h30m, in h, m, s and ms, without blanks").field_path(".drain.revokeAfter"),
    validation = Rule::new("!has(self.drain) || !has(self.drain.revokeAfter) || !self.drain.revokeAfter.matches('^([0-9]{1,4}h)?([0-9]{1,4}m)?([0-9]{1,4}s)?([0-9]{1,7}ms)?$') || duration(self.drain.revokeAfter) <= duration('720h')").message("drain.revokeAfter must be at most 720h").field_path(".drain.revokeAfter"),
    validation = Rule::new("!has(self.drain) || !has(self.drain.revokeAfter) || self.protocol != 'Token'").message("drain.revokeAfter is not possible with protocol Token: tokens are not numbered, so no particular holder is draining. Use another protocol, or leave drain.revokeAfter out").field_path(".drain.revokeAfter"),
    validation = Rule::new("self.lockDelay.matches('^([0-9]{1,4}h)?([0-9]{1,4}m)?([0-9]{1,4}s)?([0-9]{1,7}ms)?$')").message("lockDelay must be a duration such as 15s or 5m, in h, m, s and ms, without blanks").field_path(".lockDelay"),
    validation = Rule::new("!self.lockDelay.matches('^([0-9]{1,4}h)?([0-9]{1,4}m)?([0-9]{1,4}s)?([0-9]{1,7}ms)?$') || duration(self.lockDelay) <= duration('1h')").message("lockDelay must be at most 1h").field_path(".lockDelay"),
    validation = Rule::new("self.resize.order != 'Ascending' || self.resize.overshoot >= 1").message("resize.order Ascending needs resize.overshoot of at least 1: a change cut short leaves slots above a hole, which only a sweep beyond it finds").field_path(".resize.order"),
    validation = Rule::new("!has(self.lockName) || !self.lockName.startsWith('amq.')").message("lockName must not start with amq.: such names are the broker's own").field_path(".lockName"),
    validation = Rule::new("!has(self.lockName) || !self.lockName.matches('(-[0-9]+-[ABCF]|-[AB]-[0-9]+|-W|[.]semaphore)$')").message("lockName must not end in -<n>-A, -<n>-B, -<n>-C, -<n>-F, -A-<n>, -B-<n>, -W or .semaphore: such names are parts of other locks").field_path(".lockName"),
    validation = Rule::new("!has(self.lockName) || size(bytes(self.lockName)) <= 200").message("lockName must be at most 200 bytes long").field_path(".lockName"),
)]
#[serde(rename_all = "camelCase")]
pub struct SemaphoreSpec {
    /// Maximum number of clients that may hold the lock at the same time, 0 to 10000. `0` closes
    /// the lock; clients that are already waiting keep waiting. Lowering the value never evicts a
    /// holder: holders above it are reported as draining until they release. Defaults to 1.
    /// Example: 5.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 10000))]
    pub slots: i32,

    /// Protocol by which clients acquire the lock. All clients of a lock must use the same one.
    /// `ExclusiveQueue`: the holder declares an exclusive queue, as described by the amqp-locks
    /// guideline ("persistent semaphore"). `ExclusiveConsumer`: the holder is the exclusive
    /// consumer of the slot's queue; several times as fast, and losses are pushed to the holder.
    /// Not supported by clients of the guideline. `Token`: the holder keeps a message
    /// unacknowledged, as described by the RabbitMQ blog ("distributed semaphores"); slots are not
    /// numbered, and the broker hands a free token to the next waiter. Immutable. Defaults to
    /// `ExclusiveQueue`.
    #[serde(default = "exclusive_queue")]
    pub protocol: Protocol,

    /// Settings of protocol `Token`; rejected with any other protocol. Immutable. Unset: every
    /// field has its default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,

    /// Name of the lock on the broker, up to 200 bytes. On the operator's default connection it
    /// must start with `<namespace>.`, unless the operator allows any name. Immutable. Defaults to
    /// `<namespace>.<name>`. Example: `ci.deploy-prod`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200), regex(pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"))]
    pub lock_name: Option<String>,

    /// Broker that stores the lock. Immutable. Defaults to the operator's default connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rabbitmq_cluster_reference: Option<RabbitmqClusterReference>,

    /// Virtual host on the broker, up to 255 bytes. Rejected on the operator's default connection,
    /// unless the operator allows it. Immutable. Defaults to that of the connection, otherwise
    /// `/`. Example: `prod`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub vhost: Option<String>,

    /// Naming and durability of the lock's queues. `Guideline`: durable queues `<lockName>-<n>-A`,
    /// as described by the amqp-locks guideline; they survive a restart of the broker.
    /// `AmqpLocksPython`: non-durable queues `<lockName>-A-<n>`, as declared by the library
    /// amqp-locks-python; a restart of the broker removes them, and the operator then recreates
    /// them. Clients of one profile do not see holders of the other. `AmqpLocksPython` requires
    /// protocol `ExclusiveQueue`; on RabbitMQ 4.3 and newer, the broker must also permit
    /// `transient_nonexcl_queues`. Immutable. Defaults to `Guideline`.
    #[serde(default = "guideline")]
    pub profile: Profile,

    /// Issues a token with every acquisition that is greater than all earlier tokens of that slot.
    /// The protected resource can use it to reject late writes. The tokens keep increasing even if
    /// the slot is removed and added again. Requires profile `Guideline`. With protocol `Token`
    /// this requires `token.queueType: Quorum`, and tokens increase for each token id instead of
    /// each slot. Defaults to `false`.
    #[serde(default)]
    pub fencing: bool,

    /// Time that a slot stays unavailable after its holder ended without releasing it, for example
    /// because it crashed. Gives the previous holder's work time to end. `0s` to `1h`. Slots added
    /// later use a changed value immediately; an existing slot uses it from the next holder that
    /// reads this resource. Requires profile `Guideline`; not supported with protocol `Token`.
    /// Defaults to `0s`. Example: `15s`.
    #[serde(default = "no_delay")]
    #[schemars(length(min = 2, max = 20))]
    pub lock_delay: String,

    /// Controls how the operator adds and removes slots on the broker. Ignored with protocol
    /// `Token`, where slots are not numbered.
    #[serde(default)]
    pub resize: Resize,

    /// Limits how long draining holders may keep their slots. Unset: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,

    /// What happens to the slots when this resource is deleted. `Delete`: remove them; holders
    /// keep theirs until they release. `Retain`: leave them. Defaults to `Delete`.
    #[serde(default = "delete")]
    pub deletion_policy: DeletionPolicy,

    /// Delays deletion of this resource. `None`: delete immediately. `Unused`: wait until no slot
    /// is held, including draining slots. While the deletion waits, the operator changes nothing
    /// on the broker, even with deletion policy `Retain`. Namespace deletion is never delayed. May
    /// be changed at any time, including while the deletion waits. Defaults to `None`.
    #[serde(default = "unguarded")]
    pub deletion_guard: SemaphoreGuard,

    /// If true, the operator observes and reports but makes no changes on the broker. Defaults to
    /// `false`.
    #[serde(default)]
    pub suspend: bool,
}

/// Reference to the broker, in the format of the RabbitMQ messaging topology operator.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq, KubeSchema)]
#[x_kube(
    validation = Rule::new("has(self.name) != has(self.connectionSecret)").message("set exactly one of `name` (a RabbitmqCluster) and `connectionSecret` (a Secret)")
)]
#[serde(rename_all = "camelCase")]
pub struct RabbitmqClusterReference {
    /// Name of a RabbitmqCluster managed by the RabbitMQ cluster operator. The operator connects
    /// as the cluster's default user and reads its port, certificate and Secret from the
    /// RabbitmqCluster. Mutually exclusive with `connectionSecret`. Unset: `connectionSecret` is
    /// required. Example: `rabbit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub name: Option<String>,

    /// Namespace of the RabbitmqCluster or Secret. A namespace other than that of this resource
    /// must be permitted by the annotation `rabbitmq.com/topology-allowed-namespaces` of the
    /// RabbitmqCluster or Secret: a comma-separated list of namespaces, or `*`. Defaults to the
    /// namespace of this resource. Example: `messaging`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,

    /// Secret with the address of the broker and the credentials of a user. Keys: `host`, `port`,
    /// `username` and `password`, as in the default-user Secret of a RabbitmqCluster, or `amqpUri`
    /// (amqp://user:password@host:5672/vhost). `managementUri` (http://host:15672) or `uri` may
    /// set the management API, which provides the identities of holders. `adminUri`, or
    /// `adminSecretName` for another Secret with that key, sets the administrator that revokes
    /// slots. With amqps://, https:// or `tls: "true"`, the keys `ca.crt`, `tls.crt` and `tls.key`
    /// configure TLS. `probe` sets how to find out whether a queue exists. No label is required. Mutually exclusive with `name`. Unset: `name` is required. Example:
    /// `{name: rabbit}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_secret: Option<SecretReference>,
}

impl RabbitmqClusterReference {
    /// The broker referred to, or `None` for a reference that the API server rejects.
    fn broker(&self) -> Option<BrokerReference> {
        let secret = self.connection_secret.as_ref().map(|secret| &secret.name);
        let name = self.name.as_ref().or(secret)?.clone();
        let namespace = self.namespace.clone();
        Some(BrokerReference { is_cluster: self.name.is_some(), name, namespace })
    }
}

/// Controls how the operator adds and removes slots on the broker.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resize {
    /// Number of slot numbers above the highest known slot that the operator checks for stray
    /// slots, 0 to 1000. Stray slots found there are removed. Defaults to 16. Example: 64.
    #[serde(default = "default_overshoot")]
    #[schemars(range(min = 0, max = 1000))]
    pub overshoot: i32,

    /// Order in which slots above a lowered `slots` are removed. `Descending`: highest number
    /// first. `Ascending`: lowest number first; clients that search from slot 1 and stop at the
    /// first missing slot no longer reach any of these slots after the first removal. Requires
    /// `overshoot` of at least 1. Defaults to `Descending`.
    #[serde(default = "descending")]
    pub order: Order,
}

impl Default for Resize {
    fn default() -> Self {
        Self { overshoot: default_overshoot(), order: descending() }
    }
}

/// Order in which slots are removed.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, schemars::JsonSchema)]
pub enum Order {
    /// Highest number first.
    Descending,
    /// Lowest number first.
    Ascending,
}

impl From<Order> for DeletionOrder {
    fn from(order: Order) -> Self {
        match order {
            Order::Descending => Self::Descending,
            Order::Ascending => Self::Ascending,
        }
    }
}

impl SemaphoreSpec {
    /// Returns the broker reference, or `None` for the operator's default connection.
    #[must_use]
    pub fn broker(&self) -> Option<BrokerReference> {
        self.rabbitmq_cluster_reference.as_ref()?.broker()
    }

    /// Returns the protocol and the queue names of the lock. Ignores combinations that the API
    /// server rejects.
    #[must_use]
    pub fn naming(&self) -> naming::Protocol {
        let queue_type = self.token.as_ref().map(|token| token.queue_type.into());
        match self.protocol {
            Protocol::ExclusiveQueue => naming::Protocol::ExclusiveQueue(self.profile.into()),
            Protocol::ExclusiveConsumer => naming::Protocol::ExclusiveConsumer,
            Protocol::Token => naming::Protocol::Token(queue_type.unwrap_or_default()),
        }
    }
}

fn no_delay() -> String {
    "0s".to_owned()
}

fn exclusive_queue() -> Protocol {
    Protocol::ExclusiveQueue
}

fn guideline() -> Profile {
    Profile::Guideline
}

fn descending() -> Order {
    Order::Descending
}

fn one() -> i32 {
    1
}

fn delete() -> DeletionPolicy {
    DeletionPolicy::Delete
}

fn default_overshoot() -> i32 {
    to_i32(DEFAULT_OVERSHOOT)
}
