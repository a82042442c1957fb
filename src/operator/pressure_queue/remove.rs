//! Removes a deleted `PressureQueue` from its server, unless `deletionGuard: Empty` delays
//! it. See `cleanup` for the rest of a deletion.

use std::time::Duration;

use lockkeeper_api::conditions::reason;
use lockkeeper_api::{FORCE_FINALIZE, PressureQueue, PressureQueueStatus};
use lockkeeper_pressure::{Deletion, Holder, StoreError, TakenRoles};

use super::doctor;
use super::state::State;
use crate::operator::error::{StepError, jitter};
use crate::operator::kind::Session;
use crate::operator::outcome::{Outcome, Removal, Report};

/// First pause while a client has to release its role. The client may be dead.
const SOON: Duration = Duration::from_millis(250);

/// Returns the guard's report for a queue that has elements. Only observes, because the
/// deletion policy never deletes any part of the queue.
pub(super) async fn not_empty_yet(
    session: &Session<'_, PressureQueue>,
) -> Result<Option<Removal<PressureQueueStatus>>, StoreError> {
    let length = session.connected.handle.observe(&session.valid.queue).await?.length;
    Ok((length > 0).then(|| not_empty(session, length)))
}

/// Removes the queue in the two steps of the protocol, which also ends blocked clients.
pub(super) async fn delete(
    session: &Session<'_, PressureQueue>,
    state: &mut State,
    is_guarded: bool,
) -> Result<Removal<PressureQueueStatus>, StepError> {
    let (store, valid) = (&session.connected.handle, &session.valid);
    let deleted = if is_guarded {
        store.delete_if_empty(&valid.queue).await?
    } else {
        store.delete(&valid.queue, TakenRoles::Wait).await?
    };
    Ok(match deleted {
        Deletion::Gone => Removal::Gone,
        Deletion::WaitingFor { .. }
            if doctor::finish_deletion(session.ctx, session.object, valid, store, state)
                .await? =>
        {
            Removal::Gone
        }
        Deletion::WaitingFor { producer, consumer } => {
            let who = |role: &str, holder: Option<Holder>| {
                holder.map(|holder| match holder.id {
                    Some(id) => format!("the {role} {id}"),
                    None => format!("the {role}"),
                })
            };
            let who: Vec<String> = [who("producer", producer), who("consumer", consumer)]
                .into_iter()
                .flatten()
                .collect();
            let message = format!(
                "Waiting for {} to release its role. If that client is dead, set repairPolicy: Repair, or set the annotation {FORCE_FINALIZE}=true and remove the keys by hand",
                who.join(" and ")
            );
            Removal::Waiting(message, SOON)
        }
        Deletion::NotEmpty { length } => not_empty(session, length),
    })
}

fn not_empty(session: &Session<'_, PressureQueue>, length: u64) -> Removal<PressureQueueStatus> {
    let elements = if length == 1 { "element" } else { "elements" };
    let message = format!(
        "deletionGuard is Empty, and the queue has {length} {elements}: nothing is removed before all are taken. To delete the object now, set deletionGuard to None, or the annotation {FORCE_FINALIZE}=true to leave Redis as it is"
    );
    let length = i64::try_from(length).ok();
    let status = PressureQueueStatus { length, ..session.old.clone() };
    let outcome = Outcome::Working { reason: reason::NOT_EMPTY, message };
    let report = Report { status, reached: true, outcome, said: Vec::new(), notes: Vec::new() };
    let pause = jitter(session.ctx.intervals.observe);
    Removal::Guarded(Box::new(report), reason::NOT_EMPTY, pause)
}
