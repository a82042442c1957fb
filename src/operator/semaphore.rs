//! The reconcile of a Semaphore, as a table of contents: validate, fetch,
//! observe, plan, apply, report. What to do is decided in
//! [`plan::semaphore`](crate::plan::semaphore); how the broker is touched is in
//! [`crate::semaphore`].

mod around;
mod guard;
mod revoking;
mod status;

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};

pub(super) use self::guard::in_use;
use self::status::{hold_limit, in_sync_message, slots, to_i32, to_report};
use super::context::Context;
use super::error::{ReconcileError, StepError, pause, rhythmic};
use super::fetch::Connected;
use super::limits;
use super::memory::Memory;
use super::metrics::Asked;
use super::owners;
use super::report::{Managed, Note, Outcome, ReportedStatus, now, report, write};
use super::turns::Connection;
use crate::api::conditions::{READY, RECONCILING, Say, find, merge, reason};
use crate::api::semaphore::MAX_LISTED_HOLDERS;
use crate::api::validate::{self, ValidSemaphore};
use crate::api::{Semaphore, SemaphoreStatus};
use crate::plan::semaphore::{SlotsSeen, plan, settled_mark, sweep_to};
use crate::semaphore::{Broker, BrokerError, Holders};

/// What is remembered of a Semaphore alone.
#[derive(Default)]
pub struct Detail {
    /// The last sweep: when, and what it found.
    swept: Option<(Instant, SlotsSeen)>,
    /// The highest slot that may have been made since a status was last written,
    /// for when that status must give way to another's.
    reaches: u32,
    /// The last broker that answered, for a cleanup after its Secret is gone.
    pub(super) broker: Option<Connected<Broker>>,
    /// Who holds since when, and which request to take a slot away was handled.
    holding: revoking::Holding,
}

type SemaphoreMemory = Memory<SemaphoreStatus, Detail>;

impl Managed for Semaphore {
    fn connection(&self) -> Connection {
        Connection::of_semaphore(self)
    }
    fn server_name(&self) -> String {
        validate::lock_name(self)
    }
}

impl ReportedStatus for SemaphoreStatus {
    fn conditions(&self) -> &Vec<Condition> {
        &self.conditions
    }
    fn complete(&mut self, generation: Option<i64>, conditions: Vec<Condition>) {
        self.observed_generation = generation;
        self.conditions = conditions;
    }
    fn without_counters(&self) -> Self {
        self.clone()
    }
}

/// What the steps found out, as far as they came.
#[derive(Default)]
struct Findings {
    name: String,
    lock: String,
    backend: Option<String>,
    reached: bool,
    slots: u32,
    /// What it has are numbered slots, not tokens.
    has_slots: bool,
    seen: Option<SlotsSeen>,
    holders: Option<Holders>,
    /// How many wait, where that is known.
    waiting: Option<u32>,
    /// Those who wait were told of what a change added.
    woken: bool,
    mark: Option<u32>,
    /// What its broker does to who holds for long.
    hold_limit: Option<&'static str>,
    notes: Vec<Note>,
    /// When to look again because of a holder that is to be revoked.
    revoke_again: Option<Duration>,
}

