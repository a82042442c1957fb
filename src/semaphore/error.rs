//! What can go wrong at the broker, as values: each with what it means for the
//! next attempt, a name for conditions and events, and a text that says what to
//! do. Telling these apart from lapin's errors is done here and nowhere else.

use std::io;
use std::time::Duration;

use lapin::protocol::AMQPError;
use lapin::{Error as LapinError, ErrorKind};

use crate::plan::{ErrorClass, clean_text};

/// Longest text taken over from the broker, in bytes.
const MAX_TEXT: usize = 512;

/// Why something could not be done at the broker. Cheap to clone: one failed
/// attempt to connect is told to everyone who waited for it. Contains no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// No connection could be made.
    #[error(
        "the broker at {endpoint} can't be reached ({why}): check that it runs, its address and port, and that a network policy lets us through"
    )]
    Unreachable {
        /// `host:port`.
        endpoint: String,
        /// What the attempt ended with.
        why: String,
    },
    /// The broker refused user and password.
    #[error(
        "the broker at {endpoint} refuses the user {user:?}: check the user name and the password in the connection's Secret"
    )]
    AuthenticationFailed {
        /// `host:port`.
        endpoint: String,
        /// The user who was refused.
        user: String,
    },
    /// No encrypted connection came about: one side does not accept the other's
    /// certificate, or the broker speaks no TLS there.
    #[error(
        "the encrypted connection to the broker at {endpoint} was refused ({why}): check ca.crt, tls.crt and tls.key, that the broker's certificate names the host, and that the port speaks TLS"
    )]
    CertificateRefused {
        /// `host:port`.
        endpoint: String,
        /// What was wrong.
        why: String,
    },
    /// The user may not do this.
    #[error(
        "the broker refuses access ({why}): give the user configure, write and read permission for the lock's queues, and write for amq.default, in this virtual host"
    )]
    AccessRefused {
        /// The broker's words: what was refused to whom.
        why: String,
    },
    /// The virtual host does not exist.
    #[error("the broker has no virtual host {vhost:?}: create it, or name another one")]
    VhostNotFound {
        /// The virtual host.
        vhost: String,
    },
    /// Another connection holds the admin mutex, or a queue of its name.
    #[error(
        "the admin mutex, the exclusive queue {queue:?}, is held by another connection (waited {waited:?}): another administrator works on this lock, or a client took its name; trying again"
    )]
    MutexBusy {
        /// The mutex's queue.
        queue: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A queue of ours has other arguments, or belongs to a connection. It is
    /// neither used, deleted nor declared again.
    #[error("the queue {queue:?} is in the way ({why}): delete it, or choose another lock name")]
    IncompatibleQueue {
        /// The queue's name.
        queue: String,
        /// How it differs, in the broker's words.
        why: String,
    },
    /// The broker takes no queues that end with it, as the slots of profile
    /// `AmqpLocksPython` are. It ends the whole connection when asked for one.
    #[error(
        "the broker refuses queues that are not durable ({why}), as RabbitMQ 4.3 and newer do, and the profile AmqpLocksPython has such slots: set deprecated_features.permit.transient_nonexcl_queues = true on the broker while it allows that, or use the profile Guideline"
    )]
    TransientQueuesRefused {
        /// The broker's words.
        why: String,
    },
    /// A queue's home node is down, so nobody knows which slots exist.
    #[error(
        "a node of the broker is down, so slots may only seem to be missing ({why}): nothing was changed; bring the node back"
    )]
    NodeDown {
        /// The broker's words: which queue, which node.
        why: String,
    },
    /// A memory or disk alarm stops publishers.
    #[error(
        "the broker blocks publishers (a memory or disk alarm), so slots can't be seen and nothing was changed: free memory or disk space on the broker"
    )]
    Blocked,
    /// A limit of the broker, the virtual host or the user is reached.
    #[error("a limit of the broker is reached ({why}): raise the limit, or ask for fewer slots")]
    QuotaExceeded {
        /// The broker's words: which limit.
        why: String,
    },
    /// How many tokens there are, in protocol Token, is not known.
    #[error(
        "how many tokens the queue {queue:?} has, held ones included, only the management API tells ({why}): nothing was changed; give the connection a managementUrl that answers"
    )]
    CountUnknown {
        /// The token queue.
        queue: String,
        /// Why it is not known.
        why: String,
    },
    /// The connection that owned the admin mutex died, and the mutex with it.
    #[error(
        "the connection that held the admin mutex was lost ({why}): the change is incomplete and is taken up again"
    )]
    MutexLost {
        /// What the connection ended with.
        why: String,
    },
    /// A connection died.
    #[error("the connection to the broker was lost ({why}): connecting again")]
    ConnectionLost {
        /// What the connection ended with.
        why: String,
    },
    /// The broker did not answer in time; whether it did what was asked is
    /// unknown.
    #[error("the broker did not answer {what} within {after:?}: check its load and its alarms")]
    Timeout {
        /// What was asked.
        what: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// The caller asked to stop. What was done so far stays done.
    #[error("stopped before everything was done; the rest is done at the next attempt")]
    Interrupted,
    /// The broker answered something that the protocol has no place for.
    #[error("the broker answered unexpectedly ({why}): see its log")]
    Protocol {
        /// The answer.
        why: String,
    },
}

