//! Tracks ownership at the broker, one outcome at a time. See `owned` for the result, and
//! `answers` for the outcomes.

use std::collections::BTreeMap;

use lockkeeper_plan::naming::LockName;

use super::answers::{Connection, Delivery, End, Fact, Request};
use super::owned::{
    Change, Destroyed, Ended, Evidence, Interval, Owned, Ownerships, SlotChange, Takeover, Thing,
    slot_of_record,
};
use crate::check::holds::Key;
use crate::check::register::{NEVER, Position};
use crate::history::{Frame, Rules};

/// Whether a queue existed after a request, and whether the request only looked.
const CREATED: (bool, bool) = (true, false);
const DELETED: (bool, bool) = (false, false);
const FOUND: (bool, bool) = (true, true);
const MISSED: (bool, bool) = (false, true);

/// The state after the outcomes so far.
pub struct Tracker<'a> {
    lock: &'a LockName,
    rules: Rules,
    /// The result so far.
    pub known: Ownerships,
    /// The open ownerships of each connection, as indices.
    open: BTreeMap<Connection, Vec<usize>>,
    /// All ownerships of each slot, as indices.
    by_slot: BTreeMap<u32, Vec<usize>>,
    /// The queue of each consumer, and whether it consumes without acknowledgement.
    consumers: BTreeMap<(Connection, u16, &'a str), (&'a str, bool)>,
}

/// How matching ownerships end.
#[derive(Clone, Copy)]
struct Ending {
    ended: Ended,
    certain: Position,
    known: Position,
    answered: bool,
}

fn connection(frame: &Frame) -> Connection {
    (frame.process, frame.connection)
}

impl<'a> Tracker<'a> {
    /// Creates a tracker without any ownership.
    pub fn new(lock: &'a LockName, rules: Rules) -> Self {
        let (open, by_slot, consumers) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { lock, rules, known: Ownerships::default(), open, by_slot, consumers }
    }

    /// Applies an outcome.
    pub fn fact(&mut self, at: Position, fact: Fact<'a>) {
        match fact {
            Fact::Done(request, answer) => self.done(at, request, answer),
            Fact::Refused(request, code) => self.refused(at, request, code),
            Fact::Unknown(request) => self.unknown(at, request),
            Fact::Delivered(delivery, body) => self.delivered(at, &delivery, body),
            Fact::Sent(frame) => self.sent(at, frame),
            Fact::Cancelled(frame) => {
                // The broker cancels a consumer of tokens because the token queue was deleted.
                let tokens = self.rules == Rules::Token;
                let ending =
                    Ending { ended: Ended::Cancelled, certain: at, known: at, answered: true };
                self.end(connection(frame), ending, |owned| {
                    owned.channel == frame.channel
                        && if tokens {
                            owned.delivery.is_some()
                        } else {
                            owned.consumer.is_some() && owned.consumer == frame.consumer
                        }
                });
            }
            Fact::ChannelEnded(connection, channel, end) => {
                let ended = if end == End::Client { Ended::ChannelClosed } else { Ended::Broker };
                let ending = Ending { ended, certain: at, known: at, answered: false };
                self.end(connection, ending, |owned| owned.channel == channel);
            }
            Fact::ConnectionEnded(connection, end) => {
                let ended = match end {
                    End::Client => Ended::Disconnected,
                    End::Broker => Ended::Broker,
                    End::Cut => Ended::Cut,
                };
                let ending = Ending { ended, certain: at, known: at, answered: false };
                self.end(connection, ending, |_| true);
                self.open.remove(&connection);
            }
        }
    }

