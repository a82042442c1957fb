//! Verifies that a slot being acquired belongs to this client's protocol, and finds out why a
//! lock has no slots. See [`mismatch`] for the checks themselves.

use std::time::Duration;

use lockkeeper_net::clock::Moment;
use lockkeeper_plan::naming::{LockName, Protocol};

use super::error::AcquireError;
use super::shared::Shared;
use crate::error::BrokerError;
use crate::protocol::mismatch::{self, Presence};

/// How long a lock's protocol is cached. Another administrator may destroy the lock and
/// create it with another protocol.
const BELIEVED: Duration = Duration::from_secs(1);

/// Verifies that the slot does not belong to another protocol, unless that was
/// verified recently. Its probe is sent along with the claim. Cancel safe.
pub async fn check_protocol(
    client: &Shared,
    lock: &LockName,
    slot: u32,
) -> Result<(), BrokerError> {
    if client.recall(lock).protocol.is_some_and(|since| since.elapsed() < BELIEVED) {
        return Ok(());
    }
    let asked = Moment::now();
    mismatch::check_slot(&client.prober, lock, slot).await?;
    client.remember(lock, |memory| memory.protocol = Some(asked));
    Ok(())
}

/// Verifies that a slot without a holder queue, which a search has just seen, is not one
/// of a lock without such queues.
pub async fn check_missing(client: &Shared, lock: &LockName, slot: u32) -> Result<(), BrokerError> {
    if lock.protocol() != Protocol::ExclusiveConsumer {
        return Ok(());
    }
    mismatch::find(client.probe_context(), lock, slot).await.map(drop)
}

/// Returns why the lock has no slots, and whether it is about to get some.
pub async fn why_no_slots(client: &Shared, lock: &LockName, existed: bool) -> (AcquireError, bool) {
    match mismatch::find(client.probe_context(), lock, 1).await {
        Ok(Presence::Absent) if !existed => {
            (AcquireError::Missing { lock: lock.to_string() }, false)
        }
        Ok(presence) => {
            (AcquireError::NoSlots { lock: lock.to_string() }, presence == Presence::Changing)
        }
        Err(error) => (error.into(), false),
    }
}
