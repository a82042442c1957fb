//! The random workload of a run: clients acquire, verify and release while faults occur, and an
//! administrator changes the number of slots. See `cycle` for one cycle of a client.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::actor::{Actor, Blow};
use super::aims::{Aim, Aims};
use super::cycle::{Cycle, Size, Strike};
use super::ending::{End, Ending};
use super::error::RunError;
use super::options::{RunOptions, Way};
use crate::driver::message::Line;
use crate::driver::process::DriverError;
use crate::history::{Faults, Rules, Verb};
use crate::wire::Recorder;

/// Probability of a cut in a cycle while there are targets that were not hit yet.
const NEW: f64 = 0.35;

/// Probability that a hold that is cut is a long one.
const LONG: f64 = 0.3;

/// Maximum number of cycles in which a cut stays aimed at a method that is not sent.
const TRIES: u32 = 8;

/// Time within which an administrator is struck after a resize began. Most resizes take longer.
const STRIKE_WITHIN: Duration = Duration::from_millis(20);

/// Maximum time without faults of the administrator. After one, the size of the lock is less
/// certain, so S3 and S9 find less.
const SPARED: Duration = Duration::from_secs(20);

/// Probability of a fault of the administrator in a resize, relative to that in a cycle. There
/// are fewer resizes than cycles.
const STRUCK: u32 = 2;

/// Time limit of an acquire after the last fault.
const RECOVERY: Duration = Duration::from_secs(10);

/// Time until a slot is released to a waiter after the last fault. Most clients wait by then.
const WAITS: Duration = Duration::from_millis(500);

/// The state that all processes of a run share.
#[derive(Clone)]
struct Run {
    options: Arc<RunOptions>,
    aims: Aims,
    recorder: Recorder,
    processes: Arc<AtomicU32>,
    /// The number of clients that hold.
    holders: watch::Sender<u32>,
    size: watch::Sender<Size>,
    troubles: Arc<Mutex<BTreeSet<String>>>,
    end: End,
}

/// A process that resizes the lock, and its driver.
struct Administrator {
    way: Way,
    actor: Actor,
}

/// Runs and records the workload until it is stopped, but not longer than its duration.
/// Returns warnings about the implementation's behaviour.
///
/// # Errors
///
/// [`RunError`] if the implementation cannot be started, or the lock cannot be created.
pub async fn play(
    options: &RunOptions,
    recorder: &Recorder,
    told: watch::Receiver<Option<Ending>>,
) -> Result<Vec<String>, RunError> {
    let mut run = Run {
        options: Arc::new(options.clone()),
        aims: Aims::default(),
        recorder: recorder.clone(),
        processes: Arc::default(),
        holders: watch::Sender::default(),
        size: watch::Sender::new(Size { slots: options.slots, changes: false }),
        troubles: Arc::default(),
        end: End::new(told),
    };
    let mut random = StdRng::seed_from_u64(options.seed);
    let administrator = run.administrator().await?;
    run.end.at = Instant::now() + options.duration;
    let mut tasks = JoinSet::new();
    for number in 0..options.clients {
        let way = options.way_of(number);
        let actor = run.start(&way).await?;
        let (run, random) = (run.clone(), StdRng::seed_from_u64(random.random()));
        tasks.spawn(async move { run.client(&way, actor, random).await });
    }
    let mut resized = match administrator {
        Some(administrator) => Some(run.resize(administrator, &mut random).await?),
        None => None,
    };
    let (mut failed, mut clients) = (None, Vec::new());
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok(Ok(client)) => clients.push(client),
            Ok(Err(error)) => failed = Some(error),
            Err(_) => {}
        }
    }
    if failed.is_none() && !run.end.is_at_once() {
        run.recover(resized.as_mut().map(|one| &mut one.actor)).await?;
    }
    // The clients stay alive until then, so that slots that they keep are found.
    for client in clients {
        client.kill().await;
    }
    if let Some(Administrator { mut actor, .. }) = resized {
        // The lock is deleted from the broker afterwards.
        let _ = actor.ask(Verb::Destroy, None, None).await;
        actor.kill().await;
    }
    if let Some(error) = failed {
        return Err(error);
    }
    let troubles = run.troubles.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(troubles.iter().cloned().collect())
}

