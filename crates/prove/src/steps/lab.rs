//! The world of real processes and a real broker. Each execution has new processes and its own
//! lock, which is deleted at the end. See `explore` for the choice of executions, `stage` for
//! their preparation, and `player` for one process.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use lockkeeper_plan::naming::LockName;
use tokio::task::{JoinHandle, JoinSet};

use super::cuts::{self, Side};
use super::error::StepsError;
use super::explore::World;
use super::options::{InjectedFaults, Resizes, StepsOptions};
use super::player::{self, KnownRequests, Phase, Player, Task};
use super::request::{Asked, Cut, On, Request};
use super::stage::{Prepared, Stage, leave};
use crate::check::judge_so_far;
use crate::check::verdict::Verdict;
use crate::history::{Header, History, VERSION, Verb};
use crate::run::RunError;
use crate::run::actor::Actor;
use crate::wire::{Recorder, Waiting};

/// Maximum number of requests of a process that are released one at a time. Further requests
/// pass freely.
pub const LONGEST: usize = 24;

/// Number of executions that are prepared while one is running.
const PREPARED: usize = 3;

/// Time within which a process must send a request or answer in an execution with a fault.
/// Otherwise it is killed.
const AFTER_FAULT: Duration = Duration::from_secs(5);

/// An execution that violates a property.
#[derive(Clone, Debug)]
pub struct Violated {
    /// The recorded execution.
    pub history: History,
    /// The verdict on it.
    pub verdict: Verdict,
}

/// Totals over all executions.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Number of grants.
    pub grants: u64,
    /// Number of executions in which a process sent more than [`LONGEST`] requests.
    pub freed: u64,
    /// Warnings about the implementation's behaviour, each text once.
    pub troubles: Vec<String>,
    /// Number of faults that took effect.
    pub effective: u64,
    /// Number of executions with a fault in which a process was killed, because it neither sent
    /// a request nor answered.
    pub killed: u64,
    /// Product and version of the broker.
    pub broker: String,
}

/// The world of real processes.
pub struct Lab<'a> {
    options: &'a StepsOptions,
    stage: Stage,
    next: u64,
    prepared: VecDeque<JoinHandle<Result<Prepared, StepsError>>>,
    leaving: JoinSet<()>,
    known_requests: KnownRequests,
    execution: Option<Execution>,
    /// The complete executions so far without a fault, if they are needed later.
    pub complete: BTreeSet<cuts::Execution>,
    /// The kind of the fault in the next execution.
    pub fault: Option<Side>,
    /// Totals over all executions.
    pub totals: Totals,
}

/// The current execution.
struct Execution {
    recorder: Recorder,
    stage: Stage,
    lock: Option<LockName>,
    players: Vec<Player>,
    /// The administrator, unless its operations are part of the exploration.
    idle: Option<Actor>,
    /// The time of each step.
    taken: Vec<u64>,
    /// The steps, and the holders at each point.
    path: cuts::Execution,
    fault: Option<Side>,
    /// Whether the fault took effect.
    effective: bool,
    freed: bool,
    /// Whether no step remains.
    ended: bool,
}

impl<'a> Lab<'a> {
    /// Creates the world.
    pub fn new(options: &'a StepsOptions, stage: Stage) -> Self {
        Self {
            options,
            stage,
            next: 0,
            prepared: VecDeque::new(),
            leaving: JoinSet::new(),
            known_requests: KnownRequests::default(),
            execution: None,
            complete: BTreeSet::new(),
            fault: None,
            totals: Totals::default(),
        }
    }

    /// Deletes the prepared locks from the broker.
    pub async fn close(&mut self) {
        for prepared in self.prepared.drain(..) {
            if let Ok(Ok(prepared)) = prepared.await {
                prepared.leave().await;
            }
        }
        while self.leaving.join_next().await.is_some() {}
    }

    /// Returns the processes of the next execution, and prepares further ones.
    async fn prepared(&mut self) -> Result<Prepared, StepsError> {
        // The first execution determines which driver can resize the lock.
        let ahead = if self.stage.administrator.is_some() { PREPARED } else { 1 };
        while self.prepared.len() < ahead {
            self.next += 1;
            self.prepared.push_back(tokio::spawn(self.stage.clone().prepare(self.next)));
        }
        let Some(next) = self.prepared.pop_front() else { return Err(StepsError::Ended) };
        let prepared = next.await.map_err(|_| StepsError::Ended)??;
        self.stage.administrator = Some(prepared.way.clone());
        Ok(prepared)
    }

