//! A cycle of a client: it acquires, holds for some time and releases. At most one fault occurs
//! during a cycle. Most processes survive a failed operation and acquire again in the next cycle,
//! because many bugs show only then. See `workload` for the sequence of cycles, and `aims` for
//! the targets of cuts.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::actor::{Actor, Blow};
use super::aims::{Aims, Target};
use super::ending::End;
use crate::driver::message::{FULL, Line, UNSUPPORTED};
use crate::driver::process::DriverError;
use crate::history::{Faults, Verb};

/// Time limits of acquires, each with its probability in percent. Short ones end while all slots
/// are held, and long ones span several hand-overs and resizes.
const WAITS: [(u32, Duration); 4] = [
    (30, Duration::ZERO),
    (10, Duration::from_millis(20)),
    (50, Duration::from_secs(2)),
    (10, Duration::from_secs(6)),
];

/// Maximum duration of a hold between two operations, and of the pause after a refusal.
const HOLD: Duration = Duration::from_millis(20);

/// Maximum time of a long hold until its connections are cut.
const LONG_HOLD: Duration = Duration::from_secs(1);

/// Shortest and longest time until a holder whose connections were cut is asked whether it still
/// holds. It must have noticed the cut by then.
const LATE: [Duration; 2] = [Duration::from_millis(1_200), Duration::from_secs(3)];

/// Maximum time for which a holder of a slot that is being removed keeps it, to verify afterwards.
const REMOVAL: Duration = Duration::from_secs(2);

/// Maximum delay of the requests of a process.
const SLOW: Duration = Duration::from_millis(30);

/// Maximum time until a process is killed during an acquire.
const KILL_WITHIN: Duration = Duration::from_millis(100);

/// Probability that a process is used again after an operation that failed.
const SURVIVES: f64 = 0.8;

/// Probability that a command that runs another one is killed without the other one.
const ALONE: f64 = 0.3;

/// Maximum time for which the work of a command may outlive it until both are killed. Others
/// acquire within it, and notice the overlap.
const SURVIVING: Duration = Duration::from_secs(3);

/// The fault of one cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strike {
    /// None.
    Nothing,
    /// A connection is cut at a method of an operation.
    CutMethod(Target),
    /// All connections are cut while the client holds, between two operations.
    CutHolding,
    /// As above, and the client is asked only some seconds later whether it still holds.
    CutLongHold,
    /// The process is killed while it holds.
    KillHolding,
    /// The process is killed while it acquires.
    KillAcquiring,
}

impl Strike {
    /// Returns whether the fault takes effect in every cycle in which the client acquires.
    pub fn is_sure(&self) -> bool {
        !matches!(self, Self::Nothing | Self::CutMethod(_))
    }
}

/// The size of the lock.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// The number of slots.
    pub slots: u32,
    /// Whether a change to it has not been answered yet.
    pub changes: bool,
}

/// One cycle of a client.
pub struct Cycle<'a> {
    /// Probabilities of faults.
    pub faults: Faults,
    /// The methods that were sent and hit.
    pub aims: &'a Aims,
    /// The end of the run.
    pub end: &'a End,
    /// The number of clients that hold.
    pub holders: &'a watch::Sender<u32>,
    pub size: &'a watch::Sender<Size>,
    pub actor: &'a mut Actor,
    pub random: &'a mut StdRng,
    /// The fault. A cut that is aimed at a method stays armed until it takes effect.
    pub strike: &'a mut Strike,
}

/// Counts a client as a holder until it is dropped.
struct Holding(watch::Sender<u32>);

impl Holding {
    fn new(holders: &watch::Sender<u32>) -> Self {
        holders.send_modify(|holders| *holders += 1);
        Self(holders.clone())
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.0.send_modify(|holders| *holders -= 1);
    }
}

/// An answer to an acquire, or the end of the cycle.
enum Acquired {
    /// The number of the slot, if it has one.
    Granted(Option<u32>),
    Refused,
    /// The process may hold, whatever it answered.
    Unknown,
    /// The process was killed.
    Killed,
}

