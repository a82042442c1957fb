//! A simulated world for tests of the search: a broker with the queues of a few slots, and
//! actors that run small programs. See `lab` for the real world.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use super::explore::{Scheduler, Step, World, explore};
use super::request::{Asked, On, Request};

/// A request with two successors: one for the answer yes, one for the answer no.
#[derive(Clone, Copy, Debug)]
pub struct Line(pub Op, pub usize, pub usize);

/// Successor that ends the program without a grant.
pub const STOP: usize = usize::MAX;
/// Successor that is a grant of slot 1.
pub const GRANTED: usize = usize::MAX - 1;

/// A request of a program. Slots are numbered from 1.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    LookA(u32),
    LookB(u32),
    DeclareA(u32),
    DeleteA(u32),
    DeclareB(u32),
    DeleteB(u32),
}

impl Op {
    fn what(self) -> Asked {
        let (method, slot, part) = match self {
            Self::LookA(slot) => ("queue.declare(passive)", slot, 'A'),
            Self::LookB(slot) => ("basic.publish", slot, 'B'),
            Self::DeclareA(slot) => ("queue.declare", slot, 'A'),
            Self::DeleteA(slot) => ("queue.delete", slot, 'A'),
            Self::DeclareB(slot) => ("queue.declare", slot, 'B'),
            Self::DeleteB(slot) => ("queue.delete", slot, 'B'),
        };
        Asked::Method(method.to_owned(), On::Slot(slot, part))
    }
}

/// Returns a client that tries slot 1. `looks`: whether it probes A after the declare of B.
pub fn client(looks: bool) -> Vec<Line> {
    let mut lines = vec![
        Line(Op::LookA(1), 1, STOP),
        Line(Op::LookB(1), STOP, 2),
        Line(Op::DeclareB(1), if looks { 3 } else { GRANTED }, STOP),
    ];
    if looks {
        lines.extend([Line(Op::LookA(1), GRANTED, 4), Line(Op::DeleteB(1), STOP, STOP)]);
    }
    lines
}

/// Returns a client that treats a refusal of B as success.
pub fn greedy() -> Vec<Line> {
    vec![Line(Op::LookA(1), 1, STOP), Line(Op::DeclareB(1), GRANTED, GRANTED)]
}

pub fn shrink() -> Vec<Line> {
    vec![Line(Op::DeleteA(1), STOP, STOP)]
}

/// The simulated world. Keeps its executions.
#[derive(Default)]
pub struct Sim {
    programs: Vec<Vec<Line>>,
    /// The actor of each program. Programs of one actor run concurrently.
    actors: Vec<u32>,
    slots: u32,
    next: Vec<usize>,
    a: BTreeSet<u32>,
    b: BTreeMap<u32, u32>,
    taken: Vec<(usize, Request)>,
    /// For each program that was granted the slot: the number of steps until the grant, and
    /// whether slot 1 existed at an instant between the program's declare of B and the grant.
    grants: BTreeMap<usize, (usize, bool)>,
    /// Whether slot 1 existed at an instant since the program's last declare of B.
    existed: BTreeMap<usize, bool>,
    /// The answers to each program.
    answers: BTreeMap<usize, Vec<bool>>,
    /// All executions that were not cut.
    pub executions: Vec<Execution>,
}

/// An execution: its steps with their programs, the answers to each program, and the faults.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Execution {
    pub steps: Vec<(usize, Request)>,
    pub answers: BTreeMap<usize, Vec<bool>>,
    pub faults: BTreeSet<String>,
}

impl Execution {
    /// Returns the steps in an order that all equivalent executions share: by the length of the
    /// longest chain of dependent steps before each.
    pub fn class(&self) -> Vec<(usize, Request)> {
        let mut levels: Vec<(usize, usize, Request)> = Vec::new();
        for (program, step) in &self.steps {
            let before = levels
                .iter()
                .filter(|(_, other, earlier)| other == program || earlier.depends_on(step));
            let level = before.map(|(level, ..)| level + 1).max().unwrap_or(0);
            levels.push((level, *program, step.clone()));
        }
        let mut levels: Vec<_> =
            levels.into_iter().map(|(level, _, request)| (level, request)).collect();
        levels.sort();
        levels
    }
}

impl Sim {
    /// Creates a world in which each program is one actor.
    pub fn new(slots: u32, programs: Vec<Vec<Line>>) -> Self {
        let actors = (1..).take(programs.len()).collect();
        Self { programs, actors, slots, ..Self::default() }
    }

