//! Compares the sweep with an exhaustive search for a linearization, on random small histories.

use std::collections::HashSet;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::check::holds::{Reported, read};
use crate::check::register::{NEVER, overlap};
use crate::check::tests::{answer, history, invoke};
use crate::history::{Event, Phase, Rules, Verb};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Acquire,
    Release,
    Resize,
}

/// An operation in the exhaustive search. Failed operations are left out.
#[derive(Clone, Copy, Debug)]
struct Op {
    process: usize,
    kind: Kind,
    invoked: usize,
    done: usize,
    value: u32,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Idle,
    Acquiring(usize),
    Held(usize),
    Releasing(usize),
    Retired,
}

/// The parameters of random histories.
#[derive(Clone, Copy)]
struct Shape {
    numbered: bool,
    resizes: bool,
    /// Whether there are several administrators, and resizes that are answered with info.
    concurrent: bool,
}

struct Draw {
    rng: StdRng,
    shape: Shape,
    info: f64,
    most: u32,
    events: Vec<Event>,
    ops: Vec<Op>,
    states: Vec<State>,
    administrators: Vec<Option<usize>>,
}

impl Draw {
    fn op(&mut self, process: usize, kind: Kind, value: u32) -> usize {
        let invoked = self.events.len();
        self.ops.push(Op { process, kind, invoked, done: NEVER, value });
        let verb = match kind {
            Kind::Acquire => Verb::Acquire,
            Kind::Release => Verb::Release,
            Kind::Resize => Verb::Resize,
        };
        let slots = (kind == Kind::Resize).then_some(value);
        self.events.push(invoke(process, verb, slots));
        self.ops.len() - 1
    }

    fn answer(&mut self, op: usize, phase: Phase) {
        let Op { process, kind, value, .. } = self.ops[op];
        let (verb, slot) = match kind {
            Kind::Acquire => (Verb::Acquire, self.shape.numbered.then_some(value)),
            Kind::Release => (Verb::Release, None),
            Kind::Resize => (Verb::Resize, None),
        };
        match phase {
            Phase::Ok => self.ops[op].done = self.events.len(),
            Phase::Fail => self.ops[op].done = 0,
            _ => {}
        }
        let slot = slot.filter(|_| phase == Phase::Ok);
        self.events.push(answer(process, verb, phase, slot));
    }

    /// Ends a process: an operation with an unknown result is its last one.
    fn retire(&mut self, process: usize) {
        self.states[process] = State::Retired;
        self.states.push(State::Idle);
    }

    fn step(&mut self) {
        if self.shape.resizes && self.rng.random_bool(0.25) {
            return self.resize();
        }
        let alive: Vec<usize> =
            (0..self.states.len()).filter(|&p| self.states[p] != State::Retired).collect();
        let process = alive[self.rng.random_range(0..alive.len())];
        let unknown = self.rng.random_bool(self.info);
        self.states[process] = match self.states[process] {
            State::Idle => {
                let slot = self.rng.random_range(1..=self.most);
                State::Acquiring(self.op(process, Kind::Acquire, slot))
            }
            State::Held(op) => {
                let slot = self.ops[op].value;
                State::Releasing(self.op(process, Kind::Release, slot))
            }
            State::Acquiring(op) | State::Releasing(op) if unknown => {
                self.answer(op, Phase::Info);
                return self.retire(process);
            }
            State::Acquiring(op) if self.rng.random_bool(0.15) => {
                self.answer(op, Phase::Fail);
                State::Idle
            }
            State::Acquiring(op) => {
                self.answer(op, Phase::Ok);
                State::Held(op)
            }
            State::Releasing(op) => {
                self.answer(op, Phase::Ok);
                State::Idle
            }
            State::Retired => State::Retired,
        };
    }

    fn resize(&mut self) {
        let index = self.rng.random_range(0..self.administrators.len());
        let process = 40 + index;
        self.administrators[index] = match self.administrators[index] {
            None => {
                let slots = self.rng.random_range(0..=self.most);
                Some(self.op(process, Kind::Resize, slots))
            }
            Some(op) => {
                let phase = match self.rng.random_range(0..10) {
                    0 => Phase::Fail,
                    1 if self.shape.concurrent => Phase::Info,
                    _ => Phase::Ok,
                };
                self.answer(op, phase);
                None
            }
        };
    }
}

/// Draws a history. Returns its number of slots, its events and its operations.
fn draw(rng: StdRng, shape: Shape) -> (StdRng, u32, Vec<Event>, Vec<Op>) {
    let administrators = vec![None; if shape.concurrent { 2 } else { 1 }];
    let (events, ops) = (Vec::new(), Vec::new());
    let (info, most, states) = (0.0, 0, Vec::new());
    let mut draw = Draw { rng, shape, info, most, events, ops, states, administrators };
    draw.info = [0.0, 0.1, 0.3][draw.rng.random_range(0..3)];
    draw.most = draw.rng.random_range(1..=3);
    draw.states = vec![State::Idle; draw.rng.random_range(2..=4)];
    let least = u32::from(!shape.resizes);
    let slots = draw.rng.random_range(least..=draw.most);
    for _ in 0..draw.rng.random_range(5..=18) {
        draw.step();
    }
    // `done` is 0 for a failed operation: position 0 is always a request.
    draw.ops.retain(|op| op.done > 0);
    (draw.rng, slots, draw.events, draw.ops)
}