    fn begin(&mut self, frame: &Frame, thing: Thing, requested: Position, began: Position) {
        let whole_connection = thing == Thing::Mutex || self.holds_by_queue();
        let token = self.rules == Rules::Token && thing != Thing::Mutex;
        let index = self.known.owned.len();
        if let Thing::Held(Key::Slot(slot)) = thing {
            self.by_slot.entry(slot).or_default().push(index);
        }
        self.known.owned.push(Owned {
            process: frame.process,
            connection: frame.connection,
            thing,
            possible: Interval { from: requested, to: NEVER },
            certain: Interval { from: began, to: NEVER },
            end: NEVER,
            ended: Ended::Open,
            // An exclusive queue belongs to the connection, not to the channel.
            channel: if whole_connection { 0 } else { frame.channel },
            consumer: frame.consumer.clone().filter(|_| !token),
            delivery: frame.delivery.filter(|_| token),
            proof: requested,
            limit: NEVER,
            answered: false,
        });
        self.open.entry(connection(frame)).or_default().push(index);
    }

    /// Ends the ownerships of this connection that match. Returns their number.
    fn end(
        &mut self,
        connection: Connection,
        ending: Ending,
        matches: impl Fn(&Owned) -> bool,
    ) -> usize {
        let Some(open) = self.open.get_mut(&connection) else { return 0 };
        let before = open.len();
        open.retain(|&index| {
            let owned = &mut self.known.owned[index];
            let ends = matches(owned);
            if ends {
                (owned.ended, owned.answered) = (ending.ended, ending.answered);
                (owned.certain.to, owned.possible.to) = (ending.certain, ending.known);
                owned.end = ending.certain;
            }
            !ends
        });
        before - open.len()
    }

    fn holds_by_queue(&self) -> bool {
        matches!(self.rules, Rules::ExclusiveQueue | Rules::AmqpLocksPython)
    }

    /// Returns the resource that the owner of this exclusive queue owns.
    fn exclusive(&self, queue: &str) -> Option<Thing> {
        if queue == self.lock.admin_mutex() {
            return Some(Thing::Mutex);
        }
        let slot = self.lock.slot_of_holder_queue(queue).filter(|_| self.holds_by_queue())?;
        Some(Thing::Held(Key::Slot(slot)))
    }

    fn done(&mut self, at: Position, request: Request<'a>, answer: &'a Frame) {
        let frame = request.frame;
        let queue = frame.queue.as_str();
        self.prove(request);
        match frame.method.as_str() {
            "queue.declare" if frame.exclusive => {
                let mine = self.open.get(&connection(frame)).map_or(&[][..], Vec::as_slice);
                let known = &self.known.owned;
                if let Some(thing) = self.exclusive(queue)
                    && !mine.iter().any(|&index| known[index].thing == thing)
                {
                    self.begin(frame, thing, request.at, at);
                }
            }
            "queue.declare" => {
                self.exists(request, at, CREATED);
                self.change(request, at, Change::Declared);
            }
            "queue.declare(passive)" => self.exists(request, at, FOUND),
            "queue.delete" => self.deleted(at, request),
            "queue.purge" => self.purged(at, request, answer),
            "basic.consume" => self.consuming(at, request, answer),
            "basic.cancel" => self.cancelled(request, at, true),
            "basic.recover" if self.rules == Rules::Token => {
                let ending = Ending {
                    ended: Ended::Released,
                    certain: request.at,
                    known: at,
                    answered: true,
                };
                self.end(connection(frame), ending, |owned| owned.channel == frame.channel);
            }
            _ => {}
        }
    }

    /// Extends the certain ownership: an answer proves that the connection, or the channel, was
    /// open at the request.
    fn prove(&mut self, request: Request) {
        let frame = request.frame;
        let thing = self.exclusive(&frame.queue);
        for &index in self.open.get(&connection(frame)).map_or(&[][..], Vec::as_slice) {
            let owned = &mut self.known.owned[index];
            let same_channel = owned.channel > 0 && owned.channel == frame.channel;
            if same_channel || thing.as_ref() == Some(&owned.thing) {
                owned.proof = owned.proof.max(request.at);
            }
        }
    }

