//! The status of a Semaphore: counts, holders and the kind's own conditions. Pure. See
//! `status_writer` for when it is written.

use kube::ResourceExt;
use lockkeeper_api::conditions::{ConditionUpdate, DRAINED, SATURATED, UNSAFE, reason};
use lockkeeper_api::semaphore::{HolderStatus, to_i32};
use lockkeeper_api::validate::{self, ValidSemaphore};
use lockkeeper_api::{GROUP, Semaphore, SemaphoreStatus};
use lockkeeper_plan::clean_text;
use lockkeeper_plan::naming::Unit;
use lockkeeper_plan::semaphore::{Observed, ObservedSlots};
use lockkeeper_semaphore::Risks;

use super::state::{Observation, State};
use crate::operator::short_name::shortened;

/// Maximum length of a label's value.
const LABEL_VALUE: usize = 63;

pub(super) fn in_sync_message(observation: &Observation, valid: &ValidSemaphore) -> String {
    let suspended = if valid.suspend { "; suspended" } else { "" };
    let who = match observation.holders.as_ref().and_then(|h| h.management_error.as_ref()) {
        Some(error) => format!("; who the holders are is not known: {error}"),
        None => String::new(),
    };
    let count = valid.lock.unit().count(valid.desired.slots);
    let limit = observation.hold_limit.map(|limit| format!("; {limit}")).unwrap_or_default();
    format!("The broker has exactly the desired {count}{suspended}{who}{limit}")
}

/// Returns the status while the broker does not answer: the parts of the last one that
/// remain true. Slots above its mark may exist that this process was about to create.
pub(super) fn unobserved(
    semaphore: &Semaphore,
    old: &SemaphoreStatus,
    state: &State,
) -> SemaphoreStatus {
    SemaphoreStatus {
        lock_name: Some(validate::lock_name(semaphore)),
        highest_slot: old.highest_slot.map(|mark| mark.max(to_i32(state.reaches))),
        selector: Some(selector(semaphore)),
        ..SemaphoreStatus::default()
    }
}

/// Returns the status of an observed lock, and its conditions.
pub(super) fn describe(
    semaphore: &Semaphore,
    observation: &Observation,
) -> (SemaphoreStatus, Vec<ConditionUpdate>) {
    let Observation { seen, mark, waiting, holders, .. } = observation;
    let slots = u32::try_from(semaphore.spec.slots).unwrap_or(0);
    let counts = seen.counts(slots);
    let mut status = SemaphoreStatus {
        lock_name: Some(validate::lock_name(semaphore)),
        highest_slot: mark.map(to_i32),
        selector: Some(selector(semaphore)),
        waiting: waiting.map(to_i32),
        slots: Some(to_i32(seen.total_up_to(slots))),
        held: Some(to_i32(counts.held)),
        free: Some(to_i32(counts.free)),
        draining: Some(to_i32(counts.draining)),
        ..SemaphoreStatus::default()
    };
    if let Some(holders) = holders {
        let listed = holders.list.len();
        let all = seen.held() as usize;
        status.holders_truncated = all > listed;
        status.holders = holders.list.iter().map(Into::into).collect();
        status.holders_summary = Some(summary(&status.holders, all));
    }
    let drained = match seen {
        Observed::Numbered(seen) => drained(seen, slots),
        Observed::Counted(_) => drained_tokens(counts.draining, slots),
    };
    let unit = semaphore.spec.naming().unit();
    let mut said = vec![drained, saturated(counts.held, counts.free, unit)];
    said.extend(observation.risks.as_ref().map(is_unsafe));
    (status, said)
}

/// Returns the selector for a Scale, which contains nothing else of the status. It
/// matches no pods. The chart's policy `revoke-scale` uses it to detect that lowering the
/// count revokes holders. The API server parses it for autoscalers: the value of a label
/// has a limit, and names may be longer.
fn selector(semaphore: &Semaphore) -> String {
    let after = semaphore.spec.drain.as_ref().and_then(|drain| drain.revoke_after.as_ref());
    let revokes = after.map(|after| format!(",{GROUP}/revoke-after={after}"));
    let name = shortened(&semaphore.name_any(), LABEL_VALUE);
    format!("{GROUP}/semaphore={name}{}", revokes.unwrap_or_default())
}

fn drained(seen: &ObservedSlots, slots: u32) -> ConditionUpdate {
    let draining: Vec<String> = seen.held.range(slots + 1..).take(10).map(u32::to_string).collect();
    if draining.is_empty() {
        return ConditionUpdate::new(
            DRAINED,
            true,
            reason::NONE_DRAINING,
            "No holder is above the count",
        );
    }
    let message = format!(
        "Still held above the count of {slots}: slot {}. No other client gets such a slot, and it is removed when its holder releases it",
        draining.join(", ")
    );
    ConditionUpdate::new(DRAINED, false, reason::HOLDERS_DRAINING, message)
}

/// Returns the condition for draining tokens. They are not numbered, so only their count
/// is known.
fn drained_tokens(draining: u32, tokens: u32) -> ConditionUpdate {
    if draining == 0 {
        return ConditionUpdate::new(
            DRAINED,
            true,
            reason::NONE_DRAINING,
            "No holder is above the count",
        );
    }
    let message = format!(
        "{} more than the count of {tokens} held. The first ones released are removed; no other client gets them",
        if draining == 1 { "1 token is".to_owned() } else { format!("{draining} tokens are") }
    );
    ConditionUpdate::new(DRAINED, false, reason::HOLDERS_DRAINING, message)
}

/// Returns the condition for a broker that is unsafe for the lock. The first risk gives its
/// reason.
fn is_unsafe(risks: &Risks) -> ConditionUpdate {
    let Some(first) = risks.found.first() else {
        let message = if risks.nodes_are_visible {
            "No partition of the broker's cluster and no harmful policy was found"
        } else {
            "No harmful policy was found. Whether the broker's cluster is partitioned is not known: give the management user the tag monitoring"
        };
        return ConditionUpdate::new(UNSAFE, false, reason::NO_RISK, message);
    };
    let all: Vec<String> = risks.found.iter().map(ToString::to_string).collect();
    ConditionUpdate::new(UNSAFE, true, first.reason(), all.join(". "))
}

fn saturated(held: u32, free: u32, unit: Unit) -> ConditionUpdate {
    let one = unit.one();
    let (saturated, reason, message) = match (held, free) {
        (_, 1..) => (false, reason::SLOTS_FREE, format!("A {one} may be taken")),
        (0, 0) => (true, reason::NO_SLOTS, format!("There is no {one} to take")),
        (_, 0) => (true, reason::ALL_SLOTS_HELD, format!("Every {one} is held")),
    };
    ConditionUpdate::new(SATURATED, saturated, reason, message)
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
