//! Determines the content of a picture of a violation: the events, processes and slots, and
//! their positions. Time is not to scale: each event has its own column with its time as text,
//! so that microseconds and seconds are equally readable. See `scene` for the choice of events,
//! `lanes` for the content of a lane, and `svg` for the file format.

mod lanes;
mod scene;

use std::cmp::Ordering;

use crate::check::Examined;
use crate::check::register::Position;
use crate::check::verdict::Violation;
use crate::history::History;
use scene::Scene;

/// Maximum number of events in a picture.
pub(crate) const EVENTS: usize = 30;

/// A horizontal position, in half columns. Event `i` is at `2 * i + 1`; `2 * i` is between it
/// and the previous event.
pub(crate) type Place = usize;

/// A picture of one violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Picture {
    /// The property, the cause and a description.
    pub(crate) title: String,
    /// The position in the run, the implementation and the broker.
    pub(crate) subtitle: String,
    /// The events, from left to right.
    pub(crate) columns: Vec<Column>,
    /// The holds according to each process.
    pub(crate) processes: Vec<Swimlane>,
    /// The ownership of each slot at the broker. Empty if the broker was not observed.
    pub(crate) broker: Vec<Swimlane>,
    /// The violation.
    pub(crate) red: Red,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    /// Its time, relative to the instant at which the violation became certain.
    pub(crate) time: String,
    /// Its time since the start of the run, as hover text.
    pub(crate) hover: String,
}

/// A process or a slot over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Swimlane {
    /// Its name.
    pub(crate) name: String,
    /// Holds, or ownerships.
    pub(crate) bars: Vec<Bar>,
    /// Requests and answers.
    pub(crate) ticks: Vec<Tick>,
    /// Faults.
    pub(crate) faults: Vec<Tick>,
}

/// A hold, or an ownership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bar {
    /// The holder or owner. Each process has the same colour in the whole picture.
    pub(crate) process: u32,
    /// Where it begins.
    pub(crate) from: Place,
    /// Where it ends.
    pub(crate) to: Place,
    /// Whether the ownership at the broker is certain from `from` to `to`.
    pub(crate) certain: bool,
    /// The label inside the bar. May be empty.
    pub(crate) label: String,
    /// The hover text.
    pub(crate) hover: String,
}

/// A mark at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tick {
    /// Its position.
    pub(crate) at: Place,
    /// The label.
    pub(crate) label: String,
    /// The hover text.
    pub(crate) hover: String,
}

/// The overlap or the false claim that violates the property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Red {
    /// Where it starts.
    pub(crate) from: Place,
    /// Where it ends.
    pub(crate) to: Place,
    /// The kind and duration of the violation, the property and the cause.
    pub(crate) label: String,
}

/// Determines the content of the picture of this violation.
pub(crate) fn picture(history: &History, examined: &Examined, violation: &Violation) -> Picture {
    let scene = Scene::new(history, examined, violation);
    let header = &history.header;
    let cause = violation.cause;
    let seconds = scene.time(scene.at);
    Picture {
        title: format!("{:?} {cause}: {}", violation.property, violation.what),
        subtitle: format!(
            "at {}, event {} of the history; {}; {}; seed {}",
            second(seconds),
            violation.event,
            header.implementation,
            if header.broker.is_empty() { "broker not observed" } else { &header.broker },
            header.seed,
        ),
        columns: scene.shown.iter().map(|&at| column(&scene, at)).collect(),
        processes: lanes::processes(&scene),
        broker: lanes::broker(&scene),
        red: red(&scene, violation),
    }
}

fn column(scene: &Scene<'_>, at: Position) -> Column {
    let (time, origin) = (scene.time(at), scene.time(scene.at));
    let text = match time.cmp(&origin) {
        Ordering::Less => format!("−{}", length(origin - time)),
        Ordering::Equal => "0".to_owned(),
        Ordering::Greater => format!("+{}", length(time - origin)),
    };
    Column { time: text, hover: format!("{}, event {at}", second(time)) }
}

fn red(scene: &Scene<'_>, violation: &Violation) -> Red {
    let claim = &scene.claim;
    let last = scene.history.events.len().saturating_sub(1);
    let open = claim.to > last;
    let duration = scene.time(claim.to.min(last)).saturating_sub(scene.time(claim.from));
    let duration = match (open, claim.from == claim.to) {
        (true, _) => format!("more than {}", length(duration)),
        (false, true) => "at this instant".to_owned(),
        (false, false) => length(duration),
    };
    let (from, mut to) = (scene.place(claim.from), scene.place(claim.to));
    if to <= from {
        to = from + 1;
    }
    let cause = violation.cause;
    let label = format!("{} {duration}: {:?}, cause {cause}", claim.word, violation.property);
    Red { from, to, label }
}

/// Returns a time since the start of the run, in seconds.
fn second(micros: u64) -> String {
    format!("{}.{:06} s", micros / 1_000_000, micros % 1_000_000)
}

/// Returns a duration in the most readable unit.
fn length(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..1_000_000 => format!("{}.{} ms", micros / 1_000, micros % 1_000 / 100),
        _ => format!("{}.{:03} s", micros / 1_000_000, micros % 1_000_000 / 1_000),
    }
}

#[cfg(test)]
mod tests;
