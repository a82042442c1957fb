//! The reconcile of a `PressureQueue` with its server: observe, plan, apply, then its
//! diagnosis. See [`plan::pressure_queue`](crate::plan::pressure_queue) for the decisions,
//! and [`crate::pressure`] for the access to Redis.

use super::doctor;
use super::findings::{Findings, QueueState};
use super::status::outcome;
use crate::api::conditions::{READY, find, reason};
use crate::api::validate::ValidQueue;
use crate::api::{PressureQueue, PressureQueueStatus};
use crate::operator::context::Context;
use crate::operator::error::StepError;
use crate::operator::kind::Session;
use crate::operator::metrics::Asked;
use crate::operator::outcome::{Note, Outcome};
use crate::plan::pressure_queue::doctor::needs_second_look;
use crate::plan::pressure_queue::{
    DesiredState, PreviousStatus, QueueEffect, QueuePlan, Remark, plan,
};
use crate::pressure::{Applied, Store};

/// Brings the queue to the spec, and diagnoses it.
pub(super) async fn converge(
    session: Session<'_, PressureQueue>,
    memory: &mut QueueState,
    found: &mut Findings,
) -> Result<Outcome, StepError> {
    let Session { ctx, object: queue, old, valid, connected } = session;
    let store = connected.handle.clone();
    if memory.detail.store.as_ref().is_none_or(|last| last.backend != connected.backend) {
        memory.detail.doctor = None;
    }

    // observe: one read of all keys.
    let look =
        async || ctx.metrics.timed(Asked::redis("observe"), store.observe(&valid.queue)).await;
    let seen = look().await?;
    found.reached_backend.clone_from(&found.backend);
    memory.detail.store = Some(connected);

    // plan: pure.
    let past = PreviousStatus {
        existed: old.bound.is_some() || old.closed.is_some(),
        closed: old.closed == Some(true),
    };
    let planned = plan(&valid.desired, &seen, &past);
    found.seen = Some(seen);

    // apply: only if there is something to do.
    if valid.suspend && !planned.effects.is_empty() {
        doctor::examine(ctx, queue, &valid, &mut memory.detail, old, found).await?;
        return Ok(Outcome::Blocked {
            reason: reason::SUSPENDED,
            message: format!("Suspended: {}, once suspend is false", list(&planned.effects)),
        });
    }
    let effects = planned.effects.len();
    let remarks = apply(ctx, &store, &valid, planned, old, queue, found).await?;
    if effects > 0 {
        found.seen = Some(look().await?);
    }

    // States that occur for an instant during every client's work must be observed twice.
    let (believed, suspected): (Vec<_>, Vec<_>) = remarks
        .into_iter()
        .partition(|remark| !needs_second_look(remark) || memory.detail.suspected.contains(remark));
    let confirmed = believed.iter().filter(|r| needs_second_look(r));
    memory.detail.suspected = suspected.iter().chain(confirmed).cloned().collect();
    found.unconfirmed = suspected;
    found.remarks = believed;
    if let (Some(false), Some(seen)) = (old.closed, &found.seen)
        && seen.bound.is_some()
        && seen.closed
        && valid.desired.state == DesiredState::Open
    {
        found.notes.push(note(false, Remark::ClosedByClient.reason(), &Remark::ClosedByClient));
    }
    doctor::examine(ctx, queue, &valid, &mut memory.detail, old, found).await?;
    Ok(outcome(found))
}

/// Applies the effects in order. Returns the resulting remarks.
async fn apply(
    ctx: &Context,
    store: &Store,
    valid: &ValidQueue,
    planned: QueuePlan,
    old: &PressureQueueStatus,
    queue: &PressureQueue,
    found: &mut Findings,
) -> Result<Vec<Remark>, StepError> {
    let drift = old.observed_generation == queue.metadata.generation
        && find(&old.conditions, READY).is_some_and(|c| c.status == "True");
    let QueuePlan { effects, mut remarks } = planned;
    let recreated = remarks.contains(&Remark::Recreated);
    for effect in effects {
        if !ctx.goes_on() {
            break;
        }
        let applied = store.apply(&valid.queue, &effect);
        match (ctx.metrics.timed(Asked::redis("apply"), applied).await?, &effect) {
            (Applied::Done, QueueEffect::Create { .. }) if recreated => {
                ctx.metrics.corrected(queue);
                found.notes.push(note(true, Remark::Recreated.reason(), &Remark::Recreated));
            }
            (Applied::Done, QueueEffect::Create { bound }) => {
                found.notes.push(note(false, "Created", &format!("Created with bound {bound}")));
            }
            (Applied::Done, QueueEffect::SetBound { bound }) => {
                if drift {
                    ctx.metrics.corrected(queue);
                }
                let reason = if drift { "DriftRepaired" } else { "BoundChanged" };
                let message = format!("The bound is now {bound}");
                found
                    .notes
                    .push(Note::new(drift, reason, message).action(format!("BoundTo{bound}")));
            }
            (Applied::Done, QueueEffect::Close) => {
                found.notes.push(note(false, "Closed", &"Closed, as the spec asks"));
            }
            (Applied::ProducerBusy { who }, _) => {
                let waiting = Remark::WaitingForProducer { who };
                remarks.retain(|r| !matches!(r, Remark::WaitingForProducer { .. }));
                remarks.push(waiting);
                continue;
            }
            (Applied::Residue { keys }, _) => remarks.push(Remark::Residue { keys }),
            // Another client was faster. The next observation shows the result.
            (Applied::AlreadySo | Applied::Absent, _) => {}
        }
        if effect == QueueEffect::Close {
            remarks.retain(|r| !matches!(r, Remark::WaitingForProducer { .. }));
        }
    }
    Ok(remarks)
}

fn note(warning: bool, reason: &'static str, message: &impl ToString) -> Note {
    Note::new(warning, reason, message.to_string())
}

fn list(effects: &[QueueEffect]) -> String {
    let one = |effect: &QueueEffect| match effect {
        QueueEffect::Create { bound } => format!("the queue will be created with bound {bound}"),
        QueueEffect::SetBound { bound } => format!("the bound will be {bound}"),
        QueueEffect::Close => "the queue will be closed".to_owned(),
    };
    effects.iter().map(one).collect::<Vec<_>>().join(" and ")
}
