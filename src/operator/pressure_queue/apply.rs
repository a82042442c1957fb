//! The reconcile of a `PressureQueue` with its server: observe, plan, apply, then its
//! diagnosis. See [`plan::pressure_queue`](lockkeeper_plan::pressure_queue) for the decisions,
//! and [`lockkeeper_pressure`] for the access to Redis.

use lockkeeper_api::PressureQueue;
use lockkeeper_api::conditions::{READY, find, reason};
use lockkeeper_plan::pressure_queue::doctor::needs_second_look;
use lockkeeper_plan::pressure_queue::{
    Applied as Effected, DesiredState, PreviousStatus, QueueEffect, QueuePlan, Remark, plan,
};

use super::doctor;
use super::state::{Observation, QueueState};
use super::status::outcome;
use super::step::Step;
use crate::operator::error::StepError;
use crate::operator::kind::{ReportedStatus, Session};
use crate::operator::metrics::Asked;
use crate::operator::outcome::{Applied, EventRecord, Outcome};
use crate::operator::status_writer::{announce, claiming};

/// Brings the queue to the spec, and diagnoses it.
pub(super) async fn converge(
    session: Session<'_, PressureQueue>,
    memory: &mut QueueState,
) -> Applied<Observation> {
    let Session { ctx, object: queue, old, valid, connected } = session;
    let (store, backend) = (connected.handle.clone(), connected.backend.clone());
    let step = Step { ctx, queue, old, valid, store, backend };
    if memory.detail.store.as_ref().is_none_or(|last| last.backend != connected.backend) {
        memory.detail.doctor = None;
    }
    // observe: one read of all keys.
    let mut observation = match step.look().await {
        Ok(seen) => Observation::new(seen),
        Err(error) => return Applied::failed(error),
    };
    memory.detail.store = Some(connected);
    let mut notes = Vec::new();
    let outcome = match step.ensure_queue(memory, &mut observation, &mut notes).await {
        Ok(outcome) => outcome,
        Err(error) => Outcome::Failed(error),
    };
    Applied { logged_in: true, observation: Some(observation), outcome, notes }
}

impl Step<'_> {
    /// Plans and applies the changes to the observed queue, and diagnoses the result.
    async fn ensure_queue(
        &self,
        memory: &mut QueueState,
        observation: &mut Observation,
        notes: &mut Vec<EventRecord>,
    ) -> Result<Outcome, StepError> {
        let Self { ctx, queue, old, valid, .. } = self;
        // plan: pure.
        let past = PreviousStatus {
            existed: old.bound.is_some() || old.closed.is_some(),
            closed: old.closed == Some(true),
        };
        let planned = plan(&valid.desired, &observation.seen, &past);

        // apply: only if there is something to do.
        if valid.suspend && !planned.effects.is_empty() {
            doctor::examine(self, &mut memory.detail, observation, notes).await?;
            return Ok(Outcome::Blocked {
                reason: reason::SUSPENDED,
                message: format!("Suspended: {}, once suspend is false", list(&planned.effects)),
            });
        }
        if !valid.suspend && !old.stands() {
            let session = (*ctx, *queue, self.backend.as_str());
            let said = claiming::<PressureQueue>(&valid.queue);
            announce(session, memory, (*old).clone(), old.observed_generation, said).await?;
        }
        let changes = !planned.effects.is_empty();
        let remarks = self.apply(planned, notes).await?;
        if changes {
            observation.seen = self.look().await?;
        }

        // States that occur for an instant during every client's work must be observed
        // twice.
        let is_confirmed =
            |r: &Remark| !needs_second_look(r) || memory.detail.suspected.contains(r);
        let (believed, suspected): (Vec<_>, Vec<_>) = remarks.into_iter().partition(is_confirmed);
        let confirmed = believed.iter().filter(|r| needs_second_look(r));
        memory.detail.suspected = suspected.iter().chain(confirmed).cloned().collect();
        observation.unconfirmed = suspected;
        observation.remarks = believed;
        let is_closed = observation.seen.bound.is_some() && observation.seen.closed;
        if is_closed && old.closed == Some(false) && valid.desired.state == DesiredState::Open {
            notes.push(note(false, Remark::ClosedByClient.reason(), &Remark::ClosedByClient));
        }
        doctor::examine(self, &mut memory.detail, observation, notes).await?;
        Ok(outcome(observation))
    }

    /// Applies the effects in order. Returns the resulting remarks.
    async fn apply(
        &self,
        mut planned: QueuePlan,
        notes: &mut Vec<EventRecord>,
    ) -> Result<Vec<Remark>, StepError> {
        let Self { ctx, valid, store, .. } = self;
        let recreated = planned.remarks.contains(&Remark::Recreated);
        for effect in std::mem::take(&mut planned.effects) {
            if !ctx.goes_on() {
                break;
            }
            let effected = store.apply(&valid.queue, &effect);
            let effected = ctx.metrics.timed(Asked::redis("apply"), effected).await?;
            planned.record(&effect, &effected);
            if effected == Effected::Done {
                notes.push(self.changed(&effect, recreated));
            }
        }
        Ok(planned.remarks)
    }

    /// Returns the event of a change, and counts a repair. `recreated` is true if the queue
    /// was deleted while open.
    fn changed(&self, effect: &QueueEffect, recreated: bool) -> EventRecord {
        let Self { ctx, queue, old, .. } = self;
        let drift = old.observed_generation == queue.metadata.generation
            && find(&old.conditions, READY).is_some_and(|c| c.status == "True");
        match effect {
            QueueEffect::Create { .. } if recreated => {
                ctx.metrics.corrected(*queue);
                note(true, Remark::Recreated.reason(), &Remark::Recreated)
            }
            QueueEffect::Create { bound } => {
                note(false, "Created", &format!("Created with bound {bound}"))
            }
            QueueEffect::SetBound { bound } => {
                if drift {
                    ctx.metrics.corrected(*queue);
                }
                let reason = if drift { "DriftRepaired" } else { "BoundChanged" };
                let message = format!("The bound is now {bound}");
                EventRecord::new(drift, reason, message).action(format!("BoundTo{bound}"))
            }
            QueueEffect::Close => note(false, "Closed", &"Closed, as the spec asks"),
        }
    }
}

fn note(warning: bool, reason: &'static str, message: &impl ToString) -> EventRecord {
    EventRecord::new(warning, reason, message.to_string())
}

fn list(effects: &[QueueEffect]) -> String {
    let one = |effect: &QueueEffect| match effect {
        QueueEffect::Create { bound } => format!("the queue will be created with bound {bound}"),
        QueueEffect::SetBound { bound } => format!("the bound will be {bound}"),
        QueueEffect::Close => "the queue will be closed".to_owned(),
    };
    effects.iter().map(one).collect::<Vec<_>>().join(" and ")
}
