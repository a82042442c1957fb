//! The store on Valkey, a fork of Redis: the same scripts and the same answers.

use std::time::Duration;

use lockkeeper_plan::pressure_queue::QueueEffect;
use lockkeeper_pressure::{Applied, Deletion, Store, StoreError, StoreOptions, TakenRoles};
use lockkeeper_testkit::pressure_text::Worker;
use lockkeeper_testkit::redis::{AclUser, PrivateRedis, TestQueue};

use crate::store::{numbers, text_queue};

const ELEMENTS: usize = 100;

#[tokio::test]
async fn a_queue_is_made_changed_used_closed_and_deleted_on_valkey() {
    let server = PrivateRedis::valkey().await;
    let place = TestQueue::at(&server.url()).await;
    let info: String = place.run(&["INFO", "server"]).await;
    assert!(info.contains("server_name:valkey"), "{info}");
    let store = place.store();
    let set = |bound| QueueEffect::SetBound { bound };
    assert_eq!(
        store.apply(&place.queue, &QueueEffect::Create { bound: 1 }).await.unwrap(),
        Applied::Done
    );

    // Clients that follow the text, while the bound changes.
    let queue = text_queue(&place);
    let producer = Worker::produce(&queue, "producer", numbers(ELEMENTS)).await;
    let consumer = Worker::consume(&queue, "consumer", ELEMENTS).await;
    let mut bound = 1;
    while !producer.is_finished() {
        bound = bound % 5 + 1;
        store.apply(&place.queue, &set(bound)).await.unwrap();
    }
    let (put, got) = tokio::time::timeout(Duration::from_secs(20), async {
        (producer.join().await, consumer.join().await)
    })
    .await
    .expect("no client waits without end");
    assert!(put.error.is_none() && got.error.is_none(), "{put:?} {got:?}");
    assert_eq!(got.elements, numbers(ELEMENTS).collect::<Vec<_>>());

    assert_eq!(store.apply(&place.queue, &QueueEffect::Close).await.unwrap(), Applied::Done);
    let seen = store.observe(&place.queue).await.unwrap();
    assert_eq!((seen.bound, seen.length), (Some(bound), 0));
    assert_eq!(store.delete(&place.queue, TakenRoles::Wait).await.unwrap(), Deletion::Gone);
    assert!(place.dump().await.is_empty());
}

#[tokio::test]
async fn the_documented_permissions_are_enough_on_valkey_and_less_changes_nothing() {
    let server = PrivateRedis::valkey().await;
    let place = TestQueue::at(&server.url()).await;
    let user = AclUser::named_for(&place);
    let keys = format!("~{}:*", place.queue.prefix());
    let mut rules = vec![keys.as_str()];
    rules.extend(crate::store::errors::DOCUMENTED);
    user.set(&place, &rules).await;
    let store = Store::new(user.settings.clone(), StoreOptions::new("the operator"));
    let create = QueueEffect::Create { bound: 3 };
    assert_eq!(store.apply(&place.queue, &create).await.unwrap(), Applied::Done);
    let bound = QueueEffect::SetBound { bound: 1 };
    assert_eq!(store.apply(&place.queue, &bound).await.unwrap(), Applied::Done);
    let before = place.dump().await;
    for command in ["-set", "-lpush"] {
        let fewer = [rules.as_slice(), &[command]].concat();
        user.set(&place, &fewer).await;
        let err = store.apply(&place.queue, &QueueEffect::Close).await.unwrap_err();
        assert!(matches!(err, StoreError::PermissionDenied { .. }), "{command}: {err:?}");
        assert_eq!(place.dump().await, before, "{command}");
    }
    user.set(&place, &rules).await;
    assert_eq!(store.apply(&place.queue, &QueueEffect::Close).await.unwrap(), Applied::Done);
    assert_eq!(store.delete(&place.queue, TakenRoles::Wait).await.unwrap(), Deletion::Gone);
}
