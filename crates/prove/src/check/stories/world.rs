//! The simulated broker and its processes, which follow the protocol except for one deviation.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::check::tests::{frame, history, operation};
use crate::driver::message::FULL;
use crate::history::{
    CUT, ConnectionState, Event, History, KILL, Operation, Phase, ProcessState, Rules, Sender,
    Verb, What,
};

/// The highest slot.
const MOST: u32 = 3;
/// The process of the administrator.
const ADMINISTRATOR: u32 = 1;

/// One deviation from the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Does not look at A after the declare of B.
    NoLook,
    /// Takes 405 for success.
    AlreadyMine,
    /// Keeps B when A is missing.
    KeepsB,
    /// Deletes A with its release.
    DeletesA,
    /// Answers a release without the deletion of B.
    ReleasesNothing,
    /// Verifies without a request.
    VerifiesNothing,
    /// Never reports that its slot drains.
    NeverDrains,
    /// Reports losses that did not happen.
    Loses,
    /// Takes another slot after the one that it is granted.
    Greedy,
    /// The administrator changes slots without the mutex.
    NoMutex,
    /// The administrator declares only the highest new slot.
    GrowsOnlyLast,
}

/// A request about the queue A or B of a slot, or about the mutex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    LookA(u32),
    LookB(u32),
    DeclareA(u32),
    DeclareB(u32),
    DeleteA(u32),
    DeleteB(u32),
    DeclareN,
    DeleteN,
}

impl Ask {
    fn method(self) -> &'static str {
        match self {
            Self::LookA(_) | Self::LookB(_) => "queue.declare(passive)",
            Self::DeclareA(_) | Self::DeclareB(_) | Self::DeclareN => "queue.declare",
            Self::DeleteA(_) | Self::DeleteB(_) | Self::DeleteN => "queue.delete",
        }
    }

    fn queue(self) -> String {
        match self {
            Self::LookA(slot) | Self::DeclareA(slot) | Self::DeleteA(slot) => format!("N-{slot}-A"),
            Self::LookB(slot) | Self::DeclareB(slot) | Self::DeleteB(slot) => format!("N-{slot}-B"),
            Self::DeclareN | Self::DeleteN => "N".to_owned(),
        }
    }
}

/// A request on its way.
#[derive(Clone, Copy)]
enum Travels {
    ToBroker(Ask),
    /// The broker has executed it, or refused it with this code.
    Back(Ask, Option<u16>),
}

/// One process.
struct Actor {
    process: u32,
    connection: u32,
    verb: Option<Verb>,
    travels: Option<Travels>,
    /// The next requests of the operation.
    next: VecDeque<Ask>,
    /// The result of the operation so far. `None`: it was cut off.
    good: Option<bool>,
    draining: bool,
    /// The slot that it acquires or holds.
    slot: u32,
    holds: bool,
    /// Its connection has ended, which it does not know yet.
    unaware: bool,
    found: BTreeSet<u32>,
}

impl Actor {
    fn new(process: u32) -> Self {
        let (next, found) = (VecDeque::new(), BTreeSet::new());
        let (verb, travels, connection, slot) = (None, None, 1, 0);
        let (holds, unaware, draining, good) = (false, false, false, Some(true));
        Self {
            process,
            connection,
            verb,
            travels,
            next,
            good,
            draining,
            slot,
            holds,
            unaware,
            found,
        }
    }
}

/// The simulated world.
struct World {
    random: StdRng,
    bug: Option<Bug>,
    events: Vec<Event>,
    a: BTreeSet<u32>,
    b: BTreeMap<u32, (u32, u32)>,
    actors: Vec<Actor>,
    processes: u32,
}

impl World {
    fn push(&mut self, what: What) {
        self.events.push(Event { at: 0, what });
    }

