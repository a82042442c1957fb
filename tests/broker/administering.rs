//! Changes that depend on the existing slots: create, grow, shrink and destroy by
//! administrators that only know the lock's name.

use std::time::Duration;

use lockkeeper_plan::naming::{MAX_SLOTS, Profile};
use lockkeeper_plan::semaphore::DesiredSlots;
use lockkeeper_semaphore::{Broker, BrokerOptions, ResizeError, ResizeTo, Resized};
use lockkeeper_testkit::rabbitmq::Vhost;
use tokio_util::sync::CancellationToken;

use crate::broker::{broker, desired, existing, lock};

async fn change(
    broker: &Broker,
    to: ResizeTo,
    desired: DesiredSlots,
) -> Result<Resized, ResizeError> {
    broker.resize(&lock(), to, desired, &CancellationToken::new()).await
}

/// Returns the numbers before and after.
async fn resize(broker: &Broker, to: ResizeTo) -> Result<(u32, u32), ResizeError> {
    change(broker, to, desired(0)).await.map(|resized| {
        assert!(resized.done.seen.has_exactly(resized.after), "{resized:?}");
        (resized.before, resized.after)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_semaphore_grows_and_shrinks_by_its_count_with_and_without_management() {
    let vhost = Vhost::create().await;
    let with = broker(&vhost);
    let without = Broker::new(vhost.settings_without_management(), BrokerOptions::default());
    for broker in [with, without] {
        assert_eq!(resize(&broker, ResizeTo::Create(3)).await, Ok((0, 3)));
        assert_eq!(resize(&broker, ResizeTo::Grow(40)).await, Ok((3, 43)));
        assert_eq!(resize(&broker, ResizeTo::Shrink(41)).await, Ok((43, 2)));
        assert_eq!(resize(&broker, ResizeTo::Exactly(5)).await, Ok((2, 5)));
        assert_eq!(existing(&vhost).await, (1..=5).collect());
        // A gap does not change the number of slots, and is filled.
        vhost.delete("ci.deploy-2-A").await;
        assert_eq!(resize(&broker, ResizeTo::Grow(1)).await, Ok((5, 6)));
        assert_eq!(existing(&vhost).await, (1..=6).collect());
        // A closed lock still exists.
        assert_eq!(resize(&broker, ResizeTo::Shrink(6)).await, Ok((6, 0)));
        assert_eq!(resize(&broker, ResizeTo::Grow(1)).await, Ok((0, 1)));
        broker.destroy(&lock(), desired(0), None, &CancellationToken::new()).await.unwrap();
        assert_eq!(vhost.queues().await, [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_changes_are_rejected_without_effect() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    let missing = Err(ResizeError::Missing { lock: lock() });
    assert_eq!(resize(&broker, ResizeTo::Grow(1)).await, missing);
    assert_eq!(resize(&broker, ResizeTo::Shrink(1)).await, missing);
    let out_of_range = |slots| Err(ResizeError::OutOfRange { lock: lock(), slots });
    assert_eq!(resize(&broker, ResizeTo::Create(MAX_SLOTS + 1)).await, out_of_range(0));
    assert_eq!(vhost.queues().await, [""; 0], "not even the mutex");

    resize(&broker, ResizeTo::Create(2)).await.unwrap();
    let exists = Err(ResizeError::Exists { lock: lock(), slots: 2 });
    assert_eq!(resize(&broker, ResizeTo::Create(2)).await, exists);
    assert_eq!(resize(&broker, ResizeTo::Shrink(3)).await, out_of_range(2));
    assert_eq!(resize(&broker, ResizeTo::Grow(MAX_SLOTS - 1)).await, out_of_range(2));
    assert_eq!(resize(&broker, ResizeTo::Grow(u32::MAX)).await, out_of_range(2));
    assert_eq!(existing(&vhost).await, [1, 2].into());
    resize(&broker, ResizeTo::Exactly(0)).await.unwrap();
    let exists = Err(ResizeError::Exists { lock: lock(), slots: 0 });
    assert_eq!(resize(&broker, ResizeTo::Create(2)).await, exists, "closed is not gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn administrators_who_each_add_one_add_as_many_as_they_are() {
    let vhost = Vhost::create().await;
    resize(&broker(&vhost), ResizeTo::Create(1)).await.unwrap();
    let patient = || BrokerOptions::default().with_mutex_patience(Duration::from_secs(30));
    let administrators: Vec<_> = (0..4).map(|_| Broker::new(vhost.settings(), patient())).collect();
    let each = administrators.iter().map(async |broker| {
        for _ in 0..5 {
            let (before, after) = resize(broker, ResizeTo::Grow(1)).await.unwrap();
            assert_eq!(after, before + 1);
        }
    });
    futures::future::join_all(each).await;
    assert_eq!(existing(&vhost).await, (1..=21).collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_are_not_added_without_records_where_the_others_have_them() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    let with_records = DesiredSlots { records: Some(Duration::from_secs(5)), ..desired(0) };
    change(&broker, ResizeTo::Create(2), with_records).await.unwrap();
    let refused = Err(ResizeError::Records { lock: lock() });
    assert_eq!(resize(&broker, ResizeTo::Grow(1)).await, refused);
    assert_eq!(existing(&vhost).await, [1, 2].into());
    let grown = change(&broker, ResizeTo::Grow(1), with_records).await.unwrap();
    assert_eq!((grown.after, grown.done.seeded), (3, 1));
    // Shrinking requires no knowledge of the records, and keeps them.
    assert_eq!(resize(&broker, ResizeTo::Shrink(1)).await, Ok((3, 2)));
    assert_eq!(broker.has_records(&lock(), 3).await, Ok(true));
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_of_amqp_locks_python_are_counted_by_their_own_names() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    resize(&broker, ResizeTo::Create(9)).await.unwrap();
    let (lock, cancel) = (lock().with_profile(Profile::AmqpLocksPython), CancellationToken::new());
    for (to, before, after) in
        [(ResizeTo::Create(2), 0, 2), (ResizeTo::Grow(2), 2, 4), (ResizeTo::Shrink(3), 4, 1)]
    {
        let resized = broker.resize(&lock, to, desired(0), &cancel).await.unwrap();
        assert_eq!((resized.before, resized.after), (before, after));
    }
    broker.destroy(&lock, desired(0), None, &cancel).await.unwrap();
    assert_eq!(vhost.queues().await.len(), 10, "the other profile's slots and wait queue stay");
}