    /// Returns the operations of the administrator while the clients acquire.
    fn resizes(&self) -> Vec<Task> {
        let resize = |slots| Task { verb: Verb::Resize, slots: Some(slots), waits: false };
        let slots = self.options.slots;
        match self.options.resizes {
            Resizes::No => Vec::new(),
            Resizes::Shrink => vec![resize(slots.saturating_sub(1))],
            Resizes::ShrinkAndRegrow => vec![resize(slots.saturating_sub(1)), resize(slots)],
        }
    }

    /// Returns the operations of a client. A client that holds verifies after a fault, so that
    /// its answer is judged.
    fn acquires(&self, process: u32) -> Vec<Task> {
        let mut tasks = vec![Task { verb: Verb::Acquire, slots: None, waits: false }];
        let release = self.options.release;
        let verifies = |fault| !release || fault == Side::Holding(process);
        if self.fault.is_some_and(verifies) {
            tasks.push(Task { verb: Verb::Verify, slots: None, waits: true });
        }
        if release {
            tasks.push(Task { verb: Verb::Release, slots: None, waits: true });
        }
        tasks
    }

    /// Returns the processes of the current execution that are idle and hold a slot.
    pub fn holders(&self) -> BTreeSet<u32> {
        self.execution.as_ref().map_or_else(BTreeSet::new, Execution::holders)
    }

    fn judge(&mut self, execution: &Execution) -> Result<(History, Verdict), StepsError> {
        let recorder = &execution.recorder;
        let header = Header {
            version: VERSION,
            implementation: self.options.driver.clone(),
            broker: recorder.broker().unwrap_or_default(),
            protocol: self.options.rules,
            lock: execution.stage.run.lock.clone(),
            slots: 0,
            seed: self.options.seed,
            heartbeat_ms: u64::try_from(recorder.heartbeat().as_millis()).unwrap_or(u64::MAX),
            played: None,
        };
        self.totals.broker.clone_from(&header.broker);
        let history = History { header, events: recorder.finish() };
        let verdict = judge_so_far(&history).map_err(RunError::from)?;
        self.totals.grants += verdict.counts.get("grants").copied().unwrap_or_default();
        self.totals.freed += u64::from(execution.freed);
        self.totals.effective += u64::from(execution.effective);
        Ok((history, verdict))
    }

    /// Keeps a complete execution without a fault, if faults are injected later.
    fn keep(&mut self, execution: &mut Execution) {
        let faults = self.options.faults == InjectedFaults::One && execution.fault.is_none();
        if faults && execution.ended && !execution.freed {
            let holders = execution.holders();
            let mut path = std::mem::take(&mut execution.path);
            path.holders.push(holders);
            self.complete.insert(path);
        }
    }

    fn trouble(&mut self, trouble: Option<String>) {
        self.totals.troubles.extend(trouble);
        self.totals.troubles.sort();
        self.totals.troubles.dedup();
    }
}

