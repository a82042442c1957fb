//! Selects the faults of executions: cuts of a connection before or after each request, and cuts
//! of a process at each point at which it holds. See `faults` for how they are executed, and
//! `explore` for the executions without a fault.

use std::collections::{BTreeSet, VecDeque};

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::index;

use super::request::{Asked, Cut, Request};
use crate::wire::When;

/// An execution without a fault.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Execution {
    /// Its steps.
    pub schedule: Vec<Request>,
    /// The processes that were idle and held a slot: before each step, and after the last one.
    pub holders: Vec<BTreeSet<u32>>,
}

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The connection is cut instead of releasing the request.
    Before,
    /// The connection is cut after the broker has answered, before the client gets the answer.
    After,
    /// All connections of this process are cut before the step, while it holds.
    Holding(u32),
}

/// One fault in one execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// The execution, as an index.
    pub execution: usize,
    /// The step, as an index. [`Side::Holding`]: the number of steps for the end.
    pub at: usize,
    /// The kind.
    pub side: Side,
}

/// Returns every fault of every execution.
pub fn every(executions: &[Execution]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (execution, Execution { schedule, holders }) in executions.iter().enumerate() {
        for (at, holders) in holders.iter().enumerate() {
            let method = |step: &Request| matches!(step.what, Asked::Method(..));
            let sides = [Side::Before, Side::After].into_iter();
            let sides = sides.filter(|_| schedule.get(at).is_some_and(method));
            let sides = sides.chain(holders.iter().map(|&process| Side::Holding(process)));
            faults.extend(sides.map(|side| Fault { execution, at, side }));
        }
    }
    faults
}

/// Draws this number of different faults, in the order of the list. Returns all of them if there
/// are not more. Equal seeds draw equal faults.
pub fn draw(faults: Vec<Fault>, number: usize, seed: u64) -> Vec<Fault> {
    if number >= faults.len() {
        return faults;
    }
    let mut random = StdRng::seed_from_u64(seed);
    let drawn: BTreeSet<usize> = index::sample(&mut random, faults.len(), number).iter().collect();
    drawn.into_iter().map(|index| faults[index]).collect()
}

/// Chooses the steps of an execution with a fault. Until the fault these are the steps of the
/// execution without it. Afterwards the rest of them follow in the same order, as far as
/// processes still make them. Other steps are taken when none of these can be taken.
#[derive(Clone, Debug)]
pub struct Order {
    /// The steps that have not been taken, with their positions.
    left: VecDeque<(usize, Request)>,
    /// The fault, until it is chosen.
    fault: Option<Fault>,
}

impl Order {
    /// Starts an execution with this fault.
    pub fn new(schedule: &[Request], fault: Fault) -> Self {
        Self { left: schedule.iter().cloned().enumerate().collect(), fault: Some(fault) }
    }

    /// Chooses one of the steps that can be taken, or the fault. `holders` are the processes
    /// that are idle and hold a slot. Returns `None` at the end.
    pub fn choose(&mut self, steps: &[Request], holders: &BTreeSet<u32>) -> Option<Request> {
        let found = self.left.iter().position(|(_, step)| steps.contains(step));
        let at = found.map_or(usize::MAX, |found| self.left[found].0);
        if let Some(Fault { at: due, side: Side::Holding(process), .. }) = self.fault
            && due <= at
            && holders.contains(&process)
        {
            self.fault = None;
            return Some(Request { process, what: Asked::Cut(Cut::Holding), connection: 0 });
        }
        let Some((at, step)) = found.and_then(|found| self.left.remove(found)) else {
            let begins = |step: &&Request| matches!(step.what, Asked::Begin(_));
            return steps.iter().find(|step| !begins(step)).or(steps.first()).cloned();
        };
        // The connection may have another number than in the execution without the fault.
        let step = steps.iter().find(|one| **one == step).cloned().unwrap_or(step);
        let when = match self.fault {
            Some(Fault { at: due, side: Side::Before, .. }) if due == at => When::Before,
            Some(Fault { at: due, side: Side::After, .. }) if due == at => When::After,
            _ => return Some(step),
        };
        self.fault = None;
        Some(match step.what {
            Asked::Method(method, on) => {
                Request { what: Asked::Cut(Cut::Method(when, method, on)), ..step }
            }
            _ => step,
        })
    }
}

#[cfg(test)]
mod tests;
