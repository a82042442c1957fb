//! Checks the rules about holds: publishing, reconnecting, and what precedes a grant. See `requests`
//! for rules about single requests, and `blame` for abandoned attempts.

use std::collections::{BTreeMap, BTreeSet};

use super::Checker;
use crate::check::holds::Key;
use crate::check::ownership::{Ended, Owned, Thing};
use crate::check::register::Position;
use crate::history::{Frame, Operation, Phase, Rules, Sender, Verb, What};

impl Checker<'_> {
    /// Checks the rules about holds.
    pub(super) fn holds(&mut self) {
        self.publishing();
        if self.rules() == Rules::ExclusiveConsumer {
            self.capabilities();
            self.types();
        }
        // The other rules compare requests with operations.
        if self.history.has_operations() {
            self.reconnecting();
        }
    }

    /// PS-6, EC-4 and TK-4: the connection that holds publishes. An administrator that removes
    /// tokens has them unacknowledged too, but does not hold.
    fn publishing(&mut self) {
        let history = self.history;
        let id = match self.rules() {
            Rules::ExclusiveConsumer => "EC-4",
            Rules::Token => "TK-4",
            _ => "PS-6",
        };
        let administrators: BTreeSet<u32> =
            self.reported.administering.iter().map(|&(process, ..)| process).collect();
        for (at, event) in history.events.iter().enumerate() {
            let What::Frame(frame) = &event.what else { continue };
            let process = frame.process;
            if (frame.sender, frame.method.as_str()) != (Sender::Client, "basic.publish")
                || self.administers(process, at)
                || (self.rules() == Rules::Token && administrators.contains(&process))
            {
                continue;
            }
            let owned = self.ownerships.of(process, at, at).find(|owned| {
                let mine = owned.connection == frame.connection && owned.thing != Thing::Mutex;
                mine && owned.certain.from < at && at < owned.certain.to && self.aware(owned, at)
            });
            if let Some(key) = owned.map(|owned| owned.key().cloned()) {
                let held = key.map_or_else(|| "a token".to_owned(), |key| key.to_string());
                let did = format!("published on the connection that holds {held}");
                self.violation(id, process, at, &did);
            }
        }
    }

    /// Returns whether the client had used the channel since it received the token. Otherwise it
    /// may not have read the delivery yet.
    fn aware(&self, owned: &Owned, at: Position) -> bool {
        let used = |what: &What| match what {
            What::Frame(frame) => {
                let channel = (frame.process, frame.connection, frame.channel);
                let sent = frame.sender == Sender::Client
                    && !matches!(frame.method.as_str(), "basic.publish" | "content");
                sent && channel == (owned.process, owned.connection, owned.channel)
            }
            _ => false,
        };
        self.rules() != Rules::Token
            || self.history.events[owned.certain.from..at].iter().any(|event| used(&event.what))
    }

    /// EC-5: the connection that holds does not support cancel notifications.
    fn capabilities(&mut self) {
        let (history, ownerships) = (self.history, self.ownerships);
        let starts = history.events.iter().filter_map(|event| match &event.what {
            What::Frame(frame) if frame.method == "connection.start-ok" => {
                Some(((frame.process, frame.connection), frame.options.as_ref()?))
            }
            _ => None,
        });
        let starts: BTreeMap<(u32, u32), &Vec<String>> = starts.collect();
        for owned in ownerships.owned.iter().filter(|owned| owned.thing != Thing::Mutex) {
            let Some(start) = starts.get(&(owned.process, owned.connection)) else { continue };
            if !start.iter().any(|one| one == "consumer_cancel_notify") {
                let did = "holds on a connection without the capability consumer_cancel_notify";
                self.violation("EC-5", owned.process, owned.certain.from, did);
            }
        }
    }

    /// EC-3: the process has not checked the type of C before the grant. Once is enough.
    fn types(&mut self) {
        let (history, reported, ownerships) = (self.history, self.reported, self.ownerships);
        let mut checked: BTreeMap<(u32, u32), Position> = BTreeMap::new();
        for (at, event) in history.events.iter().enumerate() {
            if let What::Frame(frame) = &event.what
                && (frame.sender, frame.method.as_str()) == (Sender::Client, "queue.declare")
                && let Some(slot) = self.lock.slot_of_holder_queue(&frame.queue)
            {
                checked.entry((frame.process, slot)).or_insert(at);
            }
        }
        for grant in reported.grants.iter().filter(|grant| !grant.claimed) {
            let Some(&Key::Slot(slot)) = grant.key.as_ref() else { continue };
            let mut owned = ownerships.of(grant.process, grant.invoked, grant.granted);
            let backed = owned.any(|owned| owned.key() == grant.key.as_ref());
            let first = checked.get(&(grant.process, slot));
            if backed && first.is_none_or(|&first| first > grant.granted) {
                let did = format!("was granted slot {slot} without checking the type of its queue");
                self.violation("EC-3", grant.process, grant.granted, &did);
            }
        }
    }

    /// PS-8 and TK-5: the process held, its connection ended, and another connection takes a
    /// slot or token although no operation asked for one.
    fn reconnecting(&mut self) {
        let history = self.history;
        let id = if self.rules() == Rules::Token { "TK-5" } else { "PS-8" };
        // When the hold of each process was granted. Absent after a request to acquire or
        // release, and after an answer that leaves open what the client does next.
        let mut granted: BTreeMap<u32, Position> = BTreeMap::new();
        for (at, event) in history.events.iter().enumerate() {
            match &event.what {
                What::Operation(Operation {
                    process,
                    verb: Verb::Acquire,
                    phase: Phase::Ok,
                    ..
                }) => {
                    granted.insert(*process, at);
                }
                What::Operation(Operation {
                    process, verb: Verb::Acquire | Verb::Release, ..
                }) => {
                    granted.remove(process);
                }
                What::Frame(frame) if self.takes(frame) => {
                    let Some(&since) = granted.get(&frame.process) else { continue };
                    if self.lost_on_another(frame, since, at) {
                        let did = format!(
                            "lost its connection, and requested {} on connection {} without an acquire",
                            frame.queue, frame.connection
                        );
                        self.violation(id, frame.process, at, &did);
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns whether the request takes a slot or a token, if it succeeds.
    fn takes(&self, frame: &Frame) -> bool {
        let slot = || self.lock.slot_of_holder_queue(&frame.queue).is_some();
        let token = || frame.queue == self.lock.token_queue();
        let client = frame.sender == Sender::Client;
        client
            && match (self.rules(), frame.method.as_str()) {
                (Rules::Token, "basic.get" | "basic.consume") => token(),
                (Rules::ExclusiveConsumer, "basic.consume")
                | (Rules::ExclusiveQueue | Rules::AmqpLocksPython, "queue.declare") => {
                    frame.exclusive && slot()
                }
                _ => false,
            }
    }

    /// Returns whether the hold that was granted at `since` has ended with another connection of
    /// the process.
    fn lost_on_another(&self, frame: &Frame, since: Position, at: Position) -> bool {
        self.ownerships.of(frame.process, since, at).any(|owned| {
            owned.thing != Thing::Mutex
                && owned.connection != frame.connection
                && owned.certain.from < since
                && owned.possible.to < at
                && matches!(owned.ended, Ended::Cut | Ended::Broker | Ended::Disconnected)
        })
    }
}
