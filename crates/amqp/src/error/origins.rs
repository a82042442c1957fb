//! Converts the errors of lapin and of the network, and violations of the protocol. See
//! `error` for the results.

use std::io;

use lapin::protocol::AMQPError;
use lapin::{Error as LapinError, ErrorKind};
use lockkeeper_net::{process_limit, tls};

use super::{AmqpError, CLOSED_BEFORE};
use crate::refusal::{is_exclusive_elsewhere, is_limit, is_node_down};
use crate::violation::Violation;

impl AmqpError {
    /// Converts an error while connecting. The same reply codes have other meanings there
    /// than on an open connection.
    pub fn connecting(error: &LapinError, endpoint: &str, user: &str, vhost: &str) -> Self {
        let ErrorKind::ProtocolError(refusal) = error.kind() else {
            return match error.kind() {
                ErrorKind::IOError(error) => Self::reaching(error, endpoint),
                _ => Self::Unreachable { endpoint: endpoint.to_owned(), why: error.to_string() },
            };
        };
        let text = refusal.get_message().as_str();
        match refusal.get_id() {
            // "Login was refused using authentication mechanism PLAIN".
            403 => {
                Self::AuthenticationFailed { endpoint: endpoint.to_owned(), user: user.to_owned() }
            }
            530 if is_limit(text) => Self::QuotaExceeded { why: broker_text(refusal) },
            530 if text.starts_with("NOT_ALLOWED - vhost ") => {
                Self::VhostNotFound { vhost: vhost.to_owned() }
            }
            530 => Self::AccessRefused { why: broker_text(refusal) },
            _ => Self::Unreachable { endpoint: endpoint.to_owned(), why: broker_text(refusal) },
        }
    }

    /// Converts an error of a socket on which at most the greeting was exchanged.
    pub(crate) fn reaching(error: &io::Error, endpoint: &str) -> Self {
        if let Some(why) = process_limit::behind(error) {
            return Self::ProcessLimit { why: why.to_owned() };
        }
        if let Some(violation) = Self::of_violation(error) {
            return violation;
        }
        let (endpoint, why) = (endpoint.to_owned(), tls::description(error));
        if tls::is_failure_of(error) {
            return Self::CertificateRefused { endpoint, why };
        }
        Self::Unreachable { endpoint, why }
    }

    /// Converts the end of a connection on which the broker sent what no broker sends.
    fn of_violation(error: &io::Error) -> Option<Self> {
        let violation = error.get_ref()?.downcast_ref::<Violation>()?;
        let why = violation.to_string();
        Some(match violation {
            Violation::SmallFrameMax(_) | Violation::SmallChannelMax(_) => {
                Self::QuotaExceeded { why }
            }
            _ => Self::Protocol { why },
        })
    }

    /// Converts an error of an operation on `queue`.
    pub fn operating(error: &LapinError, queue: &str) -> Self {
        let ErrorKind::ProtocolError(refusal) = error.kind() else {
            return match error.kind() {
                ErrorKind::SerialisationError(_) | ErrorKind::ParsingError(_) => {
                    Self::Protocol { why: error.to_string() }
                }
                // lapin marks the channels of a closed connection before the connection itself.
                ErrorKind::InvalidConnectionState(_) | ErrorKind::InvalidChannelState(..) => {
                    Self::ConnectionLost { why: CLOSED_BEFORE.to_owned() }
                }
                ErrorKind::IOError(cause) => Self::of_violation(cause)
                    .unwrap_or_else(|| Self::ConnectionLost { why: error.to_string() }),
                _ => Self::ConnectionLost { why: error.to_string() },
            };
        };
        let text = refusal.get_message().as_str();
        let why = broker_text(refusal);
        match refusal.get_id() {
            403 => Self::AccessRefused { why },
            404 if is_node_down(text) => Self::NodeDown { why },
            406 | 530 if is_limit(text) => Self::QuotaExceeded { why },
            id @ (405 | 406 | 530) if id != 530 || is_exclusive_elsewhere(text) => {
                Self::IncompatibleQueue { queue: queue.to_owned(), why }
            }
            541 if text.starts_with("INTERNAL_ERROR - Feature `transient_nonexcl_queues`") => {
                Self::TransientQueuesRefused { why }
            }
            320 | 506 | 541 | 542 => Self::ConnectionLost { why },
            _ => Self::Protocol { why },
        }
    }
}

fn broker_text(refusal: &AMQPError) -> String {
    refusal.get_message().to_string()
}
