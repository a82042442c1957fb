//! Tracks the released requests of a process that the broker has not answered yet. Until they
//! are answered, the next request of another process could overtake them. See `lab` for the use
//! of this.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::history::{ConnectionState, Sender};
use crate::wire::Method;

/// The unanswered requests of one process.
#[derive(Clone, Debug, Default)]
pub struct Unanswered {
    /// A request that was released and has not passed the proxy yet: its connection and its
    /// name.
    released: Option<(usize, String)>,
    channels: BTreeMap<(usize, u16), Channel>,
    /// Short forms of the answers to steps.
    seen: Vec<String>,
    /// Whether the last released request was not a step.
    idle: bool,
}

#[derive(Clone, Debug, Default)]
struct Channel {
    requests: VecDeque<String>,
    /// The number of messages published since the channel was put into confirm mode.
    published: Option<u64>,
    unconfirmed: BTreeSet<u64>,
    /// Whether the broker has closed the channel and the client has not acknowledged that yet.
    closed: bool,
}

impl Unanswered {
    /// Records that a request leaves the gate, as a step or because its order does not matter.
    pub fn release(&mut self, connection: usize, method: &str, step: bool) {
        self.idle = !step;
        self.released = Some((connection, method.to_owned()));
    }

    /// Returns whether every request was answered. Acknowledgements, and publishes without
    /// publisher confirms, have no answer.
    pub fn is_empty(&self) -> bool {
        let rests = |channel: &Channel| {
            channel.closed || (channel.requests.is_empty() && channel.unconfirmed.is_empty())
        };
        self.released.is_none() && self.channels.values().all(rests)
    }

    /// Returns whether the broker ignores requests on this channel, because it has closed the
    /// channel.
    pub fn ignores(&self, connection: usize, channel: u16) -> bool {
        self.channels.get(&(connection, channel)).is_some_and(|channel| channel.closed)
    }

    /// Returns whether the broker answers this request. It confirms a publish only in confirm
    /// mode.
    pub fn answers(&self, connection: usize, channel: u16, method: &str) -> bool {
        let channel = self.channels.get(&(connection, channel));
        match method {
            "basic.ack" | "basic.nack" | "basic.reject" => false,
            "basic.publish" => channel.is_some_and(|channel| channel.published.is_some()),
            _ => true,
        }
    }

    /// Returns the broker's answers to steps so far.
    pub fn seen(&self) -> &[String] {
        &self.seen
    }

    /// Records that a connection opened or ended.
    pub fn connection(&mut self, number: usize, state: ConnectionState) {
        if state != ConnectionState::Opened {
            self.forget(number);
        }
    }

    fn forget(&mut self, number: usize) {
        self.channels.retain(|&(connection, _), _| connection != number);
        self.released.take_if(|(connection, _)| *connection == number);
    }

    /// Records that a method passed the proxy.
    pub fn note(&mut self, method: &Method) {
        let at = (method.connection, method.channel);
        match method.name.as_str() {
            "connection.close" => return self.forget(method.connection),
            "channel.close-ok" => {
                self.channels.remove(&at);
                return;
            }
            name if method.sender == Sender::Client => {
                let connection = method.connection;
                self.released.take_if(|(on, released)| *on == connection && released == name);
            }
            _ => {}
        }
        let channel = self.channels.entry(at).or_default();
        match method.sender {
            Sender::Client => channel.sent(&method.name),
            Sender::Broker => {
                channel.received(method);
                let asks = ["queue.", "basic."].map(|class| method.name.starts_with(class));
                if !self.idle && (asks.contains(&true) || method.fields.code.is_some()) {
                    let code = method.fields.code.unwrap_or_default();
                    self.seen.push(format!("{} {code}", method.name));
                }
            }
        }
    }
}

impl Channel {
    fn sent(&mut self, method: &str) {
        match method {
            _ if self.closed => {}
            "confirm.select" => self.published = Some(0),
            "basic.publish" => {
                if let Some(published) = &mut self.published {
                    *published += 1;
                    self.unconfirmed.insert(*published);
                }
            }
            "basic.get" | "basic.consume" | "basic.cancel" => {
                self.requests.push_back(method.into());
            }
            _ if method.starts_with("queue.") => self.requests.push_back(method.into()),
            _ => {}
        }
    }

    fn received(&mut self, method: &Method) {
        match method.name.as_str() {
            "channel.close" => self.closed = true,
            "basic.ack" | "basic.nack" => {
                let tag = method.fields.delivery.unwrap_or_default();
                if method.fields.flag {
                    self.unconfirmed.retain(|published| tag > 0 && *published > tag);
                } else {
                    self.unconfirmed.remove(&tag);
                }
            }
            answer => self.answered(answer),
        }
    }

