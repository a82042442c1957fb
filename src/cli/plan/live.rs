//! Observes an object on its server and determines the required changes. Uses the
//! operator's own decisions in [`lockkeeper_plan`].

use lockkeeper_api::validate::{self, DefaultRules, ValidQueue, ValidSemaphore};
use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_plan::pressure_queue::{
    ObservedQueue, PreviousStatus, QueueEffect, plan as plan_queue,
};
use lockkeeper_plan::semaphore::{Observed, Plan, SlotPlan, plan as plan_slots, sweep_to};
use lockkeeper_pressure::{Store, StoreError, StoreOptions};
use lockkeeper_semaphore::{Broker, BrokerOptions};
use serde_json::Value;

use super::render::{Action, Change, Shown};
use super::servers::Resolver;
use crate::cli::failure::Failure;
use crate::cli::manifest::Object;
use crate::cli::semaphore::target::failed;
use crate::cli::validate::INVALID;

/// The required changes of one object, and how to apply them.
pub(in crate::cli) struct Step {
    pub shown: Shown,
    pub work: Work,
}

/// The client and settings for applying a change.
pub(in crate::cli) enum Work {
    Nothing,
    Slots { broker: Broker, valid: Box<ValidSemaphore>, sweep_to: u32 },
    Queue { store: Store, valid: Box<ValidQueue>, effects: Vec<QueueEffect> },
}

/// Observes an object on its server. Changes nothing.
pub(in crate::cli) async fn look(object: &Object, resolver: &Resolver) -> Result<Step, Failure> {
    match object {
        Object::Semaphore(object) => semaphore(object, resolver).await,
        Object::Queue(object) => queue(object, resolver).await,
    }
}

async fn semaphore(object: &Semaphore, resolver: &Resolver) -> Result<Step, Failure> {
    let valid = validate::semaphore(object, DefaultRules::ANYTHING)
        .map_err(|error| Failure::new(INVALID, error.to_string()))?;
    let namespace = object.metadata.namespace.clone().unwrap_or_default();
    // Only Kubernetes knows where a RabbitmqCluster is. Here the environment provides it.
    let secret = valid.broker.as_ref().filter(|broker| !broker.is_cluster);
    let of = secret.and_then(|secret| secret.namespace.as_deref()).unwrap_or(&namespace);
    let secret = secret.map(|secret| secret.name.as_str());
    let settings = resolver.rabbitmq(of, secret, valid.vhost.as_deref())?;
    let mut shown = Shown {
        kind: "Semaphore",
        name: object.metadata.name.clone().unwrap_or_default(),
        namespace,
        server: settings.place(),
        target: valid.lock.to_string(),
        action: Action::Suspended,
        changes: Vec::new(),
        draining: 0,
        notes: Vec::new(),
    };
    if valid.suspend {
        return Ok(Step { shown, work: Work::Nothing });
    }
    if object.spec.drain.is_some() {
        shown.notes.push("drain.revokeAfter is ignored: only the operator revokes".to_owned());
    }
    let broker = Broker::new(settings, BrokerOptions::default());
    let mark = broker.find_highest_slot(&valid.lock, valid.desired.overshoot).await;
    let mark = mark.map_err(|error| failed(&error))?.unwrap_or_default();
    let sweep = sweep_to(valid.desired, mark);
    let seen = broker.observe(&valid.lock, sweep, sweep).await.map_err(|error| failed(&error))?;
    let planned = plan_slots(valid.desired, &seen, None);
    shown.draining = draining(&valid, &seen, &planned);
    let exists = exists(&broker, &valid, &seen).await?;
    shown.changes = differences(&broker, &valid, &seen, &planned, exists).await?;
    shown.action = match (exists, shown.changes.is_empty()) {
        (false, false) => Action::Create,
        (true, false) => Action::Update,
        (_, true) => Action::None,
    };
    let work = match shown.action {
        Action::None => Work::Nothing,
        _ => Work::Slots { broker, valid: Box::new(valid), sweep_to: sweep },
    };
    Ok(Step { shown, work })
}

/// Returns whether the semaphore exists. A semaphore of 0 slots also has a queue, except
/// in profile `AmqpLocksPython`.
async fn exists(broker: &Broker, valid: &ValidSemaphore, seen: &Observed) -> Result<bool, Failure> {
    if seen.total() > 0 {
        return Ok(true);
    }
    let waiting = broker.waiting(&valid.lock).await.map_err(|error| failed(&error))?;
    Ok(waiting.is_some())
}

