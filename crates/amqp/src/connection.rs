//! Opens one connection to the broker, and closes it reliably. See `endpoint` for its
//! address, `stream` for its bytes, `lazy` for retries and sharing, and `channel` and `probe`
//! for operations.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use lapin::protocol::AMQPErrorKind;
use lapin::{AsyncTcpStream, ConnectionProperties, ErrorKind, Event};
use lockkeeper_net::process_limit;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use super::endpoint::Endpoint;
use super::features::Features;
use super::identity::greet;
use super::idle::IdleChannels;
use super::incoming::Closes;
use super::new_id;
use super::stream::{Dialer, Kit, for_lapin};
use super::unanswered::Unanswered;
use crate::error::AmqpError;

/// The number of channels that RabbitMQ allows by default. A broker that proposes it is
/// taken for RabbitMQ. Any other is asked for its properties, which takes a connection of
/// its own, because lapin does not expose them.
const RABBITMQ_CHANNELS: u16 = 2047;

/// How long to wait for the reason with which a closed connection was closed. lapin tells
/// it right after the operations fail.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The tasks that end connections on which a claim was given up, of all clients.
static ENDING: LazyLock<TaskTracker> = LazyLock::new(TaskTracker::new);

/// An open connection. It is never recovered: a replacement is a new connection, and
/// exclusive objects of the old one are gone (hazard A11).
pub struct Connection {
    lapin: lapin::Connection,
    /// A second handle on the socket, to close the connection if the broker no longer
    /// answers.
    socket: Arc<Mutex<Option<TcpStream>>>,
    retired: AtomicBool,
    closes: Closes,
    /// Time limit of each operation.
    pub operation_timeout: Duration,
    /// What the broker offers.
    pub features: Features,
    pub(crate) idle: IdleChannels,
    /// The queues that do not answer.
    pub(crate) unanswered: Unanswered,
    /// The tasks that wait for the answers to abandoned operations.
    pub abandoned: TaskTracker,
}

impl Connection {
    /// Connects within the endpoint's time limit. `role` is appended to the client's name,
    /// so that an operator of the broker sees the purpose of each connection.
    ///
    /// Cancel safe: a dropped attempt closes its socket.
    pub async fn open(endpoint: &Endpoint, role: &str) -> Result<Self, AmqpError> {
        let limit = endpoint.connect_timeout;
        let delayed = |why: &str| AmqpError::ConnectionDelayed { why: why.to_owned() };
        let _place = endpoint.gate.enter().await.map_err(delayed)?;
        let opening = tokio::time::timeout(limit, Self::open_twice(endpoint, role));
        opening.await.unwrap_or_else(|_| Err(endpoint.no_answer(limit)))
    }

    async fn open_twice(endpoint: &Endpoint, role: &str) -> Result<Self, AmqpError> {
        match Self::open_once(endpoint, role).await {
            // A broker rejects the client certificate only after the handshake. Whether
            // its reason arrives or the connection just breaks is a race.
            Err(error) if endpoint.make_tls.is_some() && error.is_cut() => {}
            other => return other,
        }
        Self::open_once(endpoint, role).await.map_err(|error| {
            if !error.is_cut() {
                return error;
            }
            let why = "the broker ended the connection right after the handshake".to_owned();
            AmqpError::CertificateRefused { endpoint: endpoint.address.clone(), why }
        })
    }

    async fn open_once(endpoint: &Endpoint, role: &str) -> Result<Self, AmqpError> {
        let uri = endpoint.uri();
        let closes = Closes::default();
        let dialer = Dialer::new(endpoint, closes.clone())?;
        // Never use `enable_auto_recover`: it would declare exclusive queues again on a
        // new connection, and nothing would show that they were gone in between.
        let properties = ConnectionProperties::default()
            .with_connection_name(format!("{} {role}", endpoint.client_name).into())
            .with_client_property("product".into(), "lockkeeper".into())
            .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into())
            // For Qpid: the owner of exclusive queues, and mandatory messages that reach no
            // queue are returned instead of ending the connection.
            .with_client_property("instance".into(), new_id().into())
            .with_client_property("qpid.close_when_no_route".into(), "false".into());

