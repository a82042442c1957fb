//! The reconcile of a Semaphore with its broker: observe, plan, apply, then its waiters,
//! holders and revocations. See [`plan::semaphore`](lockkeeper_plan::semaphore) for the
//! decisions, and [`lockkeeper_semaphore`] for the access to the broker.

use std::time::Instant;

use lockkeeper_api::conditions::{ConditionUpdate, READY, RECONCILING, find, reason};
use lockkeeper_api::semaphore::{MAX_LISTED_HOLDERS, to_i32};
use lockkeeper_api::validate::ValidSemaphore;
use lockkeeper_api::{Semaphore, SemaphoreStatus};
use lockkeeper_plan::semaphore::{Auxiliary, Observed, ObservedSlots, plan_slots, settled_mark};
use lockkeeper_semaphore::{Broker, BrokerError, Converged, ManagedLock, Source};

use super::state::{Observation, SemaphoreState};
use super::status::in_sync_message;
use crate::operator::context::Context;
use crate::operator::error::StepError;
use crate::operator::kind::{ReportedStatus, Session};
use crate::operator::metrics::Asked;
use crate::operator::outcome::{Applied, EventRecord, Outcome};
use crate::operator::status_writer::{announce, claiming};

/// Converges the slots to the spec, and observes their holders and waiters.
pub(super) async fn converge(
    session: Session<'_, Semaphore>,
    memory: &mut SemaphoreState,
) -> Applied<Observation> {
    let Session { ctx, object: semaphore, old, valid, connected } = session;
    if let Err(error) = connected.handle.log_in().await {
        return Applied::failed(error);
    }
    let step = Step {
        semaphore,
        ctx,
        old,
        broker: connected.handle.clone(),
        backend: connected.backend.clone(),
        sweep_due: memory.is_new_generation(semaphore)
            || memory
                .detail
                .swept
                .as_ref()
                .is_none_or(|(at, _)| at.elapsed() >= ctx.intervals.sweep_age()),
        first_look: old.observed_generation != semaphore.metadata.generation
            || find(&old.conditions, READY).is_none_or(|c| c.status != "True"),
        valid,
    };
    let mut notes = Vec::new();
    let (mut observation, slots) = match step.ensure_slots(memory, &mut notes).await {
        Ok(ensured) => ensured,
        Err(error) => return Applied { logged_in: true, notes, ..Applied::failed(error) },
    };
    memory.detail.broker = Some(connected);
    let woken = matches!(slots, Ok(Progress::Done { added: 1.. }));
    let clients = step.observe_clients(memory, &mut observation, woken, &mut notes).await;
    let outcome = match clients.map_err(StepError::from).and(slots) {
        Err(error) => Outcome::Failed(error),
        Ok(Progress::Blocked(message)) => Outcome::Blocked { reason: reason::SUSPENDED, message },
        Ok(Progress::Done { .. }) => Outcome::Ready {
            reason: reason::IN_SYNC,
            message: in_sync_message(&observation, &step.valid),
        },
    };
    Applied { logged_in: true, observation: Some(observation), outcome, notes }
}

/// Input of the steps that use the broker.
pub(super) struct Step<'a> {
    pub semaphore: &'a Semaphore,
    pub ctx: &'a Context,
    pub old: &'a SemaphoreStatus,
    pub broker: Broker,
    backend: String,
    pub valid: ValidSemaphore,
    /// Whether slots are swept now, in addition to holders.
    pub sweep_due: bool,
    /// Whether the spec is new, or was not fulfilled at the last observation.
    first_look: bool,
}

/// How far the slots were brought to the spec.
enum Progress {
    /// The broker has the desired slots. Contains how many were added.
    Done { added: u32 },
    /// The slots must not be changed, for this reason.
    Blocked(String),
}

/// An observation of slots, also if a change to them failed.
type Ensured = (Observation, Result<Progress, StepError>);

