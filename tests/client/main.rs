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

use lockkeeper::plan::semaphore::{SlotWish, sweep_to};
use lockkeeper::semaphore::{
    AcquireOptions, Broker, BrokerOptions, Client, ClientOptions, Lock, Permit, Start,
};
use support::protocols::{At, name};
use tokio_util::sync::CancellationToken;

fn broker(at: &impl At) -> Broker {
    Broker::new(at.vhost().settings(), BrokerOptions::default())
}

/// With the shortest heartbeat, so that losses show soon.
fn quick() -> ClientOptions {
    ClientOptions { heartbeat: Duration::from_secs(1), warm: 0, ..ClientOptions::default() }
}

/// The lock, by a client of its own.
fn lock(at: &impl At) -> Lock {
    Client::new(at.vhost().settings(), quick()).semaphore(at.lock_name())
}

fn any() -> AcquireOptions {
    AcquireOptions::default()
}

fn starting_at(slot: u32) -> AcquireOptions {
    AcquireOptions { start: Start::At(slot), ..any() }
}

/// Makes the lock's slots `slots`, after at most 100.
async fn resize(at: &impl At, slots: u32) {
    let wish = SlotWish::new(slots);
    let (to, cancel) = (sweep_to(wish, 100), CancellationToken::new());
    broker(at).converge(&at.lock_name(), wish, to, false, &cancel).await.unwrap();
}

/// What a permit is for, which nobody else has meanwhile: a slot, or a token.
fn held_by(permit: &Permit) -> (Option<u32>, Option<u64>) {
    (permit.slot(), permit.token_id())
}

/// Which slots are held.
async fn held(at: &impl At) -> Vec<u32> {
    broker(at).observe(&at.lock_name(), 0, 100).await.unwrap().held.into_iter().collect()
}