    fn frame(&mut self, index: usize, sender: Sender, method: &str, ask: Ask, code: Option<u16>) {
        let Actor { process, connection, .. } = self.actors[index];
        let mut sent = frame(process, sender, method);
        let exclusive = matches!(ask, Ask::DeclareB(_) | Ask::DeclareN);
        (sent.connection, sent.code) = (connection, code);
        if sender == Sender::Client && method == ask.method() {
            (sent.queue, sent.exclusive) = (ask.queue(), exclusive);
        }
        self.push(What::Frame(sent));
    }

    /// Executes a request at the broker.
    fn execute(&mut self, index: usize, ask: Ask) -> Option<u16> {
        let Actor { process, connection, .. } = self.actors[index];
        let me = (process, connection);
        let missing = |there: bool| (!there).then_some(404);
        match ask {
            Ask::LookA(slot) => missing(self.a.contains(&slot)),
            Ask::LookB(slot) | Ask::DeleteB(slot) if !self.b.contains_key(&slot) => {
                missing(matches!(ask, Ask::DeleteB(_)))
            }
            Ask::LookB(slot) => (self.b[&slot] != me).then_some(405),
            Ask::DeclareA(slot) => {
                self.a.insert(slot);
                None
            }
            Ask::DeleteA(slot) => {
                self.a.remove(&slot);
                None
            }
            Ask::DeclareB(slot) => (*self.b.entry(slot).or_insert(me) != me).then_some(405),
            Ask::DeleteB(slot) if self.b[&slot] != me => Some(405),
            Ask::DeleteB(slot) => {
                self.b.remove(&slot);
                None
            }
            Ask::DeclareN | Ask::DeleteN => None,
        }
    }

    /// Lets one actor, the broker or the network take one step.
    fn step(&mut self) {
        let index = self.random.random_range(0..self.actors.len());
        let is_client = self.actors[index].process != ADMINISTRATOR;
        match (self.random.random_range(0..120), self.actors[index].travels) {
            (0..3, _) => self.cut(index),
            (3, _) if is_client => self.kill(index),
            (_, Some(Travels::ToBroker(ask))) => {
                let code = self.execute(index, ask);
                self.actors[index].travels = Some(Travels::Back(ask, code));
            }
            (_, Some(Travels::Back(ask, code))) => {
                self.actors[index].travels = None;
                let answer = format!("{}-ok", ask.method().trim_end_matches("(passive)"));
                let answer = if code.is_some() { "channel.close" } else { &answer };
                self.frame(index, Sender::Broker, answer, ask, code);
                if code.is_some() {
                    self.frame(index, Sender::Client, "channel.close-ok", ask, None);
                }
                self.answered(index, ask, code);
            }
            (_, None) => self.proceed(index),
        }
    }

    /// Sends the next request of the operation, answers it, or begins one.
    fn proceed(&mut self, index: usize) {
        let actor = &mut self.actors[index];
        if actor.verb.is_some() {
            match actor.next.pop_front() {
                Some(ask) => {
                    actor.travels = Some(Travels::ToBroker(ask));
                    self.frame(index, Sender::Client, ask.method(), ask, None);
                }
                None => self.answer(index),
            }
        } else if actor.unaware {
            (actor.unaware, actor.holds) = (false, false);
            let process = actor.process;
            self.push(What::Lost { process, why: "cut".to_owned() });
        } else if actor.holds && self.bug == Some(Bug::Loses) && self.random.random_bool(0.3) {
            actor.holds = false;
            let process = actor.process;
            self.push(What::Lost { process, why: "none".to_owned() });
        } else {
            self.begin(index);
        }
    }

