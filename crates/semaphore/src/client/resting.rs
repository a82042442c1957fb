//! Applies the lock delay: a slot whose last holder ended uncleanly rests before it is
//! used. The elapsed time is saved in the slot's record. A client that gives up or ends
//! leaves only the remainder to the next one.
//!
//! Each client measures the time itself, while it holds the slot. No client trusts
//! another one's clock, so clock skew can't make a rest shorter than the delay.

use std::time::Duration;

use lockkeeper_net::clock::Moment;

use super::error::AcquireError;
use super::facts::now;
use super::heartbeat::LostReason;
use super::permit::Permit;

/// When the elapsed time is saved first. Each further interval is twice as long. A killed
/// client therefore loses about half of its share, and an hour costs 13 writes.
const FIRST_SAVE: Duration = Duration::from_millis(500);

/// A resting slot. Dropping it releases the slot and saves the elapsed time.
struct Resting {
    /// `None` after the rest.
    permit: Option<Permit>,
    before: Duration,
    since: Moment,
}

impl Resting {
    fn note(&mut self) {
        let rested = self.before + self.since.elapsed();
        if let Some(permit) = &mut self.permit {
            permit.note(|record| record.resting(rested));
        }
    }
}

impl Drop for Resting {
    fn drop(&mut self) {
        self.note();
    }
}

/// Lets the slot rest for `rest`, but not beyond `until`. `before` is the time that other
/// clients have waited already. Cancel safe: releases the slot.
///
/// # Errors
///
/// * [`AcquireError::Resting`] at `until`.
/// * [`AcquireError::Lost`] if the slot is lost.
/// * [`AcquireError::Broker`] if the end of the rest can't be recorded.
///
/// The slot is released in each case.
pub async fn rest(
    permit: Permit,
    lock: &str,
    before: Duration,
    rest: Duration,
    until: Option<Moment>,
) -> Result<Permit, AcquireError> {
    let since = Moment::now();
    let rested = since + rest;
    let end = until.map_or(rested, |until| until.min(rested));
    let mut resting = Resting { permit: Some(permit), before, since };
    let mut pause = FIRST_SAVE;
    while let Some(permit) = &resting.permit {
        let save = Moment::now() + pause;
        tokio::select! {
            biased;
            reason = permit.lost() => return Err(AcquireError::Lost { reason }),
            () = end.min(save).reached() => {}
        }
        // A loss during a suspension may not have been noticed yet.
        if !permit.is_valid() {
            return Err(AcquireError::Lost { reason: LostReason::HeartbeatMissed });
        }
        if end.left().is_zero() {
            break;
        }
        resting.note();
        if let Some(permit) = &resting.permit
            && let Err(error) = permit.write_record().await
        {
            tracing::debug!(%error, lock, "the remaining lock delay of a slot could not be saved");
        }
        pause *= 2;
    }
    let left = rested.left();
    resting.note();
    let Some(mut permit) = resting.permit.take() else {
        return Err(AcquireError::Lost { reason: LostReason::HeartbeatMissed });
    };
    if left.is_zero() {
        // Before the slot is used, because a later client must not count this rest.
        permit.note(|record| record.begun(now()));
        permit.write_record().await?;
        return Ok(permit);
    }
    let slot = permit.slot().unwrap_or_default();
    permit.release().await.map_err(|reason| AcquireError::Lost { reason })?;
    Err(AcquireError::Resting { lock: lock.to_owned(), slot, rest: left })
}