        let failed = |error: lapin::Error| {
            let (user, vhost) = (&endpoint.username, &endpoint.vhost);
            endpoint.explained(AmqpError::connecting(&error, &endpoint.address, user, vhost))
        };
        process_limit::check_connection()
            .map_err(|error| AmqpError::reaching(&error, &endpoint.address))?;
        let attempt = Attempt { socket: Arc::default(), kept: false };
        let shared = Arc::clone(&attempt.socket);
        let patience = endpoint.connect_timeout;
        let connect = lapin::Connection::connector(
            uri,
            Kit::current(),
            async move |_, _| {
                // lapin runs this on its own thread. Nothing else would stop it while a
                // packet filter drops the SYNs.
                let dialing = dialer.dial(|socket| *lock(&shared) = Some(socket));
                let result = tokio::time::timeout(patience, dialing).await;
                let stream = result.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
                Ok(AsyncTcpStream::Plain(for_lapin(stream)))
            },
            properties,
        );
        let lapin = connect.await.map_err(failed)?;
        let features = match endpoint.found.features.get() {
            Some(features) => *features,
            None => {
                let found = features_of(endpoint, &lapin).await?;
                *endpoint.found.features.get_or_init(|| found)
            }
        };
        endpoint.set_connected();
        Ok(Self {
            lapin,
            socket: attempt.keep(),
            retired: AtomicBool::new(false),
            closes,
            operation_timeout: endpoint.operation_timeout,
            features,
            idle: IdleChannels::default(),
            unanswered: Unanswered::default(),
            abandoned: TaskTracker::new(),
        })
    }

    /// Opens a channel. After the broker has closed one, lapin 4.12.3 opens none with its number
    /// again: it fails with the error of then, and the next attempt uses the next number (hazard
    /// A61).
    pub async fn open_channel(&self) -> Result<lapin::Channel, lapin::Error> {
        for _ in 0..self.closes.channels.load(Ordering::Acquire) {
            match self.lapin.create_channel().await {
                Err(error) if is_stale(&error) && self.is_usable() => {}
                done => return done,
            }
        }
        self.lapin.create_channel().await
    }

    /// Whether the broker has closed channels with half of the channel numbers, which can't be
    /// used again. Other connections should be used for requests that may be refused.
    pub fn is_worn(&self) -> bool {
        let max = match self.lapin.configuration().channel_max() {
            0 => u32::from(u16::MAX),
            max => u32::from(max),
        };
        self.closes.channels.load(Ordering::Acquire) >= max.div_ceil(2)
    }

    /// Whether the connection is open and suits new work.
    pub fn suits_new_work(&self) -> bool {
        self.is_usable() && !self.is_worn()
    }

    /// Returns lapin's connection, to listen to events.
    pub fn lapin(&self) -> &lapin::Connection {
        &self.lapin
    }

    /// Whether the connection is open and no error was found.
    pub fn is_usable(&self) -> bool {
        !self.retired.load(Ordering::Acquire) && self.lapin.status().connected()
    }

    /// Whether the broker has blocked this connection (an alarm).
    pub fn is_blocked(&self) -> bool {
        self.lapin.status().blocked()
    }

    /// Closes the socket immediately, without the AMQP close handshake. Use it when the
    /// broker did not answer, or when objects declared on the connection must be freed
    /// for certain. The handshake could hang too.
    pub fn kill(&self) {
        self.retired.store(true, Ordering::Release);
        shut_down(&self.socket);
    }

    /// Like [`Connection::kill`], but if operations were abandoned, in the background after the
    /// broker has answered them (hazard A49). Without a runtime, immediately.
    pub fn kill_when_answered(self: &Arc<Self>) {
        self.retired.store(true, Ordering::Release);
        match Handle::try_current() {
            Ok(runtime) if !self.abandoned.is_empty() => {
                let connection = Arc::clone(self);
                let ending = async move {
                    connection.abandoned.close();
                    connection.abandoned.wait().await;
                    connection.kill();
                };
                ENDING.spawn_on(ending, &runtime);
            }
            _ => self.kill(),
        }
    }

    /// Returns the first error found on the connection.
    pub fn failure(&self) -> Option<AmqpError> {
        self.closes.failure.get().cloned()
    }

    /// Records why the connection ended, also if the broker gave no reason and each operation
    /// fails only because it is closed already. Must be called once at most: lapin gives each
    /// event to one of the listeners.
    pub fn record_close_reason(&self) {
        let mut events = Box::pin(self.lapin.events_listener());
        let failure = Arc::clone(&self.closes.failure);
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                if let Event::Error(error) = event
                    && !error.is_amqp_soft_error()
                {
                    let _ = failure.set(AmqpError::operating(&error, ""));
                    return;
                }
            }
        });
    }

    /// Returns why the closed connection was closed, if [`Connection::record_close_reason`] or an
    /// operation finds it in time. Cancel safe.
    pub async fn close_reason(&self) -> Option<AmqpError> {
        tokio::time::timeout(LAST_WORDS, self.closes.failure.wait()).await.ok().cloned()
    }

    /// Returns the error for a channel that was found closed. The listener of the
    /// connection's events receives the reason.
    pub fn closed(&self) -> AmqpError {
        let closed = AmqpError::ConnectionLost { why: "the channel was closed".to_owned() };
        self.failure().unwrap_or(closed)
    }

    /// Closes the connection immediately because of `error`. Returns the error to report:
    /// if several operations fail together, the first error is the cause, and the lost
    /// connection is its consequence.
    pub fn fail(&self, error: AmqpError) -> AmqpError {
        let error = self.blame(error);
        self.kill();
        error
    }

    /// Returns the error to report for one that an operation on the connection met. An error
    /// that makes the connection unusable closes it ([`Connection::fail`]).
    pub fn found(&self, error: AmqpError) -> AmqpError {
        if error.is_fatal_for_connection() { self.fail(error) } else { error }
    }

    /// Like [`Connection::found`]. If the connection was closed before, waits for the reason.
    pub async fn found_cause(&self, error: AmqpError) -> AmqpError {
        let found = self.found(error);
        if found.is_closed_before() { self.close_reason().await.unwrap_or(found) } else { found }
    }

    /// Returns the error to report for a channel that could not be opened. If all channel
    /// numbers are in use, the connection continues. If another operation has ended it, that
    /// one's error is the cause.
    pub fn unopened(&self, error: &lapin::Error) -> AmqpError {
        let error = AmqpError::operating(error, "");
        if self.is_usable() { error } else { self.fail(error) }
    }

    /// Like [`Connection::fail`], but ends the connection as [`Connection::kill_when_answered`] does.
    pub fn fail_when_answered(self: &Arc<Self>, error: AmqpError) -> AmqpError {
        let error = self.blame(error);
        self.kill_when_answered();
        error
    }

    /// Records the first error that is a cause, and returns the one to report.
    fn blame(&self, error: AmqpError) -> AmqpError {
        if !error.is_closed_before() {
            let _ = self.closes.failure.set(error.clone());
        }
        let cause = self.failure().unwrap_or_else(|| error.clone());
        if matches!(error, AmqpError::ConnectionLost { .. }) { cause } else { error }
    }

    /// Closes the connection by the AMQP close handshake, and by force if it is not
    /// answered in time.
    pub async fn close(&self) {
        self.retired.store(true, Ordering::Release);
        let closing = self.lapin.close(200, "OK".into());
        if !matches!(tokio::time::timeout(self.operation_timeout, closing).await, Ok(Ok(()))) {
            shut_down(&self.socket);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // lapin sends the close handshake when its last handle is dropped, and its thread
        // ends with it. A retired connection got no answer before.
        if self.retired.load(Ordering::Acquire) {
            shut_down(&self.socket);
        }
    }
}