impl Run {
    async fn start(&self, way: &Way) -> Result<Actor, RunError> {
        let process = self.processes.fetch_add(1, Ordering::Relaxed) + 1;
        Actor::start(way, &self.options, &self.recorder, process).await
    }

    fn trouble(&self, text: String) {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner).insert(text);
    }

    /// Returns whether an operation was done. Warns if it was not.
    fn is_done(&self, what: &str, answer: Result<Line, DriverError>) -> bool {
        match answer {
            Ok(Line::Ok(_)) => return true,
            Ok(line) => self.trouble(format!("{what}: {line:?}")),
            Err(error) => self.trouble(format!("{what}: {error}")),
        }
        false
    }

    /// Returns a process that has created the lock: a process of the implementation, or of the
    /// driver in the options. Returns `None` if there is no lock to administer.
    async fn administrator(&self) -> Result<Option<Administrator>, RunError> {
        let way = self.options.way.clone();
        if let Way::Driver(_) = way {
            let own = self.start(&way).await?.create(self.options.slots).await?;
            if let Some(actor) = own {
                return Ok(Some(Administrator { way, actor }));
            }
        }
        // The implementation creates locks of other kinds itself.
        if self.options.rules == Rules::None {
            return Ok(None);
        }
        let command = self.options.administrator.clone();
        let way = Way::Driver(command.clone());
        let other = match self.start(&way).await {
            Ok(actor) => actor.create(self.options.slots).await,
            Err(error) => Err(error),
        };
        let why = match other {
            Ok(Some(actor)) => return Ok(Some(Administrator { way, actor })),
            Ok(None) => "it does not support resize".to_owned(),
            Err(error) => error.to_string(),
        };
        Err(RunError::Administrator { command, why })
    }

    /// Resizes the lock between 1 and the maximum until the end of the run.
    async fn resize(
        &self,
        mut administrator: Administrator,
        random: &mut StdRng,
    ) -> Result<Administrator, RunError> {
        let RunOptions { slots: most, resize_within, duration, .. } = *self.options;
        if most == 1 || resize_within.is_zero() {
            self.end.reached().await;
            return Ok(administrator);
        }
        let spared = Instant::now() + SPARED.min(duration / 3);
        let (mut slots, mut blow) = (most, None);
        loop {
            let pause = resize_within.mul_f64(random.random_range(0.2..1.0));
            tokio::select! {
                () = self.end.reached() => break,
                () = sleep(pause) => {}
            }
            let before = slots;
            slots = if slots == 1 { most } else { random.random_range(1..=most) };
            if slots < before && random.random_bool(0.5) {
                // Clients that take long to acquire rarely hold all slots at a random time.
                let mut holders = self.holders.subscribe();
                let all_held = holders.wait_for(|&holders| holders >= before);
                let _ = timeout(resize_within, all_held).await;
            }
            let spoiled = blow.is_some();
            blow = self.blow(random).filter(|_| Instant::now() >= spared);
            let after = STRIKE_WITHIN.mul_f64(random.random_range(0.0..1.0));
            self.size.send_replace(Size { slots, changes: true });
            let (usable, failure) =
                self.resize_to(&mut administrator.actor, slots, blow, after).await;
            // A cut may also fail the next resize.
            if let Some(failure) = failure.filter(|_| !spoiled) {
                self.trouble(format!("resize: {failure}"));
            }
            self.size.send_replace(Size { slots, changes: false });
            if !usable {
                administrator.actor.kill().await;
                administrator.actor = self.start(&administrator.way).await?;
            }
        }
        Ok(administrator)
    }

    /// Draws a fault of the administrator.
    fn blow(&self, random: &mut StdRng) -> Option<Blow> {
        let Faults { kill, cut, .. } = self.options.faults;
        let drawn = random.random_range(0..100);
        if drawn < kill * STRUCK {
            Some(Blow::Kill)
        } else if drawn < (kill + cut) * STRUCK {
            Some(Blow::Cut)
        } else {
            None
        }
    }

    /// Resizes the lock. Returns whether the process can still be used, and the failure if the
    /// process was not struck.
    async fn resize_to(
        &self,
        actor: &mut Actor,
        slots: u32,
        blow: Option<Blow>,
        after: Duration,
    ) -> (bool, Option<String>) {
        let (struck, answer) = match blow {
            Some(blow) => {
                let sizes = (None, Some(slots));
                actor.ask_and_strike(Verb::Resize, sizes, (blow, after)).await
            }
            None => (false, actor.ask(Verb::Resize, None, Some(slots)).await),
        };
        let killed = struck && blow == Some(Blow::Kill);
        let usable = !killed && answer.is_ok();
        let failure = match answer {
            Ok(Line::Ok(_)) => None,
            Ok(line) => Some(format!("{line:?}")),
            Err(error) => Some(error.to_string()),
        };
        (usable, failure.filter(|_| !struck))
    }

    /// After all faults, sets the maximum number of slots, acquires each of them, and releases one
    /// to a waiter. The requests wait long enough to be judged by S10.
    async fn recover(&self, administrator: Option<&mut Actor>) -> Result<(), RunError> {
        if let Some(actor) = administrator {
            let answer = actor.ask(Verb::Resize, None, Some(self.options.slots)).await;
            self.is_done("resize after the last fault", answer);
        }
        let mut holders = Vec::new();
        for number in 0..self.options.slots {
            let mut actor = self.start(&self.options.way_of(number)).await?;
            let answer = actor.ask(Verb::Acquire, Some(RECOVERY), None).await;
            if self.is_done("acquire after the last fault", answer) {
                holders.push(actor);
            } else {
                actor.kill().await;
            }
        }
        if u32::try_from(holders.len()) == Ok(self.options.slots)
            && let Some(holder) = holders.pop()
        {
            self.hand_over(holder).await?;
        }
        for mut actor in holders {
            // Whether the slot is still owned is judged from the frames.
            let _ = actor.ask(Verb::Release, None, None).await;
            actor.kill().await;
        }
        Ok(())
    }

    /// Lets a process wait for a slot that this one releases.
    async fn hand_over(&self, mut holder: Actor) -> Result<(), RunError> {
        let mut waiter = self.start(&self.options.way_of(self.options.slots)).await?;
        let release = async {
            sleep(WAITS).await;
            let _ = holder.ask(Verb::Release, None, None).await;
        };
        let (answer, ()) = tokio::join!(waiter.ask(Verb::Acquire, Some(RECOVERY), None), release);
        if self.is_done("acquire of a slot that is released", answer) {
            let _ = waiter.ask(Verb::Release, None, None).await;
        }
        waiter.kill().await;
        holder.kill().await;
        Ok(())
    }

    /// Runs cycles until the end of the run. Replaces a process that was killed or that cannot be
    /// used any more. Returns the last process.
    async fn client(
        &self,
        way: &Way,
        mut actor: Actor,
        mut random: StdRng,
    ) -> Result<Actor, RunError> {
        let (mut strike, mut tries) = (Strike::Nothing, 0);
        let mut faults = self.options.faults;
        if let Way::Exec(..) = way {
            // The prover itself would refuse it.
            faults.again = 0;
        }
        while !self.end.is_reached() {
            let drawn = self.strike(&mut random);
            // A cut stays aimed at its method until the method is sent.
            let aimed = matches!(strike, Strike::CutMethod(_)) && tries < TRIES;
            if !aimed || drawn.is_sure() {
                (strike, tries) = (drawn, 0);
            }
            tries += 1;
            let mut cycle = Cycle {
                faults,
                aims: &self.aims,
                end: &self.end,
                holders: &self.holders,
                size: &self.size,
                actor: &mut actor,
                random: &mut random,
                strike: &mut strike,
            };
            let played = tokio::select! {
                played = cycle.play() => played,
                () = self.end.reached_at_once() => break,
            };
            let keeps = match played {
                Ok(keeps) => keeps,
                Err(why) => {
                    self.trouble(why);
                    false
                }
            };
            if !keeps {
                actor.kill().await;
                actor = self.start(way).await?;
            }
        }
        Ok(actor)
    }

    /// Chooses the fault of one cycle at random.
    fn strike(&self, random: &mut StdRng) -> Strike {
        let Faults { kill, cut, .. } = self.options.faults;
        let (drawn, half) = (random.random_range(0..100), random.random_bool(0.5));
        if drawn < kill {
            return if half { Strike::KillHolding } else { Strike::KillAcquiring };
        }
        if drawn < kill + cut && half {
            let long = random.random_bool(LONG);
            return if long { Strike::CutLongHold } else { Strike::CutHolding };
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
