//! A builder of small histories, and tests of which properties are judged.

use std::collections::BTreeMap;

use super::verdict::{Cause, Property, Verdict};
use super::{JudgeError, NEED_FRAMES, judge};
use crate::driver::message::FULL;
use crate::history::{
    ConnectionState, Event, Frame, Header, History, Operation, Phase, ProcessState, Rules, Sender,
    VERSION, Verb, What,
};
pub(crate) use crate::run::actor::operation;

/// Creates a history whose events are one millisecond apart, except those that were built with a
/// time.
pub(crate) fn history(protocol: Rules, slots: u32, events: Vec<Event>) -> History {
    let header = Header {
        version: VERSION,
        implementation: "test".to_owned(),
        broker: String::new(),
        protocol,
        lock: "N".to_owned(),
        slots,
        seed: 0,
        heartbeat_ms: 0,
        played: None,
    };
    let mut now = 0;
    let mut timed = |event: Event| {
        now = event.at.max(now + 1000);
        Event { at: now, ..event }
    };
    let events = events.into_iter().map(&mut timed).collect();
    History { header, events }
}

fn of(process: usize) -> u32 {
    u32::try_from(process).unwrap()
}

/// Returns a method on connection 1 and channel 1 without arguments.
pub(crate) fn frame(process: u32, sender: Sender, method: &str) -> Frame {
    Frame {
        process,
        connection: 1,
        channel: 1,
        sender,
        method: method.to_owned(),
        queue: String::new(),
        code: None,
        consumer: None,
        delivery: None,
        exclusive: false,
        flag: false,
        requeue: false,
        messages: None,
        consumers: None,
        body: None,
        options: None,
    }
}

fn event(what: What) -> Event {
    Event { at: 0, what }
}

pub(crate) fn invoke(process: usize, verb: Verb, slots: Option<u32>) -> Event {
    event(What::Operation(Operation { slots, ..operation(of(process), verb, Phase::Invoke) }))
}

pub(crate) fn answer(process: usize, verb: Verb, phase: Phase, slot: Option<u32>) -> Event {
    event(What::Operation(Operation { slot, ..operation(of(process), verb, phase) }))
}

/// Builds a history event by event. Each process uses its connection 1 and channel 1.
#[derive(Clone)]
pub(crate) struct Story {
    rules: Rules,
    slots: u32,
    events: Vec<Event>,
    delay_ms: u64,
}

impl Story {
    pub(crate) fn new(rules: Rules, slots: u32) -> Self {
        Self { rules, slots, events: Vec::new(), delay_ms: 0 }
    }

    fn push(mut self, what: What) -> Self {
        let last = self.events.last().map_or(0, |event| event.at);
        let at = last + 1000 * (1 + self.delay_ms);
        self.events.push(Event { at, what });
        self.delay_ms = 0;
        self
    }

    /// Delays the next event.
    pub(crate) fn after_ms(mut self, delay: u64) -> Self {
        self.delay_ms = delay;
        self
    }

    pub(crate) fn ask(self, process: usize, verb: Verb) -> Self {
        self.push(What::Operation(operation(of(process), verb, Phase::Invoke)))
    }

    /// Adds a request to acquire that may wait for 2 s.
    pub(crate) fn waits(self, process: usize) -> Self {
        self.waits_for(process, 2_000)
    }

    /// Adds a request to acquire with a time limit, in milliseconds.
    pub(crate) fn waits_for(self, process: usize, wait_ms: u64) -> Self {
        let asked = operation(of(process), Verb::Acquire, Phase::Invoke);
        self.push(What::Operation(Operation { wait_ms: Some(wait_ms), ..asked }))
    }

    pub(crate) fn resize(self, process: usize, slots: u32) -> Self {
        let asked = operation(of(process), Verb::Resize, Phase::Invoke);
        self.push(What::Operation(Operation { slots: Some(slots), ..asked }))
    }

    pub(crate) fn ok(self, process: usize, verb: Verb) -> Self {
        self.push(What::Operation(operation(of(process), verb, Phase::Ok)))
    }

