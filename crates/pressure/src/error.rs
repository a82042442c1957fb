//! Errors of a Redis server, classified by what resolves them. Only this module parses
//! the server's error texts. Nothing here connects.

use std::error::Error;
use std::io;
use std::sync::Arc;

use lockkeeper_net::opening::PATIENCE;
use lockkeeper_net::{process_limit, tls};
use lockkeeper_plan::{ErrorClass, clean_text};
use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Maximum length of a server's text in an error, in bytes.
const DETAIL_BYTES: usize = 256;

/// Why an operation on a store failed. Never contains a password or an element of a
/// queue. After [`Self::Unanswered`] and [`Self::Protocol`] a change may have happened;
/// after the others it has not. (Before Redis 7 there is an exception: a script detects a
/// missing permission only when it is partially done.) The operation may be repeated
/// after every error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The connection could not be opened, or was lost.
    #[error(
        "Redis can't be reached ({detail}): check that the server runs, and its address in the connection's Secret, or in REDIS_URL (without that, 127.0.0.1:6379)"
    )]
    Unreachable {
        /// The network error.
        detail: String,
    },
    /// A limit of this process or machine prevents connections, for example the one of
    /// open files. It says nothing about the server, and retrying is useless.
    #[error("no connection to Redis can be opened: {detail}")]
    ProcessLimit {
        /// The limit, and how to raise it.
        detail: String,
    },
    /// Too many other connections are being opened. It says nothing about the server.
    #[error("the connection to Redis is not opened yet ({detail}): trying again")]
    ConnectionDelayed {
        /// Which connections, and what to do.
        detail: String,
    },
    /// The server rejected the user name or password, or requires them.
    #[error(
        "Redis refused the user or the password ({detail}): check username and password in the connection's Secret, or in REDIS_URL"
    )]
    AuthenticationFailed {
        /// The server's message.
        detail: String,
    },
    /// The TLS handshake failed. Either one side rejected the other's certificate, or the
    /// server does not use TLS on that port.
    #[error(
        "the encrypted connection to Redis was refused ({detail}): check ca.crt, tls.crt and tls.key of the Secret, or the files of the TLS variables, that the server's certificate names the host, and that the port speaks TLS"
    )]
    CertificateRefused {
        /// The cause.
        detail: String,
    },
    /// The ACL user may not run a command or access a key.
    #[error(
        "the Redis user lacks a permission ({detail}): extend its ACL, on the queue's prefix, by the commands that docs/permissions.md lists"
    )]
    PermissionDenied {
        /// The server's message.
        detail: String,
    },
    /// The server rejects connections from this address: it is in protected mode.
    #[error(
        "Redis refuses connections from this address ({detail}): set a password on the server, or disable its protected mode"
    )]
    ConnectionDenied {
        /// The server's message.
        detail: String,
    },
    /// A value exceeds the server's limit. The command was not performed.
    #[error(
        "Redis takes no value of this size ({detail}): split it, or raise the server's proto-max-bulk-len"
    )]
    ValueTooLarge {
        /// The server's message.
        detail: String,
    },
    /// The server has no such database.
    #[error("Redis has no database {database}: choose one below the server's `databases` setting")]
    DatabaseOutOfRange {
        /// The requested number.
        database: i64,
    },
    /// A key has a value that pressure never writes there.
    #[error(
        "the key {key} holds something that is not pressure's: choose another queueName or prefix, or remove the key"
    )]
    WrongType {
        /// The full key.
        key: String,
    },
    /// The server is a cluster node, and the queue's keys are in different slots.
    #[error(
        "this Redis is part of a cluster ({detail}): write the queue's name in braces, {{name}}, so that its keys stay together, and use database 0"
    )]
    ClusterUnsafe {
        /// The server's message.
        detail: String,
    },
    /// The server is loading its data.
    #[error("Redis is still loading its data: it answers as soon as that is done")]
    Loading,
    /// The server is a replica or refuses writes.
    #[error("Redis takes no writes ({detail}): connect to the primary")]
    ReadOnly {
        /// The server's message.
        detail: String,
    },
    /// The server's memory limit is reached.
    #[error("Redis has no memory left for a write: raise maxmemory or drain queues")]
    OutOfMemory,
    /// The server is reachable, but refuses for a temporary reason or one that its
    /// administrator must resolve.
    #[error("Redis refuses for now ({detail}): see the server's log")]
    Unavailable {
        /// The server's message.
        detail: String,
    },
    /// The server did not answer in time.
    #[error("Redis did not answer in time: check the server's load")]
    Timeout,
    /// The server did not answer the TLS handshake in time.
    #[error(
        "Redis did not answer the TLS handshake in time: check that the port speaks TLS, and the server's load"
    )]
    HandshakeTimeout,
    /// A change was sent, and the connection failed before the answer. It may have
    /// happened.
    #[error("{why}. Whether the last command took effect is not known")]
    Unanswered {
        /// The connection's error: [`Self::Unreachable`] or [`Self::Timeout`].
        why: Box<StoreError>,
    },
    /// The server's answer was not understood.
    #[error(
        "Redis answered something unexpected ({detail}): check that the server is Redis 6.2 or newer"
    )]
    Protocol {
        /// The unexpected part.
        detail: String,
    },
}

