//! Each operation alone: its effect, and the errors of the protocol that it returns.

use std::time::Duration;

use lockkeeper_pressure::{
    Awaited, Limit, Queue, QueueError, QueueOptions, QueueRole, StoreError, Wait,
};
use lockkeeper_testkit::redis::TestQueue;
use redis::AsyncCommands;

use crate::queue::ours;

fn busy_with(role: QueueRole, who: &str) -> QueueError {
    QueueError::InUse { role, who: Some(who.to_owned()) }
}

#[tokio::test]
async fn elements_are_got_in_the_order_they_were_put_and_counted() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    queue.create(3).await.unwrap();
    assert_eq!(queue.create(3).await, Err(QueueError::AlreadyExists));
    assert_eq!((queue.exists().await, queue.closed().await), (Ok(true), Ok(false)));
    for element in ["a", "", "c\0\u{ff}"] {
        queue.put(element).await.unwrap();
    }
    assert_eq!(queue.len().await, Ok(3));
    assert_eq!(queue.try_put("d").await, Err(QueueError::Full));
    assert_eq!(queue.peek(2).await.unwrap(), [b"a".to_vec(), b"".to_vec()]);
    queue.close(Wait::Forever).await.unwrap();
    assert_eq!(queue.closed().await, Ok(true));
    assert_eq!(queue.get().await.unwrap(), b"a");
    assert_eq!(queue.try_get().await.unwrap(), b"");
    assert_eq!(queue.get_timeout(Duration::ZERO).await.unwrap(), "c\0\u{ff}".as_bytes());
    assert_eq!(queue.get().await, Err(QueueError::Closed));
    let seen = queue.stat().await.unwrap();
    assert_eq!((seen.produced_messages, seen.produced_bytes), (3, 5));
    assert_eq!((seen.consumed_messages, seen.consumed_bytes), (3, 5));
    assert_eq!(
        (seen.producer.id.as_deref(), seen.consumer.id.as_deref()),
        (Some("me"), Some("me"))
    );
    assert_eq!((seen.not_full, seen.producer_free, seen.consumer_free), (1, 1, 1));
    queue.delete(Wait::Forever).await.unwrap();
    assert!(place.present().await.is_empty(), "{:?}", place.dump().await);
}

#[tokio::test]
async fn a_queue_that_does_not_exist_is_that_to_every_operation() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    let absent = QueueError::DoesNotExist;
    assert_eq!(queue.exists().await, Ok(false));
    assert_eq!(queue.len().await, Err(absent.clone()));
    assert_eq!(queue.closed().await, Err(absent.clone()));
    assert_eq!(queue.put("a").await, Err(absent.clone()));
    assert_eq!(queue.try_put("a").await, Err(absent.clone()));
    assert_eq!(queue.put_overfill(&["a"], Wait::Forever).await.unwrap_err().error, absent);
    assert_eq!(queue.get().await, Err(absent.clone()));
    assert_eq!(queue.try_get().await, Err(absent.clone()));
    assert_eq!(queue.peek(1).await, Err(absent.clone()));
    assert_eq!(queue.close(Wait::Forever).await, Err(absent.clone()));
    assert_eq!(queue.delete(Wait::Forever).await, Err(absent));
    assert!(place.present().await.is_empty());
}

#[tokio::test]
async fn a_closed_queue_takes_nothing_and_is_closed_only_once() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    queue.create(0).await.unwrap();
    queue.put("a").await.unwrap();
    queue.close(Wait::No).await.unwrap();
    assert_eq!(queue.close(Wait::No).await, Err(QueueError::Closed));
    assert_eq!(queue.put("b").await, Err(QueueError::Closed));
    assert_eq!(queue.put_overfill(&["b"], Wait::No).await.unwrap_err().error, QueueError::Closed);
    assert_eq!(place.length(":closed").await, 2);
    assert_eq!(queue.get().await.unwrap(), b"a");
    assert_eq!(queue.try_get().await, Err(QueueError::Closed));
}

