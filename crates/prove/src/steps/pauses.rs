//! Random schedules in which a process pauses between two of its requests, until the others have
//! ended or another one pauses too. Bugs of lock clients often need only that, so a few of these
//! schedules find what needs hundreds of `pct`. See `schedules` for their use.

use std::collections::BTreeMap;
use std::time::Instant;

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};

use super::explore::{Choice, Scheduler, Step};

/// Assumed number of steps of an actor that was not seen yet.
const STEPS: usize = 3;

/// Probability that an actor other than the first one pauses.
const PAUSES: f64 = 0.3;

/// Probability of a schedule in which an actor goes on as soon as another one has paused.
const PAIRS: f64 = 0.7;

/// Generates random schedules until a time, or until one has a fault. The actors go one after the
/// other, in random order. An actor that pauses goes on after all others. In most schedules, two
/// actors pause: the first one before a step, and the second one after a step on which that
/// depends. Then the first one goes on.
#[derive(Debug)]
pub struct Pauses<S> {
    random: StdRng,
    end: Instant,
    is_found: bool,
    /// The actors in the order in which they go.
    order: Vec<u32>,
    stops: BTreeMap<u32, Stop>,
    /// The steps that each actor has taken.
    taken: BTreeMap<u32, Vec<S>>,
    /// The most steps of each actor in an execution so far.
    longest: BTreeMap<u32, Vec<S>>,
}

/// A pause of an actor.
#[derive(Clone, Copy, Debug)]
struct Stop {
    /// The number of steps before it.
    after: usize,
    /// The number of actors that go next.
    others: usize,
}

impl<S: Step> Pauses<S> {
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
        if let Some([(first, before), (second, last)]) = self.pair(&actors)
            && self.random.random_bool(PAIRS)
        {
            self.stops.insert(first, Stop { after: before, others: 1 });
            self.stops.insert(second, Stop { after: last + 1, others: usize::MAX });
            actors.retain(|actor| ![first, second].contains(actor));
            self.order = [vec![first, second], actors].concat();
            return;
        }
        for (index, actor) in actors.iter().enumerate() {
            let longest = self.longest.get(actor).map_or(STEPS, Vec::len);
            if longest > 1 && (index == 0 || self.random.random_bool(PAUSES)) {
                let after = self.random.random_range(1..longest);
                self.stops.insert(*actor, Stop { after, others: usize::MAX });
            }
        }
        self.order = actors;
    }

    /// Draws a step of the first of these actors, which is not its first step, and one of another
    /// actor on which it depends. Returns their actors and numbers.
    fn pair(&mut self, actors: &[u32]) -> Option<[(u32, usize); 2]> {
        let first = *actors.first()?;
        let steps = self.longest.get(&first)?;
        let before = *(1..steps.len()).collect::<Vec<_>>().choose(&mut self.random)?;
        let others = self.longest.iter().filter(|&(&actor, _)| actor != first);
        let others = others.flat_map(|(&actor, steps)| {
            (0..).zip(steps).map(move |(at, step)| ((actor, at), step))
        });
        let depends = others.filter(|(_, step)| steps[before].depends_on(step));
        let depends: Vec<_> = depends.map(|(second, _)| second).collect();
        depends.choose(&mut self.random).map(|&second| [(first, before), second])
    }
}

impl<S: Step> Scheduler<S> for Pauses<S> {
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
            if let Some(stop) = self.stops.get(&actor).copied()
                && stop.after == taken.len()
            {
                self.stops.remove(&actor);
                self.order.remove(index);
                let next = index.saturating_add(stop.others).min(self.order.len());
                self.order.insert(next, actor);
                continue;
            }
            taken.push(step.clone());
            return Choice::Take(step.clone());
        }
    }

    fn again(&mut self) {
        for (actor, steps) in std::mem::take(&mut self.taken) {
            let longest = self.longest.entry(actor).or_default();
            if steps.len() > longest.len() {
                *longest = steps;
            }
        }
        self.order.clear();
        self.stops.clear();
    }

    fn next(&mut self) -> bool {
        self.again();
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
    use crate::steps::sim::{Line, Op, STOP, Sim, client, shrink};

    fn fault(looks: bool, seed: u64, most: u64) -> (bool, u64) {
        fault_of(vec![client(looks), client(looks), shrink()], seed, most)
    }

    fn fault_of(programs: Vec<Vec<Line>>, seed: u64, most: u64) -> (bool, u64) {
        let mut sim = Sim::new(1, programs);
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
    fn a_pause_of_each_of_two_actors_finds_a_fault_soon() {
        let looks = (1..=10).map(|next| Line(Op::LookB(2), next, next));
        let ends = [Line(Op::DeleteA(1), 11, 11), Line(Op::DeclareA(1), STOP, STOP)];
        let regrow: Vec<_> = looks.chain(ends).collect();
        let found = |seed: &u64| fault_of(vec![client(false), regrow.clone()], *seed, 40).0;
        let found = (0..100).filter(found).count();
        assert!(found >= 90, "{found}");
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
