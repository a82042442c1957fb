//! Drains removed slots: notifies their holders, and removes holder queues without a
//! holder. A held queue is never deleted. Deleting and declaring it again would give the
//! slot to a second holder while the first one is still active (within 9 ms as measured).

use lockkeeper_amqp::channel::Channel;
use lockkeeper_plan::naming::LockName;

use crate::error::BrokerError;
use crate::queues::{holder, wait};
use crate::session::change::Change;

/// The message that asks a holder to release soon.
pub const DRAIN: &str = "drain";

/// Prefix of the message that revokes a slot. A reason may follow.
pub const REVOKE: &str = "revoke";

/// Returns the message that revokes a slot, with this reason.
pub fn revoke_message(reason: &str) -> String {
    format!("{REVOKE}: {reason}")
}

/// Number of holder queues deleted together.
const DELETED_TOGETHER: u32 = 200;

/// Removes unheld holder queues from the first above the desired count up to `to`, and
/// notifies the remaining holders. Returns the number of remaining holders.
pub async fn remove_orphans(
    change: &Change,
    channel: &mut Channel,
    to: u32,
) -> Result<u32, BrokerError> {
    let mut held = Vec::new();
    let mut from = change.desired.slots + 1;
    while from <= to {
        let end = to.min(from + DELETED_TOGETHER - 1);
        let names: Vec<String> = (from..=end).map(|slot| change.lock.holder_queue(slot)).collect();
        change.check_cancelled(channel)?;
        // Usually none is held, or all are missing.
        if !holder::delete_unused_all(channel, &names).await? {
            for name in names {
                change.check_cancelled(channel)?;
                if !holder::delete_unused(channel, &name).await? {
                    held.push(name);
                }
            }
        }
        from = end + 1;
    }
    tell(change, &change.lock, &held).await;
    Ok(u32::try_from(held.len()).unwrap_or(u32::MAX))
}

/// Best effort: holders also poll from time to time.
async fn tell(change: &Change, lock: &LockName, holders: &[String]) {
    let telling = async {
        let mut publisher = change.access.publisher().await?;
        for queue in holders {
            wait::send(&mut publisher, queue, DRAIN.as_bytes(), 1, None).await?;
        }
        Ok::<_, BrokerError>(())
    };
    if let Err(error) = telling.await {
        tracing::debug!(%error, %lock, "holders could not be notified that they drain");
    }
}
