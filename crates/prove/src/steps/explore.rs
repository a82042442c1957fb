//! Searches the interleavings of a few actors systematically: a stateless depth-first search
//! with partial order reduction, independent of brokers. See `pct` for random schedules, and
//! `lab` for the world of real processes.

use std::fmt::Debug;

/// A step of one actor, for example a request. Two steps of different executions are equal if
/// they are the same step.
pub trait Step: Clone + Eq + Debug {
    /// The actor that makes the step.
    fn actor(&self) -> u32;

    /// Returns whether the two steps always occur in the same order, because they are on one
    /// connection.
    fn is_in_sequence_with(&self, other: &Self) -> bool;

    /// Returns whether the order of the two steps may change the later behaviour of an actor, or
    /// the verdict. Symmetric.
    fn depends_on(&self, other: &Self) -> bool;
}

/// Actors whose steps wait until the search takes them.
pub trait World {
    /// A step.
    type Step: Step;
    /// A fault of an execution.
    type Fault;
    /// Error that stops an execution.
    type Error;

    /// Starts the next execution. All executions start in the same state.
    fn begin(&mut self) -> impl Future<Output = Result<(), Self::Error>>;

    /// Waits until every actor has a step that can be taken or has ended. Returns these steps.
    /// If there are none, the execution has ended.
    fn steps(&mut self) -> impl Future<Output = Result<Vec<Self::Step>, Self::Error>>;

    /// Takes one of these steps.
    fn take(&mut self, step: &Self::Step) -> impl Future<Output = Result<(), Self::Error>>;

    /// Ends the execution and judges it. The remaining steps are taken in any order. Returns the
    /// fault and the number of steps after which it was certain, or `usize::MAX` if no step made
    /// it certain.
    fn end(&mut self) -> impl Future<Output = Result<Option<(usize, Self::Fault)>, Self::Error>>;
}

/// The decision about the next step of an execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice<S> {
    /// Take this step.
    Take(S),
    /// Take none: the execution has ended.
    Ended,
    /// Take none: every continuation is equivalent to an explored execution, or too long.
    Cut,
    /// Take none: the actors behave differently from an earlier execution. After the same steps,
    /// this one is missing.
    Diverged(S),
}

/// Selects the executions to explore.
pub trait Scheduler<S> {
    /// Chooses one of the steps that can be taken.
    fn choose(&mut self, steps: &[S]) -> Choice<S>;

    /// Prepares a repetition of the same execution.
    fn again(&mut self);

    /// Prepares the next execution. Returns false if there is none.
    fn next(&mut self) -> bool;

    /// Restricts the following executions to at most this many steps.
    fn limit(&mut self, steps: usize);
}

/// How an exploration ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End<S> {
    /// Every execution of the scheduler was explored.
    Complete,
    /// The maximum number of executions was reached.
    Limit,
    /// The actors behaved differently from an earlier execution. After the same steps, this one
    /// was missing.
    Diverged(S),
}

/// The result of an exploration.
#[derive(Clone, Debug)]
pub struct Explored<S, F> {
    /// Executions that were not cut.
    pub executions: u64,
    /// Executions that were cut, because they are equivalent to explored ones or too long.
    pub cut: u64,
    /// Steps of all executions.
    pub steps: u64,
    /// How it ended.
    pub end: End<S>,
    /// The shortest schedule found that leads to a fault, and the fault.
    pub fault: Option<(Vec<S>, F)>,
}

impl<S, F> Explored<S, F> {
    /// Returns the number of all executions, including those that were cut.
    pub fn all(&self) -> u64 {
        self.executions + self.cut
    }
}

/// Number of repetitions of an execution that behaves differently from an earlier one. A busy
/// machine may be the cause.
const AGAIN: u32 = 3;

