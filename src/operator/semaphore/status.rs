//! The status of a Semaphore: counts, holders and the kind's own conditions. Pure. See
//! `report` for when it is written.

use super::findings::Findings;
use crate::api::conditions::{DRAINED, SATURATED, Say, reason};
use crate::api::semaphore::HolderStatus;
use crate::api::{GROUP, SemaphoreStatus};
use crate::operator::outcome::{Outcome, Report};
use crate::plan::clean_text;
use crate::plan::naming::Unit;
use crate::plan::semaphore::{Holder, Observed, ObservedSlots};

pub(super) fn in_sync_message(found: &Findings, suspended: bool) -> String {
    let suspended = if suspended { "; suspended" } else { "" };
    let who = match found.holders.as_ref().and_then(|h| h.management_error.as_ref()) {
        Some(error) => format!("; who the holders are is not known: {error}"),
        None => String::new(),
    };
    let count = found.unit.count(found.slots);
    let limit = found.hold_limit.map(|limit| format!("; {limit}")).unwrap_or_default();
    format!("The broker has exactly the desired {count}{suspended}{who}{limit}")
}

/// Converts the findings to the status, as input of `report`.
pub(super) fn to_report(found: &Findings, outcome: Outcome) -> Report<SemaphoreStatus> {
    let mut status = SemaphoreStatus {
        lock_name: Some(found.lock.clone()),
        backend: found.backend.clone(),
        reached_backend: found.reached_backend.clone(),
        highest_slot: found.mark.map(to_i32),
        selector: Some(selector(found)),
        ..SemaphoreStatus::default()
    };
    status.waiting = found.waiting.map(to_i32);
    let mut said = Vec::new();
    if let (Some(seen), true) = (&found.seen, found.reached) {
        let counts = seen.counts(found.slots);
        status.slots = Some(to_i32(seen.total_up_to(found.slots)));
        status.held = Some(to_i32(counts.held));
        status.free = Some(to_i32(counts.free));
        status.draining = Some(to_i32(counts.draining));
        said.push(match seen {
            Observed::Numbered(seen) => drained(seen, found.slots),
            Observed::Counted(_) => drained_tokens(counts.draining, found.slots),
        });
        said.push(saturated(counts.held, counts.free, found.unit));
    }
    if let Some(holders) = &found.holders {
        let listed = holders.list.len();
        let all = found.seen.as_ref().map_or(listed, |seen| seen.held() as usize);
        status.holders_truncated = all > listed;
        status.holders = holders.list.iter().map(Into::into).collect();
        status.holders_summary = Some(summary(&status.holders, all));
    }
    Report { status, reached: found.reached, outcome, said, notes: found.notes.clone() }
}

/// Returns the selector for a Scale, which contains nothing else of the status. It
/// matches no pods. The chart's policy `revoke-scale` uses it to detect that lowering the
/// count revokes holders.
fn selector(found: &Findings) -> String {
    let revokes = found.revoke_after.as_ref().map(|after| format!(",{GROUP}/revoke-after={after}"));
    format!("{GROUP}/semaphore={}{}", found.name, revokes.unwrap_or_default())
}

fn drained(seen: &ObservedSlots, slots: u32) -> Say {
    let draining: Vec<String> = seen.held.range(slots + 1..).take(10).map(u32::to_string).collect();
    if draining.is_empty() {
        return Say::new(DRAINED, true, reason::NONE_DRAINING, "No holder is above the count");
    }
    let message = format!(
        "Still held above the count of {slots}: slot {}. No other client gets such a slot, and it is removed when its holder releases it",
        draining.join(", ")
    );
    Say::new(DRAINED, false, reason::HOLDERS_DRAINING, message)
}

/// Returns the condition for draining tokens. They are not numbered, so only their count
/// is known.
fn drained_tokens(draining: u32, tokens: u32) -> Say {
    if draining == 0 {
        return Say::new(DRAINED, true, reason::NONE_DRAINING, "No holder is above the count");
    }
    let message = format!(
        "{} more than the count of {tokens} held. The first ones released are removed; no other client gets them",
        if draining == 1 { "1 token is".to_owned() } else { format!("{draining} tokens are") }
    );
    Say::new(DRAINED, false, reason::HOLDERS_DRAINING, message)
}

fn saturated(held: u32, free: u32, unit: Unit) -> Say {
    let one = unit.one();
    let (saturated, reason, message) = match (held, free) {
        (_, 1..) => (false, reason::SLOTS_FREE, format!("A {one} may be taken")),
        (0, 0) => (true, reason::NO_SLOTS, format!("There is no {one} to take")),
        (_, 0) => (true, reason::ALL_SLOTS_HELD, format!("Every {one} is held")),
    };
    Say::new(SATURATED, saturated, reason, message)
}

/// Formats as many of `all` holders as fit into a table: `deploy-7, deploy-9, +3`.
fn summary(holders: &[HolderStatus], all: usize) -> String {
    /// Maximum length of a name, in bytes.
    const NAME: usize = 32;
    /// Maximum length of the list, in bytes. One name is always shown.
    const NAMES: usize = 40;
    let mut text = String::new();
    let mut shown = 0;
    for holder in holders {
        let who = clean_text(holder.identity.as_deref().unwrap_or(&holder.id), NAME);
        if shown > 0 && text.len() + ", ".len() + who.len() > NAMES {
            break;
        }
        text.push_str(if shown > 0 { ", " } else { "" });
        text.push_str(&who);
        shown += 1;
    }
    match all.saturating_sub(shown) {
        0 => text,
        more if shown == 0 => format!("+{more}"),
        more => format!("{text}, +{more}"),
    }
}

pub(super) fn to_i32(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

impl From<&Holder> for HolderStatus {
    fn from(holder: &Holder) -> Self {
        // Without `..`, so that each new field of a holder must be shown or omitted here
        // explicitly.
        let Holder { id, slot, identity, reason, url, since, connection, draining } =
            holder.clone();
        Self { id, slot: slot.map(to_i32), identity, reason, url, since, connection, draining }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_and_long_holders_are_shortened_for_a_table() {
        let holder = |identity: &str| HolderStatus {
            id: "slot-1".to_owned(),
            identity: (!identity.is_empty()).then(|| identity.to_owned()),
            ..HolderStatus::default()
        };
        let of = |identities: &[&str], all| {
            let holders: Vec<_> = identities.iter().map(|identity| holder(identity)).collect();
            summary(&holders, all)
        };
        assert_eq!(of(&[], 0), "");
        assert_eq!(of(&["build-41", "build-42"], 2), "build-41, build-42");
        let five = ["build-41", "build-42", "build-43", "build-44", "build-45"];
        assert_eq!(of(&five, 5), "build-41, build-42, build-43, build-44, +1");
        assert_eq!(of(&five, 60), "build-41, build-42, build-43, build-44, +56");
        assert_eq!(of(&[""], 1), "slot-1", "a holder without a name has its id");
        let long = "deploy-shop-production-7d9f8b6c5-abcde";
        assert_eq!(of(&[long, "b"], 2), "deploy-shop-production-7d9f8b…, b");
        assert_eq!(of(&[long, long], 2), "deploy-shop-production-7d9f8b…, +1");
        assert_eq!(of(&[], 3), "+3", "held by clients that could not be listed");
    }
}
