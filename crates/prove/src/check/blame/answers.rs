//! Checks the answers of a process about its hold: verifications and beliefs (S5) and releases
//! (S6). See `backing` for grants, and `left` for leftovers of other operations.

use super::{Existence, Judge, NOTICE_US, is_of, name};
use crate::check::holds::{Answer, Key};
use crate::check::ownership::{Owned, Ownerships, Thing};
use crate::check::verdict::{Cause, Property};
use crate::history::{Rules, Sender, What};

/// Maximum delay between the answer to a release and its observed effect, in microseconds. The
/// answer does not pass the proxy, so it may arrive before the last frame.
const OVERTAKING_US: u64 = 50_000;

/// Why a verification without a question to the broker is wrong.
const UNASKED: &str = "the broker answered nothing on its connection during that";

impl Judge<'_> {
    /// Checks S5: the answers "held" and "draining" are true.
    pub(super) fn verified(&mut self, ownerships: &Ownerships, existence: &Existence) {
        let reported = self.reported;
        for answer in &reported.verified {
            let grant = answer.grant.map(|grant| &reported.grants[grant]);
            let key = grant.and_then(|grant| grant.key.as_ref());
            // The process may hold another slot by now, if the result of an acquisition was
            // unknown.
            let since = grant.map_or(0, |grant| grant.granted);
            let mut owned = ownerships.of(answer.process, answer.invoked, answer.done);
            let owned = owned.find(|owned| {
                is_of(owned, key) || (owned.thing != Thing::Mutex && owned.certain.from > since)
            });
            let untrue = untrue(owned, existence, answer);
            let unasked = || (!self.asked(ownerships, answer)).then_some(UNASKED);
            let Some(why) = untrue.or_else(unasked) else { continue };
            let held = name(key);
            let mut processes = vec![answer.process];
            let other = owned.is_none().then(|| other_owner(ownerships, key, answer)).flatten();
            processes.extend(other.map(|other| other.process));
            let by = other.map_or_else(String::new, |other| {
                format!(" (connection {} of process {} did)", other.connection, other.process)
            });
            let what =
                format!("process {} verified that it holds {held}, but {why}{by}", answer.process);
            self.violation((Property::S5, Cause::Client), answer.done, &processes, what);
        }
    }

    /// Returns whether the broker answered a request during the verification, on a connection
    /// that may own what the process holds.
    fn asked(&self, ownerships: &Ownerships, answer: &Answer) -> bool {
        self.history.events[answer.invoked..=answer.done].iter().any(|event| match &event.what {
            What::Frame(frame) if frame.process == answer.process => {
                let mut owned = ownerships.of(answer.process, answer.invoked, answer.done);
                frame.sender == Sender::Broker
                    && owned.any(|owned| {
                        owned.thing != Thing::Mutex && owned.connection == frame.connection
                    })
            }
            _ => false,
        })
    }

    /// Checks S5: a process learns of the end of its connection within some time.
    pub(super) fn believed(&mut self, ownerships: &Ownerships) {
        let reported = self.reported;
        for answer in &reported.believed {
            let Some(grant) = answer.grant.map(|grant| &reported.grants[grant]) else { continue };
            let mut owned = ownerships.of(answer.process, 0, answer.done);
            let Some(last) = owned.find(|owned| owned.thing != Thing::Mutex) else { continue };
            let ended = last.possible.to < answer.invoked;
            if ended && self.at(last.possible.to) + NOTICE_US < self.at(answer.invoked) {
                let what = format!(
                    "process {} considered {} held, but its connection had stopped owning it {} ms before",
                    answer.process,
                    name(grant.key.as_ref()),
                    (self.at(answer.invoked) - self.at(last.possible.to)) / 1000,
                );
                let at = answer.done;
                self.violation((Property::S5, Cause::Client), at, &[answer.process], what);
            }
        }
    }

    /// Checks S6: a release leaves nothing of the hold at the broker, and ends no hold of
    /// another process.
    pub(super) fn released(&mut self, ownerships: &Ownerships) {
        let reported = self.reported;
        for answer in &reported.released {
            let Some(grant) = answer.grant.map(|grant| &reported.grants[grant]) else { continue };
            // A token that arrives after the release is delivered to a client that no longer
            // needs it.
            let tokens = self.history.header.protocol == Rules::Token;
            let key = grant.key.as_ref().filter(|_| !tokens);
            let next = reported.next_request(answer.process, answer.invoked);
            let until = if tokens { next.saturating_sub(1) } else { answer.done };
            let left = ownerships.of(answer.process, answer.done, until).find(|owned| {
                let mine = is_of(owned, key) && (tokens || owned.certain.from < answer.invoked);
                mine && owned.certain.to > answer.done && !self.overtaken(owned, answer)
            });
            if let Some(left) = left {
                self.leftovers.insert((left.process, left.certain.from));
                let what = format!(
                    "process {} released {}, but its connection {} still owned it",
                    answer.process,
                    name(left.key()),
                    left.connection
                );
                let at = answer.done;
                self.violation((Property::S6, Cause::Client), at, &[answer.process], what);
            }
        }
        for takeover in &ownerships.takeovers {
            let victim = &ownerships.owned[takeover.victim];
            let releases = reported.released.iter().any(|answer| {
                answer.process == takeover.process
                    && (answer.invoked..=answer.done).contains(&takeover.at)
            });
            let administers = reported.administers(takeover.process, takeover.at);
            let (property, cause) = match (releases, administers) {
                (true, _) => (Property::S6, Cause::Client),
                (_, true) => (Property::S9, Cause::Administrator),
                _ => (Property::S9, Cause::Client),
            };
            let what = format!(
                "process {} deleted the queue by which process {} held slot {}",
                takeover.process, victim.process, takeover.slot
            );
            let processes = [takeover.process, victim.process];
            self.violation((property, cause), takeover.done, &processes, what);
        }
    }

    /// Returns whether the ownership ended shortly after the answer, so that the answer may have
    /// arrived before the request that ended it. Returns false if only the end of the process
    /// ended it.
    fn overtaken(&self, owned: &Owned, answer: &Answer) -> bool {
        let soon = self.at(owned.certain.to) <= self.at(answer.done) + OVERTAKING_US;
        let ended = self.reported.ended.get(&answer.process);
        let late = owned.certain.from > answer.done;
        let alive = ended.is_none_or(|&ended| ended > owned.certain.to);
        owned.ended.by_owner() && soon && alive && !late
    }
}

/// Returns why a verification that was answered "held" is false, or `None` if it is true.
fn untrue(owned: Option<&Owned>, existence: &Existence, answer: &Answer) -> Option<&'static str> {
    let Some(owned) = owned else { return Some("its connection did not own it at the broker") };
    let Some(&Key::Slot(slot)) = owned.key() else { return None };
    let (from, to) = (answer.invoked, answer.done);
    if answer.draining && !existence.possibly_missing(slot, from, to) {
        return Some("it reported that the slot is being removed, which is false");
    }
    if !answer.draining && !existence.possible(slot, from, to) {
        return Some("it did not report that the slot is being removed");
    }
    None
}

/// Returns the ownership of another connection at that time.
fn other_owner<'a>(
    ownerships: &'a Ownerships,
    key: Option<&Key>,
    answer: &Answer,
) -> Option<&'a Owned> {
    let begun = ownerships.owned.partition_point(|owned| owned.certain.from <= answer.done);
    let key = key?;
    ownerships.owned[..begun].iter().rev().find(|owned| {
        let other = owned.process != answer.process && owned.key() == Some(key);
        other && owned.certain.to >= answer.invoked
    })
}
