//! `deletionGuard: Unused`: looking who still holds a slot of a Semaphore that is
//! being deleted, without touching anything. What follows is `cleanup`'s.

use std::time::Duration;

use kube::ResourceExt;

use super::status::to_report;
use super::{FACTS_INTERVAL, Findings};
use crate::api::conditions::reason;
use crate::api::semaphore::MAX_LISTED_HOLDERS;
use crate::api::validate::ValidSemaphore;
use crate::api::{FORCE_FINALIZE, Semaphore, SemaphoreStatus};
use crate::operator::context::Context;
use crate::operator::error::jitter;
use crate::operator::fetch::Connected;
use crate::operator::report::{Outcome, Report};
use crate::plan::semaphore::sweep_to;
use crate::semaphore::{Broker, BrokerError};

/// What to say while somebody holds a slot, and when to look again; `None` when
/// nobody does.
pub(in crate::operator) async fn in_use(
    ctx: &Context,
    semaphore: &Semaphore,
    valid: &ValidSemaphore,
    connected: &Connected<Broker>,
    mark: Option<u32>,
) -> Result<Option<(Report<SemaphoreStatus>, Duration)>, BrokerError> {
    let (broker, lock, slots) = (&connected.handle, &valid.lock, valid.wish.slots);
    let mark = match mark {
        None if lock.has_slots() => broker.find_mark(lock, valid.wish.overshoot).await?,
        mark => mark.unwrap_or_default(),
    };
    // Who holds may do so above the mark, where a holder of old has been overlooked.
    let to = sweep_to(valid.wish, mark);
    let seen = broker.observe(lock, to, to).await?;
    let held = seen.held.len();
    if held == 0 {
        return Ok(None);
    }
    let holders = broker.holders(lock, &seen, slots, MAX_LISTED_HOLDERS).await;
    let pause = if holders.incomplete { FACTS_INTERVAL } else { ctx.rhythm.observe };
    let found = Findings {
        name: semaphore.name_any(),
        lock: lock.to_string(),
        backend: Some(connected.backend.clone()),
        reached: true,
        slots,
        has_slots: lock.has_slots(),
        mark: Some(mark.max(seen.highest())),
        waiting: broker.waiting(lock).await?,
        seen: Some(seen),
        holders: Some(holders),
        ..Findings::default()
    };
    let (one, more) =
        if found.has_slots { ("slot is", "slots are") } else { ("token is", "tokens are") };
    let unit = if held == 1 { one } else { more };
    let message = format!(
        "deletionGuard is Unused, and {held} {unit} held: nothing is removed before all are released. To let the object go before, set deletionGuard to None, or the annotation {FORCE_FINALIZE}=true to leave the broker as it is"
    );
    let outcome = Outcome::Working { reason: reason::IN_USE, message };
    Ok(Some((to_report(&found, outcome), jitter(pause))))
}