/// Makes the broker's slots what the spec says, and reports.
pub async fn reconcile(
    semaphore: Arc<Semaphore>,
    ctx: Arc<Context>,
) -> Result<Action, ReconcileError> {
    let memory = ctx.semaphores.of(&*semaphore);
    let mut memory = memory.lock().await;
    if let Some(left) = memory.quiet_for(&*semaphore) {
        return Ok(Action::requeue(left));
    }
    let old = memory.newest_status(&*semaphore, semaphore.status.as_ref()).unwrap_or_default();
    let mut findings = Findings {
        name: semaphore.name_any(),
        backend: old.backend.clone(),
        lock: validate::lock_name(&semaphore),
        has_slots: semaphore.spec.naming().has_slots(),
        mark: old.highest_slot.and_then(|mark| u32::try_from(mark).ok()),
        ..Findings::default()
    };
    let outcome = match steps(&semaphore, &ctx, &mut memory, &old, &mut findings).await {
        Ok(outcome) => outcome,
        // The process is stopping: whoever comes next starts from the broker's state.
        Err(StepError::Broker(BrokerError::Interrupted)) => return Ok(Action::await_change()),
        Err(StepError::Announce(error)) if matches!(*error, ReconcileError::Outdated) => {
            return Err(*error);
        }
        Err(error) => Outcome::Failed(error),
    };

    let next = match &outcome {
        Outcome::Failed(error) => {
            memory.failures += 1;
            memory.detail.swept = None;
            pause(error.class(), memory.failures)
        }
        _ => {
            memory.failures = 0;
            let incomplete = findings.holders.as_ref().is_some_and(|h| h.incomplete);
            rhythmic(if incomplete { FACTS_INTERVAL } else { ctx.rhythm.observe })
        }
    };
    let report_now = to_report(&findings, outcome);
    let again = report(&ctx, &*semaphore, &mut memory, report_now).await?;
    if again.is_none() {
        memory.detail.reaches = 0;
    }
    // Only after the event.
    revoking::clear(&ctx, &semaphore, &mut memory).await;
    let next = [again, findings.revoke_again].into_iter().flatten().fold(next, Duration::min);
    memory.be_quiet(&*semaphore, next);
    Ok(Action::requeue(next))
}

/// While facts about a new holder are on their way (the management API fills
/// them in up to 6 s late), look this often.
const FACTS_INTERVAL: std::time::Duration = std::time::Duration::from_secs(1);

async fn steps(
    semaphore: &Semaphore,
    ctx: &Context,
    memory: &mut SemaphoreMemory,
    old: &SemaphoreStatus,
    found: &mut Findings,
) -> Result<Outcome, StepError> {
    // validate: pure.
    let valid = validate::semaphore(semaphore, ctx.default_names)?;
    found.slots = valid.wish.slots;
    limits::of_semaphore(ctx, semaphore)?;

    // fetch: the API server only.
    let namespace = semaphore.namespace().unwrap_or_default();
    let connected =
        ctx.connections.broker(&namespace, valid.broker.as_ref(), valid.vhost.as_deref()).await?;
    found.backend = Some(connected.backend.clone());
    if let Some(owner) = owners::of_lock(ctx, semaphore, &connected, &valid.lock).await {
        let what = format!("the lock {} on {}", valid.lock, connected.backend);
        return Err(StepError::Conflict { owner, what });
    }

    // observe, plan, apply: the broker.
    let step = Step {
        semaphore,
        ctx,
        old,
        broker: connected.handle.clone(),
        sweep_due: memory.is_new_generation(semaphore)
            || memory
                .detail
                .swept
                .as_ref()
                .is_none_or(|(at, _)| at.elapsed() >= ctx.rhythm.sweep_age()),
        first_look: old.observed_generation != semaphore.meta().generation
            || find(&old.conditions, READY).is_none_or(|c| c.status != "True"),
        valid,
    };
    let blocked = step.put_right(memory, found).await;
    if found.reached {
        memory.detail.broker = Some(connected);
    }

    // Who holds and who waits: asked last, never in the way of the slots
    // themselves, and whatever became of them.
    step.tell_waiters(found).await;
    let Step { broker, valid, .. } = &step;
    if found.reached && !found.has_slots {
        let version = broker.identity().await?.version;
        found.hold_limit = hold_limit(valid.lock.protocol(), &version);
    }
    if let Some(seen) = &found.seen
        && !ctx.stop.is_cancelled()
    {
        let holders = broker.holders(&valid.lock, seen, valid.wish.slots, MAX_LISTED_HOLDERS);
        found.holders = Some(ctx.metrics.timed(Asked::rabbitmq("holders"), holders).await);
        found.revoke_again = step.revoke(memory, found).await?;
    }
    Ok(blocked?.unwrap_or_else(|| Outcome::Ready {
        reason: reason::IN_SYNC,
        message: in_sync_message(found, step.valid.suspend),
    }))
}

