//! Measures one operation at a time: starts processes, sends requests, and waits until the wire
//! is quiet. See `scenario` for the order of the operations.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use lockkeeper_plan::naming::LockName;
use tokio::time::sleep;

use super::operation::Operation;
use super::options::CostOptions;
use super::sample::{Recorded, Sample, Span, is_on_wire};
use crate::driver::message::{FULL, Line, UNSUPPORTED};
use crate::history::{Event, Faults, Rules, Verb};
use crate::run::actor::Actor;
use crate::run::{RunError, RunOptions, Way};
use crate::wire::Recorder;

/// The wire counts as quiet if nothing passes for this time plus the one-way delay.
const QUIET: Duration = Duration::from_millis(20);

/// Maximum number of such periods to wait, because some processes are never quiet.
const PERIODS: u32 = 12;

/// Total time of its samples after which an operation is not repeated.
const ENOUGH: Duration = Duration::from_millis(2_500);

/// Number of failures after which an operation is not measured again.
const FAILURES: u32 = 3;

/// Time limit of an acquire that is not measured. The slots of killed processes are not free
/// immediately.
const SETUP: Duration = Duration::from_secs(3);

/// Measures the operations on one lock.
pub struct Bench {
    /// Records all events and frame sizes.
    pub recorder: Recorder,
    options: CostOptions,
    run: RunOptions,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    processes: u32,
    samples: Vec<Sample>,
    spent: BTreeMap<Operation, Duration>,
    failed: BTreeMap<Operation, u32>,
    not_offered: BTreeSet<Operation>,
    troubles: BTreeSet<String>,
}

/// A request to a process.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    pub verb: Verb,
    pub wait: Option<Duration>,
    pub slots: Option<u32>,
}

impl From<Verb> for Ask {
    /// An acquire does not wait by default.
    fn from(verb: Verb) -> Self {
        let wait = (verb == Verb::Acquire).then_some(Duration::ZERO);
        Self { verb, wait, slots: None }
    }
}

impl Ask {
    pub fn resize(slots: u32) -> Self {
        Self { slots: Some(slots), ..Self::from(Verb::Resize) }
    }
}

impl Bench {
    /// Prepares the measurement of this lock.
    pub fn new(options: &CostOptions, lock: &str) -> Self {
        let run = RunOptions {
            way: Way::Driver(options.driver.clone()),
            second_driver: None,
            administrator: options.administrator.clone(),
            url: Some(options.url.clone()),
            rules: options.rules,
            lock: lock.to_owned(),
            seed: 0,
            duration: Duration::ZERO,
            clients: 0,
            slots: 0,
            faults: Faults::NONE,
            resize_within: Duration::ZERO,
            // Only commands of `--exec` use the program.
            program: PathBuf::new(),
        };
        let recorder = Recorder::with_sizes();
        Self { recorder, options: options.clone(), run, state: RefCell::default() }
    }

    /// Returns the options of the measurement.
    pub fn options(&self) -> &CostOptions {
        &self.options
    }

    /// Returns and removes the samples so far.
    pub fn samples(&self) -> Vec<Sample> {
        std::mem::take(&mut self.state.borrow_mut().samples)
    }

    /// Returns the operations that the implementation does not support.
    pub fn not_offered(&self) -> BTreeSet<Operation> {
        self.state.borrow().not_offered.clone()
    }

    /// Returns the warnings, each text once.
    pub fn troubles(&self) -> BTreeSet<String> {
        self.state.borrow().troubles.clone()
    }

    /// Adds a warning.
    pub fn trouble(&self, text: String) {
        self.state.borrow_mut().troubles.insert(text);
    }

    /// Records that the implementation does not support an operation.
    pub fn is_not_offered(&self, operation: Operation) {
        self.state.borrow_mut().not_offered.insert(operation);
    }

    /// Returns whether to take another sample of the operation. In the first round this is true
    /// unless the operation keeps failing.
    pub fn wants(&self, operation: Operation, round: u32) -> bool {
        let state = self.state.borrow();
        let spent = state.spent.get(&operation).copied().unwrap_or_default();
        let failed = state.failed.get(&operation).copied().unwrap_or_default();
        (round == 0 || spent < ENOUGH)
            && failed < FAILURES
            && !state.not_offered.contains(&operation)
    }

    /// Starts a process of the implementation.
    pub async fn start(&self) -> Result<Actor, RunError> {
        self.start_way(&self.run.way).await
    }

    async fn start_way(&self, way: &Way) -> Result<Actor, RunError> {
        let process = {
            let mut state = self.state.borrow_mut();
            state.processes += 1;
            state.processes
        };
        Actor::start(way, &self.run, &self.recorder, process).await
    }

    /// Returns a process that has created the lock, and whether it belongs to the implementation
    /// under test.
    pub async fn administrator(&self, slots: u32) -> Result<(Actor, bool), RunError> {
        let administrator = Way::Driver(self.run.administrator.clone());
        for (way, own) in [(&self.run.way, true), (&administrator, false)] {
            if let Some(actor) = self.start_way(way).await?.create(slots).await? {
                return Ok((actor, own));
            }
        }
        Err(RunError::Create(UNSUPPORTED.to_owned()))
    }

