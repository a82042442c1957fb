//! Random schedules for actors that cannot be explored systematically: probabilistic concurrency
//! testing (Burckhardt et al., ASPLOS 2010). Each execution gives the actors random priorities
//! and changes them at a few random points. See `explore` for the systematic search.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::explore::{Choice, Scheduler, Step};

/// The number of steps whose order must be right for a fault. Such faults are found with a known
/// probability.
pub const DEPTH: usize = 3;

/// Generates random schedules. Consider a fault that requires an order of [`DEPTH`] steps, and
/// `n` actors with `k` steps in total. Each schedule finds it with a probability of at least
/// `1 / (n * k^(DEPTH - 1))`.
#[derive(Debug)]
pub struct Pct {
    random: StdRng,
    /// Number of remaining executions, including the current one.
    left: u64,
    /// The highest number of steps of an execution so far.
    longest: usize,
    limit: usize,
    depth: usize,
    /// The actor with the highest priority goes first. A priority is drawn when the actor's
    /// first step appears.
    priorities: BTreeMap<u32, f64>,
    /// Positions of steps before which the actor with the highest priority gets the lowest one.
    changes: Vec<usize>,
}

impl Pct {
    /// Creates a generator of this many schedules. `steps` is the expected number of steps of
    /// all actors; each execution corrects it.
    pub fn new(seed: u64, executions: u64, steps: usize) -> Self {
        let random = StdRng::seed_from_u64(seed);
        let mut pct = Self {
            random,
            left: executions,
            longest: steps.max(1),
            limit: usize::MAX,
            depth: 0,
            priorities: BTreeMap::new(),
            changes: Vec::new(),
        };
        pct.draw();
        pct
    }

    fn draw(&mut self) {
        let longest = self.longest;
        self.changes = (1..DEPTH).map(|_| self.random.random_range(0..longest)).collect();
        self.priorities.clear();
        self.depth = 0;
    }

    fn first<'a, S: Step>(&mut self, steps: &'a [S]) -> Option<&'a S> {
        for step in steps {
            let random = &mut self.random;
            self.priorities.entry(step.actor()).or_insert_with(|| random.random_range(1.0..2.0));
        }
        let priority = |step: &&S| self.priorities.get(&step.actor()).copied().unwrap_or_default();
        steps.iter().max_by(|one, other| priority(one).total_cmp(&priority(other)))
    }
}

impl<S: Step> Scheduler<S> for Pct {
    fn choose(&mut self, steps: &[S]) -> Choice<S> {
        self.longest = self.longest.max(self.depth);
        if self.depth >= self.limit && !steps.is_empty() {
            return Choice::Cut;
        }
        for (low, at) in (1..).zip(self.changes.clone()) {
            let lowest = -f64::from(low);
            if at == self.depth
                && let Some(actor) = self.first(steps).map(Step::actor)
            {
                self.priorities.insert(actor, lowest);
            }
        }
        self.depth += 1;
        self.first(steps).map_or(Choice::Ended, |step| Choice::Take(step.clone()))
    }

    fn again(&mut self) {
        self.draw();
    }

    fn next(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.draw();
        self.left > 0
    }

    fn limit(&mut self, steps: usize) {
        self.limit = self.limit.min(steps);
    }
}

#[cfg(test)]
mod tests;