/// What the broker's steps work with.
struct Step<'a> {
    semaphore: &'a Semaphore,
    ctx: &'a Context,
    old: &'a SemaphoreStatus,
    broker: Broker,
    valid: ValidSemaphore,
    /// Slots are looked at now, not only holders.
    sweep_due: bool,
    /// The spec is new, or was not true at the last look.
    first_look: bool,
}

impl Step<'_> {
    /// Makes the slots as wished, or tells why that is not to be done.
    async fn put_right(
        &self,
        memory: &mut SemaphoreMemory,
        found: &mut Findings,
    ) -> Result<Option<Outcome>, StepError> {
        let wish = self.valid.wish;
        let written_mark = self.old.highest_slot.and_then(|mark| u32::try_from(mark).ok());
        if found.mark.is_none() && found.has_slots {
            found.mark = Some(self.broker.find_mark(&self.valid.lock, wish.overshoot).await?);
        }
        found.mark = found.mark.max(Some(memory.detail.reaches));
        if self.first_look && self.sweep_due && !self.valid.suspend {
            // A new wish: whatever the broker has, it is gone through under the
            // mutex, so nothing is looked at before. If nothing were there, the
            // mark that has to be written first would be the highest.
            let mark = plan(wish, &SlotsSeen::default(), written_mark).raise_mark_to;
            let mark = mark.filter(|_| found.has_slots);
            self.apply(memory, found, mark, &[]).await?;
        } else {
            // observe: without the mutex.
            let seen = self.observe(memory, found).await?;
            found.reached = true;

            // plan: pure. Without a sweep the slots are those of the last one, and
            // nothing is to be done about them.
            let planned = plan(wish, &seen, written_mark);
            found.seen = Some(seen);
            let differs = !planned.is_empty();
            let lost = if self.sweep_due && !self.valid.suspend {
                self.look_around(found).await?
            } else {
                Vec::new()
            };

            // apply: only if there is something to do.
            let (add, remove) = (planned.declare.len(), planned.delete.len());
            if self.valid.suspend && add + remove > 0 {
                let unit = if found.has_slots { "slots" } else { "tokens" };
                return Ok(Some(Outcome::Blocked {
                    reason: reason::SUSPENDED,
                    message: format!(
                        "Suspended: {add} {unit} to add and {remove} to remove once suspend is false"
                    ),
                }));
            }
            if self.sweep_due && (differs || !lost.is_empty()) && !self.valid.suspend {
                let mark = planned.raise_mark_to.filter(|_| found.has_slots);
                self.apply(memory, found, mark, &lost).await?;
            }
        }
        if self.sweep_due
            && let Some(seen) = &found.seen
        {
            memory.detail.swept = Some((Instant::now(), seen.clone()));
            found.mark = Some(settled_mark(wish.slots, seen));
        }
        Ok(None)
    }

    async fn look(&self, sweep_to: u32, holders_to: u32) -> Result<SlotsSeen, BrokerError> {
        let seen = self.broker.observe(&self.valid.lock, sweep_to, holders_to);
        self.ctx.metrics.timed(Asked::rabbitmq("observe"), seen).await
    }

    async fn observe(
        &self,
        memory: &SemaphoreMemory,
        found: &Findings,
    ) -> Result<SlotsSeen, BrokerError> {
        let (lock, wish) = (&self.valid.lock, self.valid.wish);
        let mark = found.mark.unwrap_or_default();
        let holders_to = mark.max(wish.slots);
        match &memory.detail.swept {
            // One look tells all about tokens.
            Some((_, swept)) if !self.sweep_due && lock.has_slots() => {
                let held = self.look(0, holders_to).await?.held;
                Ok(SlotsSeen { held, ..swept.clone() })
            }
            swept => {
                let since = swept.as_ref().map(|(at, _)| *at);
                let seen = self.broker.sweep(lock, sweep_to(wish, mark), holders_to, since);
                self.ctx.metrics.timed(Asked::rabbitmq("sweep"), seen).await
            }
        }
    }

    async fn apply(
        &self,
        memory: &mut SemaphoreMemory,
        found: &mut Findings,
        raise_mark_to: Option<u32>,
        lost: &[&'static str],
    ) -> Result<(), StepError> {
        let (lock, wish) = (&self.valid.lock, self.valid.wish);
        let mut mark = found.mark.unwrap_or_default();
        if let Some(higher) = raise_mark_to {
            // Never lower: what is above goes only now, and perhaps not all of it.
            mark = mark.max(higher);
            announce(self.semaphore, self.ctx, memory, self.old, found, mark).await?;
            found.mark = Some(mark);
        }
        let sweep = sweep_to(wish, mark);
        memory.detail.reaches = memory.detail.reaches.max(wish.slots);
        let metrics = &self.ctx.metrics;
        let converged = self.broker.converge(lock, wish, sweep, self.first_look, &self.ctx.stop);
        let converged = metrics.timed(Asked::rabbitmq("converge"), converged).await;
        match &converged {
            Ok(converged) => metrics.waited_for_mutex(converged.mutex_wait),
            Err(BrokerError::MutexBusy { waited, .. }) => metrics.waited_for_mutex(*waited),
            Err(_) => {}
        }
        // Where the broker answers, who holds what it has is told all the same.
        if let (
            None,
            Err(
                BrokerError::MutexBusy { .. }
                | BrokerError::IncompatibleQueue { .. }
                | BrokerError::NodeDown { .. },
            ),
        ) = (&found.seen, &converged)
        {
            found.seen = Some(self.look(sweep, mark.max(wish.slots)).await?);
        }
        found.reached |= found.seen.is_some();
        let converged = converged?;
        found.reached = true;
        found.waiting = converged.waiting;
        found.woken = converged.declared > 0;
        if converged.declared + converged.deleted > 0 || !lost.is_empty() {
            let drift = !self.first_look;
            if drift {
                metrics.corrected(self.semaphore);
            }
            let mut message = format!(
                "{}: {} added, {} removed",
                slots(wish.slots, found.has_slots),
                converged.declared,
                converged.deleted
            );
            for what in lost {
                message.extend([", ", what, " made again"]);
            }
            let reason = if drift { "DriftRepaired" } else { "Resized" };
            let what = if drift { "Repair" } else { "Resize" };
            let more = if lost.is_empty() { "" } else { "AndMore" };
            let action = format!("{what}To{}{more}", wish.slots);
            found.notes.push(Note::new(drift, reason, message).action(action));
        }
        found.seen = Some(converged.seen);
        Ok(())
    }
}

/// Writes the high-water mark before slots beyond it are made, so that an
/// operator that takes over finds all of them whatever happens to this one.
async fn announce(
    semaphore: &Semaphore,
    ctx: &Context,
    memory: &mut SemaphoreMemory,
    old: &SemaphoreStatus,
    found: &Findings,
    mark: u32,
) -> Result<(), StepError> {
    let mut status = old.clone();
    status.highest_slot = Some(to_i32(mark));
    let message = format!("Resizing to {}", slots(found.slots, found.has_slots));
    let generation = old.observed_generation;
    let said = vec![Say::new(RECONCILING, true, reason::RESIZING, message)];
    status.conditions.retain(|c| c.type_ != RECONCILING);
    status.conditions.extend(merge(&old.conditions, said, generation, &now()));
    write(ctx, semaphore, memory, status)
        .await
        .map_err(|source| StepError::Announce(Box::new(source)))
}
