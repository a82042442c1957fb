//! Checks whether a semaphore's slots have their records, for administrators. See
//! `converge` for creating them. Only a slot's holder reads and replaces its record.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper_plan::naming::LockName;

use crate::error::BrokerError;
use crate::session::access::Access;

/// Number of record queues inspected together on one channel.
const LOOKED_AT_TOGETHER: usize = 500;

/// Number of checks of an empty record queue, and the pause between them. At each
/// acquisition and release, the holder keeps the record unacknowledged for some
/// milliseconds, and its queue looks empty. A queue that is empty at every check has lost
/// its record.
const LOOKS: u32 = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// The observed records of a semaphore's slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordsSeen {
    /// A slot has no record queue.
    WithoutQueue,
    /// Each slot has one, and these have lost their record (usually none).
    Emptied(BTreeSet<u32>),
}

/// Checks whether each of these slots has a record, without publishing to its queue.
/// Takes up to a second if one has none. Cancel safe.
pub async fn look(
    access: &Access,
    lock: &LockName,
    slots: impl IntoIterator<Item = u32>,
) -> Result<RecordsSeen, BrokerError> {
    let queue = |slot| lock.record_queue(slot).map(|queue| (slot, queue));
    let mut empty: Vec<(u32, String)> = slots.into_iter().filter_map(queue).collect();
    let mut channel = access.publisher().await?;
    for look in 0..=LOOKS {
        let mut still = Vec::new();
        for chunk in empty.chunks(LOOKED_AT_TOGETHER) {
            let names: Vec<String> = chunk.iter().map(|(_, name)| name.clone()).collect();
            let Some(counts) = channel.messages_of(&names).await? else {
                return Ok(RecordsSeen::WithoutQueue);
            };
            let counted = chunk.iter().zip(counts);
            still.extend(counted.filter(|(_, count)| *count == 0).map(|(slot, _)| slot.clone()));
        }
        empty = still;
        if empty.is_empty() || look == LOOKS {
            break;
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    Ok(RecordsSeen::Emptied(empty.into_iter().map(|(slot, _)| slot).collect()))
}