/// Determines what the broker at the other end of `connection` offers. Cancel safe.
async fn features_of(
    endpoint: &Endpoint,
    connection: &lapin::Connection,
) -> Result<Features, AmqpError> {
    let chosen = endpoint.probe;
    if connection.configuration().channel_max() == RABBITMQ_CHANNELS {
        return Ok(Features::of_rabbitmq(chosen));
    }
    let greeting = greet(endpoint).await?;
    Ok(Features::announced(&greeting.product, greeting.confirms, chosen))
}

/// A connection attempt that closes its socket when it is dropped. Otherwise lapin's
/// thread would wait without limit for a broker that accepts the connection but sends
/// nothing.
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

/// Waits for the end of connections on which a claim was given up. A process that ends
/// should wait for that, at most for `limit`. Cancel safe.
pub async fn until_ended(limit: Duration) {
    ENDING.close();
    let _ = tokio::time::timeout(limit, ENDING.wait()).await;
}

/// Whether this is the error of an earlier channel with the same number: an error that closes a
/// channel can't be the answer to its opening.
fn is_stale(error: &lapin::Error) -> bool {
    match error.kind() {
        ErrorKind::ProtocolError(error) => matches!(error.kind(), AMQPErrorKind::Soft(_)),
        ErrorKind::InvalidChannelState(..) => true,
        _ => false,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn shut_down(socket: &Mutex<Option<TcpStream>>) {
    if let Some(socket) = lock(socket).take() {
        // Fails only if the socket is closed already.
        let _ = socket.shutdown(Shutdown::Both);
    }
}
