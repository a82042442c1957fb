//! A connection through the proxy: reads data from either side, decides when to forward it, and
//! ends the connection. See `reader` for how data is parsed.

use std::future::pending;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until, timeout};

use super::gate::Place;
use super::method::Method;
use super::names::Names;
use super::observer::Observer;
use super::reader::{Found, Reader};
use super::shared::{Shared, State, lock};
use super::trap::{Action, Trap, When};
use crate::history::{ConnectionState, Sender};

/// The next step of one direction.
enum Step {
    /// Forward these bytes when they are due and permitted.
    Pass(Instant, Vec<u8>),
    /// Apply this action to the connection. These bytes still pass, but no answer to them does,
    /// unless they replace a method.
    Act(Action, Vec<u8>, watch::Sender<bool>),
    /// The sender has closed.
    End,
}

/// Reports the end of a connection to the observer, once.
pub struct End<'a> {
    observer: &'a dyn Observer,
    number: usize,
    reported: AtomicBool,
}

impl<'a> End<'a> {
    pub fn new(observer: &'a dyn Observer, number: usize) -> Self {
        Self { observer, number, reported: AtomicBool::new(false) }
    }

    /// Reports this end. Only the first report counts.
    pub fn report(&self, state: ConnectionState) {
        if !self.reported.swap(true, Ordering::Relaxed) {
            self.observer.connection(self.number, state);
        }
    }

    /// Reports that this side closed the connection.
    fn closed_by(&self, end: Sender) {
        self.report(match end {
            Sender::Client => ConnectionState::ClosedByClient,
            Sender::Broker => ConnectionState::ClosedByBroker,
        });
    }
}

/// Forwards all data between a client and the broker until one of them, or the proxy, ends the
/// connection.
pub async fn serve(
    shared: &Shared,
    number: usize,
    state: watch::Sender<State>,
    end: &End<'_>,
    mut near: TcpStream,
    mut far: TcpStream,
) {
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let mut watched = state.subscribe();
    let names = Mutex::default();
    let trapped = {
        let (near_read, near_write) = near.split();
        let (far_read, far_write) = far.split();
        let direction = |sender| Direction {
            shared,
            sender,
            reader: Reader::new(number, sender),
            state: &state,
            names: &names,
            end,
        };
        tokio::select! {
            // A cut takes precedence, so that other available data no longer passes.
            biased;
            _ = watched.wait_for(|state| *state == State::Cut) => false,
            trapped = direction(Sender::Client).run(near_read, far_write) => trapped,
            trapped = direction(Sender::Broker).run(far_read, near_write) => trapped,
        }
    };
    if trapped || *state.borrow() == State::Cut {
        end.report(ConnectionState::Cut);
        // Sends RST, which a client cannot mistake for an orderly close.
        let _ = near.set_zero_linger();
    }
    drop(near);
    let mut answers = [0; 4096];
    if trapped {
        // When a connection ends, the broker discards data that it has read but not processed.
        // So the end is sent when the broker has nothing more to send. There is a time limit,
        // because deliveries to a consumer never end.
        let quiet = Duration::from_millis(100);
        let talks = async {
            while timeout(quiet, far.read(&mut answers))
                .await
                .is_ok_and(|read| read.unwrap_or(0) > 0)
            {}
        };
        let _ = timeout(Duration::from_secs(1), talks).await;
    }
    // An RST must not discard data that the broker has not read yet.
    let _ = far.shutdown().await;
    let rest = async { while far.read(&mut answers).await.unwrap_or(0) > 0 {} };
    let _ = timeout(Duration::from_secs(1), rest).await;
}

struct Direction<'a> {
    shared: &'a Shared,
    sender: Sender,
    reader: Reader,
    state: &'a watch::Sender<State>,
    names: &'a Mutex<Names>,
    end: &'a End<'a>,
}