/// Explores at most `limit` executions, including those that are cut. After the first fault,
/// explores only shorter schedules.
///
/// # Errors
///
/// Returns the errors of the world.
pub async fn explore<W: World>(
    world: &mut W,
    scheduler: &mut impl Scheduler<W::Step>,
    limit: u64,
) -> Result<Explored<W::Step, W::Fault>, W::Error> {
    let (mut executions, mut cut, mut steps) = (0, 0, 0);
    let (mut end, mut again) = (End::Complete, 0);
    let mut fault: Option<(usize, Vec<W::Step>, W::Fault)> = None;
    loop {
        if executions + cut >= limit {
            end = End::Limit;
            break;
        }
        world.begin().await?;
        let (mut schedule, last) = execute(world, scheduler).await?;
        steps += u64::try_from(schedule.len()).unwrap_or(u64::MAX);
        let found = world.end().await?;
        match last {
            Choice::Diverged(step) if again == AGAIN => {
                end = End::Diverged(step);
                break;
            }
            Choice::Diverged(_) => {
                again += 1;
                scheduler.again();
                continue;
            }
            Choice::Ended => executions += 1,
            Choice::Cut | Choice::Take(_) => cut += 1,
        }
        again = 0;
        if let Some((length, found)) = found
            && fault.as_ref().is_none_or(|(shortest, ..)| length < *shortest)
        {
            schedule.truncate(length);
            scheduler.limit(length.saturating_sub(1));
            fault = Some((length, schedule, found));
        }
        if !scheduler.next() {
            break;
        }
    }
    let fault = fault.map(|(_, schedule, fault)| (schedule, fault));
    Ok(Explored { executions, cut, steps, end, fault })
}

/// Takes steps until the execution ends. Returns the steps and the reason for the end.
async fn execute<W: World>(
    world: &mut W,
    scheduler: &mut impl Scheduler<W::Step>,
) -> Result<(Vec<W::Step>, Choice<W::Step>), W::Error> {
    let mut schedule = Vec::new();
    loop {
        let steps = world.steps().await?;
        match scheduler.choose(&steps) {
            Choice::Take(step) => {
                world.take(&step).await?;
                schedule.push(step);
            }
            last => return Ok((schedule, last)),
        }
    }
}

/// Depth-first search that explores one execution of each equivalence class. Two executions are
/// equivalent if they differ only in the order of adjacent independent steps.
///
/// Two techniques reduce the search. Sleep sets: after all executions that start with a step are
/// explored, the step *sleeps* in the others until a dependent step is taken. So no class is
/// explored twice. Source sets (Abdulla et al., POPL 2014): another actor goes first at a point
/// only if that reverses two dependent steps of an execution. This avoids most executions that
/// sleep sets would cut.
#[derive(Clone, Debug)]
pub struct Search<S> {
    reduced: bool,
    longest: usize,
    path: Vec<Node<S>>,
    depth: usize,
    asleep: Vec<S>,
}

/// A point in the current execution.
#[derive(Clone, Debug)]
struct Node<S> {
    steps: Vec<S>,
    sleep: Vec<S>,
    /// The steps that must be explored at this point.
    wanted: Vec<S>,
    /// The steps whose executions have all been explored.
    done: Vec<S>,
    taken: S,
}

impl<S: Step> Node<S> {
    /// Requires that one of these steps is explored at this point. If none of them can be taken
    /// here, requires every step.
    fn want(&mut self, any: &[S]) {
        if self.wanted.iter().any(|wanted| any.contains(wanted)) {
            return;
        }
        match any.iter().find(|step| self.steps.contains(step)) {
            Some(step) => self.wanted.push(step.clone()),
            None => self.wanted.clone_from(&self.steps),
        }
    }

    /// Returns whether the step that was taken at this point precedes the later one in every
    /// equivalent execution.
    fn precedes(&self, later: &S) -> bool {
        self.taken.is_in_sequence_with(later) || self.taken.depends_on(later)
    }
}

