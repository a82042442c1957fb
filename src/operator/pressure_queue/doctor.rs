//! The repairs of a reconcile: diagnoses the queue, applies the repairs that the spec
//! allows, and reports by condition, events and metrics. See
//! [`plan`](lockkeeper_plan::pressure_queue::doctor) for the diagnosis.

use std::collections::BTreeSet;

use lockkeeper_api::conditions::{ConditionUpdate, DAMAGED, find, reason};
use lockkeeper_api::validate::ValidQueue;
use lockkeeper_api::{PressureQueue, PressureQueueStatus};
use lockkeeper_plan::pressure_queue::doctor::{
    Against, Diagnosis, Effort, Finding, Remedy, Repair, symptoms,
};
use lockkeeper_plan::pressure_queue::{ObservedQueue, QueueRole, Remark};
use lockkeeper_pressure::{QueueDoctor, RepairAction, Repaired, Store};

use super::super::context::Context;
use super::super::error::StepError;
use super::super::outcome::EventRecord;
use super::super::status_writer::publish;
use super::state::{Diagnosed, Observation, State};
use super::step::Step;

/// Number of observations after which damage from before the start is visible again.
/// Until then the previous condition is kept.
const LOOKS_AFTER_A_START: u32 = 4;

/// Shortest pause between observations, as a fraction of the interval.
const SHORTEST_PAUSE: f64 = 0.9;

/// Reasons that a first observation cannot show.
const REASONS: [&str; 6] =
    ["RoleStuck", "HalfCreated", "Residue", "LostToken", "SurplusToken", "CounterDrift"];

/// Diagnoses the observed queue, and applies the repairs that the spec allows.
pub(super) async fn examine(
    step: &Step<'_>,
    detail: &mut State,
    observation: &mut Observation,
    notes: &mut Vec<EventRecord>,
) -> Result<(), StepError> {
    let Step { ctx, queue, valid, store, .. } = step;
    let is_mended = valid.repair && !valid.suspend;
    let found = diagnose(step, detail, &observation.seen, is_mended).await?;
    if let Some(by) = Diagnosis::drift(&observation.seen) {
        ctx.metrics.damage.drifted(*queue, by);
    }
    if found.kept.is_none() {
        let known = &observation.remarks;
        notes.extend(tell_new(detail, step.old, &found, known));
    }
    let mended = match &mut detail.doctor {
        Some(doctor) if is_mended => mend(step, doctor, &found.damage, notes).await,
        _ => Ok(Vec::new()),
    };
    let found = observation.diagnosed.insert(found);
    let mended = mended?;
    if !mended.is_empty() {
        let seen = store.observe(&valid.queue).await?;
        let left = symptoms(&seen);
        let is_left = |remark: &Remark| !mended.contains(remark) || left.contains(remark);
        found.damage.retain(|finding| is_left(&finding.remark));
        observation.remarks.retain(is_left);
        observation.seen = seen;
        // One repair may enable the next one.
        found.is_unsure = true;
    }
    let reasons: Vec<&'static str> = found.damage.iter().map(|f| f.remark.reason()).collect();
    ctx.metrics.damage.found(*queue, &reasons);
    Ok(())
}

/// Asks the doctor about the observed queue.
async fn diagnose(
    step: &Step<'_>,
    detail: &mut State,
    seen: &ObservedQueue,
    is_mended: bool,
) -> Result<Diagnosed, StepError> {
    let Step { ctx, old, valid, store, .. } = step;
    let doctor = detail.doctor.get_or_insert_with(|| new(ctx, store, valid));
    let effort = if is_mended { Effort::Repair } else { Effort::Report };
    let diagnosis = doctor.look(store, seen.clone(), ctx.started.elapsed(), effort).await?;
    let Diagnosis { damage, at_work, waiting, unsure } = diagnosis;
    detail.looks = detail.looks.saturating_add(1);
    let is_open = unsure || !at_work.is_empty() || !waiting.is_empty();
    let keeps = detail.looks <= LOOKS_AFTER_A_START && damage.is_empty() && is_open;
    let kept = if keeps { kept(old) } else { None };
    Ok(Diagnosed { damage, is_mended, kept, is_unsure: unsure })
}

