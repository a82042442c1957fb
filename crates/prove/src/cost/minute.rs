//! Scales the traffic of an idle process to one minute. See `background` for the observed
//! processes.

use serde::{Deserialize, Serialize};

use super::count::Counts;
use crate::history::{Event, Sender, What};
use crate::wire::{CONTENT, Size};

/// Maximum distance of events that belong together, in microseconds.
const TOGETHER: u64 = 200_000;

/// Microseconds in a minute.
const MINUTE: f64 = 60_000_000.0;

/// Traffic per minute. The numbers are fractions, because observed times are scaled to a minute.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PerMinute {
    /// Traffic sent by the process.
    pub client: SidePerMinute,
    /// Traffic sent by the broker.
    pub broker: SidePerMinute,
    /// Number of publishes among the process's methods.
    pub publishes: f64,
    /// The counted traffic, without scaling.
    pub counted: Counts,
}

/// Traffic per minute that one side sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SidePerMinute {
    /// Number of methods.
    pub methods: f64,
    /// Bytes, except heartbeats.
    pub bytes: f64,
    /// Number of heartbeats.
    pub heartbeats: f64,
}

impl PerMinute {
    /// Counts and scales the traffic between this process and the broker from one time until
    /// another, in microseconds.
    pub fn of(events: &[Event], sizes: &[Size], process: u32, from: u64, until: u64) -> Self {
        let within = |at: u64| (from..until).contains(&at);
        let events: Vec<Event> = events.iter().filter(|event| within(event.at)).cloned().collect();
        let sizes: Vec<Size> = sizes
            .iter()
            .filter(|size| within(size.at) && size.process == process)
            .copied()
            .collect();
        let rate = |amounts: Vec<(u64, u64)>| rate(&amounts, until.saturating_sub(from));
        let methods = |sender, name: Option<&str>| {
            let found = events.iter().filter_map(|event| match &event.what {
                What::Frame(frame) => {
                    let counts = frame.process == process
                        && frame.sender == sender
                        && frame.method != CONTENT
                        && name.is_none_or(|name| name == frame.method);
                    counts.then_some((event.at, 1))
                }
                _ => None,
            });
            rate(found.collect())
        };
        let frames = |sender, heartbeat| {
            let found =
                sizes.iter().filter(|size| size.sender == sender && size.heartbeat == heartbeat);
            let amount = |size: &Size| (size.at, if heartbeat { 1 } else { size.bytes });
            rate(found.map(amount).collect())
        };
        let side = |sender| SidePerMinute {
            methods: methods(sender, None),
            bytes: frames(sender, false),
            heartbeats: frames(sender, true),
        };
        Self {
            client: side(Sender::Client),
            broker: side(Sender::Broker),
            publishes: methods(Sender::Client, Some("basic.publish")),
            counted: Counts::of(&events, &sizes, &[process]),
        }
    }
}

/// Returns the amount per minute, from times with amounts in order, and the observed duration in
/// microseconds. If there are at least two occurrences, the time between the first and the last
/// one counts. Reason: in 12 s, an event with a period of 5 s may occur two or three times.
fn rate(amounts: &[(u64, u64)], duration: u64) -> f64 {
    let mut bursts: Vec<(u64, u64, u64)> = Vec::new();
    for &(at, amount) in amounts {
        match bursts.last_mut() {
            Some((_, last, total)) if at.saturating_sub(*last) < TOGETHER => {
                (*last, *total) = (at, *total + amount);
            }
            _ => bursts.push((at, at, amount)),
        }
    }
    let (amount, time) = match &bursts[..] {
        [] => return 0.0,
        [(_, _, amount)] => (*amount, duration),
        [(first, ..), .., (last, ..)] => {
            let all = bursts[..bursts.len() - 1].iter().map(|(_, _, amount)| amount);
            (all.sum(), last - first)
        }
    };
    number(amount) / number(time.max(1)) * MINUTE
}

/// Converts a number. The result is exact up to 2^53.
#[allow(clippy::cast_precision_loss, reason = "counts of minutes are far below 2^53")]
fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::tape::Tape;

    fn near(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-6
    }

    #[test]
    fn regular_events_are_scaled_by_their_period() {
        // Two requests every 5 s: 24 a minute, whether 2 or 3 of them are in 12 s.
        for first in [100_000, 1_900_000, 2_100_000] {
            let times = (0..3).map(|round| first + round * 5_000_000);
            let times = times.flat_map(|at| [(at, 1), (at + 1_000, 1)]);
            let times: Vec<_> = times.filter(|(at, _)| *at < 12_000_000).collect();
            assert!(near(rate(&times, 12_000_000), 24.0), "{}", rate(&times, 12_000_000));
        }
    }

    #[test]
    fn a_single_event_is_scaled_by_the_duration() {
        assert!(near(rate(&[(3, 7)], 10_000_000), 42.0));
        assert!(near(rate(&[], 10_000_000), 0.0));
    }

    #[test]
    fn counts_only_the_given_time_and_process() {
        let mut tape = Tape::default();
        tape.at(1).client(1, "queue.declare");
        for at in [10_000_000, 20_000_000] {
            tape.at(at).client(1, "basic.publish").client(1, CONTENT).broker(1, "basic.ack");
            tape.client(2, "queue.declare");
        }
        let size =
            |at, heartbeat| Size { at, process: 1, sender: Sender::Broker, bytes: 8, heartbeat };
        let sizes = [size(5, true), size(11_000_000, true), size(12_000_000, false)];
        let minute = PerMinute::of(&tape.events, &sizes, 1, 2_000_000, 32_000_000);
        assert!(near(minute.client.methods, 6.0) && near(minute.publishes, 6.0), "{minute:?}");
        assert!(near(minute.broker.heartbeats, 2.0) && near(minute.broker.bytes, 16.0));
        assert_eq!(minute.counted.client.methods, 2);
    }
}