    pub(crate) fn granted(self, process: usize, slot: u32) -> Self {
        let ok = operation(of(process), Verb::Acquire, Phase::Ok);
        self.push(What::Operation(Operation { slot: Some(slot), ..ok }))
    }

    pub(crate) fn granted_token(self, process: usize, token: &str) -> Self {
        let ok = operation(of(process), Verb::Acquire, Phase::Ok);
        self.push(What::Operation(Operation { token: Some(token.to_owned()), ..ok }))
    }

    pub(crate) fn full(self, process: usize) -> Self {
        self.failed(process, Verb::Acquire, FULL)
    }

    /// Adds an answer of this kind with a reason.
    pub(crate) fn ended(self, process: usize, verb: Verb, phase: Phase, why: &str) -> Self {
        let answer = operation(of(process), verb, phase);
        self.push(What::Operation(Operation { why: Some(why.to_owned()), ..answer }))
    }

    pub(crate) fn failed(self, process: usize, verb: Verb, why: &str) -> Self {
        self.ended(process, verb, Phase::Fail, why)
    }

    pub(crate) fn unknown(self, process: usize, verb: Verb) -> Self {
        self.ended(process, verb, Phase::Info, "unknown")
    }

    pub(crate) fn draining(self, process: usize) -> Self {
        let ok = operation(of(process), Verb::Verify, Phase::Ok);
        self.push(What::Operation(Operation { draining: true, ..ok }))
    }

    pub(crate) fn lost(self, process: u32) -> Self {
        self.push(What::Lost { process, why: "test".to_owned() })
    }

    pub(crate) fn killed(self, process: u32) -> Self {
        self.push(What::Process { process, state: ProcessState::Killed, implementation: None })
    }

    pub(crate) fn started(self, process: u32, implementation: Option<&str>) -> Self {
        let implementation = implementation.map(str::to_owned);
        self.push(What::Process { process, state: ProcessState::Started, implementation })
    }

    pub(crate) fn connection(self, process: u32, state: ConnectionState) -> Self {
        self.push(What::Connection { process, connection: 1, state })
    }

    /// Adds a frame that `with` has changed.
    pub(crate) fn frame(
        self,
        sender: Sender,
        process: u32,
        method: &str,
        with: impl FnOnce(&mut Frame),
    ) -> Self {
        let mut frame = frame(process, sender, method);
        with(&mut frame);
        self.push(What::Frame(frame))
    }

    pub(crate) fn request(self, process: u32, method: &str, queue: &str) -> Self {
        self.frame(Sender::Client, process, method, |frame| queue.clone_into(&mut frame.queue))
    }

    pub(crate) fn answer(self, process: u32, method: &str) -> Self {
        self.frame(Sender::Broker, process, method, |_| {})
    }

    /// Adds a request and its answer.
    pub(crate) fn call(self, process: u32, method: &str, queue: &str) -> Self {
        let answer = format!("{}-ok", method.trim_end_matches("(passive)"));
        self.request(process, method, queue).answer(process, &answer)
    }

    /// Adds a request that the broker rejects by closing the channel.
    pub(crate) fn rejected(self, process: u32, method: &str, queue: &str, code: u16) -> Self {
        self.request(process, method, queue)
            .frame(Sender::Broker, process, "channel.close", |frame| frame.code = Some(code))
            .frame(Sender::Client, process, "channel.close-ok", |_| {})
    }

    /// Adds the declaration of an exclusive queue.
    pub(crate) fn own(self, process: u32, queue: &str) -> Self {
        self.frame(Sender::Client, process, "queue.declare", |frame| {
            queue.clone_into(&mut frame.queue);
            frame.exclusive = true;
        })
        .answer(process, "queue.declare-ok")
    }

    /// Adds an exclusive consumer of a queue. Its tag is the name of the queue.
    pub(crate) fn consume(self, process: u32, queue: &str) -> Self {
        let consumer = Some(queue.to_owned());
        let tag = consumer.clone();
        self.frame(Sender::Client, process, "basic.consume", |frame| {
            (frame.consumer, frame.exclusive, frame.flag) = (consumer, true, true);
            queue.clone_into(&mut frame.queue);
        })
        .frame(Sender::Broker, process, "basic.consume-ok", |frame| frame.consumer = tag)
    }

