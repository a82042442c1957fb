//! Reconstructs the state of the broker from the frames: which connection owned which holder
//! queue, consumer or token, and which slots existed. Each ownership has an earliest and a
//! latest bound, so that only certain violations are reported. See `owned` for the result,
//! `answers` for how frames are matched, and `blame` for the conclusions.

mod answers;
mod owned;
mod tracker;

use lockkeeper_plan::naming::LockName;

use super::register::Position;
use crate::history::{History, What};
pub use owned::{
    Change, Destroyed, Ended, Evidence, Owned, Ownerships, SlotChange, Thing, slot_of_record,
};

/// Reads the ownerships and changes from the frames of a history. Returns `None` if there are no
/// frames.
pub fn read(history: &History, lock: &LockName) -> Option<Ownerships> {
    if !history.events.iter().any(|event| matches!(event.what, What::Frame(_))) {
        return None;
    }
    let mut tracker = tracker::Tracker::new(lock, history.header.protocol);
    answers::facts(&history.events, |at, fact| tracker.fact(at, fact));
    let mut known = tracker.known;
    let is_fault = |what: &What| match what {
        What::Fault { process, .. } => Some(*process),
        _ => None,
    };
    let faults: Vec<(Position, Option<u32>)> = (0..)
        .zip(&history.events)
        .filter_map(|(at, event)| Some((at, is_fault(&event.what)?)))
        .collect();
    for (index, owned) in known.owned.iter_mut().enumerate() {
        owned.settle(&faults);
        let all = known.by_process.entry(owned.process).or_default();
        let latest = all.last().map_or(0, |&(_, latest)| latest);
        all.push((index, latest.max(owned.possible.to)));
    }
    let owned = &known.owned;
    known.takeovers.retain(|takeover| {
        let victim = &owned[takeover.victim];
        victim.ended == Ended::Cancelled || victim.certain.to > takeover.done
    });
    for owned in &mut known.owned {
        owned.certain.to = owned.certain.to.min(owned.limit);
    }
    Some(known)
}
