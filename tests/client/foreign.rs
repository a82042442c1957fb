//! Interoperability with amqp-locks-python on one semaphore (profile AmqpLocksPython): a
//! held slot is held for both, and each sees the changes of the other.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_plan::naming::{LockName, Profile};
use lockkeeper_plan::semaphore::{DesiredSlots, sweep_to};
use lockkeeper_semaphore::{AcquireError, Client, Lock, Verdict};
use lockkeeper_testkit::amqp_locks_python::AmqpLocksPython;
use lockkeeper_testkit::rabbitmq::Vhost;
use lockkeeper_testkit::register::Register;
use tokio_util::sync::CancellationToken;

use crate::client::{any, broker, name, quick};

/// Far longer than any contention. Endless contention must fail the test.
const LONG: Duration = Duration::from_secs(90);

fn python_name() -> LockName {
    name().with_profile(Profile::AmqpLocksPython)
}

fn ours(vhost: &Vhost) -> Lock {
    Client::new(vhost.settings(), quick()).semaphore(python_name())
}

async fn theirs(vhost: &Vhost) -> AmqpLocksPython<'_> {
    AmqpLocksPython::new(vhost, python_name().as_str()).await
}

/// Resizes as an administrator does.
async fn resize(vhost: &Vhost, slots: u32) {
    let desired = DesiredSlots::new(slots);
    let (to, cancel) = (sweep_to(desired, 10), CancellationToken::new());
    broker(vhost).converge(&python_name(), desired, to, false, &cancel).await.unwrap();
}

/// Waits for a moment, so that other clients arrive in the meantime.
async fn work() {
    tokio::time::sleep(Duration::from_millis(rand::random_range(0..4))).await;
}

const ROUNDS: usize = 15;

/// Acquires and releases repeatedly. Returns the number of lost races.
pub(super) async fn their_rounds(vhost: Arc<Vhost>, register: Arc<Register>) -> usize {
    let mut client = theirs(&vhost).await;
    for _ in 0..ROUNDS {
        let slot = loop {
            match client.acquire().await {
                Some(slot) => break slot,
                None => work().await,
            }
        };
        let entered = register.enter(slot);
        work().await;
        assert_eq!(client.verify().await, Some(slot));
        drop(entered);
        client.release().await;
    }
    client.races_lost
}

async fn our_rounds(vhost: Arc<Vhost>, register: Arc<Register>) -> usize {
    let lock = ours(&vhost);
    for _ in 0..ROUNDS {
        let permit = lock.acquire_timeout(&any(), LONG).await.unwrap();
        let entered = register.enter(permit.slot().unwrap());
        work().await;
        assert_eq!(permit.verify().await, Ok(Verdict::Held));
        drop(entered);
        permit.release().await.unwrap();
    }
    0
}

#[tokio::test(flavor = "multi_thread")]
async fn amqp_locks_python_and_we_never_hold_the_same_slot() {
    let vhost = Arc::new(Vhost::create().await);
    assert!(theirs(&vhost).await.adjust(3).await);
    let register = Arc::new(Register::create());
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..4 {
        clients.spawn(their_rounds(Arc::clone(&vhost), Arc::clone(&register)));
        clients.spawn(our_rounds(Arc::clone(&vhost), Arc::clone(&register)));
    }
    let races = tokio::time::timeout(LONG, clients.join_all()).await.expect("every client ends");
    assert_eq!(register.entries(), 8 * ROUNDS);
    assert!(races.iter().sum::<usize>() > 0, "they never met: the test proves nothing");
    assert!(theirs(&vhost).await.destroy().await);
    assert_eq!(vhost.queues().await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn amqp_locks_python_and_we_see_each_others_changes() {
    let vhost = Vhost::create().await;
    let mut python = theirs(&vhost).await;
    let lock = ours(&vhost);
    assert_eq!(python.acquire().await, None);
    let none = AcquireError::Missing { lock: python_name().to_string() };
    assert_eq!(lock.try_acquire(&any()).await.unwrap_err(), none);

    // They create two slots, and each gets one.
    assert!(python.adjust(2).await);
    assert_eq!(python.acquire().await, Some(1));
    let permit = lock.try_acquire(&any()).await.unwrap();
    assert_eq!(permit.slot(), Some(2));
    let mut other = theirs(&vhost).await;
    assert_eq!(other.acquire().await, None);

    // We add a third slot, which they get.
    resize(&vhost, 3).await;
    assert_eq!(other.acquire().await, Some(3));
    let full = lock.try_acquire(&any()).await.unwrap_err();
    assert_eq!(full, AcquireError::Full { lock: python_name().to_string(), slots: 3 });

    // They remove two. Ours drains, and is not acquired again after its release.
    assert!(theirs(&vhost).await.adjust(-2).await);
    assert_eq!(permit.verify().await, Ok(Verdict::Draining));
    assert_eq!(other.verify().await, None, "it gives its slot up");
    assert!(theirs(&vhost).await.adjust(1).await);
    assert_eq!(permit.verify().await, Ok(Verdict::Held));
    assert_eq!(other.acquire().await, None);

    // We remove all: held slots stay until their holders check.
    resize(&vhost, 0).await;
    assert_eq!(python.verify().await, None);
    assert_eq!(permit.verify().await, Ok(Verdict::Draining));
    permit.release().await.unwrap();
    assert_eq!(vhost.queues().await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_mutex_keeps_amqp_locks_python_out_while_we_have_it() {
    let vhost = Vhost::create().await;
    let mutex = Client::new(vhost.settings(), quick()).mutex(python_name());
    let permit = mutex.try_acquire(&any()).await.unwrap();
    assert!(!theirs(&vhost).await.adjust(1).await);
    assert!(!theirs(&vhost).await.destroy().await);
    permit.release().await.unwrap();
    assert!(theirs(&vhost).await.adjust(1).await);
}
