//! The AMQP proxy between an implementation and the broker. It observes every method, and
//! decides which methods pass and when. It never answers or changes a method, except for
//! [`Proxy::replace_at`]. See `connection` for how data passes, `reader` for how it is
//! parsed, and `observer` for the interface of observers.

mod connection;
mod cut;
#[cfg(test)]
pub(crate) mod frames;
pub mod gate;
mod method;
mod names;
mod observer;
mod reader;
pub mod recorder;
mod shared;
mod trap;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::sync::watch;

use crate::history::{ConnectionState, Sender};
use connection::End;
pub use gate::{Gate, Waiting};
pub use method::{CONTENT, Fields, Method};
pub use observer::{Observer, Passed};
pub use recorder::{Recorder, Size};
use shared::{Shared, State, lock};
pub use trap::When;
use trap::{Action, Predicate, Trap};

/// The proxy. Dropping it closes every connection through it.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

/// A trap that was set. It springs when the awaited method has arrived and the connection was
/// cut or held, or the method was replaced.
pub struct Sprung(watch::Receiver<bool>);

/// The data of one side is not AMQP, so its methods are unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(String);

impl Proxy {
    /// Starts a proxy in front of the broker at this address, for example `"127.0.0.1:5672"` or
    /// a host and a port.
    ///
    /// # Errors
    ///
    /// Fails if no port of 127.0.0.1 could be opened. Does not fail if the broker is
    /// unreachable; each connection then ends.
    pub async fn before<A>(address: A) -> io::Result<Self>
    where
        A: ToSocketAddrs + Clone + Send + Sync + 'static,
    {
        Self::observed(address, ()).await
    }

    /// Like [`Proxy::before`], but passes everything to an observer.
    ///
    /// # Errors
    ///
    /// Fails like [`Proxy::before`].
    pub async fn observed<A>(address: A, observer: impl Observer) -> io::Result<Self>
    where
        A: ToSocketAddrs + Clone + Send + Sync + 'static,
    {
        Self::listening((Ipv4Addr::LOCALHOST, 0).into(), address, observer).await
    }

    /// Like [`Proxy::observed`], at this address.
    ///
    /// # Errors
    ///
    /// The address could not be opened.
    pub async fn listening<A>(
        at: SocketAddr,
        address: A,
        observer: impl Observer,
    ) -> io::Result<Self>
    where
        A: ToSocketAddrs + Clone + Send + Sync + 'static,
    {
        let listener = TcpListener::bind(at).await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            observer: Box::new(observer),
            gate: Gate::default(),
            frozen: watch::Sender::new(false),
            delays: Mutex::default(),
            traps: Mutex::default(),
            connections: Mutex::default(),
            log: Mutex::default(),
        });
        let task = tokio::spawn(accept(Arc::clone(&shared), listener, address));
        Ok(Self { port, shared, task })
    }

    /// Returns the port of the proxy.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the gate of the proxy. It is initially open.
    pub fn gate(&self) -> Gate {
        self.shared.gate.clone()
    }

    /// Returns every method since the start or the last [`Proxy::reset`], from both sides of
    /// every connection, in order.
    ///
    /// # Errors
    ///
    /// [`Unreadable`] if some data could not be parsed, so that methods are missing.
    pub fn seen(&self) -> Result<Vec<Method>, Unreadable> {
        let log = lock(&self.shared.log);
        match &log.unreadable {
            Some(error) => Err(Unreadable(error.clone())),
            None => Ok(log.methods.clone()),
        }
    }

    /// Returns the number of connections accepted since the start or the last [`Proxy::reset`].
    pub fn connections_opened(&self) -> usize {
        lock(&self.shared.log).opened
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        let connections = lock(&self.shared.connections);
        connections.iter().filter(|(_, state)| state.receiver_count() > 0).count()
    }

    /// Resets all counts.
    pub fn reset(&self) {
        let mut log = lock(&self.shared.log);
        (log.methods, log.opened) = (Vec::new(), 0);
    }

    /// Delays the data of `sender` by this time from now on, accurate to a fraction of a
    /// millisecond.
    pub fn delay(&self, sender: Sender, delay: Duration) {
        let mut delays = lock(&self.shared.delays);
        *(if sender == Sender::Client { &mut delays.0 } else { &mut delays.1 }) = delay;
    }

    /// Freezes or unfreezes the proxy. While it is frozen, nothing passes, not even the end of a
    /// connection, and new connections get no answer. All kept data passes afterwards.
    pub fn freeze(&self, frozen: bool) {
        self.shared.frozen.send_replace(frozen);
    }

    /// Resumes held connections.
    pub fn resume(&self) {
        for (_, state) in lock(&self.shared.connections).iter() {
            state.send_if_modified(|state| {
                let held = *state == State::Held;
                if held {
                    *state = State::Open;
                }
                held
            });
        }
    }

    /// Cuts the connection of the first method that matches the predicate, once. The client's
    /// side is closed immediately. The broker's side is closed when the broker has processed
    /// everything that it received.
    pub fn cut_at(&self, when: When, predicate: impl Awaited) -> Sprung {
        self.trap(Action::Cut, when, Box::new(predicate))
    }

    /// Holds the connection of the first method that matches the predicate, in both directions,
    /// until [`Proxy::resume`], once.
    pub fn hold_at(&self, when: When, predicate: impl Awaited) -> Sprung {
        self.trap(Action::Hold, when, Box::new(predicate))
    }

    /// Forwards these bytes instead of the first method that matches the predicate, once. For
    /// answers of a broker that depend on a race in it.
    pub fn replace_at(&self, bytes: Vec<u8>, predicate: impl Awaited) -> Sprung {
        self.trap(Action::Replace(bytes), When::Before, Box::new(predicate))
    }

    /// Removes the traps that have not sprung.
    pub fn disarm(&self) {
        lock(&self.shared.traps).clear();
    }

    fn trap(&self, action: Action, when: When, predicate: Predicate) -> Sprung {
        let (sprung, watched) = watch::channel(false);
        lock(&self.shared.traps).push(Trap { predicate, when, action, sprung });
        Sprung(watched)
    }
}