    fn begin(&mut self, index: usize) {
        let actor = &mut self.actors[index];
        (actor.good, actor.draining) = (Some(true), false);
        let (mut verb, mut slots) = (Verb::Resize, None);
        if actor.process == ADMINISTRATOR {
            slots = Some(self.random.random_range(0..=MOST));
            actor.slot = slots.unwrap_or_default();
            actor.found.clear();
            let mutex = (self.bug != Some(Bug::NoMutex)).then_some(Ask::DeclareN);
            actor.next = mutex.into_iter().chain((1..=MOST).map(Ask::LookA)).collect();
        } else if !actor.holds {
            verb = Verb::Acquire;
            actor.slot = self.random.random_range(1..=MOST);
            let (a, b) = (Ask::LookA(actor.slot), Ask::DeclareB(actor.slot));
            actor.next = VecDeque::from([a, b]);
        } else {
            verb = [Verb::Verify, Verb::Release, Verb::Believes][self.random.random_range(0..3)];
            let (a, b) = (Ask::LookA(actor.slot), Ask::LookB(actor.slot));
            let delete = Ask::DeleteB(actor.slot);
            actor.next = match (verb, self.bug) {
                (Verb::Verify, Some(Bug::VerifiesNothing))
                | (Verb::Release, Some(Bug::ReleasesNothing))
                | (Verb::Believes, _) => VecDeque::new(),
                (Verb::Verify, _) => VecDeque::from([b, a]),
                (_, Some(Bug::DeletesA)) => VecDeque::from([delete, Ask::DeleteA(actor.slot)]),
                _ => VecDeque::from([delete]),
            };
        }
        actor.verb = Some(verb);
        let process = actor.process;
        self.push(What::Operation(Operation { slots, ..operation(process, verb, Phase::Invoke) }));
    }

    /// Continues an operation after an answer of the broker.
    fn answered(&mut self, index: usize, ask: Ask, code: Option<u16>) {
        let (bug, actor) = (self.bug, &mut self.actors[index]);
        let slot = actor.slot;
        match (actor.verb, ask, code) {
            (Some(Verb::Acquire), Ask::DeclareB(mine), None) if mine == slot => {
                let looks = (bug != Some(Bug::NoLook)).then_some(Ask::LookA(slot));
                actor.next.extend(looks);
            }
            (Some(Verb::Acquire), Ask::DeclareB(_), Some(405)) if bug == Some(Bug::AlreadyMine) => {
            }
            (Some(Verb::Acquire), Ask::LookA(_), None) if actor.next.is_empty() => {
                let other = slot % MOST + 1;
                if bug == Some(Bug::Greedy) {
                    actor.next.extend([Ask::LookA(other), Ask::DeclareB(other)]);
                }
            }
            (Some(Verb::Acquire), Ask::LookA(other), Some(_)) if other != slot => {
                actor.next.clear();
            }
            (Some(Verb::Acquire), Ask::LookA(_), Some(_)) if actor.next.is_empty() => {
                actor.good = Some(false);
                let delete = (bug != Some(Bug::KeepsB)).then_some(Ask::DeleteB(slot));
                actor.next.extend(delete);
            }
            (Some(Verb::Acquire), Ask::DeclareB(other), Some(_)) if other != slot => {}
            (Some(Verb::Verify), Ask::LookA(_), _) => actor.draining = code.is_some(),
            (Some(Verb::Acquire | Verb::Verify), _, Some(_)) => {
                (actor.good, actor.next) = (Some(false), VecDeque::new());
            }
            (Some(Verb::Resize), Ask::LookA(slot), code) => {
                actor.found.extend(code.is_none().then_some(slot));
                if actor.next.is_empty() {
                    self.plan(index);
                }
            }
            _ => {}
        }
    }

    /// Sends the changes of a resize, after the looks.
    fn plan(&mut self, index: usize) {
        let (bug, actor) = (self.bug, &mut self.actors[index]);
        let found = |slot: &u32| actor.found.contains(slot);
        let mut missing: Vec<u32> = (1..=actor.slot).filter(|slot| !found(slot)).collect();
        if bug == Some(Bug::GrowsOnlyLast) {
            missing = missing.split_off(missing.len().saturating_sub(1));
        }
        let surplus = (actor.slot + 1..=MOST).rev().filter(found).map(Ask::DeleteA);
        let changes = missing.into_iter().map(Ask::DeclareA).chain(surplus);
        let mutex = (bug != Some(Bug::NoMutex)).then_some(Ask::DeleteN);
        actor.next = changes.chain(mutex).collect();
    }

