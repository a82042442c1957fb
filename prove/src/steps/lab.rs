//! The world of real processes and a real broker. Each execution has new processes and its own
//! lock, which is deleted at the end. See `explore` for the choice of executions, `stage` for
//! their preparation, and `player` for one process.

use std::collections::VecDeque;

use lockkeeper::plan::naming::LockName;
use tokio::task::{JoinHandle, JoinSet};

use super::explore::World;
use super::player::{KnownRequests, Phase, Player, Task};
use super::request::{Asked, On, Request};
use super::stage::{Prepared, Stage, leave};
use super::{Resizes, StepsError, StepsOptions};
use crate::check::judge;
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
    /// Totals over all executions.
    pub totals: Totals,
}

/// The current execution.
struct Execution {
    recorder: Recorder,
    name: String,
    lock: Option<LockName>,
    players: Vec<Player>,
    /// The administrator, unless its operations are part of the exploration.
    idle: Option<Actor>,
    /// The time of each step.
    taken: Vec<u64>,
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

    fn acquires(&self) -> Vec<Task> {
        let mut tasks = vec![Task { verb: Verb::Acquire, slots: None, waits: false }];
        if self.options.release {
            tasks.push(Task { verb: Verb::Release, slots: None, waits: true });
        }
        tasks
    }

    fn judge(&mut self, execution: &Execution) -> Result<(History, Verdict), StepsError> {
        let recorder = &execution.recorder;
        let header = Header {
            version: VERSION,
            implementation: self.options.driver.clone(),
            broker: recorder.broker().unwrap_or_default(),
            protocol: self.options.rules,
            lock: execution.name.clone(),
            slots: 0,
            seed: self.options.seed,
            heartbeat_ms: u64::try_from(recorder.heartbeat().as_millis()).unwrap_or(u64::MAX),
            played: None,
        };
        self.totals.broker.clone_from(&header.broker);
        let history = History { header, events: recorder.finish() };
        let verdict = judge(&history).map_err(RunError::from)?;
        self.totals.grants += verdict.counts.get("grants").copied().unwrap_or_default();
        self.totals.freed += u64::from(execution.freed);
        Ok((history, verdict))
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
        let Prepared { run, recorder, clients, administrator, .. } = self.prepared().await?;
        let (acquires, resizes) = (self.acquires(), self.resizes());
        let mut processes: Vec<_> =
            clients.into_iter().map(|client| (client, acquires.clone())).collect();
        let mut idle = None;
        if resizes.is_empty() {
            idle = Some(administrator.0);
        } else {
            processes.push((administrator, resizes));
        }
        let mut players = Vec::new();
        for (process, ((actor, watch), tasks)) in (1..).zip(processes) {
            players.push(Player::start(process, actor, watch, tasks)?);
        }
        let lock = self
            .options
            .rules
            .protocol()
            .and_then(|protocol| Some(LockName::new(&run.lock).ok()?.with_protocol(protocol)));
        let (name, taken) = (run.lock, Vec::new());
        let (freed, ended) = (false, false);
        self.execution =
            Some(Execution { recorder, name, lock, players, idle, taken, freed, ended });
        Ok(())
    }

    async fn steps(&mut self) -> Result<Vec<Request>, StepsError> {
        let Some(execution) = &mut self.execution else { return Ok(Vec::new()) };
        let mut steps = Vec::new();
        for player in &execution.players {
            let process = player.process;
            let name = |one: &Waiting| execution.request(process, one).to_string();
            let slots = self.options.slots;
            let idle = |one: &Waiting| execution.request(process, one).is_beyond(slots);
            let waiting = player.rest(&mut self.known_requests, name, idle).await;
            let waiting = waiting.ok_or(StepsError::Stuck(process))?;
            if let Phase::Ready(verb) = player.phase() {
                steps.push(Request { process, what: Asked::Begin(verb), connection: 0 });
            }
            steps.extend(waiting.iter().map(|one| execution.request(process, one)));
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
            execution.take(step);
        }
        Ok(())
    }

    async fn end(&mut self) -> Result<Option<(usize, Violated)>, StepsError> {
        let Some(mut execution) = self.execution.take() else { return Ok(None) };
        let cut_at = if execution.ended { u64::MAX } else { execution.recorder.at() };
        let mut administrator = execution.idle.take();
        let mut clients = Vec::new();
        for player in execution.players.drain(..) {
            let process = player.process;
            let played = player.finish().await.ok_or(StepsError::Stuck(process))?;
            self.trouble(played.trouble.clone());
            if process <= self.options.actors {
                clients.push(played);
            } else {
                administrator = Some(played.actor);
            }
        }
        let (history, verdict) = self.judge(&execution)?;
        self.leaving.spawn(leave(clients, administrator));
        while self.leaving.len() > PREPARED {
            self.leaving.join_next().await;
        }
        let Some(first) = verdict.violations.first() else { return Ok(None) };
        let steps = execution.taken.iter().filter(|at| **at <= first.at).count();
        let steps = if first.at > cut_at { usize::MAX } else { steps };
        Ok(Some((steps, Violated { history, verdict })))
    }
}

impl Execution {
    fn request(&self, process: u32, waiting: &Waiting) -> Request {
        let on = On::read(self.lock.as_ref(), &waiting.queue);
        let what = Asked::Method(waiting.method.clone(), on);
        Request { process, what, connection: waiting.connection }
    }

    fn take(&mut self, step: &Request) {
        let process = step.process;
        let Some(index) = self.players.iter().position(|one| one.process == process) else {
            return;
        };
        if matches!(step.what, Asked::Begin(_)) {
            return self.players[index].begin();
        }
        let waiting = self.players[index].waiting();
        if let Some(request) = waiting.iter().find(|one| self.request(process, one) == *step) {
            self.players[index].release(request, step.to_string());
        }
    }
}
