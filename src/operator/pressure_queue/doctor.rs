//! The doctor's part of a reconcile: a look, the repairs that the spec allows, and
//! what condition, events and metrics say of it. What is wrong and what may be
//! mended is decided in [`plan`](crate::plan::pressure_queue::doctor).

use std::collections::BTreeSet;

use super::super::context::Context;
use super::super::error::StepError;
use super::super::report::{Note, publish};
use super::{Detail, Findings};
use crate::api::conditions::{DAMAGED, Say, find, reason};
use crate::api::validate::ValidQueue;
use crate::api::{PressureQueue, PressureQueueStatus};
use crate::plan::pressure_queue::doctor::{Against, Diagnosis, Finding, Remedy, Repair, symptoms};
use crate::plan::pressure_queue::{QueueRole, Remark};
use crate::pressure::{Deed, Repaired, Store};

/// So many looks it takes until damage that was there before the start shows again;
/// until then the condition stays what it was.
const LOOKS_AFTER_A_START: u32 = 3;

/// What is not seen at a first look.
const REASONS: [&str; 6] =
    ["RoleStuck", "HalfCreated", "Residue", "LostToken", "SurplusToken", "CounterDrift"];

/// Looks at what was just seen, and mends what may be mended.
pub(super) async fn examine(
    ctx: &Context,
    queue: &PressureQueue,
    valid: &ValidQueue,
    detail: &mut Detail,
    old: &PressureQueueStatus,
    found: &mut Findings,
) -> Result<(), StepError> {
    let Some(store) = detail.store.as_ref().map(|connected| connected.handle.clone()) else {
        return Ok(());
    };
    let Some(seen) = found.seen.clone() else { return Ok(()) };
    let doctor = detail.doctor.get_or_insert_with(|| store.doctor(ctx.rhythm.repair_idle));
    let at = ctx.started.elapsed();
    let look = store.look_around(&valid.queue, doctor, seen.clone(), at, false).await?;
    let Diagnosis { damage, at_work, waiting, unsure } = doctor.look(look);
    detail.looks = detail.looks.saturating_add(1);
    let is_open = unsure || !at_work.is_empty() || !waiting.is_empty();
    if detail.looks <= LOOKS_AFTER_A_START && damage.is_empty() && is_open {
        found.kept = kept(old);
    }
    found.damage = damage;
    found.is_unsure = unsure;
    found.is_mended = valid.repair && !valid.suspend;
    if let Some(by) = Diagnosis::drift(&seen) {
        ctx.metrics.drifted(queue, by);
    }
    if found.kept.is_none() {
        tell_new(detail, old, found);
    }

    let mut mended: Vec<Remark> = Vec::new();
    for finding in &found.damage {
        let Remedy::Mend(repair) = &finding.remedy else { continue };
        if !found.is_mended || !ctx.goes_on() {
            continue;
        }
        // Stale: the queue has moved since; the next look tells.
        if let Repaired::Done(deeds) = store.repair(&valid.queue, repair).await? {
            found.notes.push(repaired(&finding.remark, &deeds));
            ctx.metrics.repaired(queue, finding.remark.reason());
            mended.push(finding.remark.clone());
        }
    }
    if !mended.is_empty() {
        let seen = store.observe(&valid.queue).await?;
        let left = symptoms(&seen);
        let is_left = |remark: &Remark| !mended.contains(remark) || left.contains(remark);
        found.damage.retain(|finding| is_left(&finding.remark));
        found.remarks.retain(is_left);
        found.seen = Some(seen);
        // One repair may make the next one possible.
        found.is_unsure = true;
    }
    let reasons: Vec<&'static str> = found.damage.iter().map(|f| f.remark.reason()).collect();
    ctx.metrics.damaged(queue, &reasons);
    Ok(())
}

/// Removes what a deletion can't because a dead client never gave its role back, if
/// the spec allows and the evidence is there.
pub(in crate::operator) async fn finish_deletion(
    ctx: &Context,
    queue: &PressureQueue,
    valid: &ValidQueue,
    store: &Store,
    detail: &mut Detail,
) -> Result<bool, StepError> {
    if !valid.repair {
        return Ok(false);
    }
    let doctor = detail.doctor.get_or_insert_with(|| store.doctor(ctx.rhythm.repair_idle));
    let seen = store.observe(&valid.queue).await?;
    let at = ctx.started.elapsed();
    let look = store.look_around(&valid.queue, doctor, seen, at, false).await?;
    for finding in doctor.look(look).damage {
        let Remedy::Mend(repair @ Repair::FinishDeletion { .. }) = &finding.remedy else {
            continue;
        };
        if let Repaired::Done(deeds) = store.repair(&valid.queue, repair).await? {
            publish(ctx, queue, &repaired(&finding.remark, &deeds)).await;
            return Ok(true);
        }
    }
    Ok(false)
}

fn repaired(remark: &Remark, deeds: &[Deed]) -> Note {
    let deeds: Vec<String> = deeds.iter().map(ToString::to_string).collect();
    let message = format!("Mended: {remark}; {}", deeds.join(", "));
    Note::new(true, "Repaired", message).action(format!("Mended{}", key(remark)))
}

