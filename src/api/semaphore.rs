//! The Semaphore kind: what its spec may say. Its status is in `status`.

mod ending;
mod status;

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use self::ending::unguarded;
pub use self::ending::{Drain, SemaphoreGuard};
pub use self::status::{HolderStatus, SemaphoreStatus};
use super::{DeletionPolicy, SecretReference};
use crate::plan::connection::BrokerReference;
use crate::plan::naming;
use crate::plan::semaphore::{DEFAULT_OVERSHOOT, DeletionOrder};

/// Most holders listed in a status; the counts cover all of them (hazard K10).
pub const MAX_LISTED_HOLDERS: usize = 50;

/// What the semaphore should be: how many slots, where, under which name.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, PartialEq, Eq, KubeSchema)]
#[kube(
    group = "lockkeeper.dev",
    version = "v1alpha1",
    kind = "Semaphore",
    namespaced,
    doc = "A lock that up to spec.slots clients may hold at once, kept in RabbitMQ. Change spec.slots to resize it while clients hold it.",
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
        description = "Slots within the wanted count that a client holds"
    ),
    printcolumn(
        name = "Free",
        type_ = "integer",
        json_path = ".status.free",
        description = "Slots that may be taken now"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether the broker has exactly the wanted slots"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since creation"
    ),
    printcolumn(
        name = "Draining",
        type_ = "integer",
        json_path = ".status.draining",
        description = "Holders on slots above the wanted count",
        priority = 1
    ),
    printcolumn(
        name = "Waiting",
        type_ = "integer",
        json_path = ".status.waiting",
        description = "Clients that wait for a slot and want to be told of one",
        priority = 1
    ),
    printcolumn(
        name = "Holders",
        type_ = "string",
        json_path = ".status.holdersSummary",
        description = "Who holds which slot",
        priority = 1
    ),
    printcolumn(
        name = "Lock",
        type_ = "string",
        json_path = ".status.lockName",
        description = "The lock's name on the broker",
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
    validation = Rule::new("has(self.lockName) == has(oldSelf.lockName) && (!has(self.lockName) || self.lockName == oldSelf.lockName)").message("lockName can't be changed, added or removed after creation: create another Semaphore with the new lockName and delete this one").field_path(".lockName"),
    validation = Rule::new("has(self.rabbitmqClusterReference) == has(oldSelf.rabbitmqClusterReference) && (!has(self.rabbitmqClusterReference) || self.rabbitmqClusterReference == oldSelf.rabbitmqClusterReference)").message("rabbitmqClusterReference can't be changed, added or removed after creation: create another Semaphore for the other broker and delete this one").field_path(".rabbitmqClusterReference"),
    validation = Rule::new("has(self.vhost) == has(oldSelf.vhost) && (!has(self.vhost) || self.vhost == oldSelf.vhost)").message("vhost can't be changed, added or removed after creation: create another Semaphore in the other vhost and delete this one").field_path(".vhost"),
    validation = Rule::new("self.protocol == oldSelf.protocol").message("protocol can't be changed after creation: create another Semaphore with the other protocol and another lockName, and delete this one").field_path(".protocol"),
    validation = Rule::new("(has(self.token) ? self.token.queueType : 'Classic') == (has(oldSelf.token) ? oldSelf.token.queueType : 'Classic')").message("token.queueType can't be changed after creation: create another Semaphore with the other queueType and another lockName, and delete this one").field_path(".token"),
    validation = Rule::new("self.protocol == 'Token' || !has(self.token)").message("token is only for protocol Token: leave it out, or set protocol: Token").field_path(".token"),
    validation = Rule::new("self.protocol == 'ExclusiveQueue' || self.profile == 'Guideline'").message("profile AmqpLocksPython is only for protocol ExclusiveQueue, which is all that its clients know: leave profile or protocol out").field_path(".profile"),
    validation = Rule::new("self.protocol != 'Token' || !self.fencing || (has(self.token) && self.token.queueType == 'Quorum')").message("fencing with protocol Token needs token.queueType: Quorum, since only such a queue counts how often a token changed hands").field_path(".fencing"),
    validation = Rule::new("self.protocol != 'Token' || duration(self.lockDelay) == duration('0s')").message("lockDelay is not possible with protocol Token: the broker gives a token back to the next client by itself, and nobody could make it rest. Use another protocol, or leave lockDelay out").field_path(".lockDelay"),
    validation = Rule::new("self.profile == oldSelf.profile").message("profile can't be changed after creation: create another Semaphore with the other profile and delete this one").field_path(".profile"),
    validation = Rule::new("self.profile != 'AmqpLocksPython' || !self.fencing").message("fencing is not possible with profile AmqpLocksPython: its clients know no records beside the slots, so they would neither get nor raise the numbers").field_path(".fencing"),
    validation = Rule::new("self.profile != 'AmqpLocksPython' || duration(self.lockDelay) == duration('0s')").message("lockDelay is not possible with profile AmqpLocksPython: its clients know no records beside the slots, so none would wait").field_path(".lockDelay"),
    validation = Rule::new("!has(self.drain) || !has(self.drain.revokeAfter) || duration(self.drain.revokeAfter) <= duration('720h')").message("drain.revokeAfter must be at most 720h").field_path(".drain.revokeAfter"),
    validation = Rule::new("!has(self.drain) || !has(self.drain.revokeAfter) || self.protocol != 'Token'").message("drain.revokeAfter is not possible with protocol Token: tokens have no numbers, so nobody in particular is above the count. Use another protocol, or leave drain.revokeAfter out").field_path(".drain.revokeAfter"),
    validation = Rule::new("duration(self.lockDelay) <= duration('1h')").message("lockDelay must be at most 1h").field_path(".lockDelay"),
    validation = Rule::new("self.resize.order != 'Ascending' || self.resize.overshoot >= 1").message("resize.order Ascending needs resize.overshoot of at least 1: a change cut short leaves slots above a hole, which only a sweep beyond it finds").field_path(".resize.order"),
    validation = Rule::new("!has(self.lockName) || !self.lockName.startsWith('amq.')").message("lockName must not start with amq.: such names are the broker's own").field_path(".lockName"),
    validation = Rule::new("!has(self.lockName) || !self.lockName.matches('(-[0-9]+-[ABCF]|-[AB]-[0-9]+|-W|[.]semaphore)$')").message("lockName must not end in -<n>-A, -<n>-B, -<n>-C, -<n>-F, -A-<n>, -B-<n>, -W or .semaphore: such names are parts of other locks").field_path(".lockName"),
    validation = Rule::new("!has(self.lockName) || size(bytes(self.lockName)) <= 200").message("lockName must be at most 200 bytes long").field_path(".lockName"),
)]
#[serde(rename_all = "camelCase")]
pub struct SemaphoreSpec {
    /// How many clients may hold the lock at once, 0 to 10000; 0 means nobody may acquire it.
    /// Lowering the count never takes a slot from its holder: holders above the count are
    /// counted as draining until they release. Default 1. Example: 5.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 10000))]
    pub slots: i32,

