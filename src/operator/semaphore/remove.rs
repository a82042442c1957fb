//! Removes a deleted Semaphore from its broker, unless `deletionGuard: Unused` delays it.
//! See `cleanup` for the rest of a deletion.

use std::time::Duration;

use lockkeeper_api::conditions::reason;
use lockkeeper_api::semaphore::MAX_LISTED_HOLDERS;
use lockkeeper_api::{FORCE_FINALIZE, Semaphore, SemaphoreStatus};
use lockkeeper_plan::naming::Unit;
use lockkeeper_plan::semaphore::{ObservedSlots, sweep_to};
use lockkeeper_semaphore::BrokerError;

use super::state::{FACTS_INTERVAL, Observation};
use super::status::describe;
use crate::operator::cleanup::namespace_is_terminating;
use crate::operator::error::jitter;
use crate::operator::kind::{ReportedStatus, Session};
use crate::operator::outcome::{Outcome, Removal, Report};

/// First pause while clients hold slots. Each observation takes the admin mutex.
const HELD: Duration = Duration::from_secs(2);

/// Returns the last written high-water mark. Includes the spec's count, because a resize
/// may have started without a status write.
fn mark(session: &Session<'_, Semaphore>) -> Option<u32> {
    let mark = u32::try_from(session.old.highest_slot?).ok()?;
    Some(mark.max(session.valid.desired.slots))
}

/// Removes the slots. Holders keep theirs until they release them.
pub(super) async fn destroy(
    session: &Session<'_, Semaphore>,
) -> Result<Removal<SemaphoreStatus>, BrokerError> {
    let Session { ctx, object, valid, connected, .. } = session;
    let broker = &connected.handle;
    let destroyed = broker.destroy(&valid.lock, valid.desired, mark(session), &ctx.stop).await;
    let done = match destroyed {
        // Nothing of that lock was ever this object's.
        Err(error @ BrokerError::ProtocolMismatch { .. }) => {
            return Ok(Removal::NotOurs(error.to_string()));
        }
        destroyed => destroyed?,
    };
    Ok(if done.left == 0 {
        Removal::Gone
    } else if namespace_is_terminating(ctx, *object).await {
        let why = "its namespace is being deleted, and clients still hold the rest of it";
        Removal::LeftBehind(why.to_owned())
    } else {
        Removal::Waiting(still_held(done.left, valid.lock.unit()), HELD)
    })
}

/// Describes the slots or tokens that remain until their holders release.
fn still_held(left: u32, unit: Unit) -> String {
    let unit = unit.many();
    let are = match left {
        1 => "is still held, and is removed when it is",
        _ => "are still held, and are removed when they are",
    };
    format!(
        "It can no longer be acquired; {left} of its {unit} {are} released. To delete the object before that, set the annotation {FORCE_FINALIZE}=true"
    )
}

/// Returns the report while slots are held, and `None` if no slot is held.
pub(super) async fn in_use(
    session: &Session<'_, Semaphore>,
) -> Result<Option<Removal<SemaphoreStatus>>, BrokerError> {
    let Session { ctx, object: semaphore, valid, connected, .. } = session;
    let (broker, lock, slots) = (&connected.handle, &valid.lock, valid.desired.slots);
    let mark = match mark(session) {
        None => broker.find_highest_slot(lock, valid.desired.overshoot).await?,
        mark => mark,
    };
    // An earlier holder may have been missed and still hold a slot above the mark.
    let to = sweep_to(valid.desired, mark.unwrap_or_default());
    let seen = broker.observe(lock, to, to).await?;
    let held = seen.held();
    if held == 0 {
        return Ok(None);
    }
    let holders = broker.holders(lock, &seen, slots, MAX_LISTED_HOLDERS).await;
    let pause = if holders.incomplete { FACTS_INTERVAL } else { ctx.intervals.observe };
    let mark = mark.max(seen.numbered().map(ObservedSlots::highest));
    let waiting = broker.waiting(lock).await?;
    let holders = Some(holders);
    let observation = Observation { waiting, holders, ..Observation::new(seen, mark) };
    let (mut status, said) = describe(semaphore, &observation);
    let backend = Some(connected.backend.clone());
    status.set_backends(backend.clone(), backend);
    let held = format!("{} {}", lock.unit().count(held), if held == 1 { "is" } else { "are" });
    let message = format!(
        "deletionGuard is Unused, and {held} held: nothing is removed before all are released. To delete the object now, set deletionGuard to None, or the annotation {FORCE_FINALIZE}=true to leave the broker as it is"
    );
    let outcome = Outcome::Working { reason: reason::IN_USE, message };
    let report = Report { status, reached: true, outcome, said, notes: Vec::new() };
    Ok(Some(Removal::Guarded(Box::new(report), reason::IN_USE, jitter(pause))))
}