impl Direction<'_> {
    /// Forwards the data of one direction. Returns when the sender has closed, or returns `true`
    /// when a trap cuts the connection.
    async fn run(mut self, from: ReadHalf<'_>, to: WriteHalf<'_>) -> bool {
        let (steps, queued) = mpsc::channel(1024);
        let writer = Writer {
            frozen: self.shared.frozen.subscribe(),
            held: self.state.subscribe(),
            state: self.state,
            receiver: if self.sender == Sender::Client { Sender::Broker } else { Sender::Client },
            end: self.end,
        };
        tokio::select! {
            _ = self.read(from, steps) => false,
            trapped = writer.write(to, queued) => trapped,
        }
    }

    /// Reads data and sends steps to the writer. Only the writer ends this task.
    async fn read(
        &mut self,
        mut from: ReadHalf<'_>,
        steps: mpsc::Sender<Step>,
    ) -> Result<(), mpsc::error::SendError<Step>> {
        let mut buffer = vec![0; 65_536];
        loop {
            let read = from.read(&mut buffer).await.unwrap_or(0);
            if read == 0 {
                self.end.closed_by(self.sender);
                steps.send(Step::End).await?;
                return pending().await;
            }
            let mut passing = Passing { steps: &steps, bytes: &buffer[..read], passed: 0 };
            let mut sprung = Vec::new();
            for found in self.parse(&buffer[..read]) {
                if let Some(place) = self.place(&found) {
                    passing.send(found.start, self.due(), std::mem::take(&mut sprung)).await?;
                    place.released().await;
                }
                let (start, end) = (found.start, found.end);
                sprung.extend(self.look(found).map(|trap| (start, end, trap)));
            }
            passing.send(read, self.due(), sprung).await?;
        }
    }

    /// Returns the time at which data may pass that the observer has just seen. To be called after
    /// the observer: the count of round trips relies on data that passes no earlier than the delay
    /// after it was recorded.
    fn due(&self) -> Instant {
        let delays = *lock(&self.shared.delays);
        Instant::now() + if self.sender == Sender::Client { delays.0 } else { delays.1 }
    }

    fn parse(&mut self, bytes: &[u8]) -> Vec<Found> {
        let found = self.reader.read(bytes).unwrap_or_else(|error| {
            lock(&self.shared.log).unreadable.get_or_insert(error);
            Vec::new()
        });
        for frame in self.reader.passed() {
            self.shared.observer.frame(frame);
        }
        found
    }

    /// Returns the place at the gate where the method must wait, if it must wait.
    fn place(&self, found: &Found) -> Option<Place> {
        self.shared.gate.arrive(&found.method, || lock(self.names).queue(&found.method))
    }

    /// Records a method before its bytes pass, so that a request is always recorded before its
    /// answer. Returns the trap that the method triggers. The body of a message is only passed
    /// to the observer.
    fn look(&mut self, found: Found) -> Option<Trap> {
        self.shared.observer.method(&found.method);
        if found.is_content() {
            return None;
        }
        let method: Method = found.method;
        lock(self.names).note(&method);
        let mut log = lock(&self.shared.log);
        let mut traps = lock(&self.shared.traps);
        // A method triggers at most one trap. The other traps wait for the next method.
        let at = traps.iter_mut().position(|trap| (trap.predicate)(&method));
        log.methods.push(method);
        at.map(|at| traps.swap_remove(at))
    }
}

/// Waits until this time. The timer of the runtime rounds up to milliseconds, which would be a
/// large part of a short delay. Therefore a thread sleeps for the rest.
async fn until(due: Instant) {
    const REST: Duration = Duration::from_millis(3);
    if let Some(early) = due.checked_sub(REST) {
        sleep_until(early).await;
    }
    let rest = due.saturating_duration_since(Instant::now());
    if !rest.is_zero() {
        // This cannot fail, because a sleep does not panic.
        let _ = spawn_blocking(move || std::thread::sleep(rest)).await;
    }
}

/// The data of one read, on its way to the writer.
struct Passing<'a> {
    steps: &'a mpsc::Sender<Step>,
    bytes: &'a [u8],
    passed: usize,
}

impl Passing<'_> {
    /// Sends the data before this position, and the action of the trap.
    async fn send(
        &mut self,
        until: usize,
        due: Instant,
        sprung: Vec<(usize, usize, Trap)>,
    ) -> Result<(), mpsc::error::SendError<Step>> {
        for (start, end, trap) in sprung {
            let before = self.bytes[self.passed..start].to_vec();
            self.steps.send(Step::Pass(due, before)).await?;
            let replaces = matches!(trap.action, Action::Replace(_));
            self.passed = if trap.when == When::After || replaces { end } else { start };
            let exempt = match &trap.action {
                Action::Replace(bytes) => bytes.clone(),
                Action::Hold | Action::Cut => self.bytes[start..self.passed].to_vec(),
            };
            self.steps.send(Step::Act(trap.action, exempt, trap.sprung)).await?;
        }
        let rest = self.bytes[self.passed..until].to_vec();
        self.passed = until;
        self.steps.send(Step::Pass(due, rest)).await
    }
}

/// Forwards the bytes of one direction when permitted.
struct Writer<'a> {
    frozen: watch::Receiver<bool>,
    held: watch::Receiver<State>,
    state: &'a watch::Sender<State>,
    receiver: Sender,
    end: &'a End<'a>,
}

impl Writer<'_> {
    async fn write(mut self, mut to: WriteHalf<'_>, mut queued: mpsc::Receiver<Step>) -> bool {
        while let Some(step) = queued.recv().await {
            let bytes = match step {
                Step::End => {
                    self.opened().await;
                    return false;
                }
                Step::Pass(due, bytes) => {
                    until(due).await;
                    self.opened().await;
                    bytes
                }
                Step::Act(action, bytes, sprung) => {
                    self.opened().await;
                    // Held before the bytes pass, because the answer could otherwise pass first.
                    if !matches!(action, Action::Replace(_)) {
                        self.hold();
                    }
                    let _ = to.write_all(&bytes).await;
                    sprung.send_replace(true);
                    if action == Action::Cut {
                        return true;
                    }
                    continue;
                }
            };
            if to.write_all(&bytes).await.is_err() {
                self.end.closed_by(self.receiver);
                return false;
            }
        }
        false
    }

    /// Holds the connection, unless it was cut in the meantime.
    fn hold(&self) {
        self.state.send_if_modified(|state| {
            let open = *state == State::Open;
            if open {
                *state = State::Held;
            }
            open
        });
    }

    /// Waits until data may pass. Never returns after a cut: `serve` may notice the cut only when it
    /// is polled again, and the data must not pass before.
    async fn opened(&mut self) {
        loop {
            // The senders outlive the connection.
            let _ = self.frozen.wait_for(|frozen| !frozen).await;
            let _ = self.held.wait_for(|state| *state == State::Open).await;
            if !*self.frozen.borrow() {
                return;
            }
        }
    }
}