    /// Creates a world in which the first two programs are one actor. Returns `None` if two of
    /// its requests are equal.
    pub fn with_two_connections(slots: u32, programs: Vec<Vec<Line>>) -> Option<Self> {
        let asks = |program: &[Line]| -> BTreeSet<Asked> {
            program.iter().map(|line| line.0.what()).collect()
        };
        let distinct = asks(&programs[0]).is_disjoint(&asks(&programs[1]));
        let actors = [1].into_iter().chain(1..).take(programs.len()).collect();
        distinct.then(|| Self { programs, actors, slots, ..Self::default() })
    }

    fn line(&self, program: usize) -> Option<Line> {
        self.programs[program].get(self.next[program]).copied()
    }

    fn answer(&mut self, program: usize, op: Op) -> bool {
        let actor = self.actors[program];
        match op {
            Op::LookA(slot) => self.a.contains(&slot),
            Op::LookB(slot) => self.b.contains_key(&slot),
            Op::DeclareA(slot) => {
                self.a.insert(slot);
                if slot == 1 {
                    self.existed.values_mut().for_each(|existed| *existed = true);
                }
                true
            }
            Op::DeleteA(slot) => self.a.remove(&slot),
            Op::DeclareB(slot) => {
                if slot == 1 {
                    self.existed.insert(program, self.a.contains(&1));
                }
                *self.b.entry(slot).or_insert(actor) == actor
            }
            Op::DeleteB(slot) => {
                let owned = self.b.get(&slot) == Some(&actor);
                if owned {
                    self.b.remove(&slot);
                }
                owned
            }
        }
    }

    fn faults(&self) -> BTreeSet<String> {
        let missing = self.grants.iter().filter(|(_, grant)| !grant.1);
        let mut faults: BTreeSet<String> =
            missing.map(|(program, _)| format!("{program} holds a missing slot")).collect();
        if self.grants.len() > 1 {
            faults.insert(format!("held by {:?}", self.grants.keys()));
        }
        faults
    }
}

impl World for Sim {
    type Step = Request;
    type Fault = BTreeSet<String>;
    type Error = Infallible;

    async fn begin(&mut self) -> Result<(), Infallible> {
        let Self { programs, actors, slots, executions, .. } = std::mem::take(self);
        let (next, a) = (vec![0; programs.len()], (1..=slots).collect());
        *self = Self { programs, actors, slots, next, a, executions, ..Self::default() };
        Ok(())
    }

    async fn steps(&mut self) -> Result<Vec<Request>, Infallible> {
        let steps = self.actors.iter().enumerate().filter_map(|(program, &process)| {
            let connection = program + 1;
            self.line(program).map(|line| Request { process, what: line.0.what(), connection })
        });
        Ok(steps.collect())
    }

    async fn take(&mut self, step: &Request) -> Result<(), Infallible> {
        let actor = step.process;
        let is = |program: &usize| {
            let line = self.line(*program).filter(|line| line.0.what() == step.what);
            self.actors[*program] == actor && line.is_some()
        };
        let program = (0..self.programs.len()).find(is).unwrap();
        let Line(op, yes, no) = self.line(program).unwrap();
        let answer = self.answer(program, op);
        let next = if answer { yes } else { no };
        self.next[program] = next;
        self.answers.entry(program).or_default().push(answer);
        self.taken.push((program, step.clone()));
        if next == GRANTED {
            let existed = self.existed.get(&program).copied().unwrap_or_default();
            self.grants.insert(program, (self.taken.len(), existed));
        }
        Ok(())
    }

    async fn end(&mut self) -> Result<Option<(usize, BTreeSet<String>)>, Infallible> {
        let faults = self.faults();
        if self.steps().await?.is_empty() {
            let (steps, answers) = (self.taken.clone(), self.answers.clone());
            self.executions.push(Execution { steps, answers, faults: faults.clone() });
        }
        let last = self.grants.values().map(|grant| grant.0).max();
        Ok(last.filter(|_| !faults.is_empty()).map(|last| (last, faults)))
    }
}

/// Ignores the length of a fault's schedule, so that every execution is explored.
pub struct Everything<T>(pub T);

impl<S, T: Scheduler<S>> Scheduler<S> for Everything<T> {
    fn choose(&mut self, steps: &[S]) -> super::explore::Choice<S> {
        self.0.choose(steps)
    }

    fn again(&mut self) {
        self.0.again();
    }

    fn next(&mut self) -> bool {
        self.0.next()
    }

    fn limit(&mut self, _: usize) {}
}

/// Explores every execution of the scheduler.
pub fn executions(sim: &mut Sim, scheduler: impl Scheduler<Request>) -> Vec<Execution> {
    let explored =
        futures::executor::block_on(explore(sim, &mut Everything(scheduler), u64::MAX)).unwrap();
    assert_eq!(explored.executions, u64::try_from(sim.executions.len()).unwrap());
    std::mem::take(&mut sim.executions)
}
