//! The reconcile of a Semaphore with its broker: observe, plan, apply, then its waiters,
//! holders and revocations. See [`plan::semaphore`](crate::plan::semaphore) for the
//! decisions, and [`crate::semaphore`] for the access to the broker.

use std::time::Instant;

use super::findings::{Findings, SemaphoreState};
use super::status::{in_sync_message, to_i32};
use crate::api::conditions::{READY, RECONCILING, STALLED, Say, find, merge, reason};
use crate::api::semaphore::MAX_LISTED_HOLDERS;
use crate::api::validate::ValidSemaphore;
use crate::api::{Semaphore, SemaphoreStatus};
use crate::operator::context::Context;
use crate::operator::error::StepError;
use crate::operator::kind::Session;
use crate::operator::metrics::Asked;
use crate::operator::outcome::{Note, Outcome};
use crate::operator::report::{now, write};
use crate::plan::semaphore::{Observed, ObservedSlots, plan, plan_slots, settled_mark, sweep_to};
use crate::semaphore::{Broker, BrokerError};

/// Converges the slots to the spec, and observes their holders and waiters.
pub(super) async fn converge(
    session: Session<'_, Semaphore>,
    memory: &mut SemaphoreState,
    found: &mut Findings,
) -> Result<Outcome, StepError> {
    let Session { ctx, object: semaphore, old, valid, connected } = session;
    found.slots = valid.desired.slots;
    connected.handle.log_in().await?;
    found.reached_backend.clone_from(&found.backend);

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
        first_look: old.observed_generation != semaphore.metadata.generation
            || find(&old.conditions, READY).is_none_or(|c| c.status != "True"),
        valid,
    };
    let blocked = step.put_right(memory, found).await;
    if found.reached {
        memory.detail.broker = Some(connected);
    }

    // Holders and waiters are queried last, so that they never delay the slots
    // themselves, and independently of the outcome for the slots.
    step.tell_waiters(found).await;
    let Step { broker, valid, .. } = &step;
    if found.reached {
        found.hold_limit = broker.hold_limit(&valid.lock).await?;
    }
    if let Some(seen) = &found.seen
        && !ctx.stop.is_cancelled()
    {
        let holders = broker.holders(&valid.lock, seen, valid.desired.slots, MAX_LISTED_HOLDERS);
        found.holders = Some(ctx.metrics.timed(Asked::rabbitmq("holders"), holders).await);
        found.revoke_again = step.revoke(memory, found).await?;
    }
    Ok(blocked?.unwrap_or_else(|| Outcome::Ready {
        reason: reason::IN_SYNC,
        message: in_sync_message(found, step.valid.suspend),
    }))
}

/// Input of the steps that use the broker.
pub(super) struct Step<'a> {
    pub semaphore: &'a Semaphore,
    pub ctx: &'a Context,
    pub old: &'a SemaphoreStatus,
    pub broker: Broker,
    pub valid: ValidSemaphore,
    /// Whether slots are swept now, in addition to holders.
    pub sweep_due: bool,
    /// Whether the spec is new, or was not fulfilled at the last observation.
    first_look: bool,
}