    /// How a client holds the lock; all clients of one lock must use the same. ExclusiveQueue: as
    /// the amqp-locks guideline says ("persistent semaphore"), by a queue that belongs to its
    /// connection. ExclusiveConsumer: by being the only consumer of the slot's queue, which is
    /// several times as fast, and whose loss the broker tells at once; clients of the guideline
    /// don't know it. Token: by a message that it doesn't acknowledge, as the RabbitMQ blog
    /// describes ("distributed semaphores"); slots have no numbers then, and the broker itself
    /// gives a free one to whoever waits. Can't be changed. Default ExclusiveQueue.
    #[serde(default = "exclusive_queue")]
    pub protocol: Protocol,

    /// What is particular to protocol Token, and only allowed there. Absent: as if each of its
    /// fields had its default. Can't be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,

    /// The lock's name on the broker, at most 200 bytes; clients use it to acquire. Can't be
    /// changed. Default: <namespace>.<name>. Example: ci.deploy-prod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200), regex(pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"))]
    pub lock_name: Option<String>,

    /// The broker that keeps the lock. Absent: the operator's default connection. Can't be
    /// changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rabbitmq_cluster_reference: Option<RabbitmqClusterReference>,

    /// The virtual host on the broker, at most 255 bytes. Can't be changed. Default: that of
    /// the connection, else /. Example: prod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub vhost: Option<String>,