async fn differences(
    broker: &Broker,
    valid: &ValidSemaphore,
    seen: &Observed,
    planned: &Plan,
    exists: bool,
) -> Result<Vec<Change>, Failure> {
    let (lock, desired) = (&valid.lock, valid.desired);
    let mut changes = Vec::new();
    let (what, before) = (lock.unit().many(), seen.total());
    // A semaphore without slots is created only for its auxiliary queues.
    let is_token_queue = matches!(planned, Plan::Counted(_));
    if !exists && (desired.slots > 0 || lock.wait_queue().is_some() || is_token_queue) {
        changes.push(Change::new(what, Value::Null, desired.slots));
        return Ok(changes);
    }
    if before != desired.slots {
        changes.push(Change::new(what, before, desired.slots));
    }
    if let Plan::Numbered(planned) = planned {
        changes.extend(by_slot(planned, before == desired.slots));
    }
    if planned.changes().0 == 0 && exists {
        let lost = broker.missing_auxiliary(lock, desired).await.map_err(|error| failed(&error))?;
        changes.extend(lost.into_iter().map(|part| Change::new(part, Value::Null, "made again")));
        if lock.wait_queue().is_some() {
            let waiting = broker.waiting(lock).await.map_err(|error| failed(&error))?;
            if waiting.is_none() {
                changes.push(Change::new("wait queue", Value::Null, "made again"));
            }
        }
    }
    if exists && desired.records.is_none() && lock.record_queue(1).is_some() {
        let has_records = broker.has_records(lock, 1).await.map_err(|error| failed(&error))?;
        if has_records {
            changes.push(Change::new("slot records", "fencing, lock delay", Value::Null));
        }
    }
    Ok(changes)
}

/// Lists the changes to single slots. Those to their number are listed if it stays.
fn by_slot(planned: &SlotPlan, is_count_kept: bool) -> Vec<Change> {
    let mut changes = Vec::new();
    if is_count_kept && !planned.declare.is_empty() {
        changes.push(Change::new("missing slots", Value::Null, planned.declare.clone()));
    }
    if is_count_kept && !planned.delete.is_empty() {
        changes.push(Change::new("stray slots", planned.delete.clone(), Value::Null));
    }
    if !planned.remove_orphans.is_empty() {
        changes.push(Change::new(
            "left over of slots",
            planned.remove_orphans.clone(),
            Value::Null,
        ));
    }
    changes
}

/// Number of held slots or tokens that would be removed.
fn draining(valid: &ValidSemaphore, seen: &Observed, planned: &Plan) -> u32 {
    match (seen, planned) {
        (Observed::Numbered(seen), Plan::Numbered(planned)) => {
            let held = planned.delete.iter().filter(|slot| seen.held.contains(slot)).count();
            u32::try_from(held).unwrap_or(u32::MAX)
        }
        // Free tokens are removed first.
        _ => seen.held().saturating_sub(valid.desired.slots),
    }
}

async fn queue(object: &PressureQueue, resolver: &Resolver) -> Result<Step, Failure> {
    let valid = validate::pressure_queue(object, DefaultRules::ANYTHING)
        .map_err(|error| Failure::new(INVALID, error.to_string()))?;
    let namespace = object.metadata.namespace.clone().unwrap_or_default();
    let settings = resolver.redis(&namespace, valid.secret.as_deref(), valid.database)?;
    let mut shown = Shown {
        kind: "PressureQueue",
        name: object.metadata.name.clone().unwrap_or_default(),
        namespace,
        server: settings.address(),
        // As in the keys, because the prefix also distinguishes queues.
        target: valid.queue.data(),
        action: Action::Suspended,
        changes: Vec::new(),
        draining: 0,
        notes: Vec::new(),
    };
    if valid.suspend {
        return Ok(Step { shown, work: Work::Nothing });
    }
    let store = Store::new(settings, StoreOptions::new("lockkeeper-apply"));
    let seen = store.observe(&valid.queue).await.map_err(|error| store_failed(&error))?;
    let planned = plan_queue(&valid.desired, &seen, &PreviousStatus::default());
    shown.changes = planned.effects.iter().map(|effect| change(effect, &seen)).collect();
    shown.notes = planned.remarks.iter().map(ToString::to_string).collect();
    let can_be_changed =
        seen.wrong_types.is_empty() && (seen.bound.is_some() || seen.leftovers.is_empty());
    shown.action = match (can_be_changed, seen.bound, shown.changes.is_empty()) {
        (false, ..) => Action::Blocked,
        (true, None, false) => Action::Create,
        (true, Some(_), false) => Action::Update,
        (true, _, true) => Action::None,
    };
    let work = match shown.action {
        Action::Create | Action::Update => {
            Work::Queue { store, valid: Box::new(valid), effects: planned.effects }
        }
        _ => Work::Nothing,
    };
    Ok(Step { shown, work })
}

fn change(effect: &QueueEffect, seen: &ObservedQueue) -> Change {
    match effect {
        QueueEffect::Create { bound } => Change::new("bound", Value::Null, *bound),
        QueueEffect::SetBound { bound } => Change::new("bound", seen.bound, *bound),
        QueueEffect::Close => {
            let before = if seen.bound.is_some() { Value::from("Open") } else { Value::Null };
            Change::new("state", before, "Closed")
        }
    }
}

pub(in crate::cli) fn store_failed(error: &StoreError) -> Failure {
    Failure::new(Failure::UNAVAILABLE, error.to_string())
}
