//! Deleting queues in two steps, whichever clients use them.

use std::time::Duration;

use lockkeeper_plan::pressure_queue::QueueEffect;
use lockkeeper_pressure::{Deletion, Holder, Store, StoreOptions, TakenRoles};
use lockkeeper_testkit::pressure_text::{TextClient, TextError, Worker};
use lockkeeper_testkit::redis::{SOON, TestQueue, eventually, wait_until_blocked};

use crate::store::{numbers, text_queue};

async fn created(bound: u64) -> (TestQueue, Store) {
    let place = TestQueue::new().await;
    let store = place.store();
    store.apply(&place.queue, &QueueEffect::Create { bound }).await.unwrap();
    (place, store)
}

fn holder(id: &str) -> Holder {
    Holder { id: Some(id.to_owned()) }
}

/// Deletes until nothing is left.
async fn delete_until_gone(store: &Store, place: &TestQueue) {
    eventually("the queue is gone", async || {
        store.delete(&place.queue, TakenRoles::Wait).await.unwrap() == Deletion::Gone
    })
    .await;
    assert!(place.dump().await.is_empty(), "left behind: {:?}", place.dump().await);
}

#[tokio::test]
async fn an_unused_queue_is_deleted_immediately_with_its_data() {
    let (place, store) = created(3).await;
    let mut client = TextClient::connect(&text_queue(&place), "foreign").await.unwrap();
    client.put("x").await.unwrap();
    store.apply(&place.queue, &QueueEffect::Close).await.unwrap();
    assert_eq!(store.delete(&place.queue, TakenRoles::Wait).await.unwrap(), Deletion::Gone);
    assert!(place.dump().await.is_empty());
    assert_eq!(store.delete(&place.queue, TakenRoles::Wait).await.unwrap(), Deletion::Gone);
    assert_eq!(store.delete(&place.queue, TakenRoles::Ignore).await.unwrap(), Deletion::Gone);
}

#[tokio::test]
async fn a_blocked_producer_ends_and_leaves_nothing_behind() {
    let (place, store) = created(2).await;
    let producer = Worker::produce(&text_queue(&place), "producer", numbers(9)).await;
    wait_until_blocked(&place.raw, producer.client).await;
    delete_until_gone(&store, &place).await;
    let record = producer.join().await;
    // According to the protocol its put succeeds, and the next one finds no queue.
    assert_eq!(record.elements.len(), 3);
    assert!(matches!(record.error, Some(TextError::DoesNotExist)), "{record:?}");
    assert!(place.dump().await.is_empty());
}

#[tokio::test]
async fn a_blocked_consumer_ends_and_leaves_nothing_behind() {
    let (place, store) = created(2).await;
    let consumer = Worker::consume(&text_queue(&place), "consumer", 1).await;
    wait_until_blocked(&place.raw, consumer.client).await;
    delete_until_gone(&store, &place).await;
    assert!(matches!(consumer.join().await.error, Some(TextError::Closed)));
    assert!(place.dump().await.is_empty());
}

#[tokio::test]
async fn producers_that_queue_for_the_role_end_one_after_the_other() {
    let (place, store) = created(1).await;
    let mut producers = Vec::new();
    for id in ["a", "b", "c", "d"] {
        let producer = Worker::produce(&text_queue(&place), id, numbers(9)).await;
        // The first waits for capacity, the others for the role.
        wait_until_blocked(&place.raw, producer.client).await;
        producers.push(producer);
    }
    delete_until_gone(&store, &place).await;
    for producer in producers {
        assert!(matches!(producer.join().await.error, Some(TextError::DoesNotExist)));
    }
    assert!(place.dump().await.is_empty());
}

#[tokio::test]
async fn consumers_that_queue_for_the_role_end_one_after_the_other() {
    let (place, store) = created(1).await;
    let mut consumers = Vec::new();
    for id in ["a", "b", "c", "d"] {
        let consumer = Worker::consume(&text_queue(&place), id, 1).await;
        wait_until_blocked(&place.raw, consumer.client).await;
        consumers.push(consumer);
    }
    delete_until_gone(&store, &place).await;
    for consumer in consumers {
        assert!(matches!(consumer.join().await.error, Some(TextError::Closed)));
    }
    assert!(place.dump().await.is_empty());
}

/// Starts a connection that blocks in this command until it is answered.
async fn waiter(place: &TestQueue, command: &[&str]) -> tokio::task::JoinHandle<()> {
    let mut connection = lockkeeper_testkit::redis::connect(&place.url).await;
    let client: i64 = redis::cmd("CLIENT").arg("ID").query_async(&mut connection).await.unwrap();
    let mut blocking = redis::cmd(command[0]);
    blocking.arg(&command[1..]);
    let task = tokio::spawn(async move {
        let _: redis::Value = blocking.query_async(&mut connection).await.unwrap();
    });
    wait_until_blocked(&place.raw, client).await;
    task
}

