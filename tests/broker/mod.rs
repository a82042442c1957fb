//! The semaphore's protocol against a real broker: which queues are declared and deleted,
//! in which order, and the effects of faults and of other clients.

mod administering;
mod connecting;
mod consumers;
mod encrypted;
mod holders;
mod management;
mod mutex;
mod obstacles;
mod probing;
mod profiles;
mod proxy;
mod records;
mod resizing;
mod slowness;
mod token;
mod waiting;

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::{DesiredSlots, sweep_to};
use lockkeeper_semaphore::{Broker, BrokerError, Converged};
use lockkeeper_testkit::proxy::Method;
use lockkeeper_testkit::rabbitmq::{Vhost, patient};
use tokio_util::sync::CancellationToken;

/// Returns a handle whose requests outlast a busy broker.
fn broker(vhost: &Vhost) -> Broker {
    Broker::new(vhost.settings(), patient())
}

fn lock() -> LockName {
    LockName::new("ci.deploy").unwrap()
}

fn desired(slots: u32) -> DesiredSlots {
    DesiredSlots::new(slots)
}

/// Converges as the operator does, with `mark` as the high-water mark.
async fn resize(broker: &Broker, slots: u32, mark: u32) -> Result<Converged, BrokerError> {
    let to = sweep_to(desired(slots), mark);
    broker.converge(&lock(), desired(slots), to, false, &CancellationToken::new()).await
}

/// Returns the existing slots according to the management API, which is independent
/// evidence because it reads the broker's own database.
async fn existing(vhost: &Vhost) -> BTreeSet<u32> {
    let lock = lock();
    vhost.queues().await.iter().filter_map(|queue| lock.slot_of_slot_queue(queue)).collect()
}

/// Returns which of these slots were deleted on the wire, in this order. Each deletion must
/// be answered before the next one is requested.
fn deleted_one_by_one(seen: &[Method], lock: &LockName, slots: RangeInclusive<u32>) -> Vec<u32> {
    let (mut deleted, mut unanswered) = (Vec::new(), None);
    for method in seen {
        let on = (method.connection, method.channel);
        match (method.name.as_str(), lock.slot_of_slot_queue(&method.queue)) {
            ("queue.delete", Some(slot)) if slots.contains(&slot) => {
                assert_eq!(unanswered.replace(on), None, "a deletion before that of slot {slot}");
                deleted.push(slot);
            }
            ("queue.delete-ok", _) if unanswered == Some(on) => unanswered = None,
            _ => {}
        }
    }
    deleted
}
