//! The semaphore's side of RabbitMQ against a real broker: what is declared and
//! deleted, in which order, and what happens when the broker or somebody else
//! gets in the way. One test binary, so that it is linked once.

// clippy.toml's exception is for functions marked as tests, not their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod administering;
mod connecting;
mod consumers;
mod encrypted;
mod holders;
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
use lockkeeper::plan::semaphore::{SlotWish, sweep_to};
use lockkeeper::semaphore::{Broker, BrokerError, BrokerOptions, Converged};
use support::rabbitmq::Vhost;
use tokio_util::sync::CancellationToken;

/// A handle with the options users get.
fn broker(vhost: &Vhost) -> Broker {
    Broker::new(vhost.settings(), BrokerOptions::default())
}

fn lock() -> LockName {
    LockName::new("ci.deploy").unwrap()
}

fn wish(slots: u32) -> SlotWish {
    SlotWish::new(slots)
}

/// Converges as the operator does, with `mark` as the high-water mark.
async fn resize(broker: &Broker, slots: u32, mark: u32) -> Result<Converged, BrokerError> {
    let to = sweep_to(wish(slots), mark);
    broker.converge(&lock(), wish(slots), to, false, &CancellationToken::new()).await
}

/// The slots that exist according to the management API, an independent
/// witness: it reads the broker's own database.
async fn existing(vhost: &Vhost) -> BTreeSet<u32> {
    let lock = lock();
    vhost.queues().await.iter().filter_map(|queue| lock.slot_of_slot_queue(queue)).collect()
}
