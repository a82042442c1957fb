//! Why an operation on a connection failed, as values that state facts. The crates that know
//! the purpose of a queue add the consequences and the next step. This is the only module that
//! classifies lapin's errors.

mod origins;
#[cfg(test)]
mod tests;

use std::time::Duration;

use lapin::{Error as LapinError, ErrorKind};

/// The reason of an operation that found its connection closed.
const CLOSED_BEFORE: &str = "the connection was closed before";

/// Why an operation on the broker failed. Cheap to clone, because one failed connection
/// attempt is reported to all tasks that waited for it. Contains no secret, but texts that
/// the broker chose: clean them before they are shown. `Display` escapes them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmqpError {
    /// The connection could not be opened.
    #[error("the broker at {endpoint} can't be reached: {why:?}")]
    Unreachable {
        /// `host:port`.
        endpoint: String,
        /// The cause, or the broker's text.
        why: String,
    },
    /// A limit of this process or machine prevents connections.
    #[error("no connection can be opened: {why:?}")]
    ProcessLimit {
        /// The cause, or the broker's text.
        why: String,
    },
    /// Too many other connections are being opened.
    #[error("the connection is not opened yet: {why:?}")]
    ConnectionDelayed {
        /// The cause, or the broker's text.
        why: String,
    },
    /// The broker rejected the user name or password.
    #[error("the broker at {endpoint} refuses the user {user:?}")]
    AuthenticationFailed {
        /// `host:port`.
        endpoint: String,
        /// The rejected user.
        user: String,
    },
    /// The TLS handshake failed.
    #[error("the encrypted connection to {endpoint} was refused: {why:?}")]
    CertificateRefused {
        /// `host:port`.
        endpoint: String,
        /// The cause, or the broker's text.
        why: String,
    },
    /// 403: the user lacks a permission, or another client is the exclusive consumer
    /// ([`is_in_use`](crate::refusal::is_in_use)).
    #[error("access refused: {why:?}")]
    AccessRefused {
        /// The cause, or the broker's text.
        why: String,
    },
    /// The virtual host does not exist.
    #[error("there is no virtual host {vhost:?}")]
    VhostNotFound {
        /// The virtual host.
        vhost: String,
    },
    /// 405 and 406: the queue has other arguments, or is exclusive to another connection.
    #[error("the queue {queue:?} is refused: {why:?}")]
    IncompatibleQueue {
        /// The queue.
        queue: String,
        /// The cause, or the broker's text.
        why: String,
    },
    /// The broker rejects queues that are neither durable nor exclusive.
    #[error("queues that are not durable are refused: {why:?}")]
    TransientQueuesRefused {
        /// The cause, or the broker's text.
        why: String,
    },
    /// The home node of a queue is down.
    #[error("a node is down: {why:?}")]
    NodeDown {
        /// The cause, or the broker's text.
        why: String,
    },
    /// A memory or disk alarm blocks publishers.
    #[error("the broker blocks publishers")]
    Blocked,
    /// A limit of the broker, the virtual host or the user was reached.
    #[error("a limit of the broker is reached: {why:?}")]
    QuotaExceeded {
        /// The cause, or the broker's text.
        why: String,
    },
    /// The connection was lost.
    #[error("the connection was lost: {why:?}")]
    ConnectionLost {
        /// The cause, or the broker's text.
        why: String,
    },
    /// The broker did not answer in time. Whether it performed the operation is unknown.
    #[error("no answer {what} within {after:?}")]
    Timeout {
        /// To which operation: `to queue.declare`.
        what: &'static str,
        /// How long the operation waited.
        after: Duration,
    },
    /// The runtime ended before the operation.
    #[error("stopped")]
    Interrupted,
    /// The broker sent an answer that AMQP does not allow.
    #[error("an unexpected answer: {why:?}")]
    Protocol {
        /// The cause, or the broker's text.
        why: String,
    },
}

impl AmqpError {
    /// Whether a connection attempt was cut off without a reason.
    pub(crate) fn is_cut(&self) -> bool {
        let Self::Unreachable { why, .. } = self else { return false };
        let why = why.to_ascii_lowercase();
        ["reset by peer", "broken pipe", "connection aborted", "close_notify", "eof"]
            .iter()
            .any(|part| why.contains(part))
    }

    /// Whether an operation found the connection closed. Why it was closed, another
    /// operation or the connection's events tell.
    pub(crate) fn is_closed_before(&self) -> bool {
        matches!(self, Self::ConnectionLost { why } if why == CLOSED_BEFORE)
    }

    /// Whether the connection on which this error occurred must not be used again.
    pub(crate) fn is_fatal_for_connection(&self) -> bool {
        matches!(self, Self::ConnectionLost { .. } | Self::Timeout { .. } | Self::Protocol { .. })
    }
}

/// Returns the reply code of a refusal that closed only the channel.
pub fn refusal_code(error: &LapinError) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(refusal) => Some(refusal.get_id()),
        _ => None,
    }
}
