//! Runs the measured operations, in an order in which each finds the slots that it requires. See
//! `bench` for how one operation is measured.

use std::pin::pin;
use std::time::{Duration, Instant};

use super::bench::{Ask, Bench, text};
use super::operation::Operation;
use super::options::DELAYS;
use super::sample::{Sample, Span};
use crate::driver::message::Line;
use crate::history::Verb;
use crate::run::RunError;
use crate::run::actor::Actor;
use crate::wire::Gate;

/// Number of measurements of a process's first operations at each delay.
const FIRST: u32 = 3;

/// Time within which a polling waiter must get a slot. Otherwise the hand-over is not measured.
const WAIT: Duration = Duration::from_secs(4);

/// Time after which no operation is repeated.
const LIMIT: Duration = Duration::from_secs(13);

/// The processes of the measurement.
struct Processes<'a> {
    bench: &'a Bench,
    administrator: Actor,
    /// Whether the administrator belongs to the implementation under test.
    own: bool,
    slots: u32,
    /// The client whose operations are measured, followed by one client for each slot that is
    /// held.
    players: Vec<Actor>,
}

/// Measures all operations. See `background` for idle processes.
///
/// # Errors
///
/// [`RunError`] if the implementation cannot be used, or the lock cannot be created.
pub async fn play(bench: &Bench) -> Result<Vec<Sample>, RunError> {
    let slots = bench.options().taken + 1;
    let (administrator, own) = bench.administrator(slots).await?;
    if !own {
        bench.is_not_offered(Operation::Grow);
        bench.is_not_offered(Operation::Shrink);
    }
    let mut processes = Processes { bench, administrator, own, slots, players: Vec::new() };
    let played = processes.rounds().await;
    // The lock is deleted from the broker afterwards.
    processes.dismiss().await;
    let destroyed = bench.destroy(processes.administrator).await;
    played?;
    destroyed?;
    Ok(bench.samples())
}

