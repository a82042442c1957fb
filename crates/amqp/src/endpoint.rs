//! The address of a broker, and how to connect to it. Nothing here connects; see `connection`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lockkeeper_net::opening::Gate;
use rustls::ClientConfig;
use secrecy::{ExposeSecret, SecretString};

use super::features::{Features, Probe};
use crate::error::AmqpError;

/// Maximum frame size, in bytes. lapin keeps two buffers of 32 frames for each
/// connection. With the broker's 128 KiB that is 8 MiB, and the largest frame that is sent
/// has only a queue name and a few hundred bytes of arguments.
pub(super) const FRAME_MAX: u32 = 16 * 1024;

/// Creates the TLS configuration, or returns why that fails.
pub type MakeTls = Box<dyn Fn() -> Result<Arc<ClientConfig>, String> + Send + Sync>;

/// The address of a broker, and how to connect to it.
pub struct Endpoint {
    /// Host name or address of the listener.
    pub host: String,
    /// Port of the listener.
    pub port: u16,
    /// Host and port in messages.
    pub address: String,
    /// User name.
    pub username: String,
    /// Password.
    pub password: SecretString,
    /// Virtual host.
    pub vhost: String,
    /// `None`: unencrypted. Called for the first connection.
    pub make_tls: Option<MakeTls>,
    /// How to find out whether a queue exists. `None`: by the broker's properties.
    pub probe: Option<Probe>,
    /// Connection name shown by the broker's management UI.
    pub client_name: String,
    /// Time limit of TCP and the whole handshake.
    pub connect_timeout: Duration,
    /// Time limit of each operation on the open connection.
    pub operation_timeout: Duration,
    /// In seconds. `None`: the broker's proposal.
    pub heartbeat: Option<u16>,
    /// Limits of the connections that are being opened.
    pub gate: Gate,
    /// Findings of the first connection.
    pub found: Found,
}

/// The findings of the first connection to an [`Endpoint`].
#[derive(Default)]
pub struct Found {
    tls: OnceLock<Result<Arc<ClientConfig>, String>>,
    connected: AtomicBool,
    /// Whether the last attempt to connect has reached a listener.
    pub(crate) reached: Arc<AtomicBool>,
    pub(crate) features: OnceLock<Features>,
}

impl Endpoint {
    /// Whether a connection to it has ever succeeded.
    pub fn was_connected(&self) -> bool {
        self.found.connected.load(Ordering::Acquire)
    }

    /// Records that a connection to it has succeeded.
    pub(crate) fn set_connected(&self) {
        self.found.connected.store(true, Ordering::Release);
    }

    /// Returns the error for a broker that did not answer within this time.
    pub fn no_answer(&self, limit: Duration) -> AmqpError {
        let why = if self.is_mute() {
            format!("it accepts connections, but gives no answer within {limit:?}")
        } else {
            format!("no answer within {limit:?}")
        };
        AmqpError::Unreachable { endpoint: self.address.clone(), why }
    }

    /// Returns the error to report for one of an attempt to connect.
    pub(crate) fn explained(&self, error: AmqpError) -> AmqpError {
        match error {
            AmqpError::Unreachable { endpoint, why } if error.is_cut() && self.is_mute() => {
                let why = format!("it accepts connections, but ends them: {why}");
                AmqpError::Unreachable { endpoint, why }
            }
            error => error,
        }
    }

    /// Whether the listener may be that of another protocol: it was never a broker's.
    fn is_mute(&self) -> bool {
        self.found.reached.load(Ordering::Acquire) && !self.was_connected()
    }

    /// Returns the address as lapin takes it.
    pub(crate) fn uri(&self) -> AMQPUri {
        AMQPUri {
            // Also with TLS, which is added once this process has its own handle on the
            // socket.
            scheme: AMQPScheme::AMQP,
            authority: AMQPAuthority {
                userinfo: AMQPUserInfo {
                    username: self.username.clone(),
                    password: self.password.expose_secret().to_owned(),
                },
                host: self.host.clone(),
                port: self.port,
            },
            vhost: self.vhost.clone(),
            query: AMQPQueryString {
                heartbeat: self.heartbeat,
                frame_max: Some(FRAME_MAX),
                ..AMQPQueryString::default()
            },
        }
    }

    /// Returns the TLS configuration. `None` for an unencrypted connection.
    pub(crate) fn tls(&self) -> Result<Option<Arc<ClientConfig>>, AmqpError> {
        let Some(make) = &self.make_tls else { return Ok(None) };
        let config = self.found.tls.get_or_init(make).clone();
        config
            .map(Some)
            .map_err(|why| AmqpError::CertificateRefused { endpoint: self.address.clone(), why })
    }
}
