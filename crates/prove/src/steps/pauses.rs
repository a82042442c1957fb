//! Random schedules in which one process pauses between two of its requests, until the others
//! have ended. Bugs of lock clients often need only that, so a few of these schedules find what
//! needs hundreds of `pct`. See `schedules` for their use.

use std::collections::BTreeMap;
use std::time::Instant;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::explore::{Choice, Scheduler, Step};

/// Assumed number of steps of an actor that was not seen yet.
const STEPS: usize = 3;

/// Probability that an actor other than the first one pauses.
const PAUSES: f64 = 0.3;

/// Generates random schedules until a time, or until one has a fault. The actors go one after the
/// other, in random order. An actor that pauses goes on after all others.
#[derive(Debug)]
pub struct Pauses {
    random: StdRng,
    end: Instant,
    is_found: bool,
    /// The actors in the order in which they go.
    order: Vec<u32>,
    /// The number of steps until an actor pauses.
    stops: BTreeMap<u32, usize>,
    /// The number of steps that each actor has taken.
    taken: BTreeMap<u32, usize>,
    /// The highest number of steps of each actor in an execution so far.
    longest: BTreeMap<u32, usize>,
}

impl Pauses {
    /// Creates a generator.
    pub fn new(seed: u64, end: Instant) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            end,
            is_found: false,
            order: Vec::new(),
            stops: BTreeMap::new(),
            taken: BTreeMap::new(),
            longest: BTreeMap::new(),
        }
    }

    /// Draws the order of these actors, and where they pause.
    fn draw(&mut self, mut actors: Vec<u32>) {
        actors.dedup();
        actors.shuffle(&mut self.random);
        for (index, actor) in actors.iter().enumerate() {
            let longest = self.longest.get(actor).copied().unwrap_or(STEPS);
            if longest > 1 && (index == 0 || self.random.random_bool(PAUSES)) {
                let pause = self.random.random_range(1..longest);
                self.stops.insert(*actor, pause);
            }
        }
        self.order = actors;
    }
}

impl<S: Step> Scheduler<S> for Pauses {
    fn choose(&mut self, steps: &[S]) -> Choice<S> {
        if self.order.is_empty() {
            self.draw(steps.iter().map(Step::actor).collect());
        }
        let late = steps.iter().map(Step::actor).find(|actor| !self.order.contains(actor));
        self.order.extend(late);
        // Each actor pauses at most once.
        loop {
            let of = |actor: u32| steps.iter().find(|step| step.actor() == actor);
            let Some((index, step)) =
                (0..).zip(&self.order).find_map(|(index, &actor)| Some((index, of(actor)?)))
            else {
                return Choice::Ended;
            };
            let actor = step.actor();
            let taken = self.taken.entry(actor).or_default();
            if self.stops.get(&actor) == Some(taken) {
                self.stops.remove(&actor);
                self.order.remove(index);
                self.order.push(actor);
                continue;
            }
            *taken += 1;
            return Choice::Take(step.clone());
        }
    }

    fn again(&mut self) {
        for (actor, steps) in std::mem::take(&mut self.taken) {
            let longest = self.longest.entry(actor).or_default();
            *longest = steps.max(*longest);
        }
        self.order.clear();
        self.stops.clear();
    }

    fn next(&mut self) -> bool {
        Scheduler::<S>::again(self);
        !self.is_found && Instant::now() < self.end
    }

    fn limit(&mut self, _: usize) {
        self.is_found = true;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::executor::block_on;

    use super::*;
    use crate::steps::explore::explore;
    use crate::steps::sim::{Sim, client, shrink};

    fn fault(looks: bool, seed: u64, most: u64) -> (bool, u64) {
        let mut sim = Sim::new(1, vec![client(looks), client(looks), shrink()]);
        let mut pauses = Pauses::new(seed, Instant::now() + Duration::from_mins(10));
        let explored = block_on(explore(&mut sim, &mut pauses, most)).unwrap();
        (explored.fault.is_some(), explored.executions)
    }

    #[test]
    fn a_pause_between_two_requests_finds_a_fault_soon() {
        let found = (0..100).filter(|&seed| fault(false, seed, 20).0).count();
        assert!(found >= 95, "{found}");
    }

    #[test]
    fn ends_at_the_first_fault() {
        let (found, executions) = fault(false, 1, 1_000);
        assert!(found && executions < 100, "{executions}");
    }

    #[test]
    fn correct_clients_have_no_fault() {
        assert_eq!(fault(true, 1, 300), (false, 300));
    }
}
