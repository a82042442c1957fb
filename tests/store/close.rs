//! Closing queues.

use lockkeeper_plan::pressure_queue::QueueEffect;
use lockkeeper_pressure::{Applied, Store};
use lockkeeper_testkit::pressure_text::{TextClient, TextError, Worker};
use lockkeeper_testkit::redis::{TestQueue, wait_until_blocked};

use crate::store::{numbers, text_queue};

async fn close(store: &Store, place: &TestQueue) -> Applied {
    store.apply(&place.queue, &QueueEffect::Close).await.unwrap()
}

async fn created(bound: u64) -> (TestQueue, Store) {
    let place = TestQueue::new().await;
    let store = place.store();
    store.apply(&place.queue, &QueueEffect::Create { bound }).await.unwrap();
    (place, store)
}

#[tokio::test]
async fn a_queue_is_closed_once_and_records_the_client_that_closed_it() {
    let (place, store) = created(3).await;
    assert_eq!(close(&store, &place).await, Applied::Done);
    let seen = store.observe(&place.queue).await.unwrap();
    assert_eq!((seen.closed, seen.closed_tokens), (true, 2));
    assert_eq!(seen.producer.id.as_deref(), Some("the operator"));
    assert_eq!((seen.producer_free, seen.producer.busy), (1, false));
    let once = place.dump().await;
    assert_eq!(close(&store, &place).await, Applied::AlreadySo);
    assert_eq!(place.dump().await, once);
}

#[tokio::test]
async fn a_closed_queue_can_be_drained_but_not_filled() {
    let (place, store) = created(3).await;
    let mut client = TextClient::connect(&text_queue(&place), "foreign").await.unwrap();
    client.put("last").await.unwrap();
    close(&store, &place).await;
    assert!(matches!(client.put("too late").await, Err(TextError::Closed)));
    assert_eq!(client.get().await.unwrap(), "last");
    assert!(matches!(client.get().await, Err(TextError::Closed)));
    assert!(store.observe(&place.queue).await.unwrap().closed);
}

#[tokio::test]
async fn a_close_wakes_a_consumer_that_waits_and_the_queue_stays_closed() {
    let (place, store) = created(3).await;
    let consumer = Worker::consume(&text_queue(&place), "consumer", 1).await;
    wait_until_blocked(&place.raw, consumer.client).await;
    assert_eq!(close(&store, &place).await, Applied::Done);
    assert!(matches!(consumer.join().await.error, Some(TextError::Closed)));
    // The consumer popped one of the two.
    let seen = store.observe(&place.queue).await.unwrap();
    assert_eq!((seen.closed, seen.closed_tokens), (true, 1));
    assert_eq!(close(&store, &place).await, Applied::AlreadySo);
    assert_eq!(place.length(":closed").await, 1);
}

#[tokio::test]
async fn a_close_waits_for_a_blocked_producer_and_names_it() {
    let (place, store) = created(2).await;
    let queue = text_queue(&place);
    let producer = Worker::produce(&queue, "the busy one", numbers(3)).await;
    wait_until_blocked(&place.raw, producer.client).await;
    let before = place.dump().await;
    let busy = Applied::ProducerBusy { who: Some("the busy one".to_owned()) };
    assert_eq!(close(&store, &place).await, busy);
    assert_eq!(close(&store, &place).await, busy);
    assert_eq!(place.dump().await, before);
    // Capacity lets the producer finish, and its element is not lost.
    let consumer = Worker::consume(&queue, "consumer", 1).await;
    consumer.join().await;
    assert!(producer.join().await.error.is_none());
    assert_eq!(close(&store, &place).await, Applied::Done);
    assert_eq!(place.length("").await, 2);
}

#[tokio::test]
async fn a_producer_without_a_name_is_waited_for_too() {
    let (place, store) = created(2).await;
    let () = place.run(&["RPOP", &place.key(":producer_free")]).await;
    assert_eq!(close(&store, &place).await, Applied::ProducerBusy { who: None });
}

#[tokio::test]
async fn a_queue_that_is_gone_is_not_closed() {
    let place = TestQueue::new().await;
    assert_eq!(close(&place.store(), &place).await, Applied::Absent);
    assert!(place.dump().await.is_empty());
}
