//! The repairs of a reconcile: diagnoses the queue, applies the repairs that the spec
//! allows, and reports by condition, events and metrics. See
//! [`plan`](crate::plan::pressure_queue::doctor) for the diagnosis.

use std::collections::BTreeSet;

use super::super::context::Context;
use super::super::error::StepError;
use super::super::outcome::Note;
use super::super::report::publish;
use super::findings::{Findings, State};
use crate::api::conditions::{DAMAGED, Say, find, reason};
use crate::api::validate::ValidQueue;
use crate::api::{PressureQueue, PressureQueueStatus};
use crate::plan::pressure_queue::doctor::{
    Against, Diagnosis, Effort, Finding, Remedy, Repair, symptoms,
};
use crate::plan::pressure_queue::{QueueRole, Remark};
use crate::pressure::{Deed, QueueDoctor, Repaired, Store};

/// Number of observations after which damage from before the start is visible again.
/// Until then the previous condition is kept.
const LOOKS_AFTER_A_START: u32 = 4;

/// Shortest pause between observations, as a fraction of the interval.
const SHORTEST_PAUSE: f64 = 0.9;

/// Reasons that a first observation cannot show.
const REASONS: [&str; 6] =
    ["RoleStuck", "HalfCreated", "Residue", "LostToken", "SurplusToken", "CounterDrift"];

