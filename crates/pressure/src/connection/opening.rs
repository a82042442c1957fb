//! Opens one connection: encrypted or not, to the server itself or to the master named by
//! sentinels, with login, database and name. See `nodes.rs` for the set of connections.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockkeeper_net::tls::client_config;
use lockkeeper_plan::clean_text;
use lockkeeper_plan::connection::{RedisSettings, SentinelSettings, TlsSettings};
use lockkeeper_plan::pressure_queue::doctor::OWN_CONNECTIONS;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{ErrorKind, RedisError, ServerErrorKind};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use secrecy::ExposeSecret;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::flow::Connection;
use super::nodes::Address;
use super::options::StoreOptions;
use crate::StoreError;

/// Time without traffic after which the kernel probes the server's machine, and the
/// interval of the probes.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(5));

/// Time without any acknowledgement of data or probes by the server's machine, after
/// which a connection ends.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

/// The purpose of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Commands of all callers, which are answered immediately.
    Shared,
    /// Commands of one caller, which waits this long for answers.
    Own(Duration),
}

/// Opens connections according to the settings.
pub(super) struct Opener {
    pub(super) settings: RedisSettings,
    pub(super) options: StoreOptions,
    /// The TLS configuration, or why it could not be created.
    tls: OnceLock<Result<Arc<ClientConfig>, String>>,
}

impl Opener {
    pub(super) fn new(settings: RedisSettings, options: StoreOptions) -> Self {
        Self { settings, options, tls: OnceLock::new() }
    }

    /// Opens a connection to this node, or to the server of the settings, and logs in.
    pub(super) async fn open(
        &self,
        node: Option<&Address>,
        purpose: Purpose,
    ) -> Result<Connection, StoreError> {
        let connection = match (node, &self.settings.sentinel) {
            (Some(node), _) => self.open_at(&node.host, node.port, purpose).await?,
            (None, Some(sentinel)) => self.open_master(sentinel, purpose).await?,
            (None, None) => self.open_at(&self.settings.host, self.settings.port, purpose).await?,
        };
        tracing::debug!(server = ?self.settings, ?node, "connected to Redis");
        Ok(connection)
    }

    async fn open_at(
        &self,
        host: &str,
        port: u16,
        purpose: Purpose,
    ) -> Result<Connection, StoreError> {
        let opened = match self.dial_and_greet(host, port, purpose).await {
            // A server rejects the client certificate only after the handshake. Whether
            // its reason arrives or the connection just breaks is a race.
            Err(StoreError::Unreachable { .. }) if self.settings.tls.is_some() => {
                self.dial_and_greet(host, port, purpose).await.map_err(|err| match err {
                    StoreError::Unreachable { detail } if detail.contains("broken pipe") => {
                        let detail = "the server ended the connection right after the handshake";
                        StoreError::CertificateRefused { detail: detail.to_owned() }
                    }
                    other => other,
                })
            }
            other => other,
        };
        opened.map_err(|err| match err {
            StoreError::Unreachable { detail } => {
                // A sentinel may have chosen the host.
                let detail = clean_text(&format!("{host}:{port}: {detail}"), 256);
                StoreError::Unreachable { detail }
            }
            other => other,
        })
    }

    async fn dial_and_greet(
        &self,
        host: &str,
        port: u16,
        purpose: Purpose,
    ) -> Result<Connection, StoreError> {
        let mut connection = self.dial(host, port, purpose).await?;
        self.log_in(&mut connection).await?;
        self.select(&mut connection).await?;
        self.name(&mut connection).await?;
        connection.allow(self.options.longest_answer);
        Ok(connection)
    }

    /// Asks one sentinel after the other. Connects to the first named server that reports
    /// itself as master: after a failover a sentinel may still name the old one.
    async fn open_master(
        &self,
        sentinel: &SentinelSettings,
        purpose: Purpose,
    ) -> Result<Connection, StoreError> {
        // A sentinel that does not answer leaves time for the others and the master.
        let parts = u32::try_from(sentinel.addresses.len()).unwrap_or(u32::MAX).saturating_add(1);
        let patience = self.options.connect_timeout / parts;
        let mut failure = StoreError::Timeout;
        for (host, port) in &sentinel.addresses {
            let asked = timeout(patience, self.ask_sentinel(host, *port, &sentinel.master)).await;
            let opened = match asked.unwrap_or(Err(StoreError::Timeout)) {
                Ok(master) => self.open_if_master(&master, purpose).await,
                Err(err) => Err(err),
            };
            match opened {
                Ok(connection) => return Ok(connection),
                Err(err) => {
                    tracing::debug!(sentinel = host, port, %err, "no master by this sentinel");
                    failure = err;
                }
            }
        }
        Err(failure)
    }

    async fn ask_sentinel(
        &self,
        host: &str,
        port: u16,
        master: &str,
    ) -> Result<Address, StoreError> {
        let mut connection = self.dial(host, port, Purpose::Shared).await?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
        let ask = async |connection: &mut Connection| {
            question
                .query_async::<Option<(String, u16)>>(connection)
                .await
                .map_err(StoreError::from)
        };
        let answer = match ask(&mut connection).await {
            // Most sentinels require no login, and refuse an unknown one.
            Err(StoreError::AuthenticationFailed { .. }) => {
                self.log_in(&mut connection).await?;
                ask(&mut connection).await?
            }
            other => other?,
        };
        let (host, port) = answer.ok_or_else(|| StoreError::Unavailable {
            detail: clean_text(&format!("the sentinel knows no master named {master}"), 256),
        })?;
        Ok(Address { host, port })
    }