impl StoreError {
    /// Classifies the error for the next attempt. [`ErrorClass::Invalid`] means that a
    /// person must change something. That may happen on the server or in an unwatched
    /// Secret, so it is retried at the interval of the drift check.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::AuthenticationFailed { .. }
            | Self::CertificateRefused { .. }
            | Self::PermissionDenied { .. }
            | Self::ConnectionDenied { .. }
            | Self::ValueTooLarge { .. }
            | Self::DatabaseOutOfRange { .. }
            | Self::WrongType { .. }
            | Self::ClusterUnsafe { .. } => ErrorClass::Invalid,
            Self::ConnectionDelayed { .. } => ErrorClass::Waiting(PATIENCE),
            Self::Unreachable { .. }
            | Self::ProcessLimit { .. }
            | Self::Loading
            | Self::ReadOnly { .. }
            | Self::OutOfMemory
            | Self::Unavailable { .. }
            | Self::Timeout
            | Self::HandshakeTimeout
            | Self::Unanswered { .. }
            | Self::Protocol { .. } => ErrorClass::Transient,
        }
    }

    /// Returns the condition or event reason.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "StoreUnreachable",
            Self::ProcessLimit { .. } => "ProcessLimitReached",
            Self::ConnectionDelayed { .. } => "ConnectionDelayed",
            Self::AuthenticationFailed { .. } => "StoreAuthenticationFailed",
            Self::CertificateRefused { .. } => "StoreCertificateRefused",
            Self::PermissionDenied { .. } => "StorePermissionDenied",
            Self::ConnectionDenied { .. } => "StoreConnectionDenied",
            Self::ValueTooLarge { .. } => "StoreValueTooLarge",
            Self::DatabaseOutOfRange { .. } => "StoreDatabaseOutOfRange",
            Self::WrongType { .. } => "WrongType",
            Self::ClusterUnsafe { .. } => "ClusterUnsafe",
            Self::Loading => "StoreLoading",
            Self::ReadOnly { .. } => "StoreReadOnly",
            Self::OutOfMemory => "StoreOutOfMemory",
            Self::Unavailable { .. } => "StoreUnavailable",
            Self::Timeout | Self::HandshakeTimeout => "StoreTimeout",
            Self::Unanswered { why } => why.reason(),
            Self::Protocol { .. } => "StoreProtocolError",
        }
    }

    /// Whether the connection with this error should be replaced, because it is broken or
    /// leads to a server that was superseded.
    pub(super) fn spoils_connection(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::Timeout
                | Self::ReadOnly { .. }
                | Self::AuthenticationFailed { .. }
                // The server closes the connection after these two.
                | Self::ConnectionDenied { .. }
                | Self::ValueTooLarge { .. }
                | Self::Protocol { .. }
        )
    }

    /// Whether the error is temporary and the command was not performed, so that a
    /// waiting operation may retry.
    pub(super) fn passes(&self) -> bool {
        self.class() == ErrorClass::Transient
            && !matches!(
                self,
                Self::ProcessLimit { .. } | Self::Unanswered { .. } | Self::Protocol { .. }
            )
    }

    /// Converts an error of opening a socket.
    pub(super) fn dialing(err: io::Error) -> Self {
        match process_limit::behind(&err) {
            Some(limit) => Self::ProcessLimit { detail: limit.to_owned() },
            None => RedisError::from(err).into(),
        }
    }

    /// Creates the error for an answer that was not understood.
    pub(super) fn unexpected(detail: &str) -> Self {
        Self::Protocol { detail: clean_text(detail, DETAIL_BYTES) }
    }
}