/// Diagnoses the last observation, and applies the repairs that the spec allows.
pub(super) async fn examine(
    ctx: &Context,
    queue: &PressureQueue,
    valid: &ValidQueue,
    detail: &mut State,
    old: &PressureQueueStatus,
    found: &mut Findings,
) -> Result<(), StepError> {
    let Some(store) = detail.store.as_ref().map(|connected| connected.handle.clone()) else {
        return Ok(());
    };
    let Some(seen) = found.seen.clone() else { return Ok(()) };
    let doctor = detail.doctor.get_or_insert_with(|| new(ctx, &store, valid));
    let at = ctx.started.elapsed();
    found.is_mended = valid.repair && !valid.suspend;
    let effort = if found.is_mended { Effort::Repair } else { Effort::Report };
    let Diagnosis { damage, at_work, waiting, unsure } =
        doctor.look(&store, seen.clone(), at, effort).await?;
    detail.looks = detail.looks.saturating_add(1);
    let is_open = unsure || !at_work.is_empty() || !waiting.is_empty();
    if detail.looks <= LOOKS_AFTER_A_START && damage.is_empty() && is_open {
        found.kept = kept(old);
    }
    found.damage = damage;
    found.is_unsure = unsure;
    if let Some(by) = Diagnosis::drift(&seen) {
        ctx.metrics.damage.drifted(queue, by);
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
        // Stale: the queue has changed since. The next observation shows the result.
        let Some(doctor) = detail.doctor.as_mut() else { continue };
        if let Repaired::Done(deeds) = doctor.repair(&store, repair).await? {
            found.notes.push(repaired(&finding.remark, &deeds));
            ctx.metrics.damage.repaired(queue, finding.remark.reason());
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
        // One repair may enable the next one.
        found.is_unsure = true;
    }
    let reasons: Vec<&'static str> = found.damage.iter().map(|f| f.remark.reason()).collect();
    ctx.metrics.damage.found(queue, &reasons);
    Ok(())
}

/// Completes a deletion that is blocked because a dead client never released its role.
/// Requires `repairPolicy: Repair` and sufficient evidence.
pub(super) async fn finish_deletion(
    ctx: &Context,
    queue: &PressureQueue,
    valid: &ValidQueue,
    store: &Store,
    detail: &mut State,
) -> Result<bool, StepError> {
    if !valid.repair {
        return Ok(false);
    }
    let doctor = detail.doctor.get_or_insert_with(|| new(ctx, store, valid));
    doctor.expect_deletion();
    let seen = store.observe(&valid.queue).await?;
    let at = ctx.started.elapsed();
    for finding in doctor.look(store, seen, at, Effort::Repair).await?.damage {
        let Remedy::Mend(repair @ Repair::FinishDeletion { .. }) = &finding.remedy else {
            continue;
        };
        if let Repaired::Done(deeds) = doctor.repair(store, repair).await? {
            publish(ctx, queue, &repaired(&finding.remark, &deeds)).await;
            return Ok(true);
        }
    }
    Ok(false)
}

/// Creates a doctor for the queue. All queues of a connection share one client list of
/// the server in each interval, which is never longer than the pause between two
/// observations.
fn new(ctx: &Context, store: &Store, valid: &ValidQueue) -> QueueDoctor {
    let lists_every = ctx.rhythm.observe.mul_f64(SHORTEST_PAUSE);
    store.doctor(valid.queue.clone(), ctx.rhythm.repair_idle, lists_every)
}

fn repaired(remark: &Remark, deeds: &[Deed]) -> Note {
    let deeds: Vec<String> = deeds.iter().map(ToString::to_string).collect();
    let message = format!("Repaired: {remark}; {}", deeds.join(", "));
    Note::new(true, "Repaired", message).action(format!("Mended{}", key(remark)))
}

/// Returns the condition from before this process observed the queue.
fn kept(old: &PressureQueueStatus) -> Option<Say> {
    let said = find(&old.conditions, DAMAGED).filter(|condition| condition.status == "True")?;
    let reason = REASONS.into_iter().find(|reason| *reason == said.reason)?;
    Some(Say::new(DAMAGED, true, reason, said.message.clone()))
}

/// Adds one event for each damage that was not present at the last observation.
fn tell_new(detail: &mut State, old: &PressureQueueStatus, found: &mut Findings) {
    let now: BTreeSet<String> = found.damage.iter().map(|f| key(&f.remark)).collect();
    let told = detail.told.replace(now).unwrap_or_else(|| {
        // After a start, the condition shows which events were published.
        let was_told = |finding: &&Finding| {
            find(&old.conditions, DAMAGED).is_some_and(|condition| {
                condition.status == "True"
                    && condition.message.contains(&what(&finding.remark.to_string()))
            })
        };
        found.damage.iter().filter(was_told).map(|f| key(&f.remark)).collect()
    });
    // Damage that Ready reports already has an event.
    let is_new =
        |f: &&Finding| !told.contains(&key(&f.remark)) && !found.remarks.contains(&f.remark);
    for finding in found.damage.iter().filter(is_new) {
        let message = sentence(finding, found.is_mended);
        let action = format!("Found{}", key(&finding.remark));
        found.notes.push(Note::new(true, finding.remark.reason(), message).action(action));
    }
}

/// Returns the start of a remark, without the parts that differ after a start.
fn what(remark: &str) -> String {
    remark.split(", ").next().unwrap_or_default().to_owned()
}

/// Returns a key that distinguishes the damages of one queue.
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

/// Returns the condition Damaged, or `None` if there is no queue.
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

/// Describes the damage, and what will be or can be done about it.
fn sentence(Finding { remark, remedy }: &Finding, is_mended: bool) -> String {
    const HOW: &str = "repairPolicy: Repair or `lockkeeper queue doctor --repair` fixes it";
    match (remedy, is_mended) {
        (Remedy::Leave(text), _) => format!("{remark}; {text}"),
        (Remedy::Mend(_), true) => format!("{remark}; it is being repaired"),
        (Remedy::Mend(_), false) => format!("{remark}; {HOW}"),
        (Remedy::Wait(against @ Against::NotTold), _) => format!("{remark}; repaired {against}"),
        (Remedy::Wait(against), true) => format!("{remark}; it is repaired, but {against}"),
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
    fn a_damage_message_states_the_planned_or_the_possible_repair() {
        let of = |remedy| Finding { remark: Remark::LostToken, remedy };
        let mend = of(Remedy::Mend(Repair::SettleTokens));
        assert!(sentence(&mend, true).ends_with("; it is being repaired"));
        let text = sentence(&mend, false);
        assert!(text.contains("repairPolicy: Repair") && text.contains("queue doctor --repair"));
        let wait = of(Remedy::Wait(Against::Moved(Duration::from_secs(30))));
        assert!(sentence(&wait, true).contains("not before nothing has moved for 30 s"));
        let text = sentence(&of(Remedy::Wait(Against::NotTold)), true);
        assert!(text.contains("repaired never while the Redis user may not"), "{text}");
    }
}
