//! A proxy to the real broker on which a test observes every method and decides which
//! ones pass and when. It replaces the network, not the broker: it answers and changes
//! nothing.

mod connection;
mod wire;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::plan::connection::RabbitmqSettings;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use connection::{Action, State};
pub use wire::{Method, Sender};

/// The proxy. When dropped, it closes every connection through it.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

/// The side of the awaited method on which a connection is cut or held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The method does not pass, but everything sent before does.
    Before,
    /// The method passes, but its answer does not.
    After,
}

/// Resolves when the awaited method has arrived and the connection was cut or held.
pub struct Sprung(watch::Receiver<bool>);

type Predicate = Box<dyn FnMut(&Method) -> bool + Send>;

struct Trap {
    predicate: Predicate,
    when: When,
    action: Action,
    sprung: watch::Sender<bool>,
}

struct Shared {
    frozen: watch::Sender<bool>,
    /// Additional delays of the client's and of the broker's data.
    delays: Mutex<(Duration, Duration)>,
    traps: Mutex<Vec<Trap>>,
    connections: Mutex<Vec<watch::Sender<State>>>,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    methods: Vec<Method>,
    opened: usize,
    unreadable: Option<String>,
}

impl Proxy {
    /// Starts a proxy in front of the shared broker.
    pub async fn start() -> Self {
        Self::before(&super::rabbitmq::administrator()).await
    }

    /// Starts a proxy in front of the broker at the settings' host and port.
    pub async fn before(broker: &RabbitmqSettings) -> Self {
        let address = (broker.host.clone(), broker.port);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            frozen: watch::Sender::new(false),
            delays: Mutex::default(),
            traps: Mutex::default(),
            connections: Mutex::default(),
            log: Mutex::default(),
        });
        let task = tokio::spawn(accept(Arc::clone(&shared), listener, address));
        Self { port, shared, task }
    }

    /// Returns settings for the same broker over this proxy.
    pub fn settings(&self, settings: RabbitmqSettings) -> RabbitmqSettings {
        RabbitmqSettings { host: "127.0.0.1".to_owned(), port: self.port, ..settings }
    }

    /// Returns its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns every method since the start or the last [`Proxy::reset`], from both ends
    /// of every connection, in order.
    pub fn seen(&self) -> Vec<Method> {
        let log = self.shared.log.lock().unwrap();
        assert_eq!(log.unreadable, None, "the counts are not to be trusted");
        log.methods.clone()
    }

    /// Returns those that clients sent.
    pub fn methods(&self) -> Vec<Method> {
        self.seen().into_iter().filter(|method| method.sender == Sender::Client).collect()
    }

    /// Returns how many methods with this name either end has sent.
    pub fn count(&self, name: &str) -> usize {
        self.seen().iter().filter(|method| method.name == name).count()
    }

    /// Returns how many connections were accepted since the start or the last
    /// [`Proxy::reset`].
    pub fn connections_opened(&self) -> usize {
        self.shared.log.lock().unwrap().opened
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        let connections = self.shared.connections.lock().unwrap();
        connections.iter().filter(|state| state.receiver_count() > 0).count()
    }

    /// Resets all counts.
    pub fn reset(&self) {
        let mut log = self.shared.log.lock().unwrap();
        (log.methods, log.opened) = (Vec::new(), 0);
    }

    /// From now on, delays the data of `sender` by this time.
    pub fn delay(&self, sender: Sender, delay: Duration) {
        let mut delays = self.shared.delays.lock().unwrap();
        *(if sender == Sender::Client { &mut delays.0 } else { &mut delays.1 }) = delay;
    }

    /// While frozen, nothing passes, not even that an end has closed, and new connections
    /// get no answer. Afterwards everything passes.
    pub fn freeze(&self, frozen: bool) {
        self.shared.frozen.send_replace(frozen);
    }

    /// Closes every connection immediately, for both sides.
    pub fn cut(&self) {
        for state in self.shared.connections.lock().unwrap().drain(..) {
            state.send_replace(State::Cut);
        }
    }

    /// Resumes held connections.
    pub fn resume(&self) {
        for state in self.shared.connections.lock().unwrap().iter() {
            state.send_if_modified(|state| {
                let held = *state == State::Held;
                if held {
                    *state = State::Open;
                }
                held
            });
        }
    }

    /// Cuts the connection of the first method that matches the predicate, once:
    /// immediately for the client, and for the broker when it has processed everything it
    /// received.
    pub fn cut_at(&self, when: When, predicate: impl Awaited) -> Sprung {
        self.trap(Action::Cut, when, Box::new(predicate))
    }

    /// Holds the connection of the first method that matches the predicate, in both
    /// directions, until [`Proxy::resume`], once.
    pub fn hold_at(&self, when: When, predicate: impl Awaited) -> Sprung {
        self.trap(Action::Hold, when, Box::new(predicate))
    }

    fn trap(&self, action: Action, when: When, predicate: Predicate) -> Sprung {
        let (sprung, watched) = watch::channel(false);
        self.shared.traps.lock().unwrap().push(Trap { predicate, when, action, sprung });
        Sprung(watched)
    }
}

/// Returns whether this is the method that a trap awaits.
pub trait Awaited: FnMut(&Method) -> bool + Send + 'static {}

impl<F: FnMut(&Method) -> bool + Send + 'static> Awaited for F {}

/// Matches the `n`th method that clients send from now on, counted from 1, on any
/// connection.
pub fn nth(n: usize) -> impl Awaited {
    let mut sent = 0;
    move |method: &Method| {
        sent += usize::from(method.sender == Sender::Client);
        method.sender == Sender::Client && sent == n
    }
}

/// Matches the next method with this name, from either end.
pub fn named(name: &'static str) -> impl Awaited {
    move |method: &Method| method.name == name
}

impl Sprung {
    /// Waits for the method. Panics after 15 s.
    pub async fn wait(mut self) {
        let sprung = self.0.wait_for(|sprung| *sprung);
        let sprung = tokio::time::timeout(Duration::from_secs(15), sprung).await;
        sprung.expect("the awaited method comes by").expect("the proxy still runs");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.cut();
    }
}

async fn accept(shared: Arc<Shared>, listener: TcpListener, broker: (String, u16)) {
    for number in 1.. {
        let Ok((near, _)) = listener.accept().await else { return };
        shared.log.lock().unwrap().opened += 1;
        let state = watch::Sender::new(State::Open);
        {
            let mut connections = shared.connections.lock().unwrap();
            connections.retain(|state| state.receiver_count() > 0);
            connections.push(state.clone());
        }
        let (shared, broker) = (Arc::clone(&shared), broker.clone());
        let mut watched = state.subscribe();
        tokio::spawn(async move {
            let _ = shared.frozen.subscribe().wait_for(|frozen| !frozen).await;
            // Cut before the broker's side was connected.
            if *watched.borrow_and_update() == State::Open
                && let Ok(far) = TcpStream::connect(broker).await
            {
                connection::serve(shared, number, state, near, far).await;
            }
        });
    }
}