    /// How the lock's queues are named and kept. Guideline: as the amqp-locks guideline says,
    /// <lockName>-<n>-A, which survive a restart of the broker. AmqpLocksPython: as the library
    /// amqp-locks-python has them, <lockName>-A-<n>, which don't, and are made again at the next
    /// look; its clients and those of the Guideline don't see each other's holders. A broker that
    /// refuses queues that are not durable (RabbitMQ from 4.3 on) can't have the second, nor can
    /// another protocol than ExclusiveQueue. Can't be changed. Default Guideline.
    #[serde(default = "guideline")]
    pub profile: Profile,

    /// true: each acquisition of a slot gets a number greater than any before on that slot, which
    /// the client passes on to what the lock guards, so that this can refuse whoever lost the lock
    /// without knowing. The numbers are kept in a record beside each slot, also while the slot is
    /// removed. Only in profile Guideline. In protocol Token only with token.queueType Quorum,
    /// whose tokens have such numbers anyway: the token's id and how often it changed hands, in
    /// one number that grows for each token. Default false.
    #[serde(default)]
    pub fencing: bool,

    /// How long a slot whose holder ended without releasing it stays unused: the next holder waits
    /// that long before it begins, so that what the last one still does can end. 0s to 1h. It is
    /// kept in a record beside each slot, so a changed value reaches a slot with the next holder
    /// that knows this resource, and slots added from now on at once. Only in profile Guideline,
    /// and not in protocol Token. Default 0s. Example: 15s.
    #[serde(default = "no_delay")]
    #[schemars(
        length(min = 2, max = 20),
        regex(pattern = r"^([0-9]{1,4}h)?([0-9]{1,4}m)?([0-9]{1,4}s)?([0-9]{1,7}ms)?$")
    )]
    pub lock_delay: String,

    /// How the number of slots is changed on the broker. Without effect in protocol Token, where
    /// slots have no numbers.
    #[serde(default)]
    pub resize: Resize,

    /// What becomes of holders above the wanted count. Absent: they keep their slots for as long as
    /// they want.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,

    /// What happens to the slots when this resource is deleted: Delete removes them (holders
    /// keep theirs until they release), Retain leaves them. Default Delete.
    #[serde(default = "delete")]
    pub deletion_policy: DeletionPolicy,

    /// What a deletion of this resource waits for: None, nothing; Unused, that nobody holds a slot,
    /// be it above the wanted count. Until then the resource stays, with its deletion time, and
    /// nothing on the broker is touched, also with deletionPolicy Retain. A namespace that is deleted
    /// is not held up. Can be changed at any time, also then. Default None.
    #[serde(default = "unguarded")]
    pub deletion_guard: SemaphoreGuard,

    /// true: observe holders and report, but change nothing on the broker. Default false.
    #[serde(default)]
    pub suspend: bool,
}

/// Where the broker is; the shape is that of the RabbitMQ messaging topology operator.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq, KubeSchema)]
#[x_kube(
    validation = Rule::new("has(self.name) != has(self.connectionSecret)").message("name the broker by one of name, a RabbitmqCluster's, and connectionSecret, a Secret's, and not by both")
)]
#[serde(rename_all = "camelCase")]
pub struct RabbitmqClusterReference {
    /// Name of a RabbitmqCluster of the RabbitMQ cluster operator, used as its default user. Its
    /// certificate, its port and its Secret are found by it. Absent: connectionSecret is given.
    /// Example: rabbit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub name: Option<String>,

    /// The namespace of the RabbitmqCluster or of the Secret, which must allow it by its annotation
    /// rabbitmq.com/topology-allowed-namespaces: a list of namespaces with commas, or *. Default:
    /// that of this resource, which needs no such permission. Example: messaging.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,

