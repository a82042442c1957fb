//! The address of a broker, and how to connect to it. Nothing here connects; see `connection`.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lockkeeper_net::opening::Gate;
use lockkeeper_net::tls::client_config;
use lockkeeper_plan::clean_text;
use lockkeeper_plan::connection::RabbitmqSettings;
use rustls::ClientConfig;
use secrecy::ExposeSecret;

use super::features::Features;
use crate::error::BrokerError;

/// Maximum frame size, in bytes. lapin keeps two buffers of 32 frames for each
/// connection. With the broker's 128 KiB that is 8 MiB, and Lockkeeper's largest frame
/// has only a queue name and a few facts of a holder.
pub(super) const FRAME_MAX: u32 = 16 * 1024;

/// The address of a broker, and how to connect to it.
pub struct Endpoint {
    pub settings: RabbitmqSettings,
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
    /// The TLS configuration, created with the first connection.
    pub connector: Connector,
    /// Whether a connection to it has ever succeeded.
    pub connected: AtomicBool,
    /// What the broker offers, determined with the first connection.
    pub features: OnceLock<Features>,
}

impl Endpoint {
    /// Returns `host:port`, for messages.
    pub fn address(&self) -> String {
        self.settings.address()
    }

    /// Returns the address as lapin takes it.
    pub fn uri(&self) -> AMQPUri {
        AMQPUri {
            // Also with TLS, which is added once this process has its own handle on the
            // socket.
            scheme: AMQPScheme::AMQP,
            authority: AMQPAuthority {
                userinfo: AMQPUserInfo {
                    username: self.settings.username.clone(),
                    password: self.settings.password.expose_secret().to_owned(),
                },
                host: self.settings.host.clone(),
                port: self.settings.port,
            },
            vhost: self.settings.vhost.clone(),
            query: AMQPQueryString {
                heartbeat: self.heartbeat,
                frame_max: Some(FRAME_MAX),
                ..AMQPQueryString::default()
            },
        }
    }

    /// Returns the TLS configuration. `None` for an unencrypted connection.
    pub fn tls(&self) -> Result<Option<Arc<ClientConfig>>, BrokerError> {
        let Some(tls) = &self.settings.tls else { return Ok(None) };
        let made = self.connector.get_or_init(|| client_config(Some(tls.expose())));
        made.clone()
            .map(Some)
            .map_err(|why| clean_text(&why, 256))
            .map_err(|why| BrokerError::CertificateRefused { endpoint: self.address(), why })
    }
}

/// The TLS configuration, or why it could not be created.
pub type Connector = OnceLock<Result<Arc<ClientConfig>, String>>;
