//! What is left of slots that went: holders are told that they drain, and holder
//! queues that nobody holds are removed. Never one that is held: deleting and
//! declaring it again would give the slot to a second holder while the first one
//! still runs (within 9 ms as measured).

use crate::plan::naming::LockName;
use crate::semaphore::converge::Change;
use crate::semaphore::error::BrokerError;
use crate::semaphore::lane::Lane;

/// The message that asks a holder to give its slot back soon.
pub(super) const DRAIN: &str = "drain";

/// What a message begins with that takes a slot from its holder; a reason may
/// follow.
pub(super) const REVOKE: &str = "revoke";

/// The message that takes a slot from its holder, in these words.
pub(in crate::semaphore) fn revoke_message(reason: &str) -> String {
    format!("{REVOKE}: {reason}")
}

/// Holder queues deleted together.
const DELETED_TOGETHER: u32 = 200;

/// Removes the holder queues from the first above the wish to `to` that nobody
/// holds, and tells the holders of the others; returns how many these are.
pub(super) async fn tidy(change: &Change, lane: &mut Lane, to: u32) -> Result<u32, BrokerError> {
    let mut held = Vec::new();
    let mut from = change.wish.slots + 1;
    while from <= to {
        let end = to.min(from + DELETED_TOGETHER - 1);
        let names: Vec<String> = (from..=end).map(|slot| change.lock.holder_queue(slot)).collect();
        change.go_on(lane)?;
        // Mostly none is held, or all are missing.
        if !lane.delete_unused_all(&names).await? {
            for name in names {
                change.go_on(lane)?;
                if !lane.delete_unused(&name).await? {
                    held.push(name);
                }
            }
        }
        from = end + 1;
    }
    tell(change, &change.lock, &held).await;
    Ok(u32::try_from(held.len()).unwrap_or(u32::MAX))
}

/// Best effort: holders look for themselves from time to time.
async fn tell(change: &Change, lock: &LockName, holders: &[String]) {
    let telling = async {
        let mut publisher = change.broker.publisher().await?;
        for queue in holders {
            publisher.send(queue, DRAIN.as_bytes(), 1, None).await?;
        }
        Ok::<_, BrokerError>(())
    };
    if let Err(error) = telling.await {
        tracing::debug!(%error, %lock, "Holders could not be told that they drain");
    }
}