    fn consuming(&mut self, at: Position, request: Request<'a>, answer: &'a Frame) {
        let frame = request.frame;
        let tag = answer.consumer.as_deref().or(frame.consumer.as_deref()).unwrap_or_default();
        let consumer = (connection(frame), frame.channel, tag);
        self.consumers.insert(consumer, (&frame.queue, frame.flag));
        let slot = self.lock.slot_of_holder_queue(&frame.queue);
        if let Some(slot) = slot.filter(|_| frame.exclusive && !self.holds_by_queue()) {
            let named = Frame { consumer: Some(tag.to_owned()), ..frame.clone() };
            self.begin(&named, Thing::Held(Key::Slot(slot)), request.at, at);
        }
    }

    fn cancelled(&mut self, request: Request, known: Position, answered: bool) {
        let frame = request.frame;
        let ending = Ending { ended: Ended::Released, certain: request.at, known, answered };
        self.end(connection(frame), ending, |owned| {
            owned.channel == frame.channel
                && owned.consumer.is_some()
                && owned.consumer == frame.consumer
        });
    }

    /// Records that a request created, deleted or found a queue, or did not find it.
    fn exists(&mut self, request: Request, done: Position, (exists, looked): (bool, bool)) {
        if let Some(slot) = self.lock.slot_of_slot_queue(&request.frame.queue) {
            let evidence = Evidence { invoked: request.at, done, exists, looked };
            self.known.existence.entry(slot).or_default().push(evidence);
        }
    }

    fn change(&mut self, request: Request, done: Position, change: Change) {
        let queue = request.frame.queue.as_str();
        let token = self.rules == Rules::Token && queue == self.lock.token_queue();
        let slot = self.lock.slot_of_slot_queue(queue).filter(|_| !token);
        if let Some(slot) = slot.or((token && change != Change::Declared).then_some(0)) {
            self.changed(request, done, slot, change);
        } else if change == Change::Deleted {
            self.auxiliary(request, done);
        }
    }

    fn changed(&mut self, request: Request, done: Position, slot: u32, change: Change) {
        let Frame { process, connection, .. } = *request.frame;
        let at = request.at;
        self.known.changes.push(SlotChange { process, connection, at, done, slot, change });
    }

    /// Records the deletion of a queue that clients must leave alone, or of its messages.
    fn auxiliary(&mut self, request: Request, done: Position) {
        let queue = request.frame.queue.as_str();
        if let Some(slot) = slot_of_record(self.lock, queue) {
            self.changed(request, done, slot, Change::DeletedRecord);
        } else if self.lock.wait_queue().is_some_and(|wait| wait == queue) {
            self.changed(request, done, 0, Change::DeletedWaiters);
        } else if self.rules == Rules::ExclusiveConsumer
            && request.frame.method == "queue.delete"
            && let Some(slot) = self.lock.slot_of_holder_queue(queue)
        {
            self.changed(request, done, slot, Change::DeletedHolder);
        }
    }

    fn purged(&mut self, at: Position, request: Request, answer: &Frame) {
        let frame = request.frame;
        let tokens = self.rules == Rules::Token && frame.queue == self.lock.token_queue();
        if tokens && answer.messages != Some(0) {
            self.destroyed(frame.process, request.at, "purged the queue");
        }
        self.auxiliary(request, at);
    }

    fn deleted(&mut self, at: Position, request: Request) {
        let frame = request.frame;
        self.exists(request, at, DELETED);
        self.change(request, at, Change::Deleted);
        if self.end_deleted(request, at, true) > 0 {
            // The client deleted its own queue. The next ownership may have begun before this
            // answer was read.
            return;
        }
        let Some(slot) = self.lock.slot_of_holder_queue(&frame.queue) else { return };
        for &victim in self.by_slot.get(&slot).into_iter().flatten().rev() {
            let owned = &mut self.known.owned[victim];
            if owned.possible.to < request.at {
                break;
            }
            if owned.possible.to != NEVER && owned.ended != Ended::Cancelled {
                continue;
            }
            owned.limit = owned.limit.min(request.at);
            if owned.certain.from < request.at {
                let (process, done, at) = (frame.process, at, request.at);
                self.known.takeovers.push(Takeover { process, at, done, slot, victim });
            }
        }
    }