#[tokio::test]
async fn operations_that_give_up_waiting_report_the_cause_and_the_busy_client() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    let soon = Duration::from_millis(20);
    queue.create(1).await.unwrap();
    assert_eq!(queue.try_get().await, Err(QueueError::Empty));
    let late = Err(QueueError::TimedOut { awaited: Awaited::Element });
    assert_eq!(queue.get_timeout(soon).await, late);
    queue.put("a").await.unwrap();
    assert_eq!(queue.try_put("b").await, Err(QueueError::Full));
    let late = Err(QueueError::TimedOut { awaited: Awaited::Room });
    assert_eq!(queue.put_timeout("b", soon).await, late);
    // Another client takes both roles.
    for role in [":producer", ":consumer"] {
        let () = place.run(&["RPOP", &place.key(&format!("{role}_free"))]).await;
        let () = place.run(&["SET", &place.key(role), &format!("host/1{role}")]).await;
    }
    let producer = busy_with(QueueRole::Producer, "host/1:producer");
    let consumer = busy_with(QueueRole::Consumer, "host/1:consumer");
    assert_eq!(queue.try_put("b").await, Err(producer.clone()));
    assert_eq!(queue.close(Wait::No).await, Err(producer.clone()));
    assert_eq!(queue.put_overfill(&["b"], Wait::No).await.unwrap_err().error, producer);
    assert_eq!(queue.try_get().await, Err(consumer));
    let who = Some("host/1:producer".to_owned());
    let awaited = Awaited::Role { role: QueueRole::Producer, who };
    let late = Err(QueueError::TimedOut { awaited });
    assert_eq!(queue.put_timeout("b", soon).await, late);
    assert_eq!(queue.close(Wait::For(soon)).await, late);
    assert_eq!(
        queue.delete(Wait::No).await,
        Err(busy_with(QueueRole::Producer, "host/1:producer"))
    );
    assert_eq!(queue.exists().await, Ok(false), "the deletion has begun");
    for role in [":producer_free", ":consumer_free"] {
        let () = place.run(&["LPUSH", &place.key(role), "1"]).await;
    }
    queue.delete(Wait::Forever).await.unwrap();
    assert!(place.present().await.is_empty());
}

#[tokio::test]
async fn overfilling_needs_no_room_and_later_puts_wait_until_the_queue_is_drained() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    queue.create(2).await.unwrap();
    queue.put("1").await.unwrap();
    queue.put_overfill(&["2", "3", "4"], Wait::Forever).await.unwrap();
    assert_eq!((queue.len().await, place.length(":not_full").await), (Ok(4), 0));
    for expected in [b"1", b"2"] {
        assert_eq!(queue.try_put("5").await, Err(QueueError::Full));
        assert_eq!(queue.get().await.unwrap(), expected);
    }
    assert_eq!(queue.try_put("5").await, Err(QueueError::Full));
    queue.get().await.unwrap();
    queue.try_put("5").await.unwrap();
    assert_eq!(place.length(":not_full").await, 0);
}

#[tokio::test]
async fn a_token_that_promises_room_in_a_full_queue_is_taken_away_by_a_put() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    queue.create(1).await.unwrap();
    queue.put("a").await.unwrap();
    // As a Get of the pseudo-code pushes it, regardless of the bound.
    let () = place.run(&["LPUSH", &place.key(":not_full"), "0"]).await;
    assert_eq!(queue.try_put("b").await, Err(QueueError::Full));
    assert_eq!((queue.len().await, place.length(":not_full").await), (Ok(1), 0));
    queue.get().await.unwrap();
    assert_eq!(place.length(":not_full").await, 1, "and pushed again by a get");
}

#[tokio::test]
async fn batches_put_as_much_as_fits_and_get_as_much_as_is_present() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    queue.create(5).await.unwrap();
    let numbers: Vec<String> = (0..8).map(|number| number.to_string()).collect();
    let failed = queue.put_batch(&numbers, Wait::No).await.unwrap_err();
    assert_eq!((failed.put, failed.error), (5, QueueError::Full));
    let all = Limit { elements: 100, bytes: usize::MAX };
    assert_eq!(queue.get_batch(Limit { elements: 2, ..all }, Wait::No).await.unwrap().len(), 2);
    let rest = queue.get_batch(all, Wait::No).await.unwrap().into_elements();
    assert_eq!(rest, [b"2", b"3", b"4"]);
    queue.put_batch(&numbers[..5], Wait::No).await.unwrap();
    // Two bytes are reached by the second element.
    let two = Limit { elements: 100, bytes: 2 };
    assert_eq!(queue.get_batch(two, Wait::No).await.unwrap().len(), 2);
    assert_eq!(place.length(":not_full").await, 1);
    let seen = queue.stat().await.unwrap();
    assert_eq!((seen.produced_messages, seen.consumed_messages, seen.length), (10, 7, 3));
}

#[tokio::test]
async fn thousands_of_elements_go_through_in_batches_of_any_size() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    queue.create(0).await.unwrap();
    let elements: Vec<String> = (0..5001).map(|number| number.to_string()).collect();
    queue.put_batch(&elements, Wait::No).await.unwrap();
    let large = vec![7_u8; 3 * 1024 * 1024];
    queue.put_batch(&[large.clone(), large.clone()], Wait::No).await.unwrap();
    let all = Limit { elements: 10_000, bytes: usize::MAX };
    let mut got = Vec::new();
    while let Ok(taken) = queue.get_batch(all, Wait::No).await {
        got.extend(taken.into_elements());
    }
    assert_eq!(got.len(), 5003);
    assert!(got.iter().zip(&elements).all(|(got, put)| got == put.as_bytes()));
    assert_eq!(got[5002], large);
}

