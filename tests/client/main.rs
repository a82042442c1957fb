//! The lock client against a real broker: acquiring, waiting, proving, losing and
//! giving back, beside others and while things go wrong. One test binary, so that
//! it is linked once.

// clippy.toml's exception is for functions marked as tests, not their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod aborting;
mod alarm;
mod consumers;
mod fencing;
mod foreign;
mod holding;
mod permissions;
mod processes;
mod python_clients;
mod recording;
mod token;
mod waiting;
mod wire;

use std::time::Duration;

use lockkeeper::plan::naming::LockName;
use lockkeeper::plan::semaphore::{SlotWish, sweep_to};
use lockkeeper::semaphore::{
    AcquireOptions, Broker, BrokerOptions, Client, ClientOptions, Lock, Start,
};
use support::rabbitmq::Vhost;
use tokio_util::sync::CancellationToken;

fn name() -> LockName {
    LockName::new("ci.deploy").unwrap()
}

fn broker(vhost: &Vhost) -> Broker {
    Broker::new(vhost.settings(), BrokerOptions::default())
}

/// With the shortest heartbeat, so that losses show soon.
fn quick() -> ClientOptions {
    ClientOptions { heartbeat: Duration::from_secs(1), warm: 0, ..ClientOptions::default() }
}

/// The lock, by a client of its own.
fn lock(vhost: &Vhost) -> Lock {
    Client::new(vhost.settings(), quick()).semaphore(name())
}

fn any() -> AcquireOptions {
    AcquireOptions::default()
}

fn starting_at(slot: u32) -> AcquireOptions {
    AcquireOptions { start: Start::At(slot), ..any() }
}

/// Makes the lock's slots `slots`, after at most 100.
async fn resize(vhost: &Vhost, slots: u32) {
    let wish = SlotWish::new(slots);
    let to = sweep_to(wish, 100);
    let done = broker(vhost).converge(&name(), wish, to, false, &CancellationToken::new()).await;
    done.unwrap();
}

/// Which slots are held.
async fn held(vhost: &Vhost) -> Vec<u32> {
    broker(vhost).observe(&name(), 0, 100).await.unwrap().held.into_iter().collect()
}