impl World for Lab<'_> {
    type Step = Request;
    type Fault = Violated;
    type Error = StepsError;

    async fn begin(&mut self) -> Result<(), StepsError> {
        let Prepared { run, recorder, clients, administrator, way } = self.prepared().await?;
        let resizes = self.resizes();
        let clients = (1..).zip(clients);
        let mut processes: Vec<_> =
            clients.map(|(process, client)| (client, self.acquires(process))).collect();
        let mut idle = None;
        if resizes.is_empty() {
            idle = Some(administrator.0);
        } else {
            processes.push((administrator, resizes));
        }
        let mut players = Vec::new();
        for (process, ((actor, watch), tasks)) in (1..).zip(processes) {
            let goes_on = self.fault.is_none();
            players.push(Player::start(process, actor, watch, tasks, goes_on)?);
        }
        let lock = self
            .options
            .rules
            .protocol()
            .and_then(|protocol| Some(LockName::new(&run.lock).ok()?.with_protocol(protocol)));
        self.execution = Some(Execution {
            recorder,
            stage: Stage { run, administrator: Some(way) },
            lock,
            players,
            idle,
            taken: Vec::new(),
            path: cuts::Execution::default(),
            fault: self.fault,
            effective: false,
            freed: false,
            ended: false,
        });
        Ok(())
    }

    async fn steps(&mut self) -> Result<Vec<Request>, StepsError> {
        let Some(execution) = &mut self.execution else { return Ok(Vec::new()) };
        let mut steps = Vec::new();
        let (lock, slots) = (execution.lock.as_ref(), self.options.slots);
        let limit = if execution.fault.is_some() { AFTER_FAULT } else { player::LIMIT };
        for player in execution.players.iter_mut().filter(|player| !player.killed) {
            let process = player.process;
            let name = |one: &Waiting| request(lock, process, one).to_string();
            let idle = |one: &Waiting| request(lock, process, one).is_beyond(slots);
            let Some(waiting) = player.rest(limit, &mut self.known_requests, name, idle).await
            else {
                if execution.fault.is_none() {
                    return Err(StepsError::Stuck(process));
                }
                player.kill();
                continue;
            };
            if let Phase::Ready(verb) = player.phase() {
                steps.push(Request { process, what: Asked::Begin(verb), connection: 0 });
            }
            steps.extend(waiting.iter().map(|one| request(lock, process, one)));
        }
        let free = |player: &Player| player.released >= LONGEST && player.phase() == Phase::Busy;
        if execution.players.iter().any(free) {
            execution.freed = true;
            steps.clear();
        }
        execution.ended = steps.is_empty();
        steps.sort();
        steps.dedup();
        Ok(steps)
    }

    async fn take(&mut self, step: &Request) -> Result<(), StepsError> {
        if let Some(execution) = &mut self.execution {
            execution.taken.push(execution.recorder.at());
            let holders = execution.holders();
            execution.path.holders.push(holders);
            execution.path.schedule.push(step.clone());
            execution.take(step).await;
        }
        Ok(())
    }

    async fn end(&mut self) -> Result<Option<(usize, Violated)>, StepsError> {
        let Some(mut execution) = self.execution.take() else { return Ok(None) };
        let cut_at = if execution.ended { u64::MAX } else { execution.recorder.at() };
        self.keep(&mut execution);
        let mut administrator = execution.idle.take();
        let (mut clients, mut killed) = (Vec::new(), false);
        let limit = if execution.fault.is_some() { AFTER_FAULT } else { Duration::MAX };
        for player in execution.players.drain(..) {
            let process = player.process;
            let played = player.finish(limit).await.ok_or(StepsError::Stuck(process))?;
            killed |= played.killed;
            // After a fault, any answer is allowed.
            if execution.fault.is_none() {
                self.trouble(played.trouble.clone());
            }
            if process <= self.options.actors {
                clients.push(played);
            } else {
                administrator = Some(played.actor);
            }
        }
        self.totals.killed += u64::from(killed);
        let (history, verdict) = self.judge(&execution)?;
        self.leaving.spawn(leave(execution.stage, clients, administrator));
        while self.leaving.len() > PREPARED {
            self.leaving.join_next().await;
        }
        let Some(first) = verdict.violations.first() else { return Ok(None) };
        let steps = execution.taken.iter().filter(|at| **at <= first.at).count();
        let steps = if first.at > cut_at { usize::MAX } else { steps };
        Ok(Some((steps, Violated { history, verdict })))
    }
}

fn request(lock: Option<&LockName>, process: u32, waiting: &Waiting) -> Request {
    let on = On::read(lock, &waiting.queue);
    let what = Asked::Method(waiting.method.clone(), on);
    Request { process, what, connection: waiting.connection }
}

impl Execution {
    fn holders(&self) -> BTreeSet<u32> {
        self.players.iter().filter(|one| one.holds()).map(|one| one.process).collect()
    }

    /// Takes a step, or injects a fault.
    async fn take(&mut self, step: &Request) {
        let (process, lock) = (step.process, self.lock.as_ref());
        let Some(player) = self.players.iter_mut().find(|one| one.process == process) else {
            return;
        };
        let waiting = player.waiting();
        let find = |what: &Asked| {
            let same = |one: &&Waiting| request(lock, process, one).what == *what;
            waiting.iter().find(same)
        };
        match &step.what {
            Asked::Begin(_) => player.begin(),
            what @ Asked::Method(..) => {
                if let Some(request) = find(what) {
                    player.release(request, step.to_string());
                }
            }
            Asked::Cut(Cut::Method(when, method, on)) => {
                if let Some(request) = find(&Asked::Method(method.clone(), on.clone())) {
                    player.cut(request, *when, step.to_string()).await;
                    self.effective = true;
                }
            }
            Asked::Cut(Cut::Holding) => {
                player.cut_all(step.to_string()).await;
                self.effective = true;
            }
        }
    }
}