impl Step<'_> {
    /// Returns the lock with its desired state.
    fn managed(&self) -> ManagedLock<'_> {
        ManagedLock::new(&self.broker, &self.valid.lock, self.valid.desired)
    }

    /// Converges the slots to the spec. Fails if they could not be observed.
    async fn ensure_slots(
        &self,
        memory: &mut SemaphoreState,
        notes: &mut Vec<EventRecord>,
    ) -> Result<Ensured, StepError> {
        let declares = self.first_look && self.sweep_due && !self.valid.suspend;
        let mark = if declares {
            self.managed().mark_for_change(self.written_mark()).await?
        } else {
            self.managed().mark(self.written_mark()).await?
        };
        let mark = mark.map(|mark| mark.max(memory.detail.reaches));
        let (mut observation, progress) = if declares {
            self.declare(memory, mark, notes).await?
        } else {
            let mut observation = Observation::new(self.observe(memory, mark).await?, mark);
            let progress = match self.check_protocol(&observation).await {
                Ok(()) => self.repair(memory, &mut observation, notes).await,
                Err(error) => Err(error.into()),
            };
            (observation, progress)
        };
        if self.sweep_due && matches!(progress, Ok(Progress::Done { .. })) {
            let seen = &observation.seen;
            memory.detail.swept = Some((Instant::now(), seen.clone()));
            let slots = self.valid.desired.slots;
            observation.mark = seen.numbered().map(|seen| settled_mark(slots, seen));
        }
        Ok((observation, progress))
    }

    /// Applies a new spec. All slots are checked under the mutex anyway, so they are not
    /// observed before.
    async fn declare(
        &self,
        memory: &mut SemaphoreState,
        mark: Option<u32>,
        notes: &mut Vec<EventRecord>,
    ) -> Result<Ensured, StepError> {
        let desired = self.valid.desired;
        // The mark that must be written first is computed as if no slot existed, because
        // that gives the highest mark.
        let none = ObservedSlots::default();
        let raise_to = mark.and(plan_slots(desired, &none, self.written_mark()).raise_mark_to);
        let mark = self.raise_mark(memory, mark, raise_to).await?;
        match self.apply(memory, mark, &Auxiliary::default(), notes).await {
            Ok(Converged { seen, waiting, declared, .. }) => {
                let observation = Observation { waiting, ..Observation::new(seen, mark) };
                Ok((observation, Ok(Progress::Done { added: declared })))
            }
            // The broker responds, so the existing slots and their holders are reported
            // despite the error.
            Err(
                error @ (BrokerError::MutexBusy { .. }
                | BrokerError::IncompatibleQueue { .. }
                | BrokerError::ProtocolMismatch { .. }
                | BrokerError::TokensLimited { .. }
                | BrokerError::NodeDown { .. }),
            ) => {
                let managed = self.managed();
                let seen = managed.observe(mark, Source::Probes);
                let seen = self.ctx.metrics.timed(Asked::rabbitmq("observe"), seen).await?;
                Ok((Observation::new(seen, mark), Err(error.into())))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Fails if a sweep finds queues of another protocol under the lock's name.
    async fn check_protocol(&self, observation: &Observation) -> Result<(), BrokerError> {
        if !self.sweep_due {
            return Ok(());
        }
        self.broker.check_protocol(&self.valid.lock, &observation.seen).await
    }

    /// Plans the changes to the observed slots, and applies them if there are any.
    async fn repair(
        &self,
        memory: &mut SemaphoreState,
        observation: &mut Observation,
        notes: &mut Vec<EventRecord>,
    ) -> Result<Progress, StepError> {
        let mut auxiliary = Auxiliary::default();
        if self.sweep_due && !self.valid.suspend {
            let source = Source::List { since: None };
            auxiliary = self.managed().observe_auxiliary(&observation.seen, source).await?;
            observation.waiting = auxiliary.waiting;
        }
        // plan: pure. Without a sweep, the slots are those of the last one, and no change
        // to them is due.
        let planned = self.managed().plan(&observation.seen, auxiliary, self.written_mark());
        let (add, remove) = planned.slots.changes();
        if self.valid.suspend && add + remove > 0 {
            let unit = self.valid.lock.unit().many();
            return Ok(Progress::Blocked(format!(
                "Suspended: {add} {unit} to add and {remove} to remove once suspend is false"
            )));
        }
        if !self.sweep_due || self.valid.suspend || planned.is_empty() {
            return Ok(Progress::Done { added: 0 });
        }

        // apply: under the admin mutex.
        observation.mark =
            self.raise_mark(memory, observation.mark, planned.slots.raise_mark_to()).await?;
        let converged = self.apply(memory, observation.mark, &planned.auxiliary, notes).await?;
        let Converged { seen, waiting, declared, .. } = converged;
        (observation.seen, observation.waiting) = (seen, waiting);
        Ok(Progress::Done { added: declared })
    }

    /// Returns the high-water mark of the last status.
    fn written_mark(&self) -> Option<u32> {
        self.old.highest_slot.and_then(|mark| u32::try_from(mark).ok())
    }

    /// Observes slots and holders, without the admin mutex.
    async fn observe(
        &self,
        memory: &SemaphoreState,
        mark: Option<u32>,
    ) -> Result<Observed, BrokerError> {
        let (managed, metrics) = (self.managed(), &self.ctx.metrics);
        match &memory.detail.swept {
            // Between two sweeps only the holders are observed. For tokens, one observation
            // contains everything.
            Some((_, Observed::Numbered(swept))) if !self.sweep_due => {
                let now = managed.observe_holders(mark);
                let now = metrics.timed(Asked::rabbitmq("observe"), now).await?;
                let held = now.numbered().map(|now| now.held.clone()).unwrap_or_default();
                Ok(Observed::Numbered(ObservedSlots { held, ..swept.clone() }))
            }
            swept => {
                let since = swept.as_ref().map(|(at, _)| *at);
                let seen = managed.observe(mark, Source::List { since });
                metrics.timed(Asked::rabbitmq("sweep"), seen).await
            }
        }
    }

    /// Converges the lock, given the high-water mark and its other queues.
    async fn apply(
        &self,
        memory: &mut SemaphoreState,
        mark: Option<u32>,
        auxiliary: &Auxiliary,
        notes: &mut Vec<EventRecord>,
    ) -> Result<Converged, BrokerError> {
        let slots = self.valid.desired.slots;
        memory.detail.reaches = memory.detail.reaches.max(slots);
        let metrics = &self.ctx.metrics;
        let thorough = self.first_look || auxiliary.has_surplus_records;
        let managed = self.managed();
        let converged = managed.apply(mark, thorough, &self.ctx.stop);
        let converged = metrics.timed(Asked::rabbitmq("converge"), converged).await;
        match &converged {
            Ok(converged) => metrics.waited_for_mutex(converged.mutex_wait),
            Err(BrokerError::MutexBusy { waited, .. }) => metrics.waited_for_mutex(*waited),
            Err(_) => {}
        }
        let converged = converged?;
        let repairs = auxiliary.repairs();
        if converged.declared + converged.deleted > 0 || !repairs.is_empty() {
            if !self.first_look {
                metrics.corrected(self.semaphore);
            }
            notes.push(self.resized(&converged, &repairs));
        }
        Ok(converged)
    }

    /// Returns the event of a change.
    fn resized(&self, converged: &Converged, repairs: &[String]) -> EventRecord {
        let drift = !self.first_look;
        let slots = self.valid.desired.slots;
        let count = self.valid.lock.unit().count(slots);
        let Converged { declared, deleted, .. } = converged;
        let mut message = format!("{count}: {declared} added, {deleted} removed");
        for repair in repairs {
            message.extend([", ", repair]);
        }
        let reason = if drift { "DriftRepaired" } else { "Resized" };
        let what = if drift { "Repair" } else { "Resize" };
        let more = if repairs.is_empty() { "" } else { "AndMore" };
        EventRecord::new(drift, reason, message).action(format!("{what}To{slots}{more}"))
    }

    /// Writes a higher mark before slots beyond the last one are created, and before the
    /// first effect that the object is the owner. A successor then finds all slots and
    /// keeps the owner, even if this process fails.
    async fn raise_mark(
        &self,
        memory: &mut SemaphoreState,
        mark: Option<u32>,
        raise_to: Option<u32>,
    ) -> Result<Option<u32>, StepError> {
        if raise_to.is_none() && self.old.stands() {
            return Ok(mark);
        }
        let ValidSemaphore { lock, desired, .. } = &self.valid;
        let mut status = self.old.clone();
        let mut said = claiming::<Semaphore>(lock);
        // Never lower: slots above the mark are only removed now, and possibly not all of
        // them.
        let raised = mark.max(raise_to);
        if raise_to.is_some() {
            status.highest_slot = raised.map(to_i32);
            let message = format!("Resizing to {}", lock.unit().count(desired.slots));
            said = ConditionUpdate::new(RECONCILING, true, reason::RESIZING, message);
        }
        let generation = self.old.observed_generation;
        let session = (self.ctx, self.semaphore, self.backend.as_str());
        announce(session, memory, status, generation, said).await?;
        Ok(raised)
    }

    /// Observes waiters and holders, and revokes holders as requested or due. Comes last,
    /// so that it never delays the slots themselves, and independently of the outcome for
    /// the slots. `woken` is true if waiters were already notified of added slots.
    async fn observe_clients(
        &self,
        memory: &mut SemaphoreState,
        observation: &mut Observation,
        woken: bool,
        notes: &mut Vec<EventRecord>,
    ) -> Result<(), BrokerError> {
        let (ctx, lock) = (self.ctx, &self.valid.lock);
        self.tell_waiters(observation, woken).await;
        observation.hold_limit = self.broker.hold_limit(lock).await?;
        if self.sweep_due {
            let mut risks = self.broker.risks(lock).await;
            if let Some(risks) = &mut risks {
                risks.found.retain(|risk| risk.harms(self.valid.desired.slots));
            }
            memory.detail.risks = risks;
        }
        observation.risks.clone_from(&memory.detail.risks);
        if ctx.stop.is_cancelled() {
            return Ok(());
        }
        let slots = self.valid.desired.slots;
        let holders = self.broker.holders(lock, &observation.seen, slots, MAX_LISTED_HOLDERS);
        let holders = ctx.metrics.timed(Asked::rabbitmq("holders"), holders).await;
        let revoking = self.revoke(&mut memory.detail.holding, &holders.list, notes);
        observation.revoke_again = revoking.await?;
        observation.holders = Some(holders);
        Ok(())
    }
}
