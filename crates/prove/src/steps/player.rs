//! A process of an execution: performs its operations, and detects when its next request is
//! known. See `lab` for the order in which requests are released.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::answered::Unanswered;
use crate::driver::message::Line;
use crate::history::{ConnectionState, Verb};
use crate::run::RunError;
use crate::run::actor::Actor;
use crate::run::cutter::Cutter;
use crate::wire::{Gate, Method, Observer, Passed, Waiting, When};

/// Time within which a process with several connections must use the next connection, when it is
/// in a state for the first time.
const GRACE: Duration = Duration::from_millis(30);

/// Time within which it must use a connection that it used in the same state before.
const KNOWN: Duration = Duration::from_secs(2);

/// Time within which a process must send a request or answer. It exceeds the time limit of an
/// operation.
pub const LIMIT: Duration = Duration::from_secs(40);

/// Time after which what a process has left is no longer on its way to the broker, after an
/// operation with an unknown result.
const LEFT: Duration = Duration::from_millis(1_500);

/// An operation of a process.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// The requested operation.
    pub verb: Verb,
    /// Resize: the number of slots.
    pub slots: Option<u32>,
    /// Whether the start of the operation is a step.
    pub waits: bool,
}

/// The current activity of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// It performs an operation.
    #[default]
    Busy,
    /// It is idle before this operation.
    Ready(Verb),
    /// It is idle and has completed all its operations.
    Done,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    unanswered: Unanswered,
    phase: Phase,
    /// Whether the last answer shows that the process holds a slot.
    holds: bool,
    connections: BTreeSet<usize>,
}

/// Observes the proxy of a process.
#[derive(Clone, Debug, Default)]
pub struct Watch(watch::Sender<Seen>);

impl Observer for Watch {
    fn method(&self, method: &Method) {
        self.0.send_modify(|seen| seen.unanswered.note(method));
    }

    fn connection(&self, number: usize, state: ConnectionState) {
        self.0.send_modify(|seen| {
            seen.unanswered.connection(number, state);
            if state == ConnectionState::Opened {
                seen.connections.insert(number);
            } else {
                seen.connections.remove(&number);
            }
        });
    }

    fn frame(&self, _: Passed) {}
}

/// The result of a process's operations.
pub struct Played {
    /// The process.
    pub actor: Actor,
    /// Whether the last answer shows that the process holds a slot.
    pub holds: bool,
    /// A warning about an unexpected answer.
    pub trouble: Option<String>,
    /// Whether the process was killed, because it did not answer in time.
    pub killed: bool,
}

/// A process whose requests wait at its gate.
pub struct Player {
    /// The process.
    pub process: u32,
    /// The number of requests that were released.
    pub released: usize,
    /// Whether the process was killed, because it did not answer in time.
    pub killed: bool,
    gate: Gate,
    cutter: Cutter,
    watch: Watch,
    next: mpsc::UnboundedSender<()>,
    task: JoinHandle<Played>,
    /// The names of the released requests.
    past: Vec<String>,
}

/// The requests of a process that were waiting at the same time, by its earlier requests and
/// answers. Collected in one execution for use in later ones.
#[derive(Debug, Default)]
pub struct KnownRequests(HashMap<(u32, Vec<String>), BTreeSet<String>>);

impl Player {
    /// Starts the operations of a process. Its requests wait from now on. `goes_on`: whether it
    /// tries to acquire again after the end of the execution, if it failed to.
    ///
    /// # Errors
    ///
    /// Fails if the process has no proxy.
    pub fn start(
        process: u32,
        actor: Actor,
        watch: Watch,
        tasks: Vec<Task>,
        goes_on: bool,
    ) -> Result<Self, RunError> {
        let (gate, cutter) = actor.gate().zip(actor.cutter()).ok_or(RunError::Url)?;
        gate.close();
        let (next, begins) = mpsc::unbounded_channel();
        let operations = Operations { tasks, goes_on, begins };
        let task = tokio::spawn(play(actor, gate.clone(), watch.clone(), operations));
        let (released, killed, past) = (0, false, Vec::new());
        Ok(Self { process, released, killed, gate, cutter, watch, next, task, past })
    }

