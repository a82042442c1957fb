//! The random workload of a run: clients acquire, verify and release while faults occur, and an
//! administrator changes the number of slots. See `cycle` for one cycle of a client.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::actor::Actor;
use super::aims::{Aim, Aims};
use super::cycle::{Cycle, Strike};
use super::{Faults, RunError, RunOptions, Way};
use crate::driver::message::{Line, UNSUPPORTED};
use crate::history::{Rules, Verb};
use crate::wire::Recorder;

/// Probability of a cut in a cycle while there are targets that were not hit yet.
const NEW: f64 = 0.35;

/// Maximum number of cycles in which a cut stays aimed at a method that is not sent.
const TRIES: u32 = 8;

/// The state that all processes of a run share.
#[derive(Clone)]
pub(super) struct Run {
    pub(super) options: Arc<RunOptions>,
    pub(super) aims: Aims,
    recorder: Recorder,
    processes: Arc<AtomicU32>,
    troubles: Arc<Mutex<BTreeSet<String>>>,
    end: Instant,
}

/// Runs the workload. Returns the recording, and warnings about the implementation's behaviour.
///
/// # Errors
///
/// [`RunError`] if the implementation cannot be started, or the lock cannot be created.
pub async fn play(options: &RunOptions) -> Result<(Recorder, Vec<String>), RunError> {
    let mut run = Run {
        options: Arc::new(options.clone()),
        aims: Aims::default(),
        recorder: Recorder::new(),
        processes: Arc::default(),
        troubles: Arc::default(),
        end: Instant::now(),
    };
    let mut random = StdRng::seed_from_u64(options.seed);
    let administrator = run.administrator().await?;
    run.end = Instant::now() + options.duration;
    let mut tasks = JoinSet::new();
    for _ in 0..options.clients {
        let actor = run.start(&options.way).await?;
        let (run, random) = (run.clone(), StdRng::seed_from_u64(random.random()));
        tasks.spawn(async move { run.client(actor, random).await });
    }
    let resized = match administrator {
        Some(actor) => Some(run.resize(actor, &mut random).await?),
        None => None,
    };
    let mut failed = None;
    while let Some(ended) = tasks.join_next().await {
        if let Ok(Err(error)) = ended {
            failed = Some(error);
        }
    }
    if let Some(mut actor) = resized {
        // The lock is deleted from the broker afterwards.
        let _ = actor.ask(Verb::Destroy, None, None).await;
        actor.kill().await;
    }
    if let Some(error) = failed {
        return Err(error);
    }
    let troubles = run.troubles.lock().unwrap_or_else(PoisonError::into_inner);
    Ok((run.recorder.clone(), troubles.iter().cloned().collect()))
}

impl Run {
    async fn start(&self, way: &Way) -> Result<Actor, RunError> {
        let process = self.processes.fetch_add(1, Ordering::Relaxed) + 1;
        Actor::start(way, &self.options, &self.recorder, process).await
    }

    fn trouble(&self, text: String) {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner).insert(text);
    }

    /// Returns a process that has created the lock: a process of the implementation, or of the
    /// driver in the options. Returns `None` if there is no lock to administer.
    async fn administrator(&self) -> Result<Option<Actor>, RunError> {
        if let Way::Driver(_) = self.options.way {
            let own = self.start(&self.options.way).await?.create(self.options.slots).await?;
            if own.is_some() {
                return Ok(own);
            }
        }
        // The implementation creates locks of other kinds itself.
        if self.options.rules == Rules::None {
            return Ok(None);
        }
        let administrator = Way::Driver(self.options.administrator.clone());
        let other = self.start(&administrator).await?.create(self.options.slots).await?;
        other.ok_or_else(|| RunError::Create(UNSUPPORTED.to_owned())).map(Some)
    }

    /// Resizes the lock between 1 and the maximum until the end of the run.
    async fn resize(&self, mut actor: Actor, random: &mut StdRng) -> Result<Actor, RunError> {
        let mut slots = self.options.slots;
        while Instant::now() < self.end {
            sleep(self.options.resize_within.mul_f64(random.random_range(0.2..1.0))).await;
            slots = match slots {
                1 => self.options.slots,
                _ => random.random_range(1..=self.options.slots),
            };
            if self.options.slots == 1 {
                sleep_until(self.end).await;
                break;
            }
            match actor.ask(Verb::Resize, None, Some(slots)).await {
                Ok(Line::Ok(_)) => {}
                Ok(line) => self.trouble(format!("resize: {line:?}")),
                Err(error) => {
                    self.trouble(format!("resize: {error}"));
                    break;
                }
            }
        }
        Ok(actor)
    }

    /// Runs cycles until the end of the run. Replaces a process that was killed or whose state
    /// is unknown.
    async fn client(&self, mut actor: Actor, mut random: StdRng) -> Result<(), RunError> {
        let (mut strike, mut tries) = (Strike::Nothing, 0);
        while Instant::now() < self.end {
            let drawn = self.strike(&mut random);
            // A cut stays aimed at its method until the method is sent.
            let aimed = matches!(strike, Strike::CutMethod(_)) && tries < TRIES;
            if !aimed || drawn.is_sure() {
                (strike, tries) = (drawn, 0);
            }
            tries += 1;
            let mut cycle =
                Cycle { run: self, actor: &mut actor, random: &mut random, strike: &mut strike };
            let keeps = match cycle.play().await {
                Ok(keeps) => keeps,
                Err(why) => {
                    self.trouble(why);
                    false
                }
            };
            if !keeps {
                actor.kill().await;
                actor = self.start(&self.options.way).await?;
            }
        }
        actor.kill().await;
        Ok(())
    }

    /// Chooses the fault of one cycle at random.
    fn strike(&self, random: &mut StdRng) -> Strike {
        let Faults { kill, cut, .. } = self.options.faults;
        let (drawn, half) = (random.random_range(0..100), random.random_bool(0.5));
        if drawn < kill {
            return if half { Strike::KillHolding } else { Strike::KillAcquiring };
        }
        if drawn < kill + cut && half {
            return Strike::CutHolding;
        }
        match self.aims.choose(random) {
            Some(Aim { target, new }) if cut > 0 => {
                let strikes = drawn < kill + cut || (new && random.random_bool(NEW));
                if strikes { Strike::CutMethod(target) } else { Strike::Nothing }
            }
            _ => Strike::Nothing,
        }
    }
}
