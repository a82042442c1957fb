//! Checks exclusion: S1, S2 and S3. See `sweep` for how violations of S2 and S3 are found.

use std::collections::BTreeMap;

use super::backing::fault;
use super::{Existence, Judge, NOTICE_US, backing_of, is_of, name};
use crate::check::holds::{Grant, Key};
use crate::check::ownership::{Change, Ended, Owned, Ownerships, Thing};
use crate::check::register::Position;
use crate::check::sweep::Found;
use crate::check::verdict::{Cause, Property};
use crate::history::Rules;

/// State at the broker of a hold that another grant contradicts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// The connection owned nothing.
    Unbacked,
    /// The connection may still own the slot.
    Backed,
    /// The broker or a fault ended the ownership, and the program had no time to notice.
    Stale,
    /// The broker or a fault ended the ownership, and the program continued to hold.
    Unnoticed,
    /// The client released the slot, and the program continued to hold.
    GivenUp,
}

impl Judge<'_> {
    /// Checks S1: the broker gives each slot, token or mutex to one connection at a time.
    pub(super) fn disjoint(&mut self, ownerships: &Ownerships) {
        let mut owned: Vec<&Owned> =
            ownerships.owned.iter().filter(|owned| owned.thing != Thing::Token).collect();
        owned.sort_by_key(|owned| owned.certain.from);
        let mut last: BTreeMap<Option<&Key>, &Owned> = BTreeMap::new();
        for later in owned {
            let earlier = last.entry(later.key()).or_insert(later);
            if earlier.overlaps(later) {
                let thing = later.key().map_or("the admin mutex".to_owned(), ToString::to_string);
                let what = format!(
                    "the broker gave {thing} to connection {} of process {} while connection {} \
                     of process {} owned it",
                    later.connection, later.process, earlier.connection, earlier.process,
                );
                let processes = [earlier.process, later.process];
                let at = later.certain.from;
                self.violation((Property::S1, Cause::Broker), at, &processes, what);
            }
            if earlier.certain.to <= later.certain.to {
                *earlier = later;
            }
        }
    }

    /// Checks S2 and S3.
    pub(super) fn exclusion(
        &mut self,
        ownerships: Option<&Ownerships>,
        existence: Option<&Existence>,
        found: &[Found],
    ) {
        for found in found {
            match found {
                Found::Both { first, second } => self.both(ownerships, *first, *second),
                Found::TooMany { holds, slots } => self.too_many(ownerships, holds, *slots),
                Found::Missing { grant, from } => {
                    self.missing(ownerships.zip(existence), *grant, *from);
                }
            }
        }
    }

    fn both(&mut self, ownerships: Option<&Ownerships>, first: usize, second: usize) {
        let grants = &self.reported.grants;
        let (first, second) = (&grants[first], &grants[second]);
        if first.process == second.process {
            return self.again(ownerships, first, second);
        }
        let (cause, how) = match ownerships {
            None => (Cause::Unknown, ""),
            Some(ownerships) => match self.cause(ownerships, first, second) {
                Some(cause) => cause,
                None => return self.count("stale holds"),
            },
        };
        let does = if second.claimed { "said that it holds" } else { "was granted" };
        let what = format!(
            "process {} {does} {} while process {} held it{how}",
            second.process,
            name(second.key.as_ref()),
            first.process,
        );
        let processes = [first.process, second.process];
        self.violation((Property::S2, cause), second.granted, &processes, what);
    }

    /// Checks a second grant to the process that already holds the slot. It is legal if the
    /// process had lost the slot, because it is then a new hold.
    fn again(&mut self, ownerships: Option<&Ownerships>, first: &Grant, second: &Grant) {
        let owned = ownerships.and_then(|ownerships| backing_of(ownerships, second));
        if owned.is_some_and(|owned| owned.certain.from <= first.granted) {
            let what = format!(
                "process {} was granted {} again on the connection that held it",
                second.process,
                name(second.key.as_ref())
            );
            let processes = [first.process];
            self.violation((Property::S2, Cause::Client), second.granted, &processes, what);
        }
    }

    /// Checks S2: a lost hold is not resumed, because another process may have held in between.
    pub(super) fn resumed(&mut self, ownerships: &Ownerships) {
        let reported = self.reported;
        for grant in reported.grants.iter().filter(|grant| !grant.claimed) {
            let until = grant.end.min(reported.next_request(grant.process, grant.granted));
            let Some(first) = backing_of(ownerships, grant) else { continue };
            let mut owned = ownerships.of(grant.process, grant.granted, until);
            let second = owned.find(|owned| {
                let same = owned.thing == first.thing && owned.key().is_some();
                same && owned.certain.from > grant.granted
                    && owned.possible.from > first.possible.to
            });
            if let Some(second) = second {
                let what = format!(
                    "process {} lost {} and acquired it again without reporting that",
                    grant.process,
                    name(first.key())
                );
                let (at, processes) = (second.certain.from, [grant.process]);
                self.violation((Property::S2, Cause::Client), at, &processes, what);
            }
        }
    }

    /// Returns the cause and the explanation of two overlapping holds, or `None` if the earlier
    /// holder could not have noticed its loss yet.
    fn cause(
        &self,
        ownerships: &Ownerships,
        first: &Grant,
        second: &Grant,
    ) -> Option<(Cause, &'static str)> {
        let later = backing_of(ownerships, second);
        let Some(later) = later else {
            return Some((Cause::Client, ": the later holder owned nothing at the broker"));
        };
        let earlier = latest(ownerships, first, second.granted);
        if earlier.is_some_and(|earlier| earlier.overlaps(later)) {
            return Some((Cause::Broker, ": the broker gave it to both"));
        }
        match self.hold(ownerships, first, second.granted) {
            Hold::Stale | Hold::Backed => None,
            Hold::Unbacked => {
                Some((Cause::Client, ": the earlier holder owned nothing at the broker"))
            }
            Hold::Unnoticed => Some((
                Cause::Client,
                ": the earlier holder continued after its connection had ended",
            )),
            Hold::GivenUp => Some((Cause::Client, ": the earlier holder had released it")),
        }
    }

    /// Compares a hold with the state of the broker at the time of another grant.
    fn hold(&self, ownerships: &Ownerships, grant: &Grant, until: Position) -> Hold {
        let Some(owned) = latest(ownerships, grant, until) else { return Hold::Unbacked };
        match owned.ended {
            Ended::Released | Ended::ChannelClosed if owned.end <= until => Hold::GivenUp,
            _ if owned.possible.to >= grant.end => Hold::Backed,
            _ if self.at(grant.end) <= self.at(owned.possible.to) + NOTICE_US => Hold::Stale,
            _ => Hold::Unnoticed,
        }
    }

    fn too_many(&mut self, ownerships: Option<&Ownerships>, holds: &[usize], slots: u32) {
        let reported = self.reported;
        let grants: Vec<&Grant> = holds.iter().map(|&hold| &reported.grants[hold]).collect();
        let Some(at) = grants.iter().map(|grant| grant.granted).max() else { return };
        let states: Vec<Hold> = ownerships.map_or_else(Vec::new, |ownerships| {
            grants.iter().map(|grant| self.hold(ownerships, grant, at)).collect()
        });
        let stale = states.iter().filter(|&&state| state == Hold::Stale).count();
        if holds.len() - stale <= slots as usize {
            return self.count("stale holds");
        }
        let cause = match ownerships {
            None => Cause::Unknown,
            Some(_)
                if states.iter().any(|&state| state != Hold::Backed && state != Hold::Stale) =>
            {
                Cause::Client
            }
            Some(ownerships) if overlapping(ownerships, &grants, at) => Cause::Broker,
            // There are more slots at the broker than requested.
            Some(_) => self.changed_last(at, &[Change::Declared, Change::Published], |_| true),
        };
        let processes: Vec<u32> = grants.iter().map(|grant| grant.process).collect();
        let what = format!(
            "{} processes held at the same time, but the number of slots was at most {slots}",
            holds.len()
        );
        self.violation((Property::S2, cause), at, &processes, what);
    }

    /// Checks S3. The slot had to exist at an instant since `from`.
    fn missing(
        &mut self,
        observed: Option<(&Ownerships, &Existence)>,
        grant: usize,
        from: Position,
    ) {
        let grant = &self.reported.grants[grant];
        let Grant { process, granted, .. } = *grant;
        let (cause, what) = match grant.key {
            Some(Key::Slot(0)) => {
                (Cause::Client, "was granted slot 0, but slots begin at 1".into())
            }
            Some(Key::Slot(slot)) => {
                let none =
                    format!("was granted slot {slot}, but no resize had requested that slot");
                (self.cause_of_missing(observed, grant, slot, from), none)
            }
            // Tokens that were held during a shrink are removed after it.
            _ if self.history.header.protocol == Rules::Token => return,
            _ => (Cause::Unknown, "was granted a slot, but there were none".into()),
        };
        let what: String = format!("process {process} {what}");
        self.violation((Property::S3, cause), granted, &[process], what);
    }

    /// Returns which side granted a slot that was not requested. A client that also violates S4
    /// has not looked.
    fn cause_of_missing(
        &self,
        observed: Option<(&Ownerships, &Existence)>,
        grant: &Grant,
        slot: u32,
        from: Position,
    ) -> Cause {
        let Some((ownerships, existence)) = observed else { return Cause::Unknown };
        match fault(self, ownerships, existence, grant) {
            Some((cause, _)) => cause,
            None if !existence.possible(slot, from, grant.granted) => Cause::Client,
            None => self.changed_last(grant.granted, &[Change::Declared], |one| one == slot),
        }
    }
}

/// Returns the latest ownership behind a hold up to a position.
fn latest<'a>(ownerships: &'a Ownerships, grant: &Grant, until: Position) -> Option<&'a Owned> {
    let mut owned = ownerships.of(grant.process, grant.invoked, until);
    owned.find(|owned| is_of(owned, grant.key.as_ref()))
}

fn overlapping(ownerships: &Ownerships, grants: &[&Grant], at: Position) -> bool {
    let owned: Vec<&Owned> = grants.iter().filter_map(|one| latest(ownerships, one, at)).collect();
    let overlap = |one: &Owned, other: &Owned| {
        one.key().is_some() && one.key() == other.key() && one.overlaps(other)
    };
    owned.iter().any(|one| owned.iter().any(|other| overlap(one, other)))
}