impl From<RedisError> for StoreError {
    fn from(err: RedisError) -> Self {
        if err.is_timeout() {
            return Self::Timeout;
        }
        let text = err.detail().map_or_else(|| err.to_string(), ToOwned::to_owned);
        let detail = clean_text(&text, DETAIL_BYTES);
        match err.kind() {
            ErrorKind::Io if is_about_tls(&err) => Self::CertificateRefused {
                detail: clean_text(&tls::description(&err), DETAIL_BYTES),
            },
            ErrorKind::Io => Self::Unreachable { detail: clean_text(&err.to_string(), 256) },
            ErrorKind::AuthenticationFailed => Self::AuthenticationFailed { detail },
            ErrorKind::Server(kind) => from_server(kind, detail),
            // Codes that the library does not define.
            ErrorKind::Extension => from_code(err.code().unwrap_or_default(), detail),
            _ => Self::Protocol { detail },
        }
    }
}

fn from_server(kind: ServerErrorKind, detail: String) -> StoreError {
    match kind {
        ServerErrorKind::NoPerm => StoreError::PermissionDenied { detail },
        ServerErrorKind::BusyLoading => StoreError::Loading,
        ServerErrorKind::ReadOnly => StoreError::ReadOnly { detail },
        ServerErrorKind::CrossSlot => StoreError::ClusterUnsafe { detail },
        ServerErrorKind::Moved
        | ServerErrorKind::Ask
        | ServerErrorKind::TryAgain
        | ServerErrorKind::ClusterDown
        | ServerErrorKind::MasterDown
        | ServerErrorKind::NotBusy => StoreError::Unavailable { detail },
        _ => from_text(detail),
    }
}

fn from_code(code: &str, detail: String) -> StoreError {
    match code {
        "WRONGPASS" | "NOAUTH" => StoreError::AuthenticationFailed { detail },
        "DENIED" => StoreError::ConnectionDenied { detail },
        "OOM" => StoreError::OutOfMemory,
        // For a client that waits on a master that becomes a replica.
        "UNBLOCKED" => StoreError::ReadOnly { detail },
        "BUSY" | "MISCONF" | "NOREPLICAS" | "UNKILLABLE" => StoreError::Unavailable { detail },
        _ => from_text(detail),
    }
}

/// Whether the connection ended with an error of TLS. The library keeps it behind a shared
/// pointer.
fn is_about_tls(err: &RedisError) -> bool {
    let shared = err.source().and_then(|err| err.downcast_ref::<Arc<dyn Error + Send + Sync>>());
    shared.and_then(|err| err.downcast_ref()).is_some_and(tls::is_failure_of)
}