    /// Returns the current activity.
    pub fn phase(&self) -> Phase {
        self.watch.0.borrow().phase
    }

    /// Returns whether the process is idle and holds a slot.
    pub fn holds(&self) -> bool {
        let seen = self.watch.0.borrow();
        seen.holds && seen.phase != Phase::Busy
    }

    /// Waits until the process cannot continue without the next step. Returns the waiting
    /// requests. Requests for which `idle` returns true are released, because their order does
    /// not matter. `name` returns a name that is equal in all executions. Returns `None` if the
    /// process neither sends a request nor answers within the limit.
    pub async fn rest(
        &self,
        limit: Duration,
        known_requests: &mut KnownRequests,
        name: impl Fn(&Waiting) -> String,
        idle: impl Fn(&Waiting) -> bool,
    ) -> Option<Vec<Waiting>> {
        let mut waiting = timeout(limit, self.settled(&idle)).await.ok()?;
        let mut past = self.past.clone();
        let connections = {
            let seen = self.watch.0.borrow();
            past.extend_from_slice(seen.unanswered.seen());
            seen.connections.len()
        };
        if self.phase() != Phase::Busy || (connections < 2 && waiting.len() < 2) {
            return Some(waiting);
        }
        let key = (self.process, past);
        let names =
            |waiting: &[Waiting]| -> BTreeSet<String> { waiting.iter().map(&name).collect() };
        if let Some(known) = known_requests.0.get(&key) {
            let all = self.gate.until(|now| names(now).is_superset(known));
            if timeout(KNOWN, all).await.is_err() {
                known_requests.0.remove(&key);
            }
            waiting = self.gate.waiting();
        } else {
            while let Ok(now) = timeout(GRACE, self.gate.until(|now| now != waiting)).await {
                waiting = now;
            }
        }
        waiting.retain(|one| !idle(one));
        known_requests.0.entry(key).or_default().extend(names(&waiting));
        Some(waiting)
    }

    /// Waits until every released request was answered, and another request waits or the process
    /// has answered.
    async fn settled(&self, idle: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let mut watched = self.watch.0.subscribe();
        loop {
            let waiting = self.gate.waiting();
            let (answered, busy, ignored) = {
                let seen = watched.borrow_and_update();
                let ignored = |one: &&Waiting| seen.unanswered.ignores(one.connection, one.channel);
                let ignored = waiting.iter().find(ignored).map(|one| one.connection);
                (seen.unanswered.is_empty(), seen.phase == Phase::Busy, ignored)
            };
            if let Some(connection) = ignored {
                self.gate.release(connection);
            } else if let Some(one) = waiting.iter().find(|one| answered && idle(one)) {
                self.pass(one, false);
            } else if answered && !(busy && waiting.is_empty()) {
                return waiting;
            } else {
                tokio::select! {
                    _ = watched.changed() => {}
                    _ = self.gate.until(|now| now != waiting) => {}
                }
            }
        }
    }

    fn pass(&self, request: &Waiting, step: bool) {
        self.watch.0.send_modify(|seen| {
            seen.unanswered.release(request.connection, &request.method, step);
        });
        self.gate.release(request.connection);
    }

    /// Returns the waiting requests.
    pub fn waiting(&self) -> Vec<Waiting> {
        self.gate.waiting()
    }

    /// Releases a waiting request. `name` is equal in all executions.
    pub fn release(&mut self, request: &Waiting, name: String) {
        self.released += 1;
        self.past.push(name);
        self.pass(request, true);
    }