    fn answer(&mut self, index: usize) {
        let unknown = self.random.random_bool(0.5);
        let (bug, actor) = (self.bug, &mut self.actors[index]);
        let Some(verb) = actor.verb.take() else { return };
        let mut answer = operation(actor.process, verb, Phase::Ok);
        match (verb, actor.good) {
            (Verb::Acquire, Some(true)) => (actor.holds, answer.slot) = (true, Some(actor.slot)),
            (Verb::Acquire, Some(false)) => {
                (answer.phase, answer.why) = (Phase::Fail, Some(FULL.to_owned()));
            }
            (Verb::Acquire | Verb::Release, None) if unknown => answer.phase = Phase::Info,
            (Verb::Resize, None) => answer.phase = Phase::Info,
            (_, Some(false) | None) => {
                (answer.phase, answer.why) = (Phase::Fail, Some("cut".to_owned()));
            }
            (Verb::Verify, _) => answer.draining = actor.draining && bug != Some(Bug::NeverDrains),
            _ => {}
        }
        if verb == Verb::Release || (verb != Verb::Acquire && actor.good != Some(true)) {
            (actor.holds, actor.unaware) = (false, false);
        }
        self.push(What::Operation(answer));
    }

    /// Ends the connection. Its request may still be executed.
    fn cut(&mut self, index: usize) {
        let process = self.actors[index].process;
        self.push(What::Fault { process: Some(process), fault: CUT.to_owned() });
        self.end(index, ConnectionState::Cut);
        let actor = &mut self.actors[index];
        actor.connection += 1;
        // Its answer does not depend on the connection any more.
        let answers = actor.verb == Some(Verb::Acquire) && actor.next.is_empty();
        let knows = answers && actor.travels.is_none() && actor.good == Some(true);
        actor.unaware |= actor.holds || knows;
        if actor.verb.is_some() && !knows && actor.verb != Some(Verb::Believes) {
            (actor.good, actor.next) = (None, VecDeque::new());
        }
        actor.travels = None;
    }

    fn kill(&mut self, index: usize) {
        let process = self.actors[index].process;
        self.push(What::Fault { process: Some(process), fault: KILL.to_owned() });
        self.end(index, ConnectionState::ClosedByClient);
        let (state, implementation) = (ProcessState::Killed, None);
        self.push(What::Process { process, state, implementation });
        self.processes += 1;
        self.actors[index] = Actor::new(self.processes);
    }

    fn end(&mut self, index: usize, state: ConnectionState) {
        let Actor { process, connection, travels, .. } = self.actors[index];
        if let Some(Travels::ToBroker(ask)) = travels
            && self.random.random_bool(0.5)
        {
            self.execute(index, ask);
        }
        self.push(What::Connection { process, connection, state });
        self.b.retain(|_, owner| *owner != (process, connection));
    }
}

/// Plays a story with three clients and an administrator.
pub fn story(seed: u64, bug: Option<Bug>) -> History {
    let mut random = StdRng::seed_from_u64(seed);
    let most = if bug.is_some() { 160 } else { 80 };
    let (slots, steps) = (random.random_range(1..=MOST), random.random_range(20..most));
    let actors = [ADMINISTRATOR, 2, 3, 4].map(Actor::new).into();
    let (a, b, events) = ((1..=slots).collect(), BTreeMap::new(), Vec::new());
    let mut world = World { random, bug, events, a, b, actors, processes: 4 };
    for _ in 0..steps {
        world.step();
    }
    history(Rules::ExclusiveQueue, slots, world.events)
}