impl Cycle<'_> {
    /// Acquires, holds for some time and releases. Returns whether the process can still be
    /// used.
    ///
    /// # Errors
    ///
    /// Returns a description of the error if the implementation did not give a valid answer.
    pub async fn play(&mut self) -> Result<bool, String> {
        let slow = self.random.random_range(0..100) < self.faults.slow;
        let delay =
            if slow { SLOW.mul_f64(self.random.random_range(0.0..1.0)) } else { Duration::ZERO };
        self.actor.slow(delay);
        match self.acquire().await? {
            Acquired::Granted(number) => self.hold(number).await,
            Acquired::Refused => {
                self.pause(HOLD).await;
                Ok(true)
            }
            Acquired::Unknown => self.recover().await,
            Acquired::Killed => Ok(false),
        }
    }

    /// Holds for some time and releases. Returns whether the process can still be used.
    async fn hold(&mut self, slot: Option<u32>) -> Result<bool, String> {
        let holding = Holding::new(self.holders);
        if self.random.random_range(0..100) < self.faults.again {
            self.ask(Verb::Acquire, Some(Duration::ZERO)).await?;
        }
        if *self.strike == Strike::CutLongHold {
            drop(holding);
            return self.cut_long_hold().await;
        }
        let verifies = match &self.strike {
            Strike::CutHolding => true,
            Strike::CutMethod(target) => target.verb == Verb::Verify,
            _ => false,
        };
        for _ in 0..self.random.random_range(u32::from(verifies)..3) {
            self.pause(HOLD).await;
            if *self.strike == Strike::CutHolding {
                *self.strike = Strike::Nothing;
                self.actor.cut();
                if self.random.random_bool(0.5) {
                    self.pause(HOLD).await;
                }
            }
            let verify = verifies || self.random.random_bool(0.7);
            let verb = if verify { Verb::Verify } else { Verb::Believes };
            if let Some(usable) = self.ended(verb).await? {
                return Ok(usable);
            }
        }
        if *self.strike == Strike::KillHolding {
            if self.random.random_bool(ALONE) {
                self.actor.kill_alone(SURVIVING).await;
            }
            return Ok(false);
        }
        drop(holding);
        if self.is_removed(slot).await
            && let Some(usable) = self.ended(Verb::Verify).await?
        {
            return Ok(usable);
        }
        self.release().await
    }

    /// Returns whether the slot was removed. Waits for the end of a pending removal.
    async fn is_removed(&self, slot: Option<u32>) -> bool {
        let Some(slot) = slot else { return false };
        let mut size = self.size.subscribe();
        if size.borrow().slots < slot {
            let settled = size.wait_for(|size| !size.changes);
            let _ = timeout(REMOVAL, settled).await;
        }
        let size = *size.borrow();
        size.slots < slot
    }

    async fn release(&mut self) -> Result<bool, String> {
        let released = matches!(self.ask(Verb::Release, None).await?, Line::Ok(_));
        Ok(released || self.survives())
    }

    /// Asks a holder whether it still holds. Returns `None` if it does, or does not offer the
    /// question. Otherwise returns whether the process can still be used.
    async fn ended(&mut self, verb: Verb) -> Result<Option<bool>, String> {
        Ok(match self.ask(verb, None).await? {
            Line::Ok(_) => None,
            Line::Fail(why) if why == UNSUPPORTED => None,
            Line::Fail(_) | Line::Lost(_) => Some(self.survives()),
            // It may still hold.
            Line::Info(_) => Some(self.recover().await?),
        })
    }

    /// Cuts all connections of a holder, and asks it some seconds later.
    async fn cut_long_hold(&mut self) -> Result<bool, String> {
        *self.strike = Strike::Nothing;
        self.pause(LONG_HOLD).await;
        self.actor.cut();
        let [shortest, longest] = LATE;
        sleep(shortest).await;
        self.pause(longest.saturating_sub(shortest)).await;
        let mut verbs = [Verb::Verify, Verb::Believes];
        if self.random.random_bool(0.5) {
            verbs.reverse();
        }
        for verb in verbs {
            if let Some(usable) = self.ended(verb).await? {
                return Ok(usable);
            }
        }
        self.release().await
    }

    /// Lets a process that may hold go on. Some programs release to be sure, others acquire
    /// again. Returns whether the process can still be used.
    async fn recover(&mut self) -> Result<bool, String> {
        if !self.survives() {
            return Ok(false);
        }
        if self.end.is_reached() || self.random.random_bool(0.5) {
            self.ask(Verb::Release, None).await?;
        }
        Ok(true)
    }

    fn survives(&mut self) -> bool {
        self.random.random_bool(SURVIVES)
    }

    async fn acquire(&mut self) -> Result<Acquired, String> {
        let wait = Some(self.wait());
        let answer = if *self.strike == Strike::KillAcquiring {
            // Most acquires take much less than the maximum time.
            let after = KILL_WITHIN.mul_f64(self.random.random_range(0.0..1.0_f64).powi(4));
            let kill = (Blow::Kill, after);
            match self.actor.ask_and_strike(Verb::Acquire, (wait, None), kill).await {
                (true, _) => return Ok(Acquired::Killed),
                (false, answer) => answer.map_err(|error: DriverError| error.to_string())?,
            }
        } else {
            self.ask(Verb::Acquire, wait).await?
        };
        match answer {
            Line::Ok(done) => Ok(Acquired::Granted(done.slot)),
            Line::Fail(why) if why == UNSUPPORTED => Err("acquire: unsupported".to_owned()),
            Line::Fail(why) if why == FULL => Ok(Acquired::Refused),
            // For example because it holds the result of an acquire that was unknown.
            Line::Fail(_) => {
                self.ask(Verb::Release, None).await?;
                Ok(Acquired::Refused)
            }
            Line::Info(_) | Line::Lost(_) => Ok(Acquired::Unknown),
        }
    }

    /// Draws the time limit of an acquire. It does not exceed the end of the run.
    fn wait(&mut self) -> Duration {
        let drawn = self.random.random_range(0..100);
        let mut below = 0;
        let found = WAITS.into_iter().find(|&(percent, _)| {
            below += percent;
            drawn < below
        });
        found.map_or(Duration::ZERO, |(_, wait)| wait).min(self.end.left())
    }

    /// Requests an operation. Cuts the connection during the operation if the fault is aimed at
    /// it.
    async fn ask(&mut self, verb: Verb, wait: Option<Duration>) -> Result<Line, String> {
        let aimed = match &self.strike {
            Strike::CutMethod(target) if target.verb == verb => Some(target.clone()),
            _ => None,
        };
        self.actor.sent();
        // An operation may send the same method for several slots.
        let nth = if self.random.random_bool(0.8) { 1 } else { 2 };
        let sprung = aimed.as_ref().and_then(|target| self.actor.cut_at(target, nth));
        let answer = self.actor.ask(verb, wait, None).await;
        self.actor.disarm();
        self.aims.note(verb, self.actor.sent());
        if let Some(target) = aimed {
            let hit = sprung.is_some_and(|sprung| sprung.is_sprung());
            self.aims.struck(&target, hit);
            if hit {
                *self.strike = Strike::Nothing;
            }
        }
        answer.map_err(|error| error.to_string())
    }

    /// Waits for a random time up to `longest`.
    async fn pause(&mut self, longest: Duration) {
        sleep(longest.mul_f64(self.random.random_range(0.0..1.0))).await;
    }
}