    async fn open_if_master(
        &self,
        address: &Address,
        purpose: Purpose,
    ) -> Result<Connection, StoreError> {
        let mut connection = self.open_at(&address.host, address.port, purpose).await?;
        let role: Vec<redis::Value> = redis::cmd("ROLE").query_async(&mut connection).await?;
        match role.into_iter().next().map(redis::from_redis_value::<String>) {
            Some(Ok(role)) if role == "master" => Ok(connection),
            _ => {
                let detail = "the server that the sentinel names is no master (yet)".to_owned();
                Err(StoreError::ReadOnly { detail })
            }
        }
    }

    /// Opens a connection without sending anything.
    async fn dial(
        &self,
        host: &str,
        port: u16,
        purpose: Purpose,
    ) -> Result<Connection, StoreError> {
        let limit = match purpose {
            Purpose::Shared => self.options.response_timeout,
            Purpose::Own(patience) => patience,
        };
        let stream = TcpStream::connect((host, port)).await.map_err(StoreError::dialing)?;
        tune(&stream).map_err(RedisError::from)?;
        let connection = match &self.settings.tls {
            None => Connection::over(stream, limit).await,
            Some(tls) => {
                let connector = TlsConnector::from(self.tls(tls)?);
                let name = ServerName::try_from(host.to_owned()).map_err(|error| {
                    StoreError::CertificateRefused { detail: clean_text(&error.to_string(), 256) }
                })?;
                // Before the limit of the whole attempt, which would not say where it ended. A
                // server without TLS waits for a line, and does not answer.
                let shaking =
                    timeout(self.options.connect_timeout * 9 / 10, connector.connect(name, stream));
                let stream = match shaking.await {
                    Ok(stream) => stream.map_err(RedisError::from)?,
                    Err(_) => return Err(StoreError::HandshakeTimeout),
                };
                Connection::over(stream, limit).await
            }
        };
        Ok(connection?)
    }

    fn tls(&self, settings: &TlsSettings) -> Result<Arc<ClientConfig>, StoreError> {
        let made = self.tls.get_or_init(|| client_config(Some(settings.expose())));
        let cleaned =
            |why: String| StoreError::CertificateRefused { detail: clean_text(&why, 256) };
        made.clone().map_err(cleaned)
    }

    /// Sets the connection's name, which helps readers of CLIENT LIST. An ACL may forbid
    /// this. A server that requires a login, rejects the address or has reached its client
    /// limit reports it here first.
    async fn name(&self, connection: &mut Connection) -> Result<(), StoreError> {
        let name: String = clean_text(&self.options.client_id, 200)
            .chars()
            // The only characters that CLIENT SETNAME accepts.
            .map(|c| if c.is_ascii_graphic() { c } else { '-' })
            .collect();
        let mut command = redis::cmd("CLIENT");
        command.arg("SETNAME").arg(format!("{OWN_CONNECTIONS}{name}"));
        let named: Result<(), RedisError> = command.query_async(connection).await;
        match named.map_err(StoreError::from) {
            Err(
                err @ (StoreError::AuthenticationFailed { .. }
                | StoreError::ConnectionDenied { .. }
                | StoreError::CertificateRefused { .. }
                | StoreError::Unreachable { .. }
                | StoreError::Unavailable { .. }
                | StoreError::Timeout
                | StoreError::HandshakeTimeout),
            ) => Err(err),
            _ => Ok(()),
        }
    }

    async fn log_in(&self, connection: &mut Connection) -> Result<(), StoreError> {
        let password = self.settings.password.as_ref().map(ExposeSecret::expose_secret);
        let mut auth = redis::cmd("AUTH");
        match (&self.settings.username, password) {
            (None, None) => return Ok(()),
            (None, Some(password)) => auth.arg(password),
            // A user with `nopass` can log in with any password.
            (Some(username), password) => auth.arg(username).arg(password.unwrap_or_default()),
        };
        let answer: Result<(), RedisError> = auth.query_async(connection).await;
        answer.map_err(|err| match err.kind() {
            // "AUTH called without any password configured" and similar errors.
            ErrorKind::Server(ServerErrorKind::ResponseError)
                if !err.detail().unwrap_or_default().contains("max number of clients") =>
            {
                let detail = clean_text(err.detail().unwrap_or_default(), 256);
                StoreError::AuthenticationFailed { detail }
            }
            _ => err.into(),
        })
    }

    async fn select(&self, connection: &mut Connection) -> Result<(), StoreError> {
        let database = self.settings.database;
        if database == 0 {
            return Ok(());
        }
        let answer: Result<(), RedisError> =
            redis::cmd("SELECT").arg(database).query_async(connection).await;
        answer.map_err(|err| match StoreError::from(err) {
            // "DB index is out of range", "invalid DB index".
            StoreError::Protocol { .. } => StoreError::DatabaseOutOfRange { database },
            other => other,
        })
    }
}

/// Configures the socket to send without delay, and to end when the server's machine is
/// gone.
fn tune(stream: &TcpStream) -> io::Result<()> {
    let (idle, interval) = KEEPALIVE;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle).with_interval(interval))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    Ok(())
}