impl Processes<'_> {
    /// Runs the rounds, with each delay in turn.
    async fn rounds(&mut self) -> Result<(), RunError> {
        let started = Instant::now();
        for round in 0..self.bench.options().repetitions {
            if round > 0 && started.elapsed() > LIMIT {
                break;
            }
            for delay in DELAYS {
                if round < FIRST {
                    self.first(delay, round).await?;
                }
                if self.resizes(round) {
                    self.administrator.delay(delay);
                    let administrator = &mut self.administrator;
                    resize(self.bench, administrator, self.slots, delay, false).await?;
                }
                if !self.acquires() {
                    continue;
                }
                let connected = !self.players.is_empty() || self.connect().await?;
                if !(connected && self.warm(delay, round).await?) {
                    // The holders are unknown after a failure.
                    self.dismiss().await;
                }
            }
        }
        Ok(())
    }

    /// Starts the players and lets each connect. Returns whether they can be used.
    async fn connect(&mut self) -> Result<bool, RunError> {
        for _ in 0..=self.slots {
            let mut actor = self.bench.start().await?;
            let used = self.bench.ask(&mut actor, Verb::Acquire).await?
                && self.bench.ask(&mut actor, Verb::Release).await?;
            self.players.push(actor);
            if !used {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn dismiss(&mut self) {
        for actor in self.players.drain(..) {
            self.bench.end(actor).await;
        }
    }

    /// Measures the first operations of new processes.
    async fn first(&mut self, delay: Duration, round: u32) -> Result<(), RunError> {
        let mut actor = self.bench.start().await?;
        actor.delay(delay);
        use_slot(self.bench, &mut actor, delay, true).await?;
        self.bench.end(actor).await;
        if self.resizes(round) {
            let mut actor = self.bench.start().await?;
            actor.delay(delay);
            resize(self.bench, &mut actor, self.slots, delay, true).await?;
            self.bench.end(actor).await;
        }
        Ok(())
    }

    /// Returns whether the implementation supports acquire. Without it, no operation that
    /// requires a slot can be measured.
    fn acquires(&self) -> bool {
        let offers = !self.bench.not_offered().contains(&Operation::AcquireFree);
        if !offers {
            let other = [Operation::Grow, Operation::Shrink];
            let slots = Operation::ALL.into_iter().filter(|operation| !other.contains(operation));
            slots.for_each(|operation| self.bench.is_not_offered(operation));
        }
        offers
    }

    fn resizes(&self, round: u32) -> bool {
        let wants = |operation| self.bench.wants(operation, round);
        self.own && wants(Operation::Grow) && wants(Operation::Shrink)
    }

    /// Measures the operations of connected processes. All slots are free again afterwards.
    /// Returns false if an operation failed.
    async fn warm(&mut self, delay: Duration, round: u32) -> Result<bool, RunError> {
        let bench = self.bench;
        let [client, last, others @ ..] = &mut self.players[..] else { return Ok(false) };
        client.delay(delay);
        if !use_slot(bench, client, delay, false).await? {
            return Ok(false);
        }
        for holder in others.iter_mut() {
            if !bench.ask(holder, Verb::Acquire).await? {
                return Ok(false);
            }
        }
        let taken = (Operation::AcquireTaken, false);
        if !bench.measure(taken, delay, client, Verb::Acquire).await?
            || !bench.ask(client, Verb::Release).await?
        {
            return Ok(false);
        }
        // Round trips of a lost race are not reported, so one delay is enough.
        let races = delay.is_zero() && bench.wants(Operation::LostRace, round);
        let is_full = if races { lost_race(bench, client, last).await? } else { false };
        if !is_full && !bench.ask(last, Verb::Acquire).await? {
            return Ok(false);
        }
        let full = (Operation::AcquireFull, false);
        if !bench.measure(full, delay, client, Verb::Acquire).await? {
            return Ok(false);
        }
        let mut holding = last;
        if bench.wants(Operation::HandOver, round) {
            if !hand_over(bench, client, holding, delay).await? {
                return Ok(false);
            }
            holding = client;
        }
        for holder in others.iter_mut().chain([holding]) {
            if !bench.ask(holder, Verb::Release).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Acquires a free slot, verifies it and releases it. Returns whether the slot is free again.
async fn use_slot(
    bench: &Bench,
    actor: &mut Actor,
    delay: Duration,
    first: bool,
) -> Result<bool, RunError> {
    let acquire = (Operation::AcquireFree, first);
    if !bench.measure(acquire, delay, actor, Verb::Acquire).await? {
        return Ok(false);
    }
    if bench.wants(Operation::Verify, 0) {
        bench.measure((Operation::Verify, first), delay, actor, Verb::Verify).await?;
    }
    bench.measure((Operation::Release, first), delay, actor, Verb::Release).await
}

/// Resizes to one more slot, and back.
async fn resize(
    bench: &Bench,
    actor: &mut Actor,
    slots: u32,
    delay: Duration,
    first: bool,
) -> Result<(), RunError> {
    let grow = (Operation::Grow, first);
    bench.measure(grow, delay, actor, Ask::resize(slots + 1)).await?;
    bench.measure((Operation::Shrink, first), delay, actor, Ask::resize(slots)).await?;
    Ok(())
}

/// Lets the rival take the free slot between the client's search and its attempt. Returns
/// whether the rival holds the slot.
async fn lost_race(bench: &Bench, client: &mut Actor, rival: &mut Actor) -> Result<bool, RunError> {
    let Some(gate) = client.gate() else { return Ok(false) };
    let process = client.process();
    bench.forget();
    let started = Instant::now();
    let (answer, raced) = race(bench, client, rival, &gate).await?;
    gate.open();
    let recorded = bench.settle(&[process], Duration::ZERO).await;
    bench.spend(Operation::LostRace, started.elapsed());
    if raced != Some(true) {
        if raced.is_none() {
            // The client acquires in a way that cannot lose a race.
            bench.is_not_offered(Operation::LostRace);
        }
        if matches!(answer, Line::Ok(_)) {
            bench.ask(client, Verb::Release).await?;
        }
        return Ok(false);
    }
    let (from, processes) = ((process, Verb::Acquire), [process]);
    let span = Span { from, to: from, processes: &processes };
    bench.keep((Operation::LostRace, false), Duration::ZERO, &answer, &recorded, span);
    Ok(true)
}

/// Holds the client's attempt back until the rival holds the slot. Returns the client's answer
/// and whether the rival holds the slot, or `None` if there was no attempt.
async fn race(
    bench: &Bench,
    client: &mut Actor,
    rival: &mut Actor,
    gate: &Gate,
) -> Result<(Line, Option<bool>), RunError> {
    let mut raced = None;
    gate.close();
    let mut asked = pin!(client.ask(Verb::Acquire, Some(Duration::ZERO), None));
    loop {
        tokio::select! {
            answer = &mut asked => return Ok((answer?, raced)),
            waiting = gate.until(|waiting| !waiting.is_empty()) => for one in waiting {
                if raced.is_none() && bench.takes_a_slot(&one.method, &one.queue) {
                    raced = Some(bench.ask(rival, Verb::Acquire).await?);
                    gate.open();
                }
                gate.release(one.connection);
            },
        }
    }
}

/// Lets the client wait, and the holder release. Returns whether the client holds the slot.
async fn hand_over(
    bench: &Bench,
    client: &mut Actor,
    holder: &mut Actor,
    delay: Duration,
) -> Result<bool, RunError> {
    holder.delay(delay);
    let processes = [client.process(), holder.process()];
    let started = Instant::now();
    bench.forget();
    let waits = client.ask(Verb::Acquire, Some(WAIT), None);
    let releases = async {
        bench.until_it_waits(processes[0], delay).await;
        bench.forget();
        holder.ask(Verb::Release, None, None).await
    };
    let (grant, release) = tokio::join!(waits, releases);
    let recorded = bench.settle(&processes, delay).await;
    bench.spend(Operation::HandOver, started.elapsed());
    holder.delay(Duration::ZERO);
    let (grant, release) = (grant?, release?);
    if !matches!(release, Line::Ok(_)) {
        bench.trouble(format!("Release: {}", text(&release)));
        return Ok(false);
    }
    let (from, to) = ((processes[1], Verb::Release), (processes[0], Verb::Acquire));
    let span = Span { from, to, processes: &processes };
    Ok(bench.keep((Operation::HandOver, false), delay, &grant, &recorded, span))
}
