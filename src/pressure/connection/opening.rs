//! How one connection is opened: encrypted or not, to the server itself or to
//! the one that sentinels name, with login, database and name. Which connections
//! there are is not decided here.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ErrorKind, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, ServerErrorKind, TlsCertificates,
};
use rustls::crypto::CryptoProvider;
use secrecy::ExposeSecret;
use tokio::time::timeout;

use super::StoreOptions;
use super::nodes::Address;
use crate::plan::clean_text;
use crate::plan::connection::{RedisSettings, SentinelSettings, TlsSettings};
use crate::plan::pressure_queue::doctor::OWN_CONNECTIONS;
use crate::pressure::StoreError;

/// How long a silent connection waits before it asks whether the server is
/// there, how long between questions, and how many go unanswered.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(15), Duration::from_secs(5), 3);

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Commands of everybody, which are answered at once.
    Shared,
    /// Commands of one caller, which waits for answers so long.
    Own(Duration),
}

/// Opens connections as the settings say.
pub(super) struct Opener {
    pub(super) settings: RedisSettings,
    pub(super) options: StoreOptions,
}

impl Opener {
    /// A connection to this node, or to the server of the settings, logged in.
    pub(super) async fn open(
        &self,
        node: Option<&Address>,
        purpose: Purpose,
    ) -> Result<MultiplexedConnection, StoreError> {
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
    ) -> Result<MultiplexedConnection, StoreError> {
        match self.dial_and_greet(host, port, purpose).await {
            // A server refuses our certificate only after the handshake. Whether
            // its reason arrives, or the connection is found broken, is chance.
            Err(StoreError::Unreachable { .. }) if self.settings.tls.is_some() => {}
            other => return other,
        }
        self.dial_and_greet(host, port, purpose).await.map_err(|err| match err {
            StoreError::Unreachable { detail } if detail.contains("broken pipe") => {
                let detail = "the server ended the connection right after the handshake".to_owned();
                StoreError::CertificateRefused { detail }
            }
            other => other,
        })
    }

    async fn dial_and_greet(
        &self,
        host: &str,
        port: u16,
        purpose: Purpose,
    ) -> Result<MultiplexedConnection, StoreError> {
        let mut connection = self.dial(host, port, purpose).await?;
        self.log_in(&mut connection).await?;
        self.select(&mut connection).await?;
        self.name(&mut connection).await?;
        Ok(connection)
    }

    /// Asks one sentinel after the other, and connects to the first server named
    /// that says itself that it is the master: after a failover a sentinel may
    /// still name the old one.
    async fn open_master(
        &self,
        sentinel: &SentinelSettings,
        purpose: Purpose,
    ) -> Result<MultiplexedConnection, StoreError> {
        // One that does not answer leaves time for the others and the master.
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
        let ask = async |connection: &mut MultiplexedConnection| {
            question
                .query_async::<Option<(String, u16)>>(connection)
                .await
                .map_err(StoreError::from)
        };
        let answer = match ask(&mut connection).await {
            // Most sentinels want no login, and refuse one that they do not know.
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
    ) -> Result<MultiplexedConnection, StoreError> {
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

    /// An open connection on which nothing was said yet.
    async fn dial(
        &self,
        host: &str,
        port: u16,
        purpose: Purpose,
    ) -> Result<MultiplexedConnection, StoreError> {
        let (idle, interval, retries) = KEEPALIVE;
        let keepalive =
            TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(retries);
        let address = match &self.settings.tls {
            None => ConnectionAddr::Tcp(host.to_owned(), port),
            Some(_) => ConnectionAddr::TcpTls {
                host: host.to_owned(),
                port,
                insecure: false,
                tls_params: None,
            },
        };
        // Login and database are sent by ourselves, to see the server's own
        // refusals; CLIENT SETINFO is unknown to Redis before 7.2.
        let info = address
            .into_connection_info()?
            .set_tcp_settings(TcpSettings::default().set_nodelay(true).set_keepalive(keepalive))
            .set_redis_settings(RedisConnectionInfo::default().set_skip_set_lib_name());
        let response_timeout = match purpose {
            Purpose::Shared => self.options.response_timeout,
            Purpose::Own(patience) => patience,
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.options.connect_timeout))
            .set_response_timeout(Some(response_timeout));
        let client = match &self.settings.tls {
            None => Client::open(info)?,
            Some(tls) => {
                choose_provider();
                Client::build_with_tls(info, certificates(tls))?
            }
        };
        Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
    }

    /// A name is a kindness to whoever reads CLIENT LIST, and an ACL may forbid
    /// it; but a server that wants a login, or has no place for one more client,
    /// says so here first.
    async fn name(&self, connection: &mut MultiplexedConnection) -> Result<(), StoreError> {
        let name: String = clean_text(&self.options.client_id, 200)
            .chars()
            // All that CLIENT SETNAME takes.
            .map(|c| if c.is_ascii_graphic() { c } else { '-' })
            .collect();
        let mut command = redis::cmd("CLIENT");
        command.arg("SETNAME").arg(format!("{OWN_CONNECTIONS}{name}"));
        let named: Result<(), RedisError> = command.query_async(connection).await;
        match named.map_err(StoreError::from) {
            Err(
                err @ (StoreError::AuthenticationFailed { .. }
                | StoreError::CertificateRefused { .. }
                | StoreError::Unreachable { .. }
                | StoreError::Unavailable { .. }
                | StoreError::Timeout),
            ) => Err(err),
            _ => Ok(()),
        }
    }

    async fn log_in(&self, connection: &mut MultiplexedConnection) -> Result<(), StoreError> {
        let password = self.settings.password.as_ref().map(ExposeSecret::expose_secret);
        let mut auth = redis::cmd("AUTH");
        match (&self.settings.username, password) {
            (None, None) => return Ok(()),
            (None, Some(password)) => auth.arg(password),
            // A user with `nopass` is logged in by any password.
            (Some(username), password) => auth.arg(username).arg(password.unwrap_or_default()),
        };
        let answer: Result<(), RedisError> = auth.query_async(connection).await;
        answer.map_err(|err| match err.kind() {
            // "AUTH called without any password configured" and its like.
            ErrorKind::Server(ServerErrorKind::ResponseError)
                if !err.detail().unwrap_or_default().contains("max number of clients") =>
            {
                let detail = clean_text(err.detail().unwrap_or_default(), 256);
                StoreError::AuthenticationFailed { detail }
            }
            _ => err.into(),
        })
    }

    async fn select(&self, connection: &mut MultiplexedConnection) -> Result<(), StoreError> {
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

fn certificates(tls: &TlsSettings) -> TlsCertificates {
    TlsCertificates {
        client_tls: tls.client.as_ref().map(|client| ClientTlsConfig {
            client_cert: client.chain.clone().into_bytes(),
            client_key: client.key.expose_secret().as_bytes().to_vec(),
        }),
        root_cert: tls.authorities.clone().map(String::into_bytes),
    }
}

/// In a program that has a second TLS provider and chose none, the first TLS
/// configuration panics.
fn choose_provider() {
    if CryptoProvider::get_default().is_none() {
        // Whoever was faster chose.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
