//! Converts the errors of a connection, which state facts, to those of a lock, which say what
//! to do. Cleans the texts that the broker chose. See `error` for the results.

use lockkeeper_amqp::error::AmqpError;
use lockkeeper_plan::clean_text;

use super::BrokerError;

/// Maximum length of a text taken from the broker, in bytes.
const MAX_TEXT: usize = 512;

impl From<AmqpError> for BrokerError {
    fn from(error: AmqpError) -> Self {
        let clean = |text: String| clean_text(&text, MAX_TEXT);
        match error {
            AmqpError::Unreachable { endpoint, why } => {
                Self::Unreachable { endpoint, why: clean(why) }
            }
            AmqpError::ProcessLimit { why } => Self::ProcessLimit { why },
            AmqpError::ConnectionDelayed { why } => Self::ConnectionDelayed { why },
            AmqpError::AuthenticationFailed { endpoint, user } => {
                Self::AuthenticationFailed { endpoint, user: clean(user) }
            }
            AmqpError::CertificateRefused { endpoint, why } => {
                Self::CertificateRefused { endpoint, why: clean(why) }
            }
            AmqpError::AccessRefused { why } => Self::AccessRefused { why: clean(why) },
            AmqpError::VhostNotFound { vhost } => Self::VhostNotFound { vhost: clean(vhost) },
            AmqpError::IncompatibleQueue { queue, why } => {
                Self::IncompatibleQueue { queue: clean(queue), why: clean(why) }
            }
            AmqpError::TransientQueuesRefused { why } => {
                Self::TransientQueuesRefused { why: clean(why) }
            }
            AmqpError::NodeDown { why } => Self::NodeDown { why: clean(why) },
            AmqpError::Blocked => Self::Blocked,
            AmqpError::QuotaExceeded { why } => Self::QuotaExceeded { why: clean(why) },
            AmqpError::ConnectionLost { why } => Self::ConnectionLost { why: clean(why) },
            AmqpError::Timeout { what, after } => Self::Timeout { what, after },
            AmqpError::Interrupted => Self::Interrupted,
            AmqpError::Protocol { why } => Self::Protocol { why: clean(why) },
        }
    }
}