    /// Ends the requesting connection's ownership by this queue. Returns the number of ended
    /// ownerships.
    fn end_deleted(&mut self, request: Request, known: Position, answered: bool) -> usize {
        let frame = request.frame;
        let slot = self.lock.slot_of_holder_queue(&frame.queue);
        let thing = slot.map(|slot| Thing::Held(Key::Slot(slot)));
        let Some(thing) = thing.or_else(|| self.exclusive(&frame.queue)) else { return 0 };
        let ending = Ending { ended: Ended::Released, certain: request.at, known, answered };
        self.end(connection(frame), ending, |owned| owned.thing == thing)
    }

    fn refused(&mut self, at: Position, request: Request, code: Option<u16>) {
        let frame = request.frame;
        let declares = frame.method.starts_with("queue.declare");
        match code {
            Some(404) if declares => self.exists(request, at, MISSED),
            Some(405 | 406) if declares => self.exists(request, at, FOUND),
            _ => {}
        }
        // The queue does not exist, or belongs to another connection.
        if let (Some(404 | 405), Some(thing)) = (code, self.exclusive(&frame.queue)) {
            let ending = Ending { ended: Ended::Broker, certain: at, known: at, answered: true };
            self.end(connection(frame), ending, |owned| owned.thing == thing);
        }
    }

    fn unknown(&mut self, at: Position, request: Request) {
        match request.frame.method.as_str() {
            "queue.declare" => {
                self.exists(request, NEVER, CREATED);
                self.change(request, NEVER, Change::Declared);
            }
            "queue.delete" => {
                self.exists(request, NEVER, DELETED);
                self.change(request, NEVER, Change::Deleted);
                self.end_deleted(request, at, false);
            }
            "basic.cancel" => self.cancelled(request, at, false),
            _ => {}
        }
    }

    fn delivered(&mut self, at: Position, delivery: &Delivery, body: &str) {
        let frame = delivery.frame;
        let tag = frame.consumer.as_deref().unwrap_or_default();
        let (queue, no_ack) = match delivery.get {
            Some(get) => (get.queue.as_str(), get.flag),
            None => match self.consumers.get(&(connection(frame), frame.channel, tag)) {
                Some(&consumer) => consumer,
                None => (frame.queue.as_str(), false),
            },
        };
        if self.rules != Rules::Token || queue != self.lock.token_queue() {
            return;
        }
        if no_ack {
            return self.destroyed(frame.process, delivery.at, "consumed it with no-ack");
        }
        let key = Key::of_token(self.rules, body);
        let thing = key.map_or(Thing::Token, Thing::Held);
        self.begin(frame, thing, delivery.at, at);
    }

    fn destroyed(&mut self, process: u32, at: Position, how: &'static str) {
        self.known.destroyed.push(Destroyed { process, at, how });
    }

    fn sent(&mut self, at: Position, frame: &'a Frame) {
        if frame.method == "basic.publish" {
            // A publish to a slot's queue is a probe.
            if self.rules == Rules::Token {
                self.change(Request { at, frame }, at, Change::Published);
            }
            return;
        }
        let tag = frame.delivery.unwrap_or_default();
        let multiple = frame.flag && frame.method != "basic.reject";
        let ending = Ending { ended: Ended::Released, certain: at, known: at, answered: true };
        let ended = self.end(connection(frame), ending, |owned| {
            let mine = owned.channel == frame.channel;
            mine && owned.delivery.is_some_and(|delivery| {
                delivery == tag || (multiple && (tag == 0 || delivery < tag))
            })
        });
        let how = match frame.method.as_str() {
            "basic.ack" => "acknowledged it",
            _ if !frame.requeue => "rejected it without requeue",
            _ => return,
        };
        for _ in 0..ended {
            self.destroyed(frame.process, at, how);
        }
    }
}
