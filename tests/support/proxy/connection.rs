//! One connection through the proxy: reads data from either end, decides when it passes
//! to the other, and ends the connection.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::wire::{Reader, Sender};
use super::{Shared, Trap, When};

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Everything passes.
    Open,
    /// Nothing passes.
    Held,
    /// It ends immediately, for both sides.
    Cut,
}

/// Action of a trap on the connection of the awaited method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Hold,
    Cut,
}

/// Next step of one direction.
enum Step {
    /// Pass this on when it is due and permitted.
    Pass(Instant, Vec<u8>),
    /// Apply this action to the connection. These bytes still pass, but no answer to
    /// them.
    Act(Action, Vec<u8>, watch::Sender<bool>),
    /// The sender has closed.
    End,
}

/// Passes all data between a client and the broker until one of them, or a test, ends the
/// connection.
pub async fn serve(
    shared: Arc<Shared>,
    number: usize,
    state: watch::Sender<State>,
    mut near: TcpStream,
    mut far: TcpStream,
) {
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let mut watched = state.subscribe();
    let trapped = {
        let (near_read, near_write) = near.split();
        let (far_read, far_write) = far.split();
        let direction = |sender| Direction {
            shared: &shared,
            sender,
            reader: Reader::new(number, sender),
            state: &state,
        };
        tokio::select! {
            // A cut first, so that other ready data no longer passes.
            biased;
            _ = watched.wait_for(|state| *state == State::Cut) => false,
            trapped = direction(Sender::Client).run(near_read, far_write) => trapped,
            trapped = direction(Sender::Broker).run(far_read, near_write) => trapped,
        }
    };
    if trapped || *state.borrow() == State::Cut {
        // RST, which no client can mistake for an orderly end.
        let _ = near.set_zero_linger();
    }
    drop(near);
    let mut answers = [0; 4096];
    if trapped {
        // When a connection ends, the broker drops data that it has read but not
        // processed. So the end is sent when it has nothing more to send, or has sent for
        // long, because messages to a consumer never end.
        let quiet = Duration::from_millis(100);
        let talks = async {
            while timeout(quiet, far.read(&mut answers))
                .await
                .is_ok_and(|read| read.unwrap_or(0) > 0)
            {}
        };
        let _ = timeout(Duration::from_secs(1), talks).await;
    }
    // An RST must not discard data that it has not read either.
    let _ = far.shutdown().await;
    let rest = async { while far.read(&mut answers).await.unwrap_or(0) > 0 {} };
    let _ = timeout(Duration::from_secs(1), rest).await;
}

struct Direction<'a> {
    shared: &'a Shared,
    sender: Sender,
    reader: Reader,
    state: &'a watch::Sender<State>,
}

impl Direction<'_> {
    /// Ends when the sender has closed, or with `true` when a trap cuts.
    async fn run(mut self, from: ReadHalf<'_>, to: WriteHalf<'_>) -> bool {
        let (steps, queued) = mpsc::channel(1024);
        let gate = Gate {
            frozen: self.shared.frozen.subscribe(),
            held: self.state.subscribe(),
            state: self.state,
        };
        tokio::select! {
            _ = self.read(from, steps) => false,
            trapped = gate.write(to, queued) => trapped,
        }
    }

    /// Reads data and sends steps to the writer, which alone ends this.
    async fn read(
        &mut self,
        mut from: ReadHalf<'_>,
        steps: mpsc::Sender<Step>,
    ) -> Result<(), mpsc::error::SendError<Step>> {
        let mut buffer = vec![0; 65_536];
        loop {
            let read = from.read(&mut buffer).await.unwrap_or(0);
            if read == 0 {
                steps.send(Step::End).await?;
                return pending().await;
            }
            let delays = *self.shared.delays.lock().unwrap();
            let due =
                Instant::now() + if self.sender == Sender::Client { delays.0 } else { delays.1 };
            let mut passed = 0;
            for (start, end, trap) in self.look(&buffer[..read]) {
                steps.send(Step::Pass(due, buffer[passed..start].to_vec())).await?;
                let exempt = if trap.when == When::Before { start..start } else { start..end };
                passed = exempt.end;
                steps.send(Step::Act(trap.action, buffer[exempt].to_vec(), trap.sprung)).await?;
            }
            steps.send(Step::Pass(due, buffer[passed..read].to_vec())).await?;
        }
    }

    /// Records the methods that end in `bytes` before these pass, so that the request of
    /// any visible answer is already counted. Returns the traps that they trigger.
    fn look(&mut self, bytes: &[u8]) -> Vec<(usize, usize, Trap)> {
        let mut log = self.shared.log.lock().unwrap();
        let mut traps = self.shared.traps.lock().unwrap();
        let methods = self.reader.read(bytes).unwrap_or_else(|error| {
            log.unreadable.get_or_insert(error);
            Vec::new()
        });
        let mut sprung = Vec::new();
        for (start, end, method) in methods {
            // One method triggers one trap. The others wait for the next one.
            if let Some(at) = traps.iter_mut().position(|trap| (trap.predicate)(&method)) {
                sprung.push((start, end, traps.swap_remove(at)));
            }
            log.methods.push(method);
        }
        sprung
    }
}

/// Lets one direction's bytes pass, or not.
struct Gate<'a> {
    frozen: watch::Receiver<bool>,
    held: watch::Receiver<State>,
    state: &'a watch::Sender<State>,
}

impl Gate<'_> {
    async fn write(mut self, mut to: WriteHalf<'_>, mut queued: mpsc::Receiver<Step>) -> bool {
        while let Some(step) = queued.recv().await {
            let bytes = match step {
                Step::End => {
                    self.opened().await;
                    return false;
                }
                Step::Pass(due, bytes) => {
                    sleep_until(due).await;
                    self.opened().await;
                    bytes
                }
                Step::Act(action, bytes, sprung) => {
                    self.opened().await;
                    // Before the bytes pass, because the answer could be faster.
                    self.state.send_replace(State::Held);
                    let _ = to.write_all(&bytes).await;
                    sprung.send_replace(true);
                    if action == Action::Cut {
                        return true;
                    }
                    continue;
                }
            };
            if to.write_all(&bytes).await.is_err() {
                return false;
            }
        }
        false
    }

    async fn opened(&mut self) {
        loop {
            // Their senders outlive the connection.
            let _ = self.frozen.wait_for(|frozen| !frozen).await;
            let _ = self.held.wait_for(|state| *state != State::Held).await;
            if !*self.frozen.borrow() {
                return;
            }
        }
    }
}
