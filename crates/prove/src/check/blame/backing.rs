//! Checks S4: a grant is backed. The process's connection owned the slot before the grant was
//! reported, and the slot existed after that. See `answers` for verifications and releases.

use super::{Existence, Judge, is_of, name};
use crate::check::holds::{Grant, Key};
use crate::check::ownership::{Change, Ended, Owned, Ownerships};
use crate::check::verdict::{Cause, Property};

impl Judge<'_> {
    /// Checks S4.
    pub(super) fn backing(&mut self, ownerships: &Ownerships, existence: &Existence) {
        let reported = self.reported;
        // What a process only claims to hold is judged by its verification.
        for grant in reported.grants.iter().filter(|grant| !grant.claimed) {
            if let Some((cause, why)) = fault(self, ownerships, existence, grant) {
                let granted = name(grant.key.as_ref());
                let what = format!("process {} was granted {granted}, but {why}", grant.process);
                let at = grant.granted;
                self.violation((Property::S4, cause), at, &[grant.process], what);
            }
        }
    }
}

/// Returns why a grant is not backed, and the cause. Returns `None` if it is.
pub(super) fn fault(
    judge: &Judge,
    ownerships: &Ownerships,
    existence: &Existence,
    grant: &Grant,
) -> Option<(Cause, &'static str)> {
    let owned: Vec<&Owned> = ownerships
        .of(grant.process, grant.invoked, grant.granted)
        .filter(|owned| is_of(owned, grant.key.as_ref()))
        .collect();
    if owned.is_empty() {
        return Some((Cause::Client, "its connection did not own it at the broker"));
    }
    // A disconnected process may have written its answer before the connection ended.
    let given_up = |owned: &Owned| {
        let released = matches!(owned.ended, Ended::Released | Ended::ChannelClosed);
        released && owned.end < grant.granted
    };
    if owned.iter().all(|owned| given_up(owned)) {
        return Some((Cause::Client, "it had already released it"));
    }
    let slot_of = |owned: &Owned| match owned.key() {
        Some(&Key::Slot(slot)) => Some(slot),
        _ => None,
    };
    let existed = |owned: &&Owned| {
        slot_of(owned)
            .is_none_or(|slot| existence.possible(slot, owned.possible.from, grant.granted))
    };
    if owned.iter().any(existed) {
        return None;
    }
    let slot = owned.first().and_then(|owned| slot_of(owned))?;
    let deleted = ownerships.changes.iter().rev().find(|change| {
        change.slot == slot && change.change == Change::Deleted && change.at < grant.granted
    });
    Some(match deleted {
        Some(deleted) if ownerships.may_administer(deleted.process, deleted.at) => {
            (Cause::Client, "the slot had been removed before its connection owned it")
        }
        Some(_) => {
            let cause = judge.changed_last(grant.granted, &[Change::Deleted], |one| one == slot);
            (cause, "the slot had been removed without the admin mutex")
        }
        None if slot <= existence.initial => {
            (Cause::Administrator, "the slot had been removed out of band")
        }
        None => (Cause::Client, "the slot never existed"),
    })
}
