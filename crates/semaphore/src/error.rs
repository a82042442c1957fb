//! Errors of the broker, as values. Each one has a class for the retry policy, a name for
//! conditions and events, and a message with the next step. See `lockkeeper_amqp::error` for
//! what fails on a connection.

mod origins;
#[cfg(test)]
mod tests;

use std::time::Duration;

use lockkeeper_amqp::refusal::is_queue_limit;
use lockkeeper_net::opening::PATIENCE;
use lockkeeper_plan::ErrorClass;

/// Explains a virtual host that looks percent-encoded.
fn undecoded(vhost: &str) -> &'static str {
    if !vhost.contains('%') {
        return "";
    }
    "; spec.vhost and --vhost are not percent-decoded, so write / for %2F"
}

/// Why an operation on the broker failed. Cheap to clone, because one failed connection
/// attempt is reported to all tasks that waited for it. Contains no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// The connection could not be opened.
    #[error(
        "the broker at {endpoint} can't be reached ({why}): check that it runs, its address and port (usually 5672, and 5671 with TLS), and that a network policy lets us through"
    )]
    Unreachable {
        /// `host:port`.
        endpoint: String,
        /// The cause.
        why: String,
    },
    /// A limit of this process or machine prevents connections, for example the one of
    /// open files. It says nothing about the broker, and retrying is useless.
    #[error("no connection to the broker can be opened: {why}")]
    ProcessLimit {
        /// The limit, and how to raise it.
        why: String,
    },
    /// Too many other connections are being opened. It says nothing about the broker.
    #[error("the connection to the broker is not opened yet ({why}): trying again")]
    ConnectionDelayed {
        /// Which connections, and what to do.
        why: String,
    },
    /// The broker rejected the user name or password.
    #[error(
        "the broker at {endpoint} refuses the user {user:?}: check the user name and the password in the connection's Secret, or in AMQP_URL"
    )]
    AuthenticationFailed {
        /// `host:port`.
        endpoint: String,
        /// The rejected user.
        user: String,
    },
    /// The TLS handshake failed. Either one side rejected the other's certificate, or the
    /// broker does not use TLS on that port.
    #[error(
        "the encrypted connection to the broker at {endpoint} was refused ({why}): check ca.crt, tls.crt and tls.key of the Secret, or the files of the TLS variables, that the broker's certificate names the host, and that the port speaks TLS"
    )]
    CertificateRefused {
        /// `host:port`.
        endpoint: String,
        /// The cause.
        why: String,
    },
    /// The user lacks a permission.
    #[error(
        "the broker refuses access ({why}): give the user configure, write and read permission for the lock's queues, and write for amq.default, in this virtual host"
    )]
    AccessRefused {
        /// The broker's message: the user and the refused permission.
        why: String,
    },
    /// The virtual host does not exist.
    #[error(
        "the broker has no virtual host {vhost:?}: create it, or name another one{}",
        undecoded(.vhost)
    )]
    VhostNotFound {
        /// The virtual host.
        vhost: String,
    },
    /// The admin mutex, or a queue of that name, is held by another connection.
    #[error(
        "the admin mutex, the exclusive queue {queue:?}, is held by {} (waited {waited:?}): another administrator works on this lock, or a client took its name; trying again",
        .holder.as_deref().unwrap_or("another connection")
    )]
    MutexBusy {
        /// The mutex's queue.
        queue: String,
        /// The connection that holds it, and its user, as far as the management API shows
        /// them. It does so up to 6 s late.
        holder: Option<String>,
        /// How long the operation waited.
        waited: Duration,
    },
    /// A queue of the lock has other arguments, or is exclusive to a connection. It is
    /// neither used, deleted nor declared again.
    #[error("the queue {queue:?} is in the way ({why}): delete it, or choose another lock name")]
    IncompatibleQueue {
        /// The queue's name.
        queue: String,
        /// The difference, as reported by the broker.
        why: String,
    },
    /// Clients of another protocol hold the lock's slots, by other queues. A client of
    /// this protocol would hold a slot in addition to them.
    #[error(
        "the lock is one of protocol {protocol}, as the queue {queue:?} shows: use that protocol, or choose another lock name"
    )]
    ProtocolMismatch {
        /// The queue that proves it.
        queue: String,
        /// The lock's protocol.
        protocol: &'static str,
    },
    /// The token queue keeps fewer tokens than requested, in protocol Token.
    #[error(
        "the queue {queue:?} keeps only {kept} of {desired} tokens: exclude it from policies with max-length, max-length-bytes or message-ttl, or delete it if it has such arguments"
    )]
    TokensLimited {
        /// The token queue.
        queue: String,
        /// Number of tokens that it keeps.
        kept: u64,
        /// Number of tokens that it should keep.
        desired: u32,
    },
    /// The lock is a true mutex, which an administrator neither creates nor resizes.
    #[error(
        "{lock} is a true mutex, which has nothing to administer: its holder creates and removes it"
    )]
    NothingToAdminister {
        /// The lock's name.
        lock: String,
    },
    /// The broker rejects non-durable queues, which the slots of profile
    /// `AmqpLocksPython` are. It closes the whole connection on such a declare.
    #[error(
        "the broker refuses queues that are not durable ({why}), as RabbitMQ 4.3 and newer do, and the profile AmqpLocksPython has such slots: set deprecated_features.permit.transient_nonexcl_queues = true on the broker while it allows that, or use the profile Guideline"
    )]
    TransientQueuesRefused {
        /// The broker's message.
        why: String,
    },
    /// The broker's software lacks a feature that the lock needs.
    #[error("{broker} can't carry {what}: use RabbitMQ, or leave that out (docs/brokers.md)")]
    Unsupported {
        /// The broker's product.
        broker: &'static str,
        /// What can't be used, and why.
        what: &'static str,
    },
    /// The home node of a queue is down, so it is unknown which slots exist.
    #[error(
        "a node of the broker is down, so slots may only seem to be missing ({why}): nothing was changed; bring the node back"
    )]
    NodeDown {
        /// The broker's message: the queue and the node.
        why: String,
    },
    /// A memory or disk alarm blocks publishers.
    #[error(
        "the broker blocks publishers (a memory or disk alarm), so slots can't be seen and nothing was changed: free memory or disk space on the broker"
    )]
    Blocked,
    /// A limit of the broker, the virtual host or the user was reached.
    #[error("a limit of the broker is reached ({why}): {}", limit_advice(.why))]
    QuotaExceeded {
        /// The broker's message: the limit.
        why: String,
    },
    /// The number of tokens is unknown, in protocol Token.
    #[error(
        "the number of tokens of the queue {queue:?}, including held ones, is only available from the management API ({why}): nothing was changed; give the connection a managementUrl that answers"
    )]
    CountUnknown {
        /// The token queue.
        queue: String,
        /// The cause.
        why: String,
    },
    /// The connection that owned the admin mutex was lost, and the mutex with it.
    #[error(
        "the connection that held the admin mutex was lost ({why}): the change is incomplete and is taken up again"
    )]
    MutexLost {
        /// Why the connection was closed.
        why: String,
    },
    /// A connection was lost.
    #[error("the connection to the broker was lost ({why}): connecting again")]
    ConnectionLost {
        /// Why the connection was closed.
        why: String,
    },
    /// The broker did not answer in time. Whether it performed the operation is unknown.
    #[error("the broker did not answer {what} within {after:?}: check its load and its alarms")]
    Timeout {
        /// The operation.
        what: &'static str,
        /// How long the operation waited.
        after: Duration,
    },
    /// The caller cancelled the operation. Completed steps are kept.
    #[error("stopped before everything was done; the rest is done at the next attempt")]
    Interrupted,
    /// The broker sent an answer that the protocol does not allow.
    #[error("the broker answered unexpectedly ({why}): see its log")]
    Protocol {
        /// The answer.
        why: String,
    },
}