    /// Cuts the connection of a waiting request, before or after it. `name` is equal in all
    /// executions.
    pub async fn cut(&mut self, request: &Waiting, when: When, name: String) {
        self.past.push(name);
        let Waiting { connection, channel, ref method, .. } = *request;
        let answers = self.watch.0.borrow().unanswered.answers(connection, channel, method);
        let release = || self.pass(request, true);
        match when {
            When::Before => self.cutter.cut_before(connection, method).await,
            When::After if answers => {
                let mut watched = self.watch.0.subscribe();
                let answered = async {
                    // The player contains the sender.
                    let _ = watched.wait_for(|seen| seen.unanswered.is_empty()).await;
                };
                self.cutter.cut_after(connection, method, release, answered).await;
            }
            When::After => self.cutter.cut_after_unanswered(connection, method, release).await,
        }
    }

    /// Cuts all connections of the process. `name` is equal in all executions.
    pub async fn cut_all(&mut self, name: String) {
        self.past.push(name);
        self.cutter.cut_all().await;
    }

    /// Kills the process, which did not answer in time.
    pub fn kill(&mut self) {
        self.killed = true;
        self.cutter.kill();
    }

    /// Starts the next operation.
    pub fn begin(&self) {
        self.watch.0.send_modify(|seen| seen.phase = Phase::Busy);
        let _ = self.next.send(());
    }

    /// Lets the remaining requests pass freely, and waits for the end of the operations. Kills
    /// the process if they do not end within the limit.
    pub async fn finish(mut self, limit: Duration) -> Option<Played> {
        self.gate.open();
        // The sender is dropped, so the remaining operations start.
        self.next = mpsc::unbounded_channel().0;
        let ended = match timeout(limit, &mut self.task).await {
            Ok(ended) => ended,
            Err(_) => {
                self.kill();
                (&mut self.task).await
            }
        };
        ended.ok().map(|played| Played { killed: self.killed, ..played })
    }
}

/// The operations of a process.
struct Operations {
    tasks: Vec<Task>,
    goes_on: bool,
    begins: mpsc::UnboundedReceiver<()>,
}

/// Performs the operations. Stops at the first one that was not executed.
async fn play(mut actor: Actor, gate: Gate, watch: Watch, operations: Operations) -> Played {
    let Operations { tasks, goes_on, mut begins } = operations;
    let phase = |phase| watch.0.send_modify(|seen| seen.phase = phase);
    let (mut holds, mut trouble, mut failed) = (false, None, None);
    for Task { verb, slots, waits } in tasks {
        if waits {
            phase(Phase::Ready(verb));
            // After the end of the execution, the remaining operations run freely.
            let _ = begins.recv().await;
        }
        let wait = (verb == Verb::Acquire).then_some(Duration::ZERO);
        let answer = actor.ask(verb, wait, slots).await;
        let done = matches!(answer, Ok(Line::Ok(_)));
        holds = done && matches!(verb, Verb::Acquire | Verb::Verify);
        watch.0.send_modify(|seen| seen.holds = holds);
        failed = answer.as_ref().ok().filter(|_| verb == Verb::Acquire && !done).cloned();
        match answer {
            Ok(Line::Info(why)) => trouble = Some(format!("{verb:?}: {why}")),
            Ok(Line::Fail(why)) if verb == Verb::Resize => {
                trouble = Some(format!("{verb:?}: {why}"));
            }
            Err(error) => trouble = Some(format!("{verb:?}: {error}")),
            Ok(_) => {}
        }
        if !done {
            break;
        }
    }
    gate.open();
    phase(Phase::Done);
    if let Some(failed) = failed.filter(|_| goes_on) {
        // Until the end of the execution.
        let _ = begins.recv().await;
        holds = attempt_again(&mut actor, matches!(failed, Line::Info(_))).await;
    }
    Played { actor, holds, trouble, killed: false }
}

/// Tries to acquire, because S6 judges what a process has left when it goes on. Returns whether it
/// was granted a slot.
async fn attempt_again(actor: &mut Actor, unknown: bool) -> bool {
    let mut attempt = async || {
        let answer = actor.ask(Verb::Acquire, Some(Duration::ZERO), None).await;
        matches!(answer, Ok(Line::Ok(_)))
    };
    if attempt().await {
        return true;
    }
    if unknown {
        sleep(LEFT).await;
        return attempt().await;
    }
    false
}
