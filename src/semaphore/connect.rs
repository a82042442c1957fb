//! Opening one connection to the broker and ending it for certain. How often to
//! try, and who shares a connection, is `link`'s; what goes over it is
//! `lane`'s and `probe`'s.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use lapin::tcp::{AMQPUriTcpExt, RustlsConnector, TLSConfig};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{AsyncTcpStream, Connection, ConnectionProperties};
use rustls::ClientConfig;
use secrecy::ExposeSecret;

use super::error::BrokerError;
use super::lane::IdleLanes;
use super::tls::client_config;
use crate::plan::connection::RabbitmqSettings;

/// Largest frame, in bytes. lapin keeps two buffers of 32 frames for each
/// connection: at the broker's 128 KiB that is 8 MiB, and no frame of ours has
/// more than a queue's name and a holder's few facts.
const FRAME_MAX: u32 = 16 * 1024;

/// Where and how to connect.
pub(super) struct Endpoint {
    pub settings: RabbitmqSettings,
    /// What the broker's management shows as the connection's name.
    pub client_name: String,
    /// For TCP and the whole handshake.
    pub connect_timeout: Duration,
    /// For each operation on the open connection.
    pub operation_timeout: Duration,
    /// Seconds; absent, the broker's wish is followed.
    pub heartbeat: Option<u16>,
    /// What an encrypted connection is made by; made with the first one.
    pub connector: Connector,
}

impl Endpoint {
    /// `host:port`, for messages.
    pub fn address(&self) -> String {
        self.settings.address()
    }

