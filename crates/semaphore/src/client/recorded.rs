//! Finds out whether the slots of a lock have records. See `records` for their content.

use std::time::Duration;

use lockkeeper_net::clock::Moment;
use lockkeeper_plan::naming::LockName;

use super::shared::Shared;
use crate::error::BrokerError;

/// How long the presence of records is cached. A probe costs more than all other requests
/// of an acquisition. For this time after records were added to a lock, a busy client may
/// still acquire without them.
const RECORDS_BELIEVED: Duration = Duration::from_secs(1);

/// Whether the slot has a record, unless that was found out recently. Cancel safe.
pub async fn has_record(client: &Shared, lock: &LockName, slot: u32) -> Result<bool, BrokerError> {
    let Some(queue) = lock.record_queue(slot) else { return Ok(false) };
    match client.recall(lock).records {
        Some((known, since)) if since.elapsed() < RECORDS_BELIEVED => Ok(known),
        _ => {
            let asked = Moment::now();
            // Not by a probe, for which a queue whose node is down may look missing: a
            // slot would be acquired without its fencing token and its lock delay.
            let found = client.side.publisher().await?.look(&queue).await?.is_some();
            client.remember(lock, |memory| memory.records = Some((found, asked)));
            Ok(found)
        }
    }
}