    /// A Secret with the broker's address and a user. Keys: host, port, username and password, as
    /// in a RabbitmqCluster's default-user Secret, or amqpUri
    /// (amqp://user:password@host:5672/vhost); managementUri (http://host:15672) or uri name the
    /// management API, which tells who the holders are. For amqps:// and https:// (or tls: true
    /// beside host): ca.crt, tls.crt and tls.key. Secrets need no label. Absent: name is given.
    /// Example: {name: rabbit}.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_secret: Option<SecretReference>,
}

impl RabbitmqClusterReference {
    /// What is named; nothing where the API server would have refused it.
    fn broker(&self) -> Option<BrokerReference> {
        let secret = self.connection_secret.as_ref().map(|secret| &secret.name);
        let name = self.name.as_ref().or(secret)?.clone();
        let namespace = self.namespace.clone();
        Some(BrokerReference { is_cluster: self.name.is_some(), name, namespace })
    }
}

/// How the number of slots is changed on the broker.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resize {
    /// How many slot numbers above the highest known one are swept for stray slots, 0 to 1000.
    /// Slots that appear there by accident are removed. Default 16. Example: 64.
    #[serde(default = "default_overshoot")]
    #[schemars(range(min = 0, max = 1000))]
    pub overshoot: i32,

    /// In which order the slots above a lowered count go. Descending: from the highest down.
    /// Ascending: from the lowest up, which keeps clients that search from slot 1 and stop at the
    /// first missing one out of all of them at once; it needs an overshoot of at least 1. Default
    /// Descending.
    #[serde(default = "descending")]
    pub order: Order,
}

impl Default for Resize {
    fn default() -> Self {
        Self { overshoot: default_overshoot(), order: descending() }
    }
}

/// In which order slots go.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, schemars::JsonSchema)]
pub enum Order {
    /// The highest first.
    Descending,
    /// The lowest first.
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

/// How a client holds a lock.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, schemars::JsonSchema)]
pub enum Protocol {
    /// By an exclusive queue.
    ExclusiveQueue,
    /// By an exclusive consumer.
    ExclusiveConsumer,
    /// By an unacknowledged message.
    Token,
}

/// What is particular to protocol Token.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Token {
    /// The queue that keeps the tokens. Classic: as the clients of the RabbitMQ blog declare it,
    /// durable and without arguments, on one node of the broker. Quorum: replicated, and counting
    /// how often a token changed hands, for fencing; clients that declare it as the blog does are
    /// refused (406), so they must not declare it. Can't be changed. Default Classic.
    #[serde(default = "classic")]
    pub queue_type: QueueType,
}

/// The kind of the queue that keeps the tokens.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, schemars::JsonSchema)]
pub enum QueueType {
    /// On one node, without arguments.
    Classic,
    /// Replicated.
    Quorum,
}

impl From<QueueType> for naming::QueueType {
    fn from(queue_type: QueueType) -> Self {
        match queue_type {
            QueueType::Classic => Self::Classic,
            QueueType::Quorum => Self::Quorum,
        }
    }
}

impl SemaphoreSpec {
    /// Where its broker is; absent, on the operator's default connection.
    #[must_use]
    pub fn broker(&self) -> Option<BrokerReference> {
        self.rabbitmq_cluster_reference.as_ref()?.broker()
    }

    /// How its clients hold it, and in which queues. What the API server refuses to combine is
    /// left aside.
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

/// How a lock's queues are named and kept.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, schemars::JsonSchema)]
pub enum Profile {
    /// The amqp-locks guideline's.
    Guideline,
    /// That of the library amqp-locks-python.
    AmqpLocksPython,
}

impl From<Profile> for naming::Profile {
    fn from(profile: Profile) -> Self {
        match profile {
            Profile::Guideline => Self::Guideline,
            Profile::AmqpLocksPython => Self::AmqpLocksPython,
        }
    }
}

fn no_delay() -> String {
    "0s".to_owned()
}

fn exclusive_queue() -> Protocol {
    Protocol::ExclusiveQueue
}

fn classic() -> QueueType {
    QueueType::Classic
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
    i32::try_from(DEFAULT_OVERSHOOT).unwrap_or(i32::MAX)
}