/// Exhaustive search for a legal order of the operations of a semaphore.
struct Search<'a> {
    ops: &'a [Op],
    numbered: bool,
    seen: HashSet<(u32, u64, u32)>,
}

impl Search<'_> {
    /// `held`: four bits for each process, the slot that it holds.
    fn go(&mut self, done: u32, held: u64, slots: u32) -> bool {
        let open = |index: usize| done >> index & 1 == 0;
        let count = self.ops.len();
        let Some(first) = (0..count).filter(|&i| open(i)).map(|i| self.ops[i].done).min() else {
            return true;
        };
        if first == NEVER {
            return true;
        }
        if !self.seen.insert((done, held, slots)) {
            return false;
        }
        for index in (0..count).filter(|&i| open(i)) {
            let op = self.ops[index];
            if op.invoked > first {
                continue;
            }
            let shift = 4 * op.process.min(15);
            let (value, mine) = (u64::from(op.value), held >> shift & 15);
            let holds = (0..15).map(|p| held >> (4 * p) & 15).filter(|&slot| slot > 0);
            let (next, slots) = match op.kind {
                Kind::Acquire if mine > 0 => continue,
                Kind::Acquire if self.numbered => {
                    if op.value > slots || holds.clone().any(|slot| slot == value) {
                        continue;
                    }
                    (held | value << shift, slots)
                }
                Kind::Acquire if holds.clone().count() >= slots as usize => continue,
                Kind::Acquire => (held | value << shift, slots),
                Kind::Release if mine == 0 => continue,
                Kind::Release => (held & !(15 << shift), slots),
                Kind::Resize => (held, op.value),
            };
            if self.go(done | 1 << index, next, slots) {
                return true;
            }
        }
        false
    }
}

fn linearizable(ops: &[Op], numbered: bool, slots: u32) -> bool {
    Search { ops, numbered, seen: HashSet::new() }.go(0, 0, slots)
}

fn judged_legal(reported: &Reported, slots: u32) -> bool {
    sweep(&reported.grants, &Register::new(slots, &reported.resizes)).found.is_empty()
}

/// Compares the sweep with the search on `count` histories. Returns the number of illegal ones,
/// and how many of them the sweep missed where it is allowed to.
fn compare(seed: u64, count: u32, shape: Shape, exact: bool) -> (u32, u32) {
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut illegal, mut missed) = (0, 0);
    for number in 0..count {
        let (next, slots, events, ops) = draw(rng, shape);
        rng = next;
        let reported = read(&history(Rules::None, slots, events));
        let legal = linearizable(&ops, shape.numbered, slots);
        let judged = judged_legal(&reported, slots);
        let exact = exact && !overlap(&reported.resizes);
        let agree = legal == judged || (judged && !exact);
        assert!(agree, "seed {seed}, history {number}: {slots} slots, {ops:#?}, legal: {legal}");
        illegal += u32::from(!legal);
        missed += u32::from(judged && !legal);
    }
    println!("{count} histories, {illegal} illegal, {missed} of them missed");
    (illegal, missed)
}

#[test]
fn agrees_with_exhaustive_search_on_numbered_slots_and_resizes() {
    let shape = Shape { numbered: true, resizes: true, concurrent: false };
    let (illegal, missed) = compare(3, 50_000, shape, true);
    assert!(illegal > 15_000, "only {illegal} were illegal");
    assert_eq!(missed, 0);
}

#[test]
fn agrees_with_exhaustive_search_without_numbers() {
    let shape = Shape { numbered: false, resizes: false, concurrent: false };
    let (illegal, missed) = compare(7, 50_000, shape, true);
    assert!(illegal > 5_000, "only {illegal} were illegal");
    assert_eq!(missed, 0);
}

#[test]
fn never_blames_a_legal_history_with_concurrent_resizes() {
    for numbered in [true, false] {
        let shape = Shape { numbered, resizes: true, concurrent: true };
        let (illegal, missed) = compare(11, 10_000, shape, false);
        assert!(illegal > 1_000, "only {illegal} were illegal");
        assert!(missed < illegal);
    }
}

/// Returns the number of contended grants of a history in which one process holds from 10 to 20.
/// The other process requests the slot at this position and is granted it at 30.
fn contended_if_requested_at(invoked: Position, key: Option<&Key>) -> u64 {
    let grant = |process, invoked, granted, end| Grant {
        process,
        key: key.cloned(),
        invoked,
        granted,
        end,
        freed: None,
        claimed: false,
    };
    let grants = [grant(1, 0, 10, 20), grant(2, invoked, 30, 40)];
    sweep(&grants, &Register::new(1, &[])).contended
}

#[test]
fn a_grant_is_contended_if_another_process_held_the_slot() {
    for key in [Some(Key::Slot(1)), None] {
        let contended = [5, 15, 20, 25].map(|at| contended_if_requested_at(at, key.as_ref()));
        assert_eq!(contended, [1, 1, 0, 0], "{key:?}");
    }
}

#[test]
fn a_process_does_not_contend_with_itself() {
    let mut latest = Latest::default();
    latest.add(1, 10);
    latest.add(1, 30);
    assert_eq!((latest.of_others(1), latest.of_others(2)), (0, 30));
    latest.add(2, 20);
    assert_eq!((latest.of_others(1), latest.of_others(2)), (20, 30));
    latest.add(3, 40);
    assert_eq!((latest.of_others(3), latest.of_others(2)), (30, 40));
}