/// What the condition said before this process looked.
fn kept(old: &PressureQueueStatus) -> Option<Say> {
    let said = find(&old.conditions, DAMAGED).filter(|condition| condition.status == "True")?;
    let reason = REASONS.into_iter().find(|reason| *reason == said.reason)?;
    Some(Say::new(DAMAGED, true, reason, said.message.clone()))
}

/// One event for each damage that was not there at the last look.
fn tell_new(detail: &mut Detail, old: &PressureQueueStatus, found: &mut Findings) {
    let now: BTreeSet<String> = found.damage.iter().map(|f| key(&f.remark)).collect();
    let told = detail.told.replace(now).unwrap_or_else(|| {
        // After a start the condition remembers.
        let was_told = |finding: &&Finding| {
            find(&old.conditions, DAMAGED).is_some_and(|condition| {
                condition.status == "True"
                    && condition.message.contains(&what(&finding.remark.to_string()))
            })
        };
        found.damage.iter().filter(was_told).map(|f| key(&f.remark)).collect()
    });
    // What Ready says has an event of Ready's.
    let is_new =
        |f: &&Finding| !told.contains(&key(&f.remark)) && !found.remarks.contains(&f.remark);
    for finding in found.damage.iter().filter(is_new) {
        let message = sentence(finding, found.is_mended);
        let action = format!("Found{}", key(&finding.remark));
        found.notes.push(Note::new(true, finding.remark.reason(), message).action(action));
    }
}

/// The beginning of a remark, without what differs after a start.
fn what(remark: &str) -> String {
    remark.split(", ").next().unwrap_or_default().to_owned()
}

/// What tells one damage from another of the same queue.
fn key(remark: &Remark) -> String {
    let which = match remark {
        Remark::RoleStuck { role: QueueRole::Producer, .. } => "Producer",
        Remark::RoleStuck { role: QueueRole::Consumer, .. } => "Consumer",
        Remark::SurplusToken { key, .. } => key,
        _ => "",
    };
    let camel: String = which
        .split([':', '_'])
        .map(|word| {
            let mut letters = word.chars();
            letters.next().map_or_else(String::new, |first| {
                first.to_ascii_uppercase().to_string() + letters.as_str()
            })
        })
        .collect();
    format!("{}{camel}", remark.reason())
}

/// The condition Damaged; nothing where there is no queue to speak of.
pub(super) fn condition(found: &Findings) -> Option<Say> {
    let Some(first) = found.damage.first() else {
        if found.kept.is_some() {
            return found.kept.clone();
        }
        let seen = found.seen.as_ref().filter(|seen| seen.bound.is_some());
        return seen
            .map(|_| Say::new(DAMAGED, false, reason::NO_DAMAGE, "Nothing is known to be broken"));
    };
    let all: Vec<String> = found.damage.iter().map(|f| sentence(f, found.is_mended)).collect();
    Some(Say::new(DAMAGED, true, first.remark.reason(), all.join(". Also: ")))
}

/// What is wrong, and what will be or can be done about it.
fn sentence(Finding { remark, remedy }: &Finding, is_mended: bool) -> String {
    const HOW: &str = "repairPolicy: Repair or `lockkeeper queue doctor --repair` mends it";
    match (remedy, is_mended) {
        (Remedy::Leave(text), _) => format!("{remark}; {text}"),
        (Remedy::Mend(_), true) => format!("{remark}; it is being mended"),
        (Remedy::Mend(_), false) => format!("{remark}; {HOW}"),
        (Remedy::Wait(against @ Against::NotTold), _) => format!("{remark}; mended {against}"),
        (Remedy::Wait(against), true) => format!("{remark}; it is mended, but {against}"),
        (Remedy::Wait(against), false) => format!("{remark}; {HOW}, but {against}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_kind_of_damage_has_an_action_of_its_own() {
        let surplus = |key| Remark::SurplusToken { key, count: 2 };
        assert_eq!(key(&surplus(":not_full")), "SurplusTokenNotFull");
        assert_eq!(key(&surplus(":producer_free")), "SurplusTokenProducerFree");
        assert_eq!(key(&Remark::LostToken), "LostToken");
    }

    #[test]
    fn a_damage_says_what_will_be_done_and_what_could_be() {
        let of = |remedy| Finding { remark: Remark::LostToken, remedy };
        let mend = of(Remedy::Mend(Repair::SettleTokens));
        assert!(sentence(&mend, true).ends_with("; it is being mended"));
        let text = sentence(&mend, false);
        assert!(text.contains("repairPolicy: Repair") && text.contains("queue doctor --repair"));
        let wait = of(Remedy::Wait(Against::Moved(Duration::from_secs(30))));
        assert!(sentence(&wait, true).contains("not before nothing has moved for 30 s"));
        let text = sentence(&of(Remedy::Wait(Against::NotTold)), true);
        assert!(text.contains("mended never while the Redis user may not"), "{text}");
    }
}
