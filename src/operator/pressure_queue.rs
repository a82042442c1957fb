//! The reconcile of a `PressureQueue`, as a table of contents: validate, fetch,
//! observe, plan, apply, report. What to do is decided in
//! [`plan::pressure_queue`](crate::plan::pressure_queue); how Redis is touched is
//! in [`crate::pressure`].

mod doctor;
mod status;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};

pub(super) use self::doctor::finish_deletion;
use self::status::{outcome, to_report, waits_for};
use super::context::Context;
use super::error::{ReconcileError, StepError, pause, rhythmic};
use super::fetch::Connected;
use super::limits;
use super::memory::Memory;
use super::metrics::Asked;
use super::owners;
use super::report::{Managed, Note, Outcome, report};
use super::turns::Connection;
use crate::api::conditions::{READY, Say, find, reason};
use crate::api::validate::{self, ValidQueue};
use crate::api::{PressureQueue, PressureQueueStatus};
use crate::plan::naming::DEFAULT_PREFIX;
use crate::plan::pressure_queue::doctor::{Doctor, Finding, needs_second_look};
use crate::plan::pressure_queue::{
    Past, QueueEffect, QueuePlan, QueueSeen, Remark, WantedState, plan,
};
use crate::pressure::{Applied, Store};

/// What is remembered of a `PressureQueue` alone.
#[derive(Default)]
pub struct Detail {
    /// Remarks of the last look that are believed only when they are seen twice.
    suspected: Vec<Remark>,
    /// Remembers what was seen of the queue for as long as it may be damaged.
    doctor: Option<Doctor>,
    /// How often it has looked since a start.
    looks: u32,
    /// The damage of which events have told; absent after a start.
    told: Option<BTreeSet<String>>,
    /// The last store that answered, for a cleanup after its Secret is gone.
    pub(super) store: Option<Connected<Store>>,
}

type QueueMemory = Memory<PressureQueueStatus, Detail>;

/// While a change waits for a client, or a remark for its confirmation, look
/// this often.
const SOON: Duration = Duration::from_secs(1);

impl Managed for PressureQueue {
    fn connection(&self) -> Connection {
        Connection::of_queue(self)
    }
    /// As the keys have it: another prefix with another name can give the same ones.
    fn server_name(&self) -> String {
        let reference = self.spec.redis_reference.as_ref();
        let prefix = reference.map_or(DEFAULT_PREFIX, |reference| &reference.prefix);
        format!("{prefix}:{}", validate::queue_name(self))
    }
}

/// What the steps found out, as far as they came.
#[derive(Default)]
struct Findings {
    queue: String,
    backend: Option<String>,
    /// Whether the queue was closed when it was last seen: what is closed stays
    /// so, also while the server can't be asked.
    was_closed: Option<bool>,
    seen: Option<QueueSeen>,
    remarks: Vec<Remark>,
    /// What is believed only when it is seen again.
    unconfirmed: Vec<Remark>,
    /// What is broken.
    damage: Vec<Finding>,
    /// Whether that is mended, as far as it may be.
    is_mended: bool,
    /// The condition Damaged of before, while that can't be seen again yet.
    kept: Option<Say>,
    /// Whether the doctor must look again soon.
    is_unsure: bool,
    notes: Vec<Note>,
}

/// Makes the queue what the spec says, and reports.
pub async fn reconcile(
    queue: Arc<PressureQueue>,
    ctx: Arc<Context>,
) -> Result<Action, ReconcileError> {
    let memory = ctx.pressure_queues.of(&*queue);
    let mut memory = memory.lock().await;
    if let Some(left) = memory.quiet_for(&*queue) {
        return Ok(Action::requeue(left));
    }
    let old = memory.newest_status(&*queue, queue.status.as_ref()).unwrap_or_default();
    let mut found = Findings {
        queue: validate::queue_name(&queue),
        backend: old.backend.clone(),
        was_closed: old.closed,
        ..Findings::default()
    };
    let outcome = match steps(&queue, &ctx, &mut memory, &old, &mut found).await {
        Ok(outcome) => outcome,
        Err(error) => Outcome::Failed(error),
    };
    let next = match &outcome {
        Outcome::Failed(error) => {
            memory.failures += 1;
            pause(error.class(), memory.failures)
        }
        _ => {
            memory.failures = 0;
            let soon =
                !found.unconfirmed.is_empty() || found.is_unsure || waits_for(&found).is_some();
            rhythmic(if soon { SOON.min(ctx.rhythm.observe) } else { ctx.rhythm.observe })
        }
    };
    let again = report(&ctx, &*queue, &mut memory, to_report(&found, outcome)).await?;
    let next = again.map_or(next, |again| again.min(next));
    memory.be_quiet(&*queue, next);
    Ok(Action::requeue(next))
}

async fn steps(
    queue: &PressureQueue,
    ctx: &Context,
    memory: &mut QueueMemory,
    old: &PressureQueueStatus,
    found: &mut Findings,
) -> Result<Outcome, StepError> {
    // validate: pure.
    let valid = validate::pressure_queue(queue, ctx.default_names)?;
    limits::of_queue(ctx, queue)?;

    // fetch: the API server only.
    let namespace = queue.namespace().unwrap_or_default();
    let connected =
        ctx.connections.store(&namespace, valid.secret.as_deref(), valid.database).await?;
    found.backend = Some(connected.backend.clone());
    let store = connected.handle.clone();
    if memory.detail.store.as_ref().is_none_or(|last| last.backend != connected.backend) {
        memory.detail.doctor = None;
    }
    if let Some(owner) = owners::of_queue(ctx, queue, &connected, &valid.queue).await {
        let what = format!("the queue {} on {}", valid.queue, connected.backend);
        return Err(StepError::Conflict { owner, what });
    }

    // observe: one read of all keys.
    let look =
        async || ctx.metrics.timed(Asked::redis("observe"), store.observe(&valid.queue)).await;
    let seen = look().await?;
    memory.detail.store = Some(connected);

    // plan: pure.
    let past = Past {
        existed: old.bound.is_some() || old.closed.is_some(),
        closed: old.closed == Some(true),
    };
    let planned = plan(&valid.wish, &seen, &past);
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

    // What is true for an instant of every client's work is believed when seen twice.
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
        && valid.wish.state == WantedState::Open
    {
        found.notes.push(note(false, Remark::ClosedByClient.reason(), &Remark::ClosedByClient));
    }
    doctor::examine(ctx, queue, &valid, &mut memory.detail, old, found).await?;
    Ok(outcome(found))
}

/// Applies the effects in their order. Returns what there is to remark.
async fn apply(
    ctx: &Context,
    store: &Store,
    valid: &ValidQueue,
    planned: QueuePlan,
    old: &PressureQueueStatus,
    queue: &PressureQueue,
    found: &mut Findings,
) -> Result<Vec<Remark>, StepError> {
    let drift = old.observed_generation == queue.meta().generation
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
            // Somebody else was faster; the next look tells.
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
