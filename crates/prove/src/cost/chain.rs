//! Counts the round trips of an operation on the wire: the longest chain of frames in which each
//! frame may depend on the previous one. See `report` for the sample that counts.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::history::{ConnectionState, Event, Sender, What};

/// A frame: the earliest time at which its receiver has it, and the length of the longest chain
/// that ends with it.
type Chain = (u64, u32);

/// Returns the number of round trips until `process` had received everything it needed at the
/// time `until`, in microseconds. `events` starts with the operation. One direction counts as
/// half a round trip.
///
/// A frame depends on every frame that its sender had received by then. `delay` is the time that
/// the proxy adds in each direction. A frame that the proxy read less than `delay` ago has not
/// been received yet. Without a delay the result may be too high: requests that a client sends
/// together seem to depend on the answers to the first of them.
pub fn round_trips(events: &[Event], process: u32, until: u64, delay: Duration) -> f64 {
    let delay = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
    let mut to_broker: Vec<Chain> = Vec::new();
    let mut to_client: BTreeMap<u32, Vec<Chain>> = BTreeMap::new();
    for event in events {
        let (process, sender) = match &event.what {
            What::Frame(frame) => (frame.process, frame.sender),
            // The protocol header follows. The broker answers it.
            What::Connection { process, state: ConnectionState::Opened, .. } => {
                (*process, Sender::Client)
            }
            _ => continue,
        };
        let received = to_client.entry(process).or_default();
        let (had, sent) = match sender {
            Sender::Client => (received, &mut to_broker),
            Sender::Broker => (&mut to_broker, received),
        };
        let length = longest(had, event.at) + 1;
        sent.push((event.at.saturating_add(delay), length));
    }
    let had = to_client.get(&process).map_or(0, |received| longest(received, until));
    f64::from(had) / 2.0
}

/// Returns the length of the longest chain that had arrived at this time.
fn longest(links: &[Chain], at: u64) -> u32 {
    links.iter().filter(|(arrived, _)| *arrived <= at).map(|(_, length)| *length).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::tape::Tape;

    const DELAY: Duration = Duration::from_micros(10);

    fn trips(tape: &Tape, process: u32) -> f64 {
        2.0 * round_trips(&tape.events, process, 1_000, DELAY)
    }

    fn is(halves: f64, expected: u32) -> bool {
        (halves - f64::from(expected)).abs() < 1e-9
    }

    #[test]
    fn requests_after_answers_add_up() {
        let mut tape = Tape::default();
        for start in [0, 20, 40] {
            tape.at(start).client(1, "queue.declare").at(start + 10).broker(1, "queue.declare-ok");
        }
        assert!(is(trips(&tape, 1), 6), "{}", trips(&tape, 1));
    }

    #[test]
    fn pipelined_requests_are_one_round_trip() {
        let mut tape = Tape::default();
        tape.at(0).client(1, "queue.declare").at(2).broker(1, "queue.declare-ok");
        tape.at(4).client(1, "queue.declare").at(6).broker(1, "queue.declare-ok");
        // The broker receives the requests 10 µs later, so these answers belong to other
        // requests.
        assert!(is(trips(&tape, 1), 1), "{}", trips(&tape, 1));
        let mut tape = Tape::default();
        tape.at(0).client(1, "queue.declare").at(8).client(1, "queue.declare");
        tape.at(10).broker(1, "queue.declare-ok").at(18).broker(1, "queue.declare-ok");
        assert!(is(trips(&tape, 1), 2), "{}", trips(&tape, 1));
        assert!(is(2.0 * round_trips(&tape.events, 1, 1_000, Duration::ZERO), 2));
    }

    #[test]
    fn an_answer_counts_only_when_it_has_arrived() {
        let mut tape = Tape::default();
        tape.at(0).client(1, "queue.declare").at(10).broker(1, "queue.declare-ok");
        assert!(is(round_trips(&tape.events, 1, 19, DELAY), 0));
        assert!(is(round_trips(&tape.events, 1, 20, DELAY), 1));
    }

    #[test]
    fn a_connection_costs_a_round_trip_before_its_first_method() {
        let mut tape = Tape::default();
        tape.at(0).connection(1, ConnectionState::Opened).at(10).broker(1, "connection.start");
        tape.at(20).client(1, "connection.start-ok").at(30).broker(1, "connection.tune");
        assert!(is(trips(&tape, 1), 4), "{}", trips(&tape, 1));
    }

    #[test]
    fn a_chain_continues_through_another_process() {
        let mut tape = Tape::default();
        tape.at(0).client(1, "basic.reject").at(10).broker(2, "basic.deliver");
        tape.at(20).client(2, "queue.declare").at(30).broker(2, "queue.declare-ok");
        assert!(is(trips(&tape, 2), 4), "{}", trips(&tape, 2));
    }
}