impl BrokerError {
    /// What this means for the next attempt. `Invalid` needs a person, who may
    /// well act on the broker, where no watch can see it: look again at the
    /// usual slow interval too.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::AuthenticationFailed { .. }
            | Self::CertificateRefused { .. }
            | Self::AccessRefused { .. }
            | Self::VhostNotFound { .. }
            | Self::IncompatibleQueue { .. }
            | Self::TransientQueuesRefused { .. }
            | Self::QuotaExceeded { .. } => ErrorClass::Invalid,
            Self::MutexBusy { .. } => ErrorClass::Waiting(Duration::from_secs(2)),
            Self::Blocked | Self::CountUnknown { .. } => {
                ErrorClass::Waiting(Duration::from_secs(10))
            }
            Self::Unreachable { .. }
            | Self::NodeDown { .. }
            | Self::MutexLost { .. }
            | Self::ConnectionLost { .. }
            | Self::Timeout { .. }
            | Self::Interrupted
            | Self::Protocol { .. } => ErrorClass::Transient,
        }
    }

    /// The name for conditions, events and metrics. An API: never renamed.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "BrokerUnreachable",
            Self::AuthenticationFailed { .. } => "AuthenticationFailed",
            Self::CertificateRefused { .. } => "CertificateRefused",
            Self::AccessRefused { .. } => "AccessRefused",
            Self::VhostNotFound { .. } => "VhostNotFound",
            Self::MutexBusy { .. } => "AdminMutexBusy",
            Self::IncompatibleQueue { .. } => "IncompatibleQueue",
            Self::TransientQueuesRefused { .. } => "TransientQueuesRefused",
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

    /// From an error while connecting, where the same reply codes mean other
    /// things than on an open connection.
    pub(super) fn connecting(error: &LapinError, endpoint: &str, user: &str, vhost: &str) -> Self {
        let ErrorKind::ProtocolError(refusal) = error.kind() else {
            return match error.kind() {
                ErrorKind::IOError(error) => Self::reaching(error, endpoint),
                _ => Self::Unreachable { endpoint: endpoint.to_owned(), why: words(error) },
            };
        };
        let text = refusal.get_message().as_str();
        match refusal.get_id() {
            // "Login was refused using authentication mechanism PLAIN".
            403 => Self::AuthenticationFailed {
                endpoint: endpoint.to_owned(),
                user: clean_text(user, MAX_TEXT),
            },
            // Limits share the reply code with "vhost not found" and "access
            // refused": only the text tells.
            530 if text.contains("limit") => Self::QuotaExceeded { why: broker_text(refusal) },
            530 if text.contains("not found") => {
                Self::VhostNotFound { vhost: clean_text(vhost, MAX_TEXT) }
            }
            530 => Self::AccessRefused { why: broker_text(refusal) },
            _ => Self::Unreachable { endpoint: endpoint.to_owned(), why: broker_text(refusal) },
        }
    }

    /// From an error of a socket on which nothing was said yet, or no more than the
    /// greeting.
    pub(super) fn reaching(error: &io::Error, endpoint: &str) -> Self {
        let endpoint = endpoint.to_owned();
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(error) => {
                Self::CertificateRefused { endpoint, why: clean_text(&error.to_string(), MAX_TEXT) }
            }
            None => Self::Unreachable { endpoint, why: clean_text(&error.to_string(), MAX_TEXT) },
        }
    }

    /// From an error of an operation on `queue`.
    pub(super) fn operating(error: &LapinError, queue: &str) -> Self {
        let ErrorKind::ProtocolError(refusal) = error.kind() else {
            return match error.kind() {
                ErrorKind::SerialisationError(_) | ErrorKind::ParsingError(_) => {
                    Self::Protocol { why: words(error) }
                }
                _ => Self::ConnectionLost { why: words(error) },
            };
        };
        let why = broker_text(refusal);
        match refusal.get_id() {
            403 => Self::AccessRefused { why },
            404 if is_node_down(&why) => Self::NodeDown { why },
            406 if why.contains("limit") => Self::QuotaExceeded { why },
            405 | 406 => Self::IncompatibleQueue { queue: clean_text(queue, MAX_TEXT), why },
            _ if why.contains("transient_nonexcl_queues") => Self::TransientQueuesRefused { why },
            320 | 541 | 542 => Self::ConnectionLost { why },
            _ => Self::Protocol { why },
        }
    }

    /// Whether a connection that was being made ended without a word.
    pub(super) fn is_cut(&self) -> bool {
        let Self::Unreachable { why, .. } = self else { return false };
        let why = why.to_ascii_lowercase();
        ["reset by peer", "broken pipe", "connection aborted", "close_notify", "eof"]
            .iter()
            .any(|part| why.contains(part))
    }

    /// Whether the broker failed at making an exclusive queue because it was still
    /// removing the last one of that name: RabbitMQ 4 does that after the queue's owner
    /// is gone, meets the rest of it and ends the connection that wants to be the next
    /// owner. Nothing was made, and it works a moment later.
    pub(super) fn is_collision(&self) -> bool {
        matches!(self, Self::ConnectionLost { why } if why == "INTERNAL_ERROR")
    }

    /// Whether the connection on which this happened must not be used again.
    pub(super) fn is_fatal_for_connection(&self) -> bool {
        matches!(
            self,
            Self::ConnectionLost { .. }
                | Self::MutexLost { .. }
                | Self::Timeout { .. }
                | Self::Protocol { .. }
        )
    }
}