    fn uri(&self) -> AMQPUri {
        AMQPUri {
            // Also for TLS, which is put over the socket once we have our own handle
            // on that.
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

    /// What encrypts a connection to it; nothing where it is not to be encrypted.
    pub fn tls(&self) -> Result<Option<Arc<ClientConfig>>, BrokerError> {
        let Some(tls) = &self.settings.tls else { return Ok(None) };
        let made = self.connector.get_or_init(|| client_config(Some(tls)));
        made.clone()
            .map(Some)
            .map_err(|why| BrokerError::CertificateRefused { endpoint: self.address(), why })
    }
}

/// The configuration that was made, or why none could be.
pub(super) type Connector = OnceLock<Result<Arc<ClientConfig>, String>>;

/// An open connection. Never recovered: a new connection is a new one, and what
/// was exclusive to the old one is gone (hazard A11).
pub(super) struct Conn {
    lapin: Connection,
    /// A second handle on the socket, to end the connection when the broker
    /// doesn't answer any more.
    socket: Arc<Mutex<Option<TcpStream>>>,
    retired: AtomicBool,
    /// What first went wrong on it.
    failure: OnceLock<BrokerError>,
    pub operation_timeout: Duration,
    pub idle: IdleLanes,
    /// It is to be asked soon whether it did what nobody waited for.
    pub unproved: AtomicBool,
}

impl Conn {
    /// Connects. `role` is appended to the client's name, so that an operator
    /// of the broker sees what each connection is for.
    ///
    /// Cancel safe: a dropped attempt closes its socket.
    pub async fn open(endpoint: &Endpoint, role: &str) -> Result<Self, BrokerError> {
        match Self::open_once(endpoint, role).await {
            // A broker refuses our certificate only after the handshake. Whether its
            // reason arrives, or the connection is found broken, is chance.
            Err(error) if endpoint.settings.tls.is_some() && error.is_cut() => {}
            other => return other,
        }
        Self::open_once(endpoint, role).await.map_err(|error| {
            if !error.is_cut() {
                return error;
            }
            let why = "the broker ended the connection right after the handshake".to_owned();
            BrokerError::CertificateRefused { endpoint: endpoint.address(), why }
        })
    }

    async fn open_once(endpoint: &Endpoint, role: &str) -> Result<Self, BrokerError> {
        let settings = &endpoint.settings;
        let uri = endpoint.uri();
        let connector = endpoint.tls()?.map(RustlsConnector::from);
        // No `enable_auto_recover`, ever: it would declare exclusive queues
        // again on a new connection, a silent gap in a lock.
        let properties = ConnectionProperties::default()
            .with_connection_name(format!("{} {role}", endpoint.client_name).into())
            .with_client_property("product".into(), "lockkeeper".into())
            .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into());

        let unreachable = |why: &str| BrokerError::Unreachable {
            endpoint: endpoint.address(),
            why: why.to_owned(),
        };
        let runtime = lapin::runtime::default_runtime().map_err(|e| unreachable(&e.to_string()))?;
        let attempt = Attempt { socket: Arc::default(), kept: false };
        let shared = Arc::clone(&attempt.socket);
        let patience = endpoint.connect_timeout;
        let connect = Connection::connector(
            uri,
            runtime,
            async move |uri, runtime| {
                // lapin runs this on a thread of its own, which nothing else
                // would stop while a packet filter swallows our SYNs. (TCP_NODELAY
                // is set by the runtime below lapin.)
                let connecting = async {
                    let stream =
                        uri.connect_with_config_async(TLSConfig::default(), &runtime).await?;
                    if let AsyncTcpStream::Plain(plain) = &stream {
                        let handle = plain.get_ref().as_fd().try_clone_to_owned()?;
                        *lock(&shared) = Some(TcpStream::from(handle));
                    }
                    match &connector {
                        Some(connector) => stream.into_rustls(connector, &uri.authority.host).await,
                        None => Ok(stream),
                    }
                };
                let connected = tokio::time::timeout(patience, connecting).await;
                Ok(connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??)
            },
            properties,
        );
        let lapin = tokio::time::timeout(patience, connect)
            .await
            .map_err(|_| unreachable(&format!("no answer within {patience:?}")))?
            .map_err(|error| {
                BrokerError::connecting(
                    &error,
                    &endpoint.address(),
                    &settings.username,
                    &settings.vhost,
                )
            })?;
        Ok(Self {
            lapin,
            socket: attempt.keep(),
            retired: AtomicBool::new(false),
            failure: OnceLock::new(),
            operation_timeout: endpoint.operation_timeout,
            idle: IdleLanes::default(),
            unproved: AtomicBool::new(false),
        })
    }

    /// lapin's connection, to open channels and listen to events.
    pub fn lapin(&self) -> &Connection {
        &self.lapin
    }

    /// Whether it is open and nobody found fault with it.
    pub fn is_usable(&self) -> bool {
        !self.retired.load(Ordering::Acquire) && self.lapin.status().connected()
    }

    /// Whether the broker said that it blocks this connection (an alarm).
    pub fn is_blocked(&self) -> bool {
        self.lapin.status().blocked()
    }

    /// Ends the connection now, without the broker's consent: for when it did
    /// not answer, and for when what we left on it must go for certain. Closing
    /// by protocol could hang as well.
    pub fn kill(&self) {
        self.retired.store(true, Ordering::Release);
        shut_down(&self.socket);
    }

    /// What first went wrong on it, if somebody noticed.
    pub fn failure(&self) -> Option<BrokerError> {
        self.failure.get().cloned()
    }

    /// What to report of a channel that was found closed: why, whoever hears the
    /// broker's last words will know.
    pub fn closed(&self) -> BrokerError {
        let closed = BrokerError::ConnectionLost { why: "the channel was closed".to_owned() };
        self.failure().unwrap_or(closed)
    }

    /// Ends the connection now because of `error`. Returns what to report: where
    /// several operations fail together, the first one's error is the cause, and
    /// that the connection was lost then only follows from it.
    pub fn fail(&self, error: BrokerError) -> BrokerError {
        let cause = self.failure.get_or_init(|| error.clone()).clone();
        self.kill();
        if matches!(error, BrokerError::ConnectionLost { .. }) { cause } else { error }
    }

    /// Closes by protocol; if that isn't answered in time, by force.
    pub async fn close(&self) {
        self.retired.store(true, Ordering::Release);
        let closing = self.lapin.close(200, "OK".into());
        if !matches!(tokio::time::timeout(self.operation_timeout, closing).await, Ok(Ok(()))) {
            shut_down(&self.socket);
        }
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        // lapin closes by protocol when its last handle goes, and its thread
        // ends with that; one that was retired was not answered before.
        if self.retired.load(Ordering::Acquire) {
            shut_down(&self.socket);
        }
    }
}

/// An attempt to connect, which closes its socket when it is given up: lapin's
/// thread would wait for ever for a broker that accepts but doesn't speak.
struct Attempt {
    socket: Arc<Mutex<Option<TcpStream>>>,
    kept: bool,
}

impl Attempt {
    fn keep(mut self) -> Arc<Mutex<Option<TcpStream>>> {
        self.kept = true;
        Arc::clone(&self.socket)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.kept {
            shut_down(&self.socket);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn shut_down(socket: &Mutex<Option<TcpStream>>) {
    if let Some(socket) = lock(socket).take() {
        // Fails only if it is closed already.
        let _ = socket.shutdown(Shutdown::Both);
    }
}
