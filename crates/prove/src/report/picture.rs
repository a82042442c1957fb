//! Determines the content of a picture of a violation: the events, processes and slots, and
//! their positions. Time is not to scale: each event has its own column with its time as text,
//! so that microseconds and seconds are equally readable. See `drawing` for the parts of a
//! picture, `scene` for the choice of events, `lanes` for the content of a lane, and `svg` for the
//! file format.

mod drawing;
mod lanes;
mod scene;
mod time;

use std::cmp::Ordering;

use crate::check::Examined;
use crate::check::register::Position;
use crate::check::verdict::Violation;
use crate::history::History;
pub(crate) use drawing::{Bar, Column, Picture, Place, Red, Swimlane, Tick};
use scene::Scene;
use time::{length, second};

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

#[cfg(test)]
mod tests;