#[tokio::test]
async fn waiters_without_a_role_are_woken_before_the_last_step() {
    // Clients that hold no role while they wait for capacity or for the end. Both roles
    // are free.
    let (place, store) = created(1).await;
    let () = place.run(&["RPOP", &place.key(":not_full")]).await;
    let mut waiters = Vec::new();
    for suffix in [":not_full", ":closed"] {
        let key = place.key(suffix);
        waiters.push(waiter(&place, &["BLMOVE", &key, &key, "RIGHT", "RIGHT", "0"]).await);
    }
    delete_until_gone(&store, &place).await;
    for waiter in waiters {
        tokio::time::timeout(SOON, waiter).await.expect("woken").unwrap();
    }
    assert!(place.dump().await.is_empty());
}

#[tokio::test]
async fn a_consumer_that_finds_the_mark_of_the_close_used_up_is_woken_too() {
    let (place, store) = created(1).await;
    let () = place.run(&["RPOP", &place.key(":consumer_free")]).await;
    let () = place.run(&["SET", &place.key(":consumer"), "slow"]).await;
    let waiting = Deletion::WaitingFor { producer: None, consumer: Some(holder("slow")) };
    assert_eq!(store.delete(&place.queue, TakenRoles::Wait).await.unwrap(), waiting);
    // Other clients have popped both elements that the first step pushed.
    let () = place.run(&["RPOP", &place.key(":closed"), "2"]).await;
    let consumer = waiter(&place, &["BRPOP", &place.key(""), &place.key(":closed"), "0"]).await;
    assert_eq!(store.delete(&place.queue, TakenRoles::Wait).await.unwrap(), waiting);
    tokio::time::timeout(SOON, consumer).await.expect("woken").unwrap();
}

#[tokio::test]
async fn a_deletion_waits_for_both_roles_and_names_their_holders() {
    let (place, store) = created(5).await;
    for role in [":producer", ":consumer"] {
        let () = place.run(&["RPOP", &place.key(&format!("{role}_free"))]).await;
        let () = place.run(&["SET", &place.key(role), &format!("a{}", &role[1..])]).await;
    }
    let both = Deletion::WaitingFor {
        producer: Some(holder("aproducer")),
        consumer: Some(holder("aconsumer")),
    };
    assert_eq!(store.delete(&place.queue, TakenRoles::Wait).await.unwrap(), both);
    let begun = place.dump().await;
    assert!(!begun.iter().any(|(suffix, _)| suffix == ":bound"));
    assert_eq!(store.delete(&place.queue, TakenRoles::Wait).await.unwrap(), both);
    assert_eq!(place.dump().await, begun, "a repeated step changes nothing");

    let () = place.run(&["LPUSH", &place.key(":producer_free"), "0"]).await;
    let one = Deletion::WaitingFor { producer: None, consumer: Some(holder("aconsumer")) };
    assert_eq!(store.delete(&place.queue, TakenRoles::Wait).await.unwrap(), one);
    // A producer may take the free role again if it had already checked :bound.
    let () = place.run(&["RPOP", &place.key(":producer_free")]).await;
    let () = place.run(&["LPUSH", &place.key(":consumer_free"), "0"]).await;
    let other = Deletion::WaitingFor { producer: Some(holder("aproducer")), consumer: None };
    assert_eq!(store.delete(&place.queue, TakenRoles::Wait).await.unwrap(), other);
    let () = place.run(&["LPUSH", &place.key(":producer_free"), "0"]).await;
    assert_eq!(store.delete(&place.queue, TakenRoles::Wait).await.unwrap(), Deletion::Gone);
    assert!(place.dump().await.is_empty());
}

#[tokio::test]
async fn a_deletion_interrupted_after_its_first_step_is_taken_up_by_another_store() {
    let (place, store) = created(5).await;
    let () = place.run(&["RPOP", &place.key(":consumer_free")]).await;
    let () = place.run(&["SET", &place.key(":consumer"), "slow"]).await;
    let waiting = Deletion::WaitingFor { producer: None, consumer: Some(holder("slow")) };
    assert_eq!(store.delete(&place.queue, TakenRoles::Wait).await.unwrap(), waiting);
    drop(store);
    let successor = place.store();
    assert_eq!(successor.delete(&place.queue, TakenRoles::Wait).await.unwrap(), waiting);
    let () = place.run(&["LPUSH", &place.key(":consumer_free"), "0"]).await;
    assert_eq!(successor.delete(&place.queue, TakenRoles::Wait).await.unwrap(), Deletion::Gone);
    assert!(place.dump().await.is_empty());
}

