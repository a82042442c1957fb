//! Prepares the processes and the lock of an execution while another execution is running, and
//! removes them afterwards. See `lab` for the execution itself.

use super::error::StepsError;
use super::player::{Played, Watch};
use crate::driver::message::{Line, UNSUPPORTED};
use crate::history::Verb;
use crate::run::actor::Actor;
use crate::run::{RunError, RunOptions, Way};
use crate::wire::Recorder;

/// Maximum number of locks to try to create for an execution.
const ATTEMPTS: u32 = 3;

/// The data that every execution needs.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The options for starting processes. The name in them is the prefix of the name of each
    /// lock.
    pub run: RunOptions,
    /// The driver that resizes the lock, if it is known.
    pub administrator: Option<Way>,
}

/// The processes and the lock of an execution. The lock exists.
pub struct Prepared {
    /// The options with which the processes were started, with the name of the lock.
    pub run: RunOptions,
    /// The recorder, which has recorded the creation of the lock.
    pub recorder: Recorder,
    /// The clients, which have not performed any operation.
    pub clients: Vec<(Actor, Watch)>,
    /// The process that created the lock.
    pub administrator: (Actor, Watch),
    /// The driver of the administrator.
    pub way: Way,
}

impl Stage {
    /// Starts the processes and creates the lock of the execution with this number. On failure,
    /// tries again with another lock, so that earlier requests are not part of the execution.
    ///
    /// # Errors
    ///
    /// Fails if a process cannot be started, or if no driver can create the lock.
    pub async fn prepare(self, number: u64) -> Result<Prepared, StepsError> {
        let mut error = StepsError::Ended;
        for attempt in 0..ATTEMPTS {
            let lock = format!("{}-{number}-{attempt}", self.run.lock);
            match self.clone().prepare_lock(lock).await {
                Err(StepsError::Run(RunError::Create(why))) => error = RunError::Create(why).into(),
                done => return done,
            }
        }
        Err(error)
    }

    async fn prepare_lock(mut self, lock: String) -> Result<Prepared, StepsError> {
        self.run.lock = lock;
        let recorder = Recorder::new();
        let (way, actor, watch) = self.administrator(&recorder).await?;
        let administrator = (actor, watch);
        let mut clients = Vec::new();
        for process in 1..=self.run.clients {
            clients.push(self.start(&self.run.way, &recorder, process).await?);
        }
        Ok(Prepared { run: self.run, recorder, clients, administrator, way })
    }

    async fn start(
        &self,
        way: &Way,
        recorder: &Recorder,
        process: u32,
    ) -> Result<(Actor, Watch), StepsError> {
        let watch = Watch::default();
        let actor = Actor::observed(way, &self.run, recorder, process, watch.clone()).await?;
        Ok((actor, watch))
    }

    /// Starts the administrator and creates the lock.
    async fn administrator(&self, recorder: &Recorder) -> Result<(Way, Actor, Watch), StepsError> {
        let administrator = Way::Driver(self.run.administrator.clone());
        let known = self.administrator.clone();
        let ways = known.map_or_else(|| vec![self.run.way.clone(), administrator], |way| vec![way]);
        for way in ways {
            let (actor, watch) = self.start(&way, recorder, self.run.clients + 1).await?;
            if let Some(actor) = actor.create(self.run.slots).await? {
                return Ok((way, actor, watch));
            }
            // This driver did nothing, so its events are removed from the history.
            recorder.finish();
        }
        Err(RunError::Create(UNSUPPORTED.to_owned()).into())
    }
}

/// Deletes the lock from the broker and ends the processes. If the administrator cannot delete
/// the lock, because of a fault, another process of its driver does. `stage` contains the name
/// of the lock.
pub async fn leave(stage: Stage, clients: Vec<Played>, administrator: Option<Actor>) {
    for mut client in clients {
        if client.holds {
            let _ = client.actor.ask(Verb::Release, None, None).await;
        }
        client.actor.kill().await;
    }
    let Some(mut administrator) = administrator else { return };
    let destroyed = administrator.ask(Verb::Destroy, None, None).await;
    let process = administrator.process() + 1;
    administrator.kill().await;
    if let (false, Some(way)) = (matches!(destroyed, Ok(Line::Ok(_))), &stage.administrator)
        && let Ok((mut other, _)) = stage.start(way, &Recorder::new(), process).await
    {
        let _ = other.ask(Verb::Destroy, None, None).await;
        other.kill().await;
    }
}

impl Prepared {
    /// Removes the lock and the processes of an execution that does not take place.
    pub async fn leave(self) {
        let idle = |(actor, _)| Played { actor, holds: false, trouble: None, killed: false };
        let clients = self.clients.into_iter().map(idle).collect();
        let stage = Stage { run: self.run, administrator: Some(self.way) };
        leave(stage, clients, Some(self.administrator.0)).await;
    }
}