    /// Sends a request without measuring it. Any answer other than ok adds a warning.
    pub async fn ask(&self, actor: &mut Actor, ask: impl Into<Ask>) -> Result<bool, RunError> {
        let ask = ask.into();
        let wait = ask.wait.map(|wait| wait.max(SETUP));
        let answer = actor.ask(ask.verb, wait, ask.slots).await?;
        let done = matches!(answer, Line::Ok(_));
        if !done {
            self.trouble(format!("{:?}: {}", ask.verb, text(&answer)));
        }
        Ok(done)
    }

    /// Measures one operation. Returns whether its answer is the expected one: ok, or the
    /// refusal of [`Operation::AcquireFull`].
    pub async fn measure(
        &self,
        (operation, first): (Operation, bool),
        delay: Duration,
        actor: &mut Actor,
        ask: impl Into<Ask>,
    ) -> Result<bool, RunError> {
        let ask = ask.into();
        self.forget();
        let started = tokio::time::Instant::now();
        let answer = actor.ask(ask.verb, ask.wait, ask.slots).await?;
        let recorded = self.settle(&[actor.process()], delay).await;
        self.spend(operation, started.elapsed());
        let (from, processes) = ((actor.process(), ask.verb), [actor.process()]);
        let span = Span { from, to: from, processes: &processes };
        Ok(self.keep((operation, first), delay, &answer, &recorded, span))
    }

    /// Stores the sample if the answer is the expected one. Returns whether it is.
    pub fn keep(
        &self,
        operation: (Operation, bool),
        delay: Duration,
        answer: &Line,
        recorded: &Recorded,
        span: Span<'_>,
    ) -> bool {
        let refused = matches!(operation.0, Operation::AcquireFull | Operation::LostRace);
        match answer {
            Line::Fail(why) if why == UNSUPPORTED => {
                self.is_not_offered(operation.0);
                false
            }
            Line::Ok(_) if !refused => self.push(Sample::of(operation, delay, recorded, span)),
            Line::Fail(why) if refused && why == FULL => {
                self.push(Sample::of(operation, delay, recorded, span))
            }
            answer => {
                self.trouble(format!("{:?}: {}", operation.0, text(answer)));
                *self.state.borrow_mut().failed.entry(operation.0).or_default() += 1;
                false
            }
        }
    }

    fn push(&self, sample: Option<Sample>) -> bool {
        self.state.borrow_mut().samples.extend(sample);
        true
    }

    /// Adds to the time that the samples of an operation took.
    pub fn spend(&self, operation: Operation, time: Duration) {
        *self.state.borrow_mut().spent.entry(operation).or_default() += time;
    }

    /// Discards the recorded events.
    pub fn forget(&self) {
        self.recorder.finish();
        self.recorder.finish_sizes();
    }

    /// Waits until these processes exchange nothing more with the broker, for a limited number
    /// of periods. Returns the events since [`Bench::forget`].
    pub async fn settle(&self, processes: &[u32], delay: Duration) -> Recorded {
        let mut events = self.recorder.finish();
        events.extend(self.quiet(processes, delay, true).await);
        Recorded { events, sizes: self.recorder.finish_sizes() }
    }

    /// Waits until a process that was just asked to acquire waits: it has sent a request, and
    /// the wire is quiet. A process that polls is given a limited number of periods.
    pub async fn until_it_waits(&self, process: u32, delay: Duration) {
        self.quiet(&[process], delay, false).await;
    }

    /// Waits until the wire is quiet. Returns the events of that time.
    async fn quiet(&self, processes: &[u32], delay: Duration, mut seen: bool) -> Vec<Event> {
        let mut events = Vec::new();
        for _ in 0..PERIODS {
            sleep(QUIET + delay).await;
            let more = self.recorder.finish();
            let passed = more.iter().any(|event| is_on_wire(event, processes));
            events.extend(more);
            if seen && !passed {
                break;
            }
            seen |= passed;
        }
        events
    }

    /// Returns whether this request takes a slot if the slot is free.
    pub fn takes_a_slot(&self, method: &str, queue: &str) -> bool {
        let Some(protocol) = self.options.rules.protocol() else { return false };
        let Ok(lock) = LockName::new(&self.run.lock) else { return false };
        let lock = lock.with_protocol(protocol);
        let takes = match self.options.rules {
            Rules::ExclusiveQueue | Rules::AmqpLocksPython => "queue.declare",
            Rules::ExclusiveConsumer => "basic.consume",
            Rules::Token | Rules::None => return false,
        };
        method == takes && lock.slot_of_holder_queue(queue).is_some()
    }

    /// Destroys the lock and ends its administrator. If that fails, the driver in the options
    /// destroys the lock.
    pub async fn destroy(&self, mut administrator: Actor) -> Result<(), RunError> {
        let destroyed = self.ask(&mut administrator, Verb::Destroy).await;
        self.end(administrator).await;
        if !destroyed? {
            let mut other = self.start_way(&Way::Driver(self.run.administrator.clone())).await?;
            let destroyed = self.ask(&mut other, Verb::Destroy).await;
            self.end(other).await;
            destroyed?;
        }
        Ok(())
    }

    /// Ends a process. Adds a warning if some of its data could not be parsed.
    pub async fn end(&self, actor: Actor) {
        if let Some(why) = actor.unreadable() {
            self.trouble(format!(
                "the counts are too low, because some data could not be parsed: {why}"
            ));
        }
        actor.kill().await;
    }
}

/// Returns an answer as text.
pub fn text(answer: &Line) -> String {
    serde_json::to_string(answer).unwrap_or_default()
}

#[cfg(test)]
mod tests;