/// Repairs the damage. Returns the remarks that no longer hold.
async fn mend(
    step: &Step<'_>,
    doctor: &mut QueueDoctor,
    damage: &[Finding],
    notes: &mut Vec<EventRecord>,
) -> Result<Vec<Remark>, StepError> {
    let Step { ctx, queue, store, .. } = step;
    let mut mended = Vec::new();
    for Finding { remark, remedy } in damage {
        let Remedy::Mend(repair) = remedy else { continue };
        if !ctx.goes_on() {
            break;
        }
        // Stale: the queue has changed since. The next observation shows the result.
        if let Repaired::Done(actions) = doctor.repair(store, repair).await? {
            notes.push(repaired(remark, &actions));
            ctx.metrics.damage.repaired(*queue, remark.reason());
            mended.push(remark.clone());
        }
    }
    Ok(mended)
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
        if let Repaired::Done(actions) = doctor.repair(store, repair).await? {
            publish(ctx, queue, &repaired(&finding.remark, &actions)).await;
            return Ok(true);
        }
    }
    Ok(false)
}

/// Creates a doctor for the queue. All queues of a connection share one client list of
/// the server in each interval, which is never longer than the pause between two
/// observations.
fn new(ctx: &Context, store: &Store, valid: &ValidQueue) -> QueueDoctor {
    let lists_every = ctx.intervals.observe.mul_f64(SHORTEST_PAUSE);
    store.doctor(valid.queue.clone(), ctx.intervals.repair_idle, lists_every)
}

fn repaired(remark: &Remark, actions: &[RepairAction]) -> EventRecord {
    let actions: Vec<String> = actions.iter().map(ToString::to_string).collect();
    let message = format!("Repaired: {remark}; {}", actions.join(", "));
    EventRecord::new(true, "Repaired", message).action(format!("Mended{}", key(remark)))
}

/// Returns the condition of the last status, if it names damage.
pub(super) fn kept(old: &PressureQueueStatus) -> Option<ConditionUpdate> {
    let said = find(&old.conditions, DAMAGED).filter(|condition| condition.status == "True")?;
    let reason = REASONS.into_iter().find(|reason| *reason == said.reason)?;
    Some(ConditionUpdate::new(DAMAGED, true, reason, said.message.clone()))
}

/// Returns one event for each damage that was not present at the last observation, except
/// for `known`, which Ready reports with an event.
fn tell_new(
    detail: &mut State,
    old: &PressureQueueStatus,
    found: &Diagnosed,
    known: &[Remark],
) -> Vec<EventRecord> {
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
    let is_new = |f: &&Finding| !told.contains(&key(&f.remark)) && !known.contains(&f.remark);
    let event = |finding: &Finding| {
        let message = sentence(finding, found.is_mended);
        let action = format!("Found{}", key(&finding.remark));
        EventRecord::new(true, finding.remark.reason(), message).action(action)
    };
    found.damage.iter().filter(is_new).map(event).collect()
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
pub(super) fn condition(found: &Diagnosed, seen: &ObservedQueue) -> Option<ConditionUpdate> {
    let Some(first) = found.damage.first() else {
        let none = || {
            ConditionUpdate::new(DAMAGED, false, reason::NO_DAMAGE, "Nothing is known to be broken")
        };
        return found.kept.clone().or_else(|| seen.bound.map(|_| none()));
    };
    let all: Vec<String> = found.damage.iter().map(|f| sentence(f, found.is_mended)).collect();
    Some(ConditionUpdate::new(DAMAGED, true, first.remark.reason(), all.join(". Also: ")))
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
