//! Settings of a Semaphore's spec that decide how clients hold the lock: its protocol,
//! the profile of its queues, and the type of a token's queue.

use kube::KubeSchema;
use lockkeeper_plan::naming;
use serde::{Deserialize, Serialize};

/// Protocol by which clients acquire a lock.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, schemars::JsonSchema)]
pub enum Protocol {
    /// The holder declares an exclusive queue.
    ExclusiveQueue,
    /// The holder is the exclusive consumer of the slot's queue.
    ExclusiveConsumer,
    /// The holder keeps a message unacknowledged.
    Token,
}

/// Settings of protocol Token.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Token {
    /// Type of the queue that stores the tokens. `Classic`: a durable queue without arguments on
    /// one node of the broker, as declared by the clients of the RabbitMQ blog. `Quorum`: a
    /// replicated queue that counts the deliveries of each token, which fencing requires; the
    /// broker rejects a client that declares the queue as the blog does with 406, so such clients
    /// must not declare it. Immutable. Defaults to `Classic`.
    #[serde(default = "classic")]
    pub queue_type: QueueType,
}

/// Type of the queue that stores the tokens.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, schemars::JsonSchema)]
pub enum QueueType {
    /// A classic queue on one node, without arguments.
    Classic,
    /// A replicated quorum queue.
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

/// Naming and durability of a lock's queues.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, schemars::JsonSchema)]
pub enum Profile {
    /// Durable queues, as described by the amqp-locks guideline.
    Guideline,
    /// Non-durable queues, as declared by the library amqp-locks-python.
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

fn classic() -> QueueType {
    QueueType::Classic
}
