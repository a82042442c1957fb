//! Checks changes of the slots: S9 and the conservation of tokens. See `ownership` for how
//! changes are found.

use std::collections::BTreeSet;

use super::{Existence, Judge, NOTICE_US, Unauthorised};
use crate::check::ownership::{Change, Destroyed, Ownerships, SlotChange};
use crate::check::register::{NEVER, Position, Write};
use crate::check::verdict::{Cause, Property};

impl Judge<'_> {
    /// Returns the changes by connections that did not hold the admin mutex. A connection that
    /// has lost it may not have noticed yet.
    pub(super) fn unauthorised(&self, ownerships: &Ownerships) -> Vec<Unauthorised> {
        let unnoticed = |change: &SlotChange| {
            let lost = ownerships.lost_mutex(change);
            lost.is_some_and(|lost| self.at(change.at) <= self.at(lost) + NOTICE_US)
        };
        let changes = ownerships.changes.iter().copied();
        let without = changes.filter(|one| !ownerships.may_change(one) && !unnoticed(one));
        let blamed = without.map(|change| {
            let administers = self.reported.administers(change.process, change.at)
                || ownerships.may_administer(change.process, change.at);
            let cause = if administers { Cause::Administrator } else { Cause::Client };
            Unauthorised { change, cause }
        });
        let mut all: Vec<Unauthorised> = blamed.collect();
        all.sort_by_key(|one| one.change.at);
        all
    }

    /// Returns the side that last changed such a slot in such a way without the admin mutex before
    /// a position. Without such a change, an administrator is the cause.
    pub(super) fn changed_last(
        &self,
        before: Position,
        kinds: &[Change],
        of: impl Fn(u32) -> bool,
    ) -> Cause {
        let changes = self.unauthorised.iter().rev();
        let mut changes = changes.filter(|one| one.change.at < before && of(one.change.slot));
        let last = changes.find(|one| kinds.contains(&one.change.change));
        last.map_or(Cause::Administrator, |last| last.cause)
    }

    /// Checks S9 (only the owner of the admin mutex changes slots) and the conservation of
    /// tokens.
    pub(super) fn administrator(&mut self, ownerships: &Ownerships) {
        for Unauthorised { change, cause } in self.unauthorised.clone() {
            let SlotChange { process, at, .. } = change;
            // The deletion of a held C is a violation of its own.
            if !ownerships.takeovers.iter().any(|takeover| takeover.at == at) {
                let what = format!(
                    "process {process} {} on a connection without the admin mutex",
                    did(change)
                );
                self.violation((Property::S9, cause), at, &[process], what);
            }
        }
        for &Destroyed { process, at, how } in self.destroyed(ownerships) {
            let what = format!("process {process} destroyed a token: it {how}");
            self.violation((Property::TokensConserved, Cause::Client), at, &[process], what);
        }
    }

    /// Returns the tokens that clients destroyed.
    pub(super) fn destroyed<'a>(&self, ownerships: &'a Ownerships) -> Vec<&'a Destroyed> {
        let administrators: BTreeSet<u32> =
            self.reported.administering.iter().map(|&(process, ..)| process).collect();
        let by_client = |destroyed: &&Destroyed| {
            let Destroyed { process, at, .. } = **destroyed;
            !administrators.contains(&process) && !ownerships.may_administer(process, at)
        };
        ownerships.destroyed.iter().filter(by_client).collect()
    }

    /// Checks S9: after a resize to `n`, the slots 1 to `n` exist. Skipped if another resize may
    /// have taken effect in between, or if a client changed the slot during the resize.
    pub(super) fn at_rest(&mut self, existence: &Existence) {
        let reported = self.reported;
        for resize in alone(&reported.resizes) {
            let (at, slots) = (resize.done, resize.value);
            let Some(wrong) = existence.wrong(slots, at) else { continue };
            let kind = if wrong <= slots { Change::Deleted } else { Change::Declared };
            let by_client = self.unauthorised.iter().any(|Unauthorised { change, cause }| {
                let same = change.slot == wrong && change.change == kind;
                same && *cause == Cause::Client && change.at < at && change.done > resize.invoked
            });
            if by_client {
                continue;
            }
            let executed = reported.administering.iter().find(|&&(_, _, to)| to == at);
            let processes: Vec<u32> = executed.map(|&(process, ..)| process).into_iter().collect();
            let state = if wrong <= slots { "does not exist" } else { "still exists" };
            let what = format!("after a resize to {slots} slots, slot {wrong} {state}");
            self.violation((Property::S9, Cause::Administrator), at, &processes, what);
        }
    }
}

/// Returns the description of a change, after the name of the process.
fn did(SlotChange { change, slot, .. }: SlotChange) -> String {
    match (change, slot) {
        (Change::Declared, slot) => format!("declared slot {slot}"),
        (Change::Deleted, 0) => "deleted the token queue".to_owned(),
        (Change::Deleted, slot) => format!("deleted slot {slot}"),
        (Change::Published, _) => "published to the token queue".to_owned(),
        (Change::DeletedHolder, slot) => format!("deleted the queue C of slot {slot}"),
        (Change::DeletedRecord, slot) => format!("deleted the record of slot {slot}"),
        (Change::DeletedWaiters, _) => "deleted the wait queue or its messages".to_owned(),
    }
}

/// Returns the completed resizes that no other resize overlaps.
fn alone(resizes: &[Write]) -> Vec<Write> {
    let mut sorted = resizes.to_vec();
    sorted.sort_unstable_by_key(|resize| resize.invoked);
    let mut alone = Vec::new();
    let mut latest = 0;
    for (index, resize) in sorted.iter().enumerate() {
        let next = sorted.get(index + 1).map_or(NEVER, |next| next.invoked);
        if resize.done < next && resize.invoked >= latest {
            alone.push(*resize);
        }
        latest = latest.max(resize.done);
    }
    alone
}
