//! Checks changes of the slots: S9 and the conservation of tokens. See `ownership` for how
//! changes are found.

use std::collections::{BTreeMap, BTreeSet};

use super::{Existence, Judge};
use crate::check::ownership::{Change, Ownerships, SlotChange};
use crate::check::register::{NEVER, Write};
use crate::check::verdict::{Cause, Property};

/// Maximum number of changes that may still reach the broker after the admin mutex was lost,
/// because the client had already sent them.
const IN_FLIGHT: u32 = 16;

impl Judge<'_> {
    /// Checks S9 (only the owner of the admin mutex changes slots) and the conservation of
    /// tokens.
    pub(super) fn administrator(&mut self, ownerships: &Ownerships) {
        let reported = self.reported;
        let mut late: BTreeMap<u32, u32> = BTreeMap::new();
        for change in &ownerships.changes {
            if ownerships.may_administer(change.process, change.at) {
                late.insert(change.process, 0);
                continue;
            }
            if ownerships.lost_mutex(change.process, change.at) {
                let count = late.entry(change.process).or_default();
                *count += 1;
                if *count <= IN_FLIGHT {
                    continue;
                }
            }
            let administers = reported.administers(change.process, change.at);
            let cause = if administers { Cause::Administrator } else { Cause::Client };
            let done = match (change.change, change.slot) {
                (Change::Declared, slot) => format!("declared slot {slot}"),
                (Change::Deleted, 0) => "deleted the token queue".to_owned(),
                (Change::Deleted, slot) => format!("deleted slot {slot}"),
                (Change::Published, _) => "published to the token queue".to_owned(),
            };
            let what = format!("process {} {done} without the admin mutex", change.process);
            self.violation((Property::S9, cause), change.at, &[change.process], what);
        }
        let administrators: BTreeSet<u32> =
            reported.administering.iter().map(|&(process, ..)| process).collect();
        for destroyed in &ownerships.destroyed {
            let administers = administrators.contains(&destroyed.process)
                || ownerships.may_administer(destroyed.process, destroyed.at);
            if !administers {
                let process = destroyed.process;
                let what = format!("process {process} destroyed a token: it {}", destroyed.how);
                let (property, at) = (Property::TokensConserved, destroyed.at);
                self.violation((property, Cause::Client), at, &[process], what);
            }
        }
    }

    /// Checks S9: slots are deleted in descending order, so that the existing slots stay
    /// contiguous. Deletions of slots that may not have existed are a sweep and are ignored.
    pub(super) fn order(&mut self, ownerships: &Ownerships, existence: &Existence) {
        let reported = self.reported;
        let mut deletes: Vec<&SlotChange> = ownerships.changes.iter().collect();
        deletes.retain(|change| {
            let before = change.at.saturating_sub(1);
            change.change == Change::Deleted
                && change.slot > 0
                && !existence.possibly_missing(change.slot, before, before)
        });
        deletes.sort_unstable_by_key(|change| (change.process, change.at));
        for &(process, from, to) in &reported.administering {
            let first =
                deletes.partition_point(|change| (change.process, change.at) < (process, from));
            let last =
                deletes.partition_point(|change| (change.process, change.at) <= (process, to));
            let ascending = deletes[first..last].windows(2).find(|two| two[0].slot < two[1].slot);
            if let Some(two) = ascending {
                let (lower, higher) = (two[0].slot, two[1].slot);
                let what = format!("process {process} deleted slot {higher} after slot {lower}");
                self.violation((Property::S9, Cause::Administrator), two[1].at, &[process], what);
            }
        }
    }

    /// Checks S9: after a resize to `n`, the slots 1 to `n` exist. Skipped if another resize may
    /// have taken effect in between.
    pub(super) fn at_rest(&mut self, existence: &Existence) {
        let reported = self.reported;
        for resize in alone(&reported.resizes) {
            let (at, slots) = (resize.done, resize.value);
            let Some(wrong) = existence.wrong(slots, at) else { continue };
            let executed = reported.administering.iter().find(|&&(_, _, to)| to == at);
            let processes: Vec<u32> = executed.map(|&(process, ..)| process).into_iter().collect();
            let state = if wrong <= slots { "does not exist" } else { "still exists" };
            let what = format!("after a resize to {slots} slots, slot {wrong} {state}");
            self.violation((Property::S9, Cause::Administrator), at, &processes, what);
        }
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