impl<S: Step> Search<S> {
    /// Creates a search. If `reduced` is false, it explores every interleaving.
    pub fn new(reduced: bool) -> Self {
        Self { reduced, longest: usize::MAX, path: Vec::new(), depth: 0, asleep: Vec::new() }
    }

    /// Adds the point that the execution has reached. Returns false if all its steps sleep.
    fn reach(&mut self, steps: &[S]) -> bool {
        let sleep = std::mem::take(&mut self.asleep);
        let Some(taken) = steps.iter().find(|step| !sleep.contains(step)) else { return false };
        let (taken, wanted) = (taken.clone(), Vec::new());
        self.path.push(Node { steps: steps.to_vec(), sleep, wanted, done: Vec::new(), taken });
        true
    }

    /// Requires the reversal of dependent steps. The step that is taken now may depend on
    /// earlier steps in an order that no third step forces. For each such earlier step, a step
    /// that leads to the new one without it must be explored at its point.
    fn reverse(&mut self, step: &S) {
        for at in 0..self.depth {
            let [earlier, between @ ..] = &self.path[at..self.depth] else { return };
            if earlier.taken.is_in_sequence_with(step) || !earlier.taken.depends_on(step) {
                continue;
            }
            let mut after = vec![earlier];
            let mut without = Vec::new();
            for later in between {
                let follows = after.iter().any(|one| one.precedes(&later.taken));
                if follows { after.push(later) } else { without.push(later) }
            }
            if after[1..].iter().any(|one| one.precedes(step)) {
                continue;
            }
            let steps = without.iter().map(|node| &node.taken).chain([step]);
            let first: Vec<S> = steps
                .enumerate()
                .filter(|(index, one)| !without[..*index].iter().any(|node| node.precedes(one)))
                .map(|(_, one)| one.clone())
                .collect();
            self.path[at].want(&first);
        }
    }
}

impl<S: Step> Scheduler<S> for Search<S> {
    fn choose(&mut self, steps: &[S]) -> Choice<S> {
        let earlier = self.path.get(self.depth).map_or(&[][..], |node| &node.steps);
        if let Some(missing) = earlier.iter().find(|step| !steps.contains(step)) {
            return Choice::Diverged(missing.clone());
        }
        if steps.is_empty() {
            return Choice::Ended;
        }
        if self.depth >= self.longest || (self.depth == self.path.len() && !self.reach(steps)) {
            return Choice::Cut;
        }
        let Some(node) = self.path.get_mut(self.depth) else { return Choice::Cut };
        // A step that became available later than in earlier executions.
        let late: Vec<S> =
            steps.iter().filter(|step| !node.steps.contains(step)).cloned().collect();
        node.steps.extend(late);
        // The connection may have another number in this execution.
        let taken = steps.iter().find(|step| **step == node.taken).unwrap_or(&node.taken).clone();
        node.taken = taken.clone();
        node.want(std::slice::from_ref(&taken));
        if self.reduced {
            let sleeping = node.sleep.iter().chain(&node.done);
            self.asleep = sleeping.filter(|step| !step.depends_on(&taken)).cloned().collect();
            self.reverse(&taken);
        }
        self.depth += 1;
        Choice::Take(taken)
    }

    fn again(&mut self) {
        self.depth = 0;
        self.asleep.clear();
    }

    fn next(&mut self) -> bool {
        self.again();
        while let Some(node) = self.path.last_mut() {
            node.done.push(node.taken.clone());
            let steps = if self.reduced { &node.wanted } else { &node.steps };
            let explored = |step: &&S| node.sleep.contains(step) || node.done.contains(step);
            if let Some(step) = steps.iter().find(|step| !explored(step)) {
                node.taken = step.clone();
                return true;
            }
            self.path.pop();
        }
        false
    }

    fn limit(&mut self, steps: usize) {
        self.longest = self.longest.min(steps);
        self.path.truncate(self.longest);
    }
}

#[cfg(test)]
mod tests;
