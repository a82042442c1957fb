//! The semaphore's protocol against a real broker: which queues are declared and deleted,
//! in which order, and the effects of faults and of other clients.

use crate::support;

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
mod token;
mod waiting;

use std::collections::BTreeSet;

use lockkeeper::plan::naming::LockName;
use lockkeeper::plan::semaphore::{DesiredSlots, sweep_to};
use lockkeeper::semaphore::{Broker, BrokerError, BrokerOptions, Converged};
use support::rabbitmq::Vhost;
use tokio_util::sync::CancellationToken;

/// Returns a handle with the default options.
fn broker(vhost: &Vhost) -> Broker {
    Broker::new(vhost.settings(), BrokerOptions::default())
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
