//! The lock client against a real broker: acquiring, waiting, proving, losing and
//! releasing, with other clients and during faults.

mod abandoning;
mod aborting;
mod alarm;
mod closing;
mod consumers;
mod fairness;
mod fencing;
mod foreign;
mod holding;
mod mutex;
mod obstacles;
mod outages;
mod permissions;
mod processes;
mod protocols;
mod python_clients;
mod recording;
mod resting;
mod takeover;
mod token;
mod turns;
mod waiting;
mod wire;

use std::time::Duration;

use lockkeeper_plan::naming::Protocol;
use lockkeeper_plan::semaphore::{DesiredSlots, Observed, sweep_to};
use lockkeeper_semaphore::{AcquireOptions, Broker, Client, ClientOptions, Lock, Permit, Start};
use lockkeeper_testkit::protocols::{At, name};
use lockkeeper_testkit::rabbitmq::patient;
use tokio_util::sync::CancellationToken;

fn broker(at: &impl At) -> Broker {
    Broker::new(at.vhost().settings(), patient())
}

/// The default heartbeat, so that a busy machine loses no slot, and frequent proofs, so
/// that a loss is detected soon.
fn quick() -> ClientOptions {
    let verify_interval = Duration::from_millis(500);
    ClientOptions::default().with_verify_interval(verify_interval).with_warm(0)
}

/// Heartbeat for tests of silent holders: long enough for a busy machine, short enough to
/// wait until the broker frees their slots.
const BRIEF: Duration = Duration::from_secs(3);

fn brief() -> ClientOptions {
    quick().with_heartbeat(BRIEF)
}

/// Limit for operations that take milliseconds on an idle machine. Shorter than the time
/// after which a client checks without a wake-up: the longest pause between two proofs is
/// 29 s with a heartbeat of a minute.
const SOON: Duration = Duration::from_secs(20);

/// The lock, with a separate client.
fn lock(at: &impl At) -> Lock {
    Client::new(at.vhost().settings(), quick()).semaphore(at.lock_name())
}

fn any() -> AcquireOptions {
    AcquireOptions::default()
}

fn starting_at(slot: u32) -> AcquireOptions {
    any().with_start(Start::At(slot))
}

/// Sets the number of slots, from at most 100. A mutex always has one.
async fn resize(at: &impl At, slots: u32) {
    if at.lock_name().protocol() == Protocol::TrueMutex {
        assert_eq!(slots, 1);
        return;
    }
    let desired = DesiredSlots::new(slots);
    let (to, cancel) = (sweep_to(desired, 100), CancellationToken::new());
    broker(at).converge(&at.lock_name(), desired, to, false, &cancel).await.unwrap();
}

/// Returns what the permit holds exclusively: a slot, or a token.
fn held_by(permit: &Permit) -> (Option<u32>, Option<u64>) {
    (permit.slot(), permit.token_id())
}

/// Returns the held slots, or 1 to the number of held tokens.
async fn held(at: &impl At) -> Vec<u32> {
    held_of(broker(at).observe(&at.lock_name(), 0, 100).await.unwrap())
}

fn held_of(seen: Observed) -> Vec<u32> {
    match seen {
        Observed::Numbered(seen) => seen.held.into_iter().collect(),
        Observed::Counted(seen) => (1..=seen.held).collect(),
    }
}