#[tokio::test]
async fn a_foreign_deletion_given_up_half_way_is_finished_after_a_moment() {
    let (place, _) = created(5).await;
    // A client that followed the text until it waited for the consumer.
    let mut dying = TextClient::connect(&text_queue(&place), "dying").await.unwrap();
    let () = place.run(&["RPOP", &place.key(":consumer_free")]).await;
    let () = place.run(&["SET", &place.key(":consumer"), "slow"]).await;
    let client = dying.client;
    let task = tokio::spawn(async move { dying.delete().await.map_err(|_| ()) });
    wait_until_blocked(&place.raw, client).await;
    eventually("its producer role is removed", async || {
        !place.present().await.contains(&":producer_free".to_owned())
    })
    .await;
    task.abort();
    let _ = task.await;
    eventually("its connection is gone", async || {
        let list: String = place.run(&["CLIENT", "LIST", "ID", &client.to_string()]).await;
        list.trim().is_empty()
    })
    .await;
    let () = place.run(&["LPUSH", &place.key(":consumer_free"), "0"]).await;

    let mut options = StoreOptions::new("the operator");
    options.nameless_role_grace = Duration::from_millis(50);
    let store = Store::new(place.settings(), options);
    // Could be a producer that has not written its id yet.
    let waiting = Deletion::WaitingFor { producer: Some(Holder { id: None }), consumer: None };
    assert_eq!(store.delete(&place.queue, TakenRoles::Wait).await.unwrap(), waiting);
    eventually("the queue is gone", async || {
        store.delete(&place.queue, TakenRoles::Wait).await.unwrap() == Deletion::Gone
    })
    .await;
    assert!(place.dump().await.is_empty());
}

#[tokio::test]
async fn a_half_created_queue_can_be_deleted() {
    let place = TestQueue::new().await;
    let () = place.run(&["SETNX", &place.key(":bound"), "5"]).await;
    let mut options = StoreOptions::new("the operator");
    options.nameless_role_grace = Duration::from_millis(50);
    let store = Store::new(place.settings(), options);
    eventually("the queue is gone", async || {
        store.delete(&place.queue, TakenRoles::Wait).await.unwrap() == Deletion::Gone
    })
    .await;
    assert!(place.dump().await.is_empty());
}

#[tokio::test]
async fn only_force_ends_a_deletion_that_waits_for_a_dead_client() {
    let (place, store) = created(1).await;
    let producer = Worker::produce(&text_queue(&place), "doomed", numbers(9)).await;
    wait_until_blocked(&place.raw, producer.client).await;
    let client = producer.client;
    producer.kill().await;
    eventually("its connection is gone", async || {
        let list: String = place.run(&["CLIENT", "LIST", "ID", &client.to_string()]).await;
        list.trim().is_empty()
    })
    .await;
    let waiting = Deletion::WaitingFor { producer: Some(holder("doomed")), consumer: None };
    for _ in 0..3 {
        assert_eq!(store.delete(&place.queue, TakenRoles::Wait).await.unwrap(), waiting);
    }
    assert_eq!(store.delete(&place.queue, TakenRoles::Ignore).await.unwrap(), Deletion::Gone);
    assert!(place.dump().await.is_empty());
}

#[tokio::test]
async fn a_deletion_that_wants_an_empty_queue_does_not_begin_on_a_full_one() {
    let (place, store) = created(5).await;
    let mut client = TextClient::connect(&text_queue(&place), "foreign").await.unwrap();
    client.put("precious").await.unwrap();
    let before = place.dump().await;
    let refused = store.delete_if_empty(&place.queue).await.unwrap();
    assert_eq!(refused, Deletion::NotEmpty { length: 1 });
    assert_eq!(place.dump().await, before);
    client.get().await.unwrap();
    assert_eq!(store.delete_if_empty(&place.queue).await.unwrap(), Deletion::Gone);
}

#[tokio::test]
async fn the_next_queue_of_the_name_starts_fresh() {
    let (place, store) = created(1).await;
    let producer = Worker::produce(&text_queue(&place), "producer", numbers(9)).await;
    wait_until_blocked(&place.raw, producer.client).await;
    delete_until_gone(&store, &place).await;
    producer.join().await;
    store.apply(&place.queue, &QueueEffect::Create { bound: 4 }).await.unwrap();
    let seen = store.observe(&place.queue).await.unwrap();
    assert_eq!((seen.bound, seen.length, seen.closed, seen.not_full), (Some(4), 0, false, 1));
}