/// A predicate that returns whether a method is the one that a trap awaits.
pub trait Awaited: FnMut(&Method) -> bool + Send + 'static {}

impl<F: FnMut(&Method) -> bool + Send + 'static> Awaited for F {}

/// Matches the `n`th method that clients send from now on, counted from 1, over all connections.
pub fn nth(n: usize) -> impl Awaited {
    let mut sent = 0;
    move |method: &Method| {
        sent += usize::from(method.sender == Sender::Client);
        method.sender == Sender::Client && sent == n
    }
}

/// Matches the next method with this name, from either side.
pub fn named(name: &'static str) -> impl Awaited {
    move |method: &Method| method.name == name
}

impl Sprung {
    /// Returns whether the trap has sprung: the connection was cut or held, or the method
    /// replaced.
    pub fn is_sprung(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the trap has sprung.
    ///
    /// # Errors
    ///
    /// `TimedOut` if the trap does not spring within the limit, `BrokenPipe` if the proxy ends.
    pub async fn within(mut self, limit: Duration) -> io::Result<()> {
        match tokio::time::timeout(limit, self.0.wait_for(|sprung| *sprung)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(io::Error::new(io::ErrorKind::BrokenPipe, "the proxy ended")),
            Err(_) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "the awaited method was not sent"))
            }
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.cut();
    }
}

async fn accept<A>(shared: Arc<Shared>, listener: TcpListener, broker: A)
where
    A: ToSocketAddrs + Clone + Send + Sync + 'static,
{
    for number in 1.. {
        let Ok((near, _)) = listener.accept().await else { return };
        lock(&shared.log).opened += 1;
        shared.observer.connection(number, ConnectionState::Opened);
        let state = watch::Sender::new(State::Open);
        {
            let mut connections = lock(&shared.connections);
            connections.retain(|(_, state)| state.receiver_count() > 0);
            connections.push((number, state.clone()));
        }
        let (shared, broker) = (Arc::clone(&shared), broker.clone());
        let mut watched = state.subscribe();
        tokio::spawn(async move {
            let end = End::new(&*shared.observer, number);
            let _ = shared.frozen.subscribe().wait_for(|frozen| !frozen).await;
            // The connection was cut before the proxy had connected to the broker.
            if *watched.borrow_and_update() != State::Open {
                end.report(ConnectionState::Cut);
            } else if let Ok(far) = TcpStream::connect(broker).await {
                connection::serve(&shared, number, state, &end, near, far).await;
            } else {
                end.report(ConnectionState::ClosedByBroker);
            }
        });
    }
}

#[cfg(test)]
mod tests;