    /// Adds the delivery of a token to a `basic.get`.
    pub(crate) fn get(self, process: u32, delivery: u64, body: &str) -> Self {
        self.request(process, "basic.get", "N.semaphore")
            .frame(Sender::Broker, process, "basic.get-ok", |frame| frame.delivery = Some(delivery))
            .frame(Sender::Broker, process, "content", |frame| frame.body = Some(body.to_owned()))
    }

    /// Adds an acquisition of slot 1 according to the protocol.
    pub(crate) fn acquires(self, process: u32) -> Self {
        self.ask(process as usize, Verb::Acquire)
            .own(process, "N-1-B")
            .call(process, "queue.declare(passive)", "N-1-A")
            .granted(process as usize, 1)
    }

    /// Adds a release of slot 1 according to the protocol.
    pub(crate) fn releases(self, process: u32) -> Self {
        self.ask(process as usize, Verb::Release)
            .call(process, "queue.delete", "N-1-B")
            .ok(process as usize, Verb::Release)
    }

    /// Adds a verification of slot 1 on the connection that holds it, without its answer.
    pub(crate) fn verifies(self, process: u32) -> Self {
        let story = self.ask(process as usize, Verb::Verify);
        story.call(process, "queue.declare(passive)", "N-1-B")
    }

    /// Adds a fault of a process.
    pub(crate) fn fault(self, process: u32, fault: &str) -> Self {
        self.push(What::Fault { process: Some(process), fault: fault.to_owned() })
    }

    pub(crate) fn history(self) -> History {
        history(self.rules, self.slots, self.events)
    }

    pub(crate) fn verdict(self) -> Verdict {
        judge(&self.history()).unwrap()
    }

    /// Returns the violated properties and their causes.
    pub(crate) fn violations(self) -> Vec<(Property, Cause)> {
        let violations = self.verdict().violations;
        violations.iter().map(|violation| (violation.property, violation.cause)).collect()
    }
}

#[test]
fn judges_only_the_answers_without_frames() {
    let verdict =
        Story::new(Rules::ExclusiveQueue, 1).ask(1, Verb::Acquire).granted(1, 1).verdict();
    assert_eq!(verdict.violations, []);
    let not_judged: Vec<Property> = verdict.not_judged.into_keys().collect();
    assert_eq!(not_judged, NEED_FRAMES);
}

#[test]
fn reports_that_overlapping_resizes_are_not_judged() {
    let story = |overlap| {
        let story = Story::new(Rules::None, 1).resize(1, 2);
        if overlap { story.resize(2, 3).ok(1, Verb::Resize) } else { story.ok(1, Verb::Resize) }
    };
    assert!(story(true).verdict().not_judged.contains_key(&Property::S3));
    assert!(!story(false).verdict().not_judged.contains_key(&Property::S3));
}

#[test]
fn counts_the_checked_situations() {
    let verdict = Story::new(Rules::ExclusiveQueue, 1)
        .acquires(1)
        .ask(2, Verb::Acquire)
        .full(2)
        .ask(2, Verb::Acquire)
        .verifies(1)
        .ok(1, Verb::Verify)
        .releases(1)
        .own(2, "N-1-B")
        .granted(2, 1)
        .verdict();
    assert_eq!(verdict.violations, []);
    let expected = [
        ("contended hand-overs", 1),
        ("grants", 2),
        ("holds at the broker", 2),
        ("long waits", 0),
        ("refusals", 1),
        ("releases", 1),
        ("resizes", 0),
        ("verifications", 1),
    ];
    let expected: BTreeMap<String, u64> =
        expected.map(|(name, count)| (name.to_owned(), count)).into();
    assert_eq!(verdict.counts, expected);
}

#[test]
fn rejects_an_invalid_lock_name() {
    let mut history = history(Rules::ExclusiveQueue, 1, Vec::new());
    history.header.lock = "N-1-A".to_owned();
    assert!(matches!(judge(&history), Err(JudgeError::Name(_))));
}