    /// Removes the request that this method answers, and earlier requests, which have no answer.
    /// A consume is kept, because RabbitMQ's queue answers it, not the channel.
    fn answered(&mut self, answer: &str) {
        let answers = |request: &String| {
            let request = request.trim_end_matches("(passive)");
            answer.strip_suffix("-ok") == Some(request)
                || (answer == "basic.get-empty" && request == "basic.get")
        };
        if let Some(index) = self.requests.iter().position(answers) {
            let mut position = 0;
            self.requests.retain(|request| {
                position += 1;
                position > index + 1 || (position <= index && request == "basic.consume")
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Fields;

    fn method(sender: Sender, name: &str, fields: Fields) -> Method {
        Method {
            connection: 1,
            channel: 1,
            sender,
            name: name.to_owned(),
            queue: String::new(),
            arguments: String::new(),
            fields,
        }
    }

    /// Records methods of the client (`>`) and of the broker (`<`).
    fn after(methods: &[&str]) -> Unanswered {
        let mut unanswered = Unanswered::default();
        for one in methods {
            let (sender, name) = match one.split_at(1) {
                (">", name) => (Sender::Client, name),
                (_, name) => (Sender::Broker, name),
            };
            unanswered.note(&method(sender, name, Fields::default()));
        }
        unanswered
    }

    #[test]
    fn a_request_awaits_its_own_answer() {
        assert!(!after(&[">queue.declare(passive)"]).is_empty());
        assert!(after(&[">queue.declare(passive)", "<queue.declare-ok"]).is_empty());
        assert!(!after(&[">queue.declare", ">queue.delete", "<queue.declare-ok"]).is_empty());
        assert!(after(&[">basic.get", "<basic.get-empty"]).is_empty());
        assert!(after(&[">queue.delete", ">queue.declare", "<queue.declare-ok"]).is_empty());
        let consumes = [">basic.consume", ">queue.declare", "<queue.declare-ok"];
        assert!(!after(&consumes).is_empty());
        assert!(after(&[">channel.open", ">basic.ack", ">basic.publish"]).is_empty());
    }

    #[test]
    fn a_released_request_is_awaited_before_it_passes() {
        let mut unanswered = Unanswered::default();
        unanswered.release(1, "queue.delete", true);
        assert!(!unanswered.is_empty());
        unanswered.note(&method(Sender::Client, "queue.delete", Fields::default()));
        unanswered.note(&method(Sender::Broker, "queue.delete-ok", Fields::default()));
        assert!(unanswered.is_empty());
        unanswered.release(1, "queue.delete", true);
        unanswered.connection(1, ConnectionState::ClosedByBroker);
        assert!(unanswered.is_empty());
    }

    #[test]
    fn publishes_await_their_confirms() {
        let mut unanswered = after(&[">confirm.select", ">basic.publish", ">basic.publish"]);
        let confirm = |tag, multiple| {
            let fields = Fields { delivery: Some(tag), flag: multiple, ..Fields::default() };
            method(Sender::Broker, "basic.ack", fields)
        };
        unanswered.note(&confirm(2, false));
        assert!(!unanswered.is_empty());
        unanswered.note(&confirm(1, false));
        assert!(unanswered.is_empty());
        let mut unanswered = after(&[">confirm.select", ">basic.publish", ">basic.publish"]);
        unanswered.note(&confirm(2, true));
        assert!(unanswered.is_empty());
    }

    #[test]
    fn acknowledgements_and_publishes_without_confirms_have_no_answer() {
        let answers = |before: &[&str], method| after(before).answers(1, 1, method);
        assert!(answers(&[], "queue.declare") && answers(&[], "basic.get"));
        assert!(!answers(&[">basic.get"], "basic.reject") && !answers(&[], "basic.ack"));
        assert!(!answers(&[], "basic.publish"));
        assert!(answers(&[">confirm.select"], "basic.publish"));
    }

    #[test]
    fn a_closed_channel_ignores_requests_until_the_client_acknowledges() {
        let closed = [">queue.declare", ">queue.delete", "<channel.close"];
        let unanswered = after(&closed);
        assert!(unanswered.is_empty() && unanswered.ignores(1, 1) && !unanswered.ignores(1, 2));
        let seen = after(&[&closed[..], &[">queue.declare", ">channel.close-ok"]].concat());
        assert!(seen.is_empty() && !seen.ignores(1, 1));
        let reused = after(&[&closed[..], &[">channel.close-ok", ">queue.declare"]].concat());
        assert!(!reused.is_empty());
    }

    #[test]
    fn nothing_is_awaited_on_a_connection_that_ended() {
        let mut unanswered = after(&[">queue.declare"]);
        unanswered.connection(1, ConnectionState::ClosedByClient);
        assert!(unanswered.is_empty());
    }
}