impl Step<'_> {
    /// Converges the slots to the spec, or returns why that is blocked.
    async fn put_right(
        &self,
        memory: &mut SemaphoreState,
        found: &mut Findings,
    ) -> Result<Option<Outcome>, StepError> {
        let desired = self.valid.desired;
        let written_mark = self.old.highest_slot.and_then(|mark| u32::try_from(mark).ok());
        if found.mark.is_none() {
            found.mark = self.broker.find_mark(&self.valid.lock, desired.overshoot).await?;
        }
        found.mark = found.mark.map(|mark| mark.max(memory.detail.reaches));
        if self.first_look && self.sweep_due && !self.valid.suspend {
            // New spec: all slots are checked under the mutex anyway, so they are not
            // observed before. The mark that must be written first is computed as if no
            // slot existed, because that gives the highest mark.
            let none = ObservedSlots::default();
            let mark = found.mark.and(plan_slots(desired, &none, written_mark).raise_mark_to);
            self.apply(memory, found, mark, &[]).await?;
        } else {
            // observe: without the mutex.
            let seen = self.observe(memory, found).await?;
            found.reached = true;

            // plan: pure. Without a sweep, the slots are those of the last one, and no
            // change to them is due.
            let planned = plan(desired, &seen, written_mark);
            found.seen = Some(seen);
            let differs = !planned.is_empty();
            let lost = if self.sweep_due && !self.valid.suspend {
                self.look_around(found).await?
            } else {
                Vec::new()
            };

            // apply: only if there is something to do.
            let (add, remove) = planned.changes();
            if self.valid.suspend && add + remove > 0 {
                let unit = found.unit.many();
                return Ok(Some(Outcome::Blocked {
                    reason: reason::SUSPENDED,
                    message: format!(
                        "Suspended: {add} {unit} to add and {remove} to remove once suspend is false"
                    ),
                }));
            }
            if self.sweep_due && (differs || !lost.is_empty()) && !self.valid.suspend {
                self.apply(memory, found, planned.raise_mark_to(), &lost).await?;
            }
        }
        if self.sweep_due
            && let Some(seen) = &found.seen
        {
            memory.detail.swept = Some((Instant::now(), seen.clone()));
            found.mark = seen.numbered().map(|seen| settled_mark(desired.slots, seen));
        }
        Ok(None)
    }

    async fn look(&self, sweep_to: u32, holders_to: u32) -> Result<Observed, BrokerError> {
        let seen = self.broker.observe(&self.valid.lock, sweep_to, holders_to);
        self.ctx.metrics.timed(Asked::rabbitmq("observe"), seen).await
    }

    async fn observe(
        &self,
        memory: &SemaphoreState,
        found: &Findings,
    ) -> Result<Observed, BrokerError> {
        let (lock, desired) = (&self.valid.lock, self.valid.desired);
        let mark = found.mark.unwrap_or_default();
        let holders_to = mark.max(desired.slots);
        match &memory.detail.swept {
            // Between two sweeps only the holders are observed. For tokens, one observation
            // contains everything.
            Some((_, Observed::Numbered(swept))) if !self.sweep_due => {
                let now = self.look(0, holders_to).await?;
                let held = now.numbered().map(|now| now.held.clone()).unwrap_or_default();
                Ok(Observed::Numbered(ObservedSlots { held, ..swept.clone() }))
            }
            swept => {
                let since = swept.as_ref().map(|(at, _)| *at);
                let seen = self.broker.sweep(lock, sweep_to(desired, mark), holders_to, since);
                self.ctx.metrics.timed(Asked::rabbitmq("sweep"), seen).await
            }
        }
    }

    async fn apply(
        &self,
        memory: &mut SemaphoreState,
        found: &mut Findings,
        raise_mark_to: Option<u32>,
        lost: &[&'static str],
    ) -> Result<(), StepError> {
        let (lock, desired) = (&self.valid.lock, self.valid.desired);
        let mut mark = found.mark.unwrap_or_default();
        if let Some(higher) = raise_mark_to {
            // Never lower: slots above the mark are only removed now, and possibly not
            // all of them.
            mark = mark.max(higher);
            announce(self.semaphore, self.ctx, memory, self.old, found, mark).await?;
            found.mark = Some(mark);
        }
        let sweep = sweep_to(desired, mark);
        memory.detail.reaches = memory.detail.reaches.max(desired.slots);
        let metrics = &self.ctx.metrics;
        let converged = self.broker.converge(lock, desired, sweep, self.first_look, &self.ctx.stop);
        let converged = metrics.timed(Asked::rabbitmq("converge"), converged).await;
        match &converged {
            Ok(converged) => metrics.waited_for_mutex(converged.mutex_wait),
            Err(BrokerError::MutexBusy { waited, .. }) => metrics.waited_for_mutex(*waited),
            Err(_) => {}
        }
        // The broker responds, so the existing slots and their holders are reported
        // despite the error.
        if let (
            None,
            Err(
                BrokerError::MutexBusy { .. }
                | BrokerError::IncompatibleQueue { .. }
                | BrokerError::ProtocolMismatch { .. }
                | BrokerError::NodeDown { .. },
            ),
        ) = (&found.seen, &converged)
        {
            found.seen = Some(self.look(sweep, mark.max(desired.slots)).await?);
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
                found.unit.count(desired.slots),
                converged.declared,
                converged.deleted
            );
            for what in lost {
                message.extend([", ", what, " made again"]);
            }
            let reason = if drift { "DriftRepaired" } else { "Resized" };
            let what = if drift { "Repair" } else { "Resize" };
            let more = if lost.is_empty() { "" } else { "AndMore" };
            let action = format!("{what}To{}{more}", desired.slots);
            found.notes.push(Note::new(drift, reason, message).action(action));
        }
        found.seen = Some(converged.seen);
        Ok(())
    }
}

/// Writes the high-water mark before slots beyond it are created. A successor then finds
/// all of them, even if this process fails.
async fn announce(
    semaphore: &Semaphore,
    ctx: &Context,
    memory: &mut SemaphoreState,
    old: &SemaphoreStatus,
    found: &Findings,
    mark: u32,
) -> Result<(), StepError> {
    let mut status = old.clone();
    status.highest_slot = Some(to_i32(mark));
    status.reached_backend.clone_from(&found.reached_backend);
    let message = format!("Resizing to {}", found.unit.count(found.slots));
    let generation = old.observed_generation;
    let said = vec![Say::new(RECONCILING, true, reason::RESIZING, message)];
    // The reason for Stalled no longer applies.
    status.conditions.retain(|c| ![RECONCILING, STALLED].contains(&c.type_.as_str()));
    status.conditions.extend(merge(&old.conditions, said, generation, &now()));
    write(ctx, semaphore, memory, status)
        .await
        .map_err(|source| StepError::Announce(Box::new(source)))
}
