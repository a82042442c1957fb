//! What a Semaphore's status says of what was found on the broker: counts,
//! holders and the kind's own conditions. Pure; when it is written is
//! `report`'s.

use super::Findings;
use crate::api::conditions::{DRAINED, SATURATED, Say, reason};
use crate::api::semaphore::HolderStatus;
use crate::api::{GROUP, SemaphoreStatus};
use crate::operator::report::{Outcome, Report};
use crate::plan::naming::{Protocol, QueueType};
use crate::plan::semaphore::{Holder, SlotsSeen};

pub(super) fn in_sync_message(found: &Findings, suspended: bool) -> String {
    let suspended = if suspended { "; suspended" } else { "" };
    let who = match found.holders.as_ref().and_then(|h| h.management_error.as_ref()) {
        Some(error) => format!("; who the holders are is not known: {error}"),
        None => String::new(),
    };
    let wanted = slots(found.slots, found.has_slots);
    let limit = found.hold_limit.map(|limit| format!("; {limit}")).unwrap_or_default();
    format!("The broker has exactly the wanted {wanted}{suspended}{who}{limit}")
}

/// What a broker of this version does to a token that is held for long, where its queue
/// does not say that it may be.
pub(super) fn hold_limit(protocol: Protocol, version: &str) -> Option<&'static str> {
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    let release = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match (protocol, release) {
        (Protocol::Token(QueueType::Quorum), (3, 12..) | (4.., _))
        | (Protocol::Token(_), (4, 3..) | (5.., _)) => None,
        (Protocol::Token(_), (3, 12..) | (4, _)) => Some(
            "a token that is held for longer than the broker's consumer_timeout is lost, which is 30 min unless rabbitmq.conf or a policy says otherwise",
        ),
        (Protocol::Token(_), _) => Some(
            "a token that is held for longer than the broker's consumer_timeout is lost, which is 30 min unless rabbitmq.conf says otherwise",
        ),
        _ => None,
    }
}

/// So many slots, or tokens where there are no slots, in words.
pub(super) fn slots(count: u32, has_slots: bool) -> String {
    let (one, more) = units(has_slots);
    if count == 1 { format!("1 {one}") } else { format!("{count} {more}") }
}

fn units(has_slots: bool) -> (&'static str, &'static str) {
    if has_slots { ("slot", "slots") } else { ("token", "tokens") }
}

/// report's input: what was found, in the words of the status.
pub(super) fn to_report(found: &Findings, outcome: Outcome) -> Report<SemaphoreStatus> {
    let mut status = SemaphoreStatus {
        lock_name: Some(found.lock.clone()),
        backend: found.backend.clone(),
        highest_slot: found.mark.filter(|_| found.has_slots).map(to_i32),
        selector: Some(format!("{GROUP}/semaphore={}", found.name)),
        ..SemaphoreStatus::default()
    };
    status.waiting = found.waiting.map(to_i32);
    let mut said = Vec::new();
    if let (Some(seen), true) = (&found.seen, found.reached) {
        let counts = seen.counts(found.slots);
        status.slots = Some(count(seen.slots.range(..=found.slots).count()));
        status.held = Some(to_i32(counts.held));
        status.free = Some(to_i32(counts.free));
        status.draining = Some(to_i32(counts.draining));
        said.push(if found.has_slots {
            drained(seen, found.slots)
        } else {
            drained_tokens(counts.draining, found.slots)
        });
        said.push(saturated(counts.held, counts.free, found.has_slots));
    }
    if let Some(holders) = &found.holders {
        status.holders_truncated =
            found.seen.as_ref().is_some_and(|seen| seen.held.len() > holders.list.len());
        status.holders = holders.list.iter().map(Into::into).collect();
        status.holders_summary = Some(summary(&status.holders, status.holders_truncated));
    }
    Report { status, reached: found.reached, outcome, said, notes: found.notes.clone() }
}

fn drained(seen: &SlotsSeen, slots: u32) -> Say {
    let draining: Vec<String> = seen.held.range(slots + 1..).take(10).map(u32::to_string).collect();
    if draining.is_empty() {
        return Say::new(DRAINED, true, reason::NONE_DRAINING, "No holder is above the count");
    }
    let message = format!(
        "Still held above the count of {slots}: slot {}. Nobody else gets such a slot, and it goes when its holder releases it",
        draining.join(", ")
    );
    Say::new(DRAINED, false, reason::HOLDERS_DRAINING, message)
}

/// Tokens have no numbers, so that only how many there are is known.
fn drained_tokens(draining: u32, tokens: u32) -> Say {
    if draining == 0 {
        return Say::new(DRAINED, true, reason::NONE_DRAINING, "No holder is above the count");
    }
    let message = format!(
        "{} more than the count of {tokens} held. So many go, whosever are released first; nobody else gets them",
        if draining == 1 { "1 token is".to_owned() } else { format!("{draining} tokens are") }
    );
    Say::new(DRAINED, false, reason::HOLDERS_DRAINING, message)
}

fn saturated(held: u32, free: u32, has_slots: bool) -> Say {
    let (one, _) = units(has_slots);
    let (saturated, reason, message) = match (held, free) {
        (_, 1..) => (false, reason::SLOTS_FREE, format!("A {one} may be taken")),
        (0, 0) => (true, reason::NO_SLOTS, format!("There is no {one} to take")),
        (_, 0) => (true, reason::ALL_SLOTS_HELD, format!("Every {one} is held")),
    };
    Say::new(SATURATED, saturated, reason, message)
}

/// `1:deploy-7, 2:deploy-9`, short enough for a terminal.
fn summary(holders: &[HolderStatus], truncated: bool) -> String {
    const SHOWN: usize = 5;
    let mut parts: Vec<String> = holders
        .iter()
        .take(SHOWN)
        .map(|holder| {
            let who = holder.identity.as_deref().unwrap_or(&holder.id);
            holder.slot.map_or_else(|| who.to_owned(), |slot| format!("{slot}:{who}"))
        })
        .collect();
    if holders.len() > SHOWN || truncated {
        parts.push("…".to_owned());
    }
    parts.join(", ")
}

pub(super) fn to_i32(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

impl From<&Holder> for HolderStatus {
    fn from(holder: &Holder) -> Self {
        // Without `..`: a new fact about holders must be shown or left out here.
        let Holder { id, slot, identity, reason, url, since, connection, draining } =
            holder.clone();
        Self { id, slot: slot.map(to_i32), identity, reason, url, since, connection, draining }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_a_token_may_be_held_is_told_where_the_queue_does_not_say() {
        let says = |protocol, version| hold_limit(protocol, version).unwrap_or("no limit");
        let (classic, quorum) = (QueueType::Classic, QueueType::Quorum);
        for (queue_type, version, told) in [
            (classic, "3.10.8", "unless rabbitmq.conf says"),
            (classic, "3.12.0", "unless rabbitmq.conf or a policy says"),
            (classic, "4.0.5", "unless rabbitmq.conf or a policy says"),
            (classic, "4.3.0", "no limit"),
            (quorum, "3.10.8", "unless rabbitmq.conf says"),
            (quorum, "3.13.7", "no limit"),
            (quorum, "4.0.5", "no limit"),
        ] {
            let said = says(Protocol::Token(queue_type), version);
            assert!(said.contains(told), "{queue_type:?} on {version}: {said}");
        }
        assert_eq!(says(Protocol::ExclusiveConsumer, "3.10.8"), "no limit");
    }
}
