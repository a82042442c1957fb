//! Checks S10: an acquire that waits is granted if there is room. See `refused` for how such
//! refusals are found.

use super::{Existence, Judge};
use crate::check::holds::{Grant, Key};
use crate::check::ownership::{Change, Owned, Ownerships};
use crate::check::refused::{Early, Refused, Waits};
use crate::check::register::Position;
use crate::check::verdict::{Cause, Property};
use crate::history::{Sender, What};

/// Reply code of AMQP for a queue that belongs to another connection.
const LOCKED: u16 = 405;
/// Reply code of AMQP for a queue that has an exclusive consumer.
const REFUSED: u16 = 403;

impl Judge<'_> {
    /// Checks S10.
    pub(super) fn waiting(
        &mut self,
        ownerships: Option<&Ownerships>,
        existence: Option<&Existence>,
        waits: &Waits,
    ) {
        for &Early { process, done, after_ms, wait_ms } in &waits.early {
            let what = format!(
                "process {process} was refused a slot after {after_ms} ms, although it may wait for \
                 {wait_ms} ms"
            );
            self.violation((Property::S10, Cause::Client), done, &[process], what);
        }
        for one in &waits.refused {
            let Refused { process, slots, busy, done, room_ms, .. } = *one;
            let (cause, why, other) = match (ownerships, existence) {
                (Some(ownerships), Some(existence)) => self.obstacle(ownerships, existence, one),
                _ => (Cause::Unknown, String::new(), None),
            };
            let what = format!(
                "process {process} was refused a slot, although for {} s at most {busy} of {slots} \
                 were in use{why}",
                room_ms / 1000
            );
            let processes: Vec<u32> = std::iter::once(process).chain(other).collect();
            self.violation((Property::S10, cause), done, &processes, what);
        }
    }

    /// Returns why the process found no slot: the cause, a clause, and another process that is
    /// involved.
    fn obstacle(
        &self,
        ownerships: &Ownerships,
        existence: &Existence,
        refused: &Refused,
    ) -> (Cause, String, Option<u32>) {
        let Refused { from, done, slots, .. } = *refused;
        let left = |owned: &&Owned| self.leftovers.contains(&(owned.process, owned.certain.from));
        // The whole time, with certainty.
        let stuck = |owned: &&Owned| owned.certain.from <= from && owned.certain.to >= done;
        let by = |owned: &Owned| {
            let Owned { process, connection, .. } = owned;
            let why = format!(
                ": connection {connection} of process {process}, which did not hold it, owned one"
            );
            (Cause::Client, why, Some(*process))
        };
        if let Some(owned) = ownerships.owned.iter().filter(left).find(stuck) {
            return by(owned);
        }
        if existence.tokens {
            let destroyed = self.destroyed(ownerships);
            return match destroyed.iter().find(|destroyed| destroyed.at < done) {
                Some(by) => (Cause::Client, ": a token was destroyed".into(), Some(by.process)),
                None => (Cause::Unknown, String::new(), None),
            };
        }
        if let Some(slot) = (1..=slots).find(|&slot| !existence.possible(slot, from, done)) {
            let cause = self.changed_last(done, &[Change::Deleted], |one| one == slot);
            return (cause, format!(": slot {slot} does not exist"), None);
        }
        let of = |slot: u32| {
            let its = move |owned: &&Owned| owned.key() == Some(&Key::Slot(slot));
            ownerships.owned.iter().filter(its)
        };
        let idle = |owned: &&Owned| !self.may_hold(owned.process, from, done);
        if let Some(owned) = (1..=slots).find_map(|slot| of(slot).filter(idle).find(stuck)) {
            return by(owned);
        }
        let free = |slot: &u32| {
            let maybe = |owned: &Owned| owned.possible.from <= done && owned.possible.to >= from;
            !existence.possibly_missing(*slot, from, done) && !of(*slot).any(maybe)
        };
        match (1..=slots).find(free) {
            // The broker may have refused the free slot.
            Some(_) if self.was_refused(refused.process, from, done) => {}
            Some(slot) => return (Cause::Client, format!(": slot {slot} was free"), None),
            None => {}
        }
        (Cause::Unknown, String::new(), None)
    }

    /// Returns whether the process may have held a slot at an instant of this interval,
    /// according to its answers.
    fn may_hold(&self, process: u32, from: Position, to: Position) -> bool {
        let reported = self.reported;
        let mut requests = reported.requests.get(&process).into_iter().flatten();
        let acquires = requests.any(|&at| (from..=to).contains(&at));
        let holds = |grant: &Grant| grant.granted <= to && grant.end >= from;
        acquires || reported.grants.iter().any(|grant| grant.process == process && holds(grant))
    }

    /// Returns whether the broker answered the process that a queue belongs to another
    /// connection.
    fn was_refused(&self, process: u32, from: Position, to: Position) -> bool {
        self.history.events[from..=to].iter().any(|event| match &event.what {
            What::Frame(frame) => {
                let locked = frame.code.is_some_and(|code| code == LOCKED || code == REFUSED);
                frame.process == process && frame.sender == Sender::Broker && locked
            }
            _ => false,
        })
    }
}