#[tokio::test]
async fn a_large_element_that_may_not_be_put_leaves_no_trace() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    let large = vec![1_u8; 100_000];
    assert_eq!(queue.put(&large).await, Err(QueueError::DoesNotExist));
    assert!(place.present().await.is_empty());
    queue.create(2).await.unwrap();
    queue.put("small").await.unwrap();
    queue.put(&large).await.unwrap();
    assert_eq!(queue.try_put(&large).await, Err(QueueError::Full));
    assert_eq!(place.length(":not_full").await, 0);
    queue.put_overfill(&[&large], Wait::No).await.unwrap();
    assert_eq!((queue.len().await, queue.get().await.unwrap()), (Ok(3), b"small".to_vec()));
    let () = place.run(&["RPOP", &place.key(":producer_free")]).await;
    assert_eq!(queue.try_put(&large).await, Err(busy_with(QueueRole::Producer, "me")));
    let () = place.run(&["LPUSH", &place.key(":producer_free"), "1"]).await;
    queue.close(Wait::No).await.unwrap();
    assert_eq!(queue.put(&large).await, Err(QueueError::Closed));
    let seen = queue.stat().await.unwrap();
    assert_eq!((seen.length, seen.produced_messages, seen.produced_bytes), (2, 3, 200_005));
    // A key of another type, detected in the middle of the script.
    let () = place.run(&["DEL", &place.key(":closed")]).await;
    let () = place.run(&["SET", &place.key(":closed"), "foreign"]).await;
    let wrong = StoreError::WrongType { key: place.key(":closed") };
    assert_eq!(queue.put(&large).await, Err(wrong.into()));
    assert_eq!(place.length("").await, 2);
}

#[tokio::test]
async fn unused_elements_return_to_their_place_in_the_queue() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    queue.create(3).await.unwrap();
    queue.put_batch(&["1", "2", "3"], Wait::No).await.unwrap();
    let all = Limit { elements: 2, bytes: usize::MAX };
    let mut taken = queue.get_batch(all, Wait::No).await.unwrap();
    taken.pop();
    queue.put("4").await.unwrap();
    queue.put("5").await.unwrap();
    queue.give_back(taken, Wait::No).await.unwrap();
    assert_eq!(queue.peek(9).await.unwrap(), [b"2", b"3", b"4", b"5"]);
    assert_eq!(queue.try_put("6").await, Err(QueueError::Full), "over the bound by what came back");
    let seen = queue.stat().await.unwrap();
    assert_eq!((seen.consumed_messages, seen.consumed_bytes, seen.not_full), (1, 1, 0));
    // Another client got one in between.
    let taken = queue.get_batch(Limit::ONE, Wait::No).await.unwrap();
    ours(&place, "another").get().await.unwrap();
    let failed = queue.give_back(taken, Wait::No).await.unwrap_err();
    assert_eq!(failed.error, QueueError::Overtaken);
    assert_eq!(failed.taken.first(), Some(&b"2"[..]));
}

#[tokio::test]
async fn an_unreachable_server_fails_every_operation_at_once() {
    let place = TestQueue::new().await;
    let mut settings = place.settings();
    settings.port = 1;
    let queue = Queue::new(settings, place.queue.clone(), QueueOptions::default());
    let is_unreachable = |error: QueueError| match error {
        QueueError::Store(StoreError::Unreachable { .. }) => true,
        other => panic!("{other}"),
    };
    assert!(is_unreachable(queue.create(1).await.unwrap_err()));
    assert!(is_unreachable(queue.exists().await.unwrap_err()));
    assert!(is_unreachable(queue.put("a").await.unwrap_err()));
    assert!(is_unreachable(queue.get().await.unwrap_err()));
    assert!(is_unreachable(queue.close(Wait::Forever).await.unwrap_err()));
    assert!(is_unreachable(queue.delete(Wait::Forever).await.unwrap_err()));
}

#[tokio::test]
async fn a_key_that_is_not_pressure_s_is_named_and_nothing_is_taken() {
    // The last one is text in place of a number.
    for (suffix, kind) in [
        (":closed", "SET"),
        ("", "SET"),
        (":not_full", "SET"),
        (":bound", "LPUSH"),
        (":bound", "SET"),
    ] {
        let place = TestQueue::new().await;
        let queue = ours(&place, "me");
        queue.create(2).await.unwrap();
        queue.put("a").await.unwrap();
        let key = place.key(suffix);
        let () = place.raw.clone().del(&key).await.unwrap();
        let () = place.run(&[kind, &key, "foreign"]).await;
        let before = place.dump().await;
        let wrong = QueueError::Store(StoreError::WrongType { key });
        assert_eq!(queue.put("b").await, Err(wrong.clone()), "{suffix}");
        assert_eq!(ours(&place, "another").get().await, Err(wrong), "{suffix}");
        assert_eq!(place.dump().await, before, "{suffix}");
    }
}
