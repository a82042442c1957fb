//! Counts the traffic between processes and the broker in a part of a recorded run. See `chain`
//! for the round trips.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::median::middle;
use crate::history::{ConnectionState, Event, Frame, Sender, What};
use crate::wire::{CONTENT, Size};

/// The traffic between processes and the broker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Traffic sent by the processes.
    pub client: Side,
    /// Traffic sent by the broker.
    pub broker: Side,
    /// Messages that the processes published. They are included in the processes' methods.
    pub publishes: u64,
    /// Number of channels opened.
    pub channels_opened: u64,
    /// Number of channels closed, by the reply code of the close. Channels that ended with their
    /// connection are not counted.
    pub channels_closed: BTreeMap<String, u64>,
    /// Number of connections opened.
    pub connections_opened: u64,
    /// Number of connections ended, by the reply code of the close, or [`NO_CLOSE`].
    pub connections_closed: BTreeMap<String, u64>,
}

/// The traffic that one side sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// Number of methods. A message is part of its method.
    pub methods: u64,
    /// Bytes of all frames except heartbeats.
    pub bytes: u64,
    /// Number of heartbeats.
    pub heartbeats: u64,
}

/// Replaces the code of a connection that ended without a close.
pub const NO_CLOSE: &str = "no close";

impl Counts {
    /// Counts the traffic between these processes and the broker.
    pub fn of(events: &[Event], sizes: &[Size], processes: &[u32]) -> Self {
        let mut counts = Self::default();
        let mut closing = BTreeSet::new();
        for event in events {
            match &event.what {
                What::Frame(frame) if processes.contains(&frame.process) => {
                    counts.frame(frame);
                    if frame.method == "connection.close" {
                        closing.insert((frame.process, frame.connection));
                    }
                }
                What::Connection { process, connection, state } if processes.contains(process) => {
                    if *state == ConnectionState::Opened {
                        counts.connections_opened += 1;
                    } else if !closing.contains(&(*process, *connection)) {
                        increase(&mut counts.connections_closed, NO_CLOSE.to_owned());
                    }
                }
                _ => {}
            }
        }
        for size in sizes.iter().filter(|size| processes.contains(&size.process)) {
            let side = counts.side(size.sender);
            if size.heartbeat {
                side.heartbeats += 1;
            } else {
                side.bytes += size.bytes;
            }
        }
        counts
    }

    /// Returns the (lower) median of each number.
    pub fn median(all: &[Self]) -> Self {
        let number = |number: fn(&Self) -> u64| middle(all.iter().map(number));
        let side = |side: fn(&Self) -> &Side| Side {
            methods: middle(all.iter().map(|one| side(one).methods)),
            bytes: middle(all.iter().map(|one| side(one).bytes)),
            heartbeats: middle(all.iter().map(|one| side(one).heartbeats)),
        };
        let codes = |codes: fn(&Self) -> &BTreeMap<String, u64>| {
            let known: BTreeSet<&String> = all.iter().flat_map(|one| codes(one).keys()).collect();
            let medians = known.into_iter().map(|code| {
                let closed = all.iter().map(|one| codes(one).get(code).copied().unwrap_or(0));
                (code.clone(), middle(closed))
            });
            medians.filter(|(_, closed)| *closed > 0).collect()
        };
        Self {
            client: side(|one| &one.client),
            broker: side(|one| &one.broker),
            publishes: number(|one| one.publishes),
            channels_opened: number(|one| one.channels_opened),
            channels_closed: codes(|one| &one.channels_closed),
            connections_opened: number(|one| one.connections_opened),
            connections_closed: codes(|one| &one.connections_closed),
        }
    }

    fn side(&mut self, sender: Sender) -> &mut Side {
        match sender {
            Sender::Client => &mut self.client,
            Sender::Broker => &mut self.broker,
        }
    }

    fn frame(&mut self, frame: &Frame) {
        if frame.method == CONTENT {
            return;
        }
        self.side(frame.sender).methods += 1;
        let code = frame.code.map_or_else(String::new, |code| code.to_string());
        match frame.method.as_str() {
            "basic.publish" => self.publishes += 1,
            "channel.open" => self.channels_opened += 1,
            "channel.close" => increase(&mut self.channels_closed, code),
            "connection.close" => increase(&mut self.connections_closed, code),
            _ => {}
        }
    }
}

fn increase(counts: &mut BTreeMap<String, u64>, code: String) {
    *counts.entry(code).or_default() += 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::tape::Tape;

    #[test]
    fn methods_are_counted_by_side_without_bodies() {
        let mut tape = Tape::default();
        tape.client(1, "queue.declare").broker(1, "queue.declare-ok");
        tape.client(1, "basic.publish").client(1, CONTENT).broker(1, "basic.ack");
        tape.client(2, "queue.declare");
        let counts = Counts::of(&tape.events, &[], &[1]);
        assert_eq!((counts.client.methods, counts.broker.methods, counts.publishes), (2, 2, 1));
        assert_eq!(Counts::of(&tape.events, &[], &[1, 2]).client.methods, 3);
    }

    #[test]
    fn channels_and_connections_are_counted_by_the_code_of_their_close() {
        let mut tape = Tape::default();
        tape.connection(1, ConnectionState::Opened).client(1, "channel.open");
        tape.broker(1, "channel.close").code(405).client(1, "channel.close-ok");
        tape.client(1, "channel.open").client(1, "channel.close").code(200);
        tape.client(1, "connection.close").code(200);
        tape.connection(1, ConnectionState::ClosedByClient);
        tape.connection(2, ConnectionState::Cut);
        let counts = Counts::of(&tape.events, &[], &[1]);
        assert_eq!((counts.channels_opened, counts.connections_opened), (2, 1));
        let one = |code: &str| (code.to_owned(), 1);
        assert_eq!(counts.channels_closed, BTreeMap::from([one("200"), one("405")]));
        assert_eq!(counts.connections_closed, BTreeMap::from([one("200")]));
        let other = Counts::of(&tape.events, &[], &[2]);
        assert_eq!(other.connections_closed, BTreeMap::from([one(NO_CLOSE)]));
    }

    #[test]
    fn heartbeats_are_not_among_the_bytes() {
        let size =
            |process, sender, bytes, heartbeat| Size { at: 0, process, sender, bytes, heartbeat };
        let sizes = [
            size(1, Sender::Client, 20, false),
            size(1, Sender::Client, 8, true),
            size(1, Sender::Broker, 5, false),
            size(2, Sender::Broker, 500, false),
        ];
        let counts = Counts::of(&[], &sizes, &[1]);
        assert_eq!(counts.client, Side { methods: 0, bytes: 20, heartbeats: 1 });
        assert_eq!(counts.broker, Side { methods: 0, bytes: 5, heartbeats: 0 });
    }

    #[test]
    fn the_median_is_taken_of_each_number() {
        let with = |methods: u64, codes: &[&str]| {
            let mut counts = Counts::default();
            counts.client.methods = methods;
            for code in codes {
                increase(&mut counts.channels_closed, (*code).to_owned());
            }
            counts
        };
        let all = [with(9, &["404"]), with(2, &["404"]), with(3, &["405"])];
        let median = Counts::median(&all);
        assert_eq!(median.client.methods, 3);
        assert_eq!(median.channels_closed, BTreeMap::from([("404".to_owned(), 1)]));
    }
}
