//! One measured operation: its time, its round trips on the wire, and its traffic. See `bench`
//! for the measurement, and `report` for how samples are summarized.

use std::time::Duration;

use super::chain::round_trips;
use super::count::Counts;
use super::operation::Operation;
use crate::history::{ConnectionState, Event, Phase, Verb, What};
use crate::wire::Size;

/// The recording of an operation, until the wire was quiet after it.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// The events, from the request on.
    pub events: Vec<Event>,
    /// The sizes of the frames.
    pub sizes: Vec<Size>,
}

/// The part of a recorded run that belongs to one operation.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// The process and the request with which the operation begins.
    pub from: (u32, Verb),
    /// The process and the request whose answer ends the operation.
    pub to: (u32, Verb),
    /// The processes that take part in the operation.
    pub processes: &'a [u32],
}

/// One measured operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The operation.
    pub operation: Operation,
    /// Whether it was the first operation of its process, which then connects.
    pub first: bool,
    /// The delay in each direction that was set at the proxy.
    pub delay: Duration,
    /// The time from the request to the answer.
    pub time: Duration,
    /// Number of round trips, counted on the wire.
    pub round_trips: f64,
    /// The traffic.
    pub counts: Counts,
}

impl Sample {
    /// Evaluates a recording. Returns `None` if the request or its answer is missing.
    pub fn of(
        (operation, first): (Operation, bool),
        delay: Duration,
        recorded: &Recorded,
        span: Span<'_>,
    ) -> Option<Self> {
        let all = &recorded.events;
        let start =
            all.iter().position(|event| is(event, span.from, |phase| phase == Phase::Invoke))?;
        let events = &all[start..];
        let invoked = events.first()?.at;
        let answered =
            events.iter().find(|event| is(event, span.to, |phase| phase != Phase::Invoke));
        let answered = answered?.at;
        let sizes: Vec<Size> =
            recorded.sizes.iter().filter(|size| size.at >= invoked).copied().collect();
        Some(Self {
            operation,
            first,
            delay,
            time: Duration::from_micros(answered - invoked),
            round_trips: round_trips(
                &of_processes(events, span.processes),
                span.to.0,
                answered,
                delay,
            ),
            counts: Counts::of(events, &sizes, span.processes),
        })
    }
}

/// Returns whether the event is a frame or a new connection of these processes.
pub fn is_on_wire(event: &Event, processes: &[u32]) -> bool {
    match &event.what {
        What::Frame(frame) => processes.contains(&frame.process),
        What::Connection { process, state: ConnectionState::Opened, .. } => {
            processes.contains(process)
        }
        _ => false,
    }
}

fn of_processes(events: &[Event], processes: &[u32]) -> Vec<Event> {
    events.iter().filter(|event| is_on_wire(event, processes)).cloned().collect()
}

fn is(event: &Event, (process, verb): (u32, Verb), phase: impl Fn(Phase) -> bool) -> bool {
    match &event.what {
        What::Operation(one) => one.process == process && one.verb == verb && phase(one.phase),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::tape::Tape;

    fn sample(
        tape: &Tape,
        from: (u32, Verb),
        to: (u32, Verb),
        processes: &[u32],
    ) -> Option<Sample> {
        let recorded = Recorded { events: tape.events.clone(), sizes: Vec::new() };
        let span = Span { from, to, processes };
        Sample::of((Operation::HandOver, false), Duration::ZERO, &recorded, span)
    }

    #[test]
    fn an_operation_lasts_from_its_request_to_its_answer() {
        let mut tape = Tape::default();
        tape.at(5).client(1, "queue.declare");
        tape.at(10).operation(1, Verb::Verify, Phase::Invoke);
        tape.at(13).client(1, "queue.declare").client(2, "basic.get");
        tape.at(17).broker(1, "queue.declare-ok");
        tape.at(20).operation(1, Verb::Verify, Phase::Ok);
        tape.at(30).client(1, "channel.close");
        let verify = (1, Verb::Verify);
        let sample = sample(&tape, verify, verify, &[1]).unwrap();
        assert_eq!(sample.time.as_micros(), 10);
        // The traffic after the answer counts, but not towards the round trips.
        assert_eq!(sample.counts.client.methods, 2);
        assert!((sample.round_trips - 1.0).abs() < 1e-9, "{sample:?}");
    }

    #[test]
    fn a_hand_over_lasts_from_the_release_to_the_grant_of_the_other() {
        let mut tape = Tape::default();
        tape.at(0).operation(2, Verb::Acquire, Phase::Invoke).client(2, "basic.consume");
        tape.at(10).operation(1, Verb::Release, Phase::Invoke).client(1, "basic.reject");
        tape.at(11).broker(2, "basic.deliver").at(12).operation(1, Verb::Release, Phase::Ok);
        tape.at(15).operation(2, Verb::Acquire, Phase::Ok);
        let (from, to) = ((1, Verb::Release), (2, Verb::Acquire));
        let sample = sample(&tape, from, to, &[1, 2]).unwrap();
        assert_eq!((sample.time.as_micros(), sample.counts.client.methods), (5, 1));
        assert_eq!(sample.counts.broker.methods, 1);
    }

    #[test]
    fn an_operation_without_an_answer_is_not_a_sample() {
        let mut tape = Tape::default();
        tape.operation(1, Verb::Verify, Phase::Invoke).operation(2, Verb::Verify, Phase::Ok);
        let verify = (1, Verb::Verify);
        assert_eq!(sample(&tape, verify, verify, &[1]), None);
    }
}