impl BrokerError {
    /// Classifies the error for the next attempt. `Invalid` requires a person to act.
    /// That may happen on the broker, where no watch sees it, so it is also retried at
    /// the usual slow interval.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::AuthenticationFailed { .. }
            | Self::CertificateRefused { .. }
            | Self::AccessRefused { .. }
            | Self::VhostNotFound { .. }
            | Self::IncompatibleQueue { .. }
            | Self::ProtocolMismatch { .. }
            | Self::TokensLimited { .. }
            | Self::NothingToAdminister { .. }
            | Self::TransientQueuesRefused { .. }
            | Self::Unsupported { .. }
            | Self::QuotaExceeded { .. } => ErrorClass::Invalid,
            Self::MutexBusy { .. } => ErrorClass::Waiting(Duration::from_secs(2)),
            Self::ConnectionDelayed { .. } => ErrorClass::Waiting(PATIENCE),
            Self::Blocked | Self::CountUnknown { .. } => {
                ErrorClass::Waiting(Duration::from_secs(10))
            }
            Self::Unreachable { .. }
            | Self::ProcessLimit { .. }
            | Self::NodeDown { .. }
            | Self::MutexLost { .. }
            | Self::ConnectionLost { .. }
            | Self::Timeout { .. }
            | Self::Interrupted
            | Self::Protocol { .. } => ErrorClass::Transient,
        }
    }

    /// Returns the name for conditions, events and metrics. It is part of the API and
    /// never renamed.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "BrokerUnreachable",
            Self::ProcessLimit { .. } => "ProcessLimitReached",
            Self::ConnectionDelayed { .. } => "ConnectionDelayed",
            Self::AuthenticationFailed { .. } => "AuthenticationFailed",
            Self::CertificateRefused { .. } => "CertificateRefused",
            Self::AccessRefused { .. } => "AccessRefused",
            Self::VhostNotFound { .. } => "VhostNotFound",
            Self::MutexBusy { .. } => "AdminMutexBusy",
            Self::IncompatibleQueue { .. } => "IncompatibleQueue",
            Self::ProtocolMismatch { .. } => "ProtocolMismatch",
            Self::TokensLimited { .. } => "PolicyLimitsTokens",
            Self::NothingToAdminister { .. } => "NothingToAdminister",
            Self::TransientQueuesRefused { .. } => "TransientQueuesRefused",
            Self::Unsupported { .. } => "UnsupportedByBroker",
            Self::NodeDown { .. } => "BrokerNodeDown",
            Self::Blocked => "BrokerBlocked",
            Self::QuotaExceeded { .. } => "QuotaExceeded",
            Self::CountUnknown { .. } => "CountUnknown",
            Self::MutexLost { .. } => "AdminMutexLost",
            Self::ConnectionLost { .. } => "BrokerConnectionLost",
            Self::Timeout { .. } => "BrokerTimeout",
            Self::Interrupted => "Interrupted",
            Self::Protocol { .. } => "BrokerProtocolError",
        }
    }

    /// Whether a limit on connections or channels was reached. Other clients use them up, so
    /// it may pass at any moment: for example, the broker counts the connections of clients
    /// that have just ended for a while. A limit on queues stays until a person acts.
    pub(crate) fn is_limit_of_clients(&self) -> bool {
        matches!(self, Self::QuotaExceeded { why } if !is_queue_limit(why))
    }

    /// Whether a limit on queues was reached. The broker applies it only to new queues.
    pub(crate) fn is_limit_of_queues(&self) -> bool {
        matches!(self, Self::QuotaExceeded { why } if is_queue_limit(why))
    }

    /// Whether the broker failed to declare an exclusive queue because it was still
    /// removing its predecessor of the same name. RabbitMQ 4 removes the queue after its
    /// owner is gone. A declare that meets the remains closes the connection of the next
    /// owner. Nothing was declared, and a retry succeeds shortly after.
    pub(crate) fn is_collision(&self) -> bool {
        matches!(self, Self::ConnectionLost { why } if why == "INTERNAL_ERROR")
    }
}

/// What to do about a limit. A change of a lock declares the admin mutex.
fn limit_advice(why: &str) -> &'static str {
    if is_queue_limit(why) {
        "raise the limit, or delete a queue that is not needed; a change of a lock needs one more queue for a moment"
    } else {
        "raise the limit, or end clients that are not needed"
    }
}
