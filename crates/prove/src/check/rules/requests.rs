//! Checks the rules that single requests violate: the options of declares, and probes. See
//! `holds` for rules that depend on a hold.

use std::collections::BTreeSet;

use lockkeeper_plan::naming::{LockName, Profile, Protocol};

use super::Checker;
use crate::check::ownership::slot_of_record;
use crate::check::register::Position;
use crate::history::{Frame, Rules, Sender, What};

/// A channel: the numbers of its process, its connection, and its own.
type Channel = (u32, u32, u16);

/// The requests so far.
#[derive(Default)]
struct Before {
    /// The channels with publisher confirms, or in transaction mode: its commit is answered after
    /// the returns, too.
    confirming: BTreeSet<Channel>,
    /// The slots whose A each process has asked about.
    asked: BTreeSet<(u32, u32)>,
}

impl Checker<'_> {
    /// Checks each request of a client.
    pub(super) fn requests(&mut self) {
        let mut before = Before::default();
        let history = self.history;
        for (at, event) in history.events.iter().enumerate() {
            let What::Frame(frame) = &event.what else { continue };
            if frame.sender == Sender::Client {
                self.request(at, frame, &mut before);
            }
        }
    }

    fn request(&mut self, at: Position, frame: &Frame, before: &mut Before) {
        if let Some(slot) = self.lock.slot_of_slot_queue(&frame.queue) {
            before.asked.insert((frame.process, slot));
        }
        let channel = (frame.process, frame.connection, frame.channel);
        match frame.method.as_str() {
            "channel.open" => {
                before.confirming.remove(&channel);
            }
            "confirm.select" | "tx.select" => {
                before.confirming.insert(channel);
            }
            "basic.publish" if frame.flag => {
                self.probe(at, frame, before.confirming.contains(&channel));
            }
            "queue.declare" => {
                self.other_protocol(at, frame);
                self.options(at, frame);
                self.facts(at, frame);
                self.unasked(at, frame, before);
            }
            "basic.consume" => {
                self.other_protocol(at, frame);
                self.facts(at, frame);
            }
            _ => {}
        }
    }

    /// PS-5 and PS-23: a mandatory publish is a probe.
    fn probe(&mut self, at: Position, frame: &Frame, confirmed: bool) {
        let (queue, process) = (frame.queue.as_str(), frame.process);
        if self.lock.wait_queue().is_some_and(|wait| wait == queue) {
            self.violation("PS-5", process, at, "probed the wait queue by publishing to it");
        }
        // Messages to C are orders to its holder.
        let held = self.by_queue().then(|| self.lock.slot_of_holder_queue(queue)).flatten();
        let probed = self.lock.slot_of_slot_queue(queue).or(held).is_some();
        if probed && !confirmed && !self.administers(process, at) {
            let did = format!("probed {queue} by publishing without confirms or a transaction");
            self.violation("PS-23", process, at, &did);
        }
    }

    /// EC-1: the client holds according to another protocol.
    fn other_protocol(&mut self, at: Position, frame: &Frame) {
        if !frame.exclusive {
            return;
        }
        let (other, method, uses) = match self.rules() {
            Rules::ExclusiveConsumer => {
                (Protocol::ExclusiveQueue(Profile::Guideline), "queue.declare", "declared")
            }
            Rules::ExclusiveQueue => (Protocol::ExclusiveConsumer, "basic.consume", "consumed"),
            _ => return,
        };
        let holder = self.lock.clone().with_protocol(other).slot_of_holder_queue(&frame.queue);
        if frame.method == method && holder.is_some() {
            let did = format!("{uses} {}, as clients of another protocol do", frame.queue);
            self.violation("EC-1", frame.process, at, &did);
        }
    }

    /// PS-1 and EC-2: the options of a queue.
    fn options(&mut self, at: Position, frame: &Frame) {
        let Some(options) = &frame.options else { return };
        let (queue, process) = (frame.queue.as_str(), frame.process);
        let mut options: Vec<&str> = options.iter().map(String::as_str).collect();
        if self.rules() == Rules::ExclusiveConsumer
            && self.lock.slot_of_holder_queue(queue).is_some()
        {
            let other = options.iter().find(|option| {
                option.starts_with("x-queue-type=") && **option != "x-queue-type=classic"
            });
            if let Some(other) = other {
                self.violation("EC-2", process, at, &format!("declared {queue} with {other}"));
            }
            return;
        }
        if frame.exclusive {
            options.push("exclusive");
        }
        // Facts that are too long violate another rule.
        options.retain(|option| !option.starts_with("x-lockkeeper-"));
        let wrong = if queue == self.lock.admin_mutex() {
            !options.contains(&"exclusive") || options.contains(&"durable")
        } else {
            let permitted = permitted(self.lock, self.rules(), queue);
            let same = |one: &&str| {
                let one: BTreeSet<&str> = one.split(' ').collect();
                one == options.iter().copied().collect()
            };
            !permitted.is_empty() && !permitted.iter().any(same)
        };
        if wrong {
            let options = if options.is_empty() { "none".to_owned() } else { options.join(", ") };
            let did = format!("declared {queue} with other options: {options}");
            self.violation("PS-1", process, at, &did);
        }
    }

    /// PS-13: the length of holder facts.
    fn facts(&mut self, at: Position, frame: &Frame) {
        let long = frame.options.iter().flatten().find(|one| one.starts_with("x-lockkeeper-"));
        if let Some(long) = long {
            let did = format!("stated a holder fact that is too long: {long}");
            self.violation("PS-13", frame.process, at, &did);
        }
    }

    /// PS-9: the process declares B of a slot that it has never asked about. It is reported only
    /// if the slot had never existed. Without operations, another connection may have asked.
    fn unasked(&mut self, at: Position, frame: &Frame, before: &Before) {
        let process = frame.process;
        if !(frame.exclusive && self.by_queue() && self.history.has_operations()) {
            return;
        }
        let Some(slot) = self.lock.slot_of_holder_queue(&frame.queue) else { return };
        let mut evidence = self.ownerships.existence.get(&slot).into_iter().flatten();
        let existed = slot <= self.history.header.slots
            || evidence.any(|evidence| evidence.exists && evidence.invoked < at);
        if !existed && !before.asked.contains(&(process, slot)) {
            let did = format!("declared {} without checking that the slot exists", frame.queue);
            self.violation("PS-9", process, at, &did);
        }
    }
}

/// Returns the sets of options with which a queue may be declared. Returns none if the rules do
/// not specify them.
fn permitted(lock: &LockName, rules: Rules, queue: &str) -> &'static [&'static str] {
    if rules == Rules::Token {
        return &[];
    }
    let python = rules == Rules::AmqpLocksPython;
    if lock.slot_of_slot_queue(queue).is_some() {
        // Administrators who follow the guideline's text declare A without arguments.
        return if python {
            &["x-max-length=0"]
        } else {
            &["durable x-max-length=0 x-queue-type=classic", "durable"]
        };
    }
    if lock.slot_of_holder_queue(queue).is_some() {
        return &["exclusive x-max-length=0"];
    }
    if lock.wait_queue().is_some_and(|wait| wait == queue) {
        return &["durable x-queue-type=classic"];
    }
    if slot_of_record(lock, queue).is_some() {
        return &["durable x-max-length=1 x-overflow=reject-publish x-queue-type=classic"];
    }
    &[]
}
