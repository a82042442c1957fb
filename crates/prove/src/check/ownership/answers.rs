//! Matches the answers in the frames of each channel to their requests, and derives the outcome
//! of each request. See the parent module for how outcomes are used.

use std::collections::{BTreeMap, VecDeque};

use crate::check::register::{NEVER, Position};
use crate::history::{ConnectionState, Event, Frame, Sender, What};

/// A connection: the number of its process, and its own number.
pub type Connection = (u32, u32);

/// A request to which the protocol defines an answer.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// When the proxy read it.
    pub at: Position,
    /// Its frame.
    pub frame: &'a Frame,
}

/// A delivered message.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// When the proxy read its method.
    pub at: Position,
    /// The method: deliver or get-ok.
    pub frame: &'a Frame,
    /// The `basic.get` that it answers.
    pub get: Option<&'a Frame>,
}

/// The side that ended a channel or connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// The client.
    Client,
    /// The broker.
    Broker,
    /// The prover cut the connection.
    Cut,
}

/// An outcome that the frames show.
#[derive(Clone, Copy, Debug)]
pub enum Fact<'a> {
    /// The broker executed the request.
    Done(Request<'a>, &'a Frame),
    /// The broker refused the request with this code and closed the channel.
    Refused(Request<'a>, Option<u16>),
    /// The request may have been executed.
    Unknown(Request<'a>),
    /// A message with this body was delivered.
    Delivered(Delivery<'a>, &'a str),
    /// The client sent a method without an answer.
    Sent(&'a Frame),
    /// The broker cancelled a consumer.
    Cancelled(&'a Frame),
    /// A channel ended.
    ChannelEnded(Connection, u16, End),
    /// A connection ended.
    ConnectionEnded(Connection, End),
}

#[derive(Default)]
struct Channel<'a> {
    pending: VecDeque<Request<'a>>,
    /// Whether one side has closed the channel. The broker then ignores requests.
    closing: bool,
    delivery: Option<Delivery<'a>>,
}

#[derive(Default)]
struct State<'a> {
    channels: BTreeMap<u16, Channel<'a>>,
    ended: bool,
}

/// Calls `each` with every outcome, in the order in which the outcomes became known.
pub fn facts<'a>(events: &'a [Event], mut each: impl FnMut(Position, Fact<'a>)) {
    let mut connections: BTreeMap<Connection, State<'a>> = BTreeMap::new();
    for (at, event) in events.iter().enumerate() {
        match &event.what {
            What::Frame(frame) => {
                let connection = (frame.process, frame.connection);
                let state = connections.entry(connection).or_default();
                if !state.ended {
                    state.frame(at, frame, &mut each);
                }
            }
            What::Connection { process, connection, state } => {
                let end = match state {
                    ConnectionState::Opened => continue,
                    ConnectionState::ClosedByClient => End::Client,
                    ConnectionState::ClosedByBroker => End::Broker,
                    ConnectionState::Cut => End::Cut,
                };
                let connection = (*process, *connection);
                connections.entry(connection).or_default().end(at, connection, end, &mut each);
            }
            _ => {}
        }
    }
    for state in connections.values_mut() {
        state.abandon(NEVER, &mut each);
    }
}

impl<'a> State<'a> {
    fn end(
        &mut self,
        at: Position,
        connection: Connection,
        end: End,
        each: &mut impl FnMut(Position, Fact<'a>),
    ) {
        if !self.ended {
            self.ended = true;
            self.abandon(at, each);
            each(at, Fact::ConnectionEnded(connection, end));
        }
    }

    /// Records that the unanswered requests may have been executed.
    fn abandon(&mut self, at: Position, each: &mut impl FnMut(Position, Fact<'a>)) {
        for channel in self.channels.values_mut() {
            for request in channel.pending.drain(..) {
                each(at, Fact::Unknown(request));
            }
        }
    }

    fn frame(&mut self, at: Position, frame: &'a Frame, each: &mut impl FnMut(Position, Fact<'a>)) {
        let connection = (frame.process, frame.connection);
        if frame.method == "connection.close" {
            let broker = frame.sender == Sender::Broker;
            let end = if broker { End::Broker } else { End::Client };
            return self.end(at, connection, end, each);
        }
        if frame.method == "channel.close-ok" {
            self.channels.remove(&frame.channel);
            return;
        }
        let channel = self.channels.entry(frame.channel).or_default();
        match frame.sender {
            Sender::Client if channel.closing => {}
            Sender::Client => channel.sent(at, frame, each),
            Sender::Broker => channel.received(at, frame, each),
        }
    }
}

impl<'a> Channel<'a> {
    fn sent(&mut self, at: Position, frame: &'a Frame, each: &mut impl FnMut(Position, Fact<'a>)) {
        let connection = (frame.process, frame.connection);
        match frame.method.as_str() {
            "channel.close" => {
                self.closing = true;
                each(at, Fact::ChannelEnded(connection, frame.channel, End::Client));
            }
            "basic.publish" | "basic.ack" | "basic.nack" | "basic.reject" => {
                each(at, Fact::Sent(frame));
            }
            "content" => {}
            method if method.ends_with("-ok") || method.starts_with("connection.") => {}
            _ => self.pending.push_back(Request { at, frame }),
        }
    }

    fn received(
        &mut self,
        at: Position,
        frame: &'a Frame,
        each: &mut impl FnMut(Position, Fact<'a>),
    ) {
        let connection = (frame.process, frame.connection);
        match frame.method.as_str() {
            "channel.close" => {
                // The broker processes requests in order. It refused the oldest one, or an
                // unanswered publish before it, and ignores the others.
                if let Some(request) = self.pending.pop_front() {
                    each(at, Fact::Refused(request, frame.code));
                }
                self.pending.clear();
                if !std::mem::replace(&mut self.closing, true) {
                    each(at, Fact::ChannelEnded(connection, frame.channel, End::Broker));
                }
            }
            "basic.cancel" => each(at, Fact::Cancelled(frame)),
            "basic.deliver" => self.delivery = Some(Delivery { at, frame, get: None }),
            "basic.get-ok" => {
                let request = self.answered(at, frame, each);
                self.delivery = Some(Delivery { at, frame, get: request.map(|get| get.frame) });
                if let Some(request) = request {
                    each(at, Fact::Done(request, frame));
                }
            }
            "basic.return" => self.delivery = None,
            "content" => {
                if let (Some(delivery), Some(body)) = (self.delivery.take(), &frame.body) {
                    each(at, Fact::Delivered(delivery, body));
                }
            }
            _ => {
                if let Some(request) = self.answered(at, frame, each) {
                    each(at, Fact::Done(request, frame));
                }
            }
        }
    }

    /// Removes and returns the request that this frame answers. Earlier requests have no answer,
    /// because the client requested none (`no-wait`). An exception is a consume: its answer may
    /// arrive later, because RabbitMQ's queue sends it, not the channel.
    fn answered(
        &mut self,
        at: Position,
        answer: &Frame,
        each: &mut impl FnMut(Position, Fact<'a>),
    ) -> Option<Request<'a>> {
        let answers = |request: &Request| {
            let method = request.frame.method.trim_end_matches("(passive)");
            answer.method.strip_suffix("-ok") == Some(method)
                || (answer.method == "basic.get-empty" && method == "basic.get")
        };
        let index = self.pending.iter().position(answers)?;
        let request = self.pending.remove(index);
        let mut later = self.pending.split_off(index);
        for request in self.pending.drain(..) {
            if request.frame.method == "basic.consume" {
                later.push_front(request);
            } else {
                each(at, Fact::Unknown(request));
            }
        }
        self.pending = later;
        request
    }
}