/// Classifies by the text. Servers before 7 wrap the error of a command inside a script
/// into a general one. A few refusals have no code of their own in any version.
fn from_text(detail: String) -> StoreError {
    let has = |part| detail.contains(part);
    if has("NOPERM") || has("ACL failure in script") || has("can't run this command") {
        StoreError::PermissionDenied { detail }
    } else if has("max number of clients") || has("MISCONF") || has("NOREPLICAS") {
        StoreError::Unavailable { detail }
    } else if has("invalid bulk length") {
        StoreError::ValueTooLarge { detail }
    } else if has("unauthenticated") || has("invalid password") {
        StoreError::AuthenticationFailed { detail }
    } else if has("READONLY") {
        StoreError::ReadOnly { detail }
    } else if has("OOM command not allowed") {
        StoreError::OutOfMemory
    } else if has("cluster mode") || has("non local key") || has("keys of different slots") {
        StoreError::ClusterUnsafe { detail }
    } else {
        StoreError::Protocol { detail }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn general(text: &str) -> StoreError {
        let kind = ErrorKind::Server(ServerErrorKind::ResponseError);
        RedisError::from((kind, "An error was signalled by the server", text.to_owned())).into()
    }

    #[test]
    fn refusals_without_a_distinct_code_are_classified_by_their_text() {
        // As Redis 6.2 wraps an error inside a script.
        let in_script =
            |text| format!("Error running script (call to f_0): @user_script:9: {text}");
        let denied = "-NOPERM this user has no permissions to run the 'lpush' command";
        let cases = [
            (in_script(denied), "StorePermissionDenied"),
            (in_script("-READONLY You can't write against a read only replica."), "StoreReadOnly"),
            (
                in_script("-OOM command not allowed when used memory > 'maxmemory'."),
                "StoreOutOfMemory",
            ),
            ("max number of clients reached".to_owned(), "StoreUnavailable"),
            ("SELECT is not allowed in cluster mode".to_owned(), "ClusterUnsafe"),
            ("Protocol error: invalid bulk length".to_owned(), "StoreValueTooLarge"),
            ("Protocol error: unauthenticated bulk length".to_owned(), "StoreAuthenticationFailed"),
            ("unknown command 'EVALSHA'".to_owned(), "StoreProtocolError"),
        ];
        for (text, reason) in cases {
            assert_eq!(general(&text).reason(), reason, "{text}");
        }
    }

    #[test]
    fn refusals_with_a_code_are_classified_by_that_code() {
        let coded = |code: &str| {
            let err = redis::make_extension_error(code.to_owned(), Some("x".to_owned()));
            StoreError::from(err).reason()
        };
        assert_eq!(coded("NOAUTH"), "StoreAuthenticationFailed");
        assert_eq!(coded("MISCONF"), "StoreUnavailable");
        assert_eq!(coded("OOM"), "StoreOutOfMemory");
        assert_eq!(coded("DENIED"), "StoreConnectionDenied");
        let kind = ErrorKind::Server(ServerErrorKind::BusyLoading);
        assert_eq!(StoreError::from(RedisError::from((kind, "loading"))), StoreError::Loading);
    }

    #[test]
    fn an_error_of_tls_is_no_outage_of_the_server() {
        let of = |error: io::Error| StoreError::from(RedisError::from(error)).reason();
        let tls = io::Error::new(io::ErrorKind::InvalidData, rustls::Error::DecryptError);
        assert_eq!(of(tls), "StoreCertificateRefused");
        let eof = io::ErrorKind::UnexpectedEof;
        assert_eq!(of(io::Error::new(eof, "tls handshake eof")), "StoreCertificateRefused");
        assert_eq!(of(eof.into()), "StoreUnreachable");
    }

    #[test]
    fn a_limit_of_this_process_is_no_outage_of_the_server() {
        let error = StoreError::dialing(io::Error::from_raw_os_error(nix::libc::EMFILE));
        assert_eq!(error.reason(), "ProcessLimitReached");
        assert!(!error.passes(), "a wait ends");
        assert!(error.to_string().contains("too many open files"), "{error}");
    }

    #[test]
    fn server_messages_are_sanitized_and_truncated() {
        let err = general(&format!("evil\n\u{1b}[31m{}", "x".repeat(1000)));
        let text = err.to_string();
        assert!(text.len() < 500 && !text.chars().any(char::is_control), "{text}");
    }
}