/// The reply code of a refusal that closed only the channel.
pub(super) fn refusal_code(error: &LapinError) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(refusal) => Some(refusal.get_id()),
        _ => None,
    }
}

fn is_node_down(text: &str) -> bool {
    // "home node 'rabbit@b' of durable queue 'x' in vhost '/' is down or
    // inaccessible": the queue exists, and will be back with its node.
    text.contains("down or inaccessible") || text.contains("is stopped by supervisor")
}

fn broker_text(refusal: &AMQPError) -> String {
    clean_text(refusal.get_message().as_str(), MAX_TEXT)
}

fn words(error: &LapinError) -> String {
    clean_text(&error.to_string(), MAX_TEXT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};

    fn refused(kind: impl Into<AMQPErrorKind>, text: &str) -> LapinError {
        ErrorKind::ProtocolError(AMQPError::new(kind.into(), text.into())).into()
    }

    #[test]
    fn a_missing_queue_whose_node_is_down_is_told_from_one_that_is_gone() {
        let down = refused(
            AMQPSoftError::NOTFOUND,
            "NOT_FOUND - home node 'rabbit@b' of durable queue 'jobs-2-A' in vhost '/' is down or inaccessible",
        );
        assert_eq!(BrokerError::operating(&down, "jobs-2-A").reason(), "BrokerNodeDown");
        let gone = refused(AMQPSoftError::NOTFOUND, "NOT_FOUND - no queue 'jobs-2-A' in vhost '/'");
        assert_eq!(BrokerError::operating(&gone, "jobs-2-A").reason(), "BrokerProtocolError");
    }

    #[test]
    fn the_refusal_of_transient_queues_is_told_from_a_connection_lost_by_accident() {
        // As 4.0.5 says it where the feature is not permitted.
        let text = "INTERNAL_ERROR - Feature `transient_nonexcl_queues` is deprecated.\nIts use is not permitted per the configuration";
        let refused = refused(AMQPHardError::INTERNALERROR, text);
        let error = BrokerError::operating(&refused, "jobs-A-1");
        assert_eq!(error.reason(), "TransientQueuesRefused");
        assert_eq!(error.class(), ErrorClass::Invalid);
        assert!(error.to_string().contains("AmqpLocksPython"), "{error}");
    }

    #[test]
    fn a_limit_is_not_taken_for_a_missing_virtual_host() {
        let limit = refused(
            AMQPHardError::NOTALLOWED,
            "NOT_ALLOWED - access to vhost 'x' refused for user 'u': connection limit (1) is reached",
        );
        assert_eq!(BrokerError::connecting(&limit, "h:1", "u", "x").reason(), "QuotaExceeded");
        let missing = refused(AMQPHardError::NOTALLOWED, "NOT_ALLOWED - vhost x not found");
        assert_eq!(BrokerError::connecting(&missing, "h:1", "u", "x").reason(), "VhostNotFound");
    }

    #[test]
    fn a_text_from_the_broker_can_not_carry_control_characters() {
        let nasty = refused(AMQPSoftError::PRECONDITIONFAILED, "a\u{1b}[31m\nb");
        let shown = BrokerError::operating(&nasty, "q\n").to_string();
        assert!(!shown.chars().any(char::is_control), "{shown:?}");
    }
}
