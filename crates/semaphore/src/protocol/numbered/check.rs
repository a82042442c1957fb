//! Checks numbered slots for faults without changing them. See `converge` for the repair.

use std::collections::BTreeSet;

use lockkeeper_amqp::channel::Channel;
use lockkeeper_plan::semaphore::{ObservedSlots, sweep_to};

use super::observe::{find_highest_slot, observe};
use super::records::{self, RecordsSeen};
use super::slot_protocol::SlotProtocol;
use crate::error::BrokerError;
use crate::protocol::fault::{Expected, Fault};
use crate::protocol::mismatch;
use crate::queues::{record, slot, wait};
use crate::session::change::Change;

pub async fn check_slots(
    change: &Change,
    how: &dyn SlotProtocol,
    channel: &mut Channel,
    expected: Expected,
) -> Result<Vec<Fault>, BrokerError> {
    let mark =
        find_highest_slot(&change.access, how, &change.lock, change.desired.overshoot).await?;
    let sweep = sweep_to(change.desired, mark);
    let seen = observe(&change.access, how, &change.lock, sweep, sweep).await?;
    let highest = seen.highest();
    let mismatch = mismatch::check(&change.access, &change.lock, &seen.slots, highest).await;
    if let Some(fault) = Fault::of_protocol(mismatch)? {
        return Ok(vec![fault]);
    }
    let mut faults: Vec<Fault> = check_wait_queue(change, channel).await?.into_iter().collect();
    if seen.slots.is_empty() && is_absent(change, channel, &faults, expected).await? {
        return Ok(vec![Fault::Absent]);
    }
    let slots = expected.slots.or_else(|| seen.slots.last().copied()).unwrap_or(0);
    let records =
        expected.records || has_any_record(change, channel, slots.max(seen.highest())).await?;
    let mut recorded = BTreeSet::new();
    for slot in 1..=slots.max(seen.highest()) {
        faults.extend(check_slot(change, channel, slot, slots, &seen).await?);
        faults.extend(how.check_holder(channel, &change.lock, slot, &seen).await?);
        if records && slot <= slots && seen.slots.contains(&slot) {
            if has_record_queue(change, channel, slot).await? {
                recorded.insert(slot);
            } else {
                faults.push(Fault::WithoutRecord { slot });
            }
        }
    }
    if let RecordsSeen::Emptied(slots) =
        records::look(&change.access, &change.lock, recorded).await?
    {
        faults.extend(slots.into_iter().map(|slot| Fault::EmptiedRecord { slot }));
    }
    Ok(faults)
}

async fn check_wait_queue(
    change: &Change,
    channel: &mut Channel,
) -> Result<Option<Fault>, BrokerError> {
    let Some(queue) = change.lock.wait_queue() else { return Ok(None) };
    match wait::inspect(channel, &queue).await {
        Ok(found) => Ok(found.is_none().then_some(Fault::WithoutWaitQueue)),
        Err(BrokerError::IncompatibleQueue { why, .. }) => {
            Ok(Some(Fault::ForeignWaitQueue { why }))
        }
        Err(error) => Err(error),
    }
}

/// Whether a semaphore without slots does not exist at all, as opposed to one with 0
/// slots.
async fn is_absent(
    change: &Change,
    channel: &mut Channel,
    faults: &[Fault],
    expected: Expected,
) -> Result<bool, BrokerError> {
    // Distinguishes a missing slot from one whose node is down.
    slot::inspect(channel, &change.lock.slot_queue(1), change.lock.profile()).await?;
    Ok(match change.lock.wait_queue() {
        Some(_) => faults.contains(&Fault::WithoutWaitQueue),
        None => expected.slots != Some(0),
    })
}

async fn check_slot(
    change: &Change,
    channel: &mut Channel,
    slot: u32,
    slots: u32,
    seen: &ObservedSlots,
) -> Result<Vec<Fault>, BrokerError> {
    let mut faults = Vec::new();
    if slot > slots && seen.slots.contains(&slot) {
        faults.push(Fault::Stray { slot });
    }
    match slot::inspect(channel, &change.lock.slot_queue(slot), change.lock.profile()).await {
        Ok(None) => faults.extend((slot <= slots).then_some(Fault::Missing { slot })),
        Ok(Some(_)) => {}
        Err(BrokerError::IncompatibleQueue { why, .. }) => {
            faults.push(Fault::Foreign { slot, why });
        }
        Err(error) => return Err(error),
    }
    Ok(faults)
}

/// Whether the lock has records. A record on a node that is down looks missing to a probe, and
/// to no passive declare, which is sent for one slot only: if the probes found none, all are
/// missing or all are on such nodes.
async fn has_any_record(
    change: &Change,
    channel: &mut Channel,
    slots: u32,
) -> Result<bool, BrokerError> {
    let names: Vec<String> =
        (1..=slots).filter_map(|slot| change.lock.record_queue(slot)).collect();
    Ok(change.access.any_exists(&names).await?
        || (slots > 0 && has_record_queue(change, channel, 1).await?))
}

async fn has_record_queue(
    change: &Change,
    channel: &mut Channel,
    slot: u32,
) -> Result<bool, BrokerError> {
    let Some(record) = change.lock.record_queue(slot) else { return Ok(false) };
    match record::inspect(channel, &record).await {
        Ok(queue) => Ok(queue.is_some()),
        // Not a record queue, whatever it is.
        Err(BrokerError::IncompatibleQueue { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
