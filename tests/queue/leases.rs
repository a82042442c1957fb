//! Elements in flight: got with a lease, acknowledged, requeued, or returned by the end
//! of the lease.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper_pressure::{Deletion, Delivery, Limit, Queue, QueueError, QueueOptions, Wait};
use lockkeeper_testkit::pressure_text::TextClient;
use lockkeeper_testkit::redis::{TestQueue, eventually, precisely};

use crate::queue::{ours, text_queue};

const ALL: Limit = Limit { elements: 1000, bytes: usize::MAX };

/// Returns the place's queue as our client with a short lease.
fn leasing(place: &TestQueue, lease: Duration) -> Queue {
    let options = QueueOptions::default().with_client_id("a consumer").with_lease(lease);
    Queue::new(place.settings(), place.queue.clone(), options)
}

/// Creates the queue with these elements.
async fn filled(place: &TestQueue, elements: &[&str]) -> Queue {
    let queue = ours(place, "me");
    queue.create(0).await.unwrap();
    queue.put_batch(elements, Wait::No).await.unwrap();
    queue
}

fn texts(deliveries: &[Delivery]) -> Vec<(String, u64)> {
    let text = |d: &Delivery| String::from_utf8(d.element().to_vec()).unwrap();
    deliveries.iter().map(|delivery| (text(delivery), delivery.delivery_count())).collect()
}

fn delivered(all: &[(&str, u64)]) -> Vec<(String, u64)> {
    all.iter().map(|(text, count)| ((*text).to_owned(), *count)).collect()
}

/// Gets elements as a client that dies with them: its process renews nothing any more.
fn die_with(place: &TestQueue, lease: Duration, limit: Limit) {
    let queue = leasing(place, lease);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let got = runtime.block_on(queue.get_acked_batch(limit, Wait::No)).unwrap();
            std::mem::forget(got);
            runtime.shutdown_background();
        });
    });
}

#[tokio::test]
async fn an_element_is_in_flight_until_it_is_acknowledged() {
    let place = TestQueue::new().await;
    let queue = filled(&place, &["a", "b"]).await;
    let first = queue.get_acked(Wait::No).await.unwrap();
    assert_eq!((first.element(), first.delivery_count()), (&b"a"[..], 1));
    let seen = queue.stat().await.unwrap();
    assert_eq!((seen.length, seen.in_flight, seen.leases_ended, seen.drift()), (1, 1, 0, 0));
    assert_eq!(ours(&place, "another").try_get().await.unwrap(), b"b");
    assert_eq!(ours(&place, "another").try_get().await, Err(QueueError::Empty));
    first.ack().await.unwrap();
    assert_eq!(queue.stat().await.unwrap().in_flight, 0);
    queue.close(Wait::No).await.unwrap();
    assert_eq!(queue.get_acked(Wait::Forever).await.unwrap_err(), QueueError::Closed);
    assert!(!place.present().await.iter().any(|key| key == ":in_flight" || key == ":leases"));
    queue.delete(Wait::No).await.unwrap();
    assert!(place.present().await.is_empty(), "{:?}", place.dump().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_elements_of_a_dead_client_come_again_first_in_order_and_counted() {
    let place = TestQueue::new().await;
    let queue = filled(&place, &["a", "b", "c", "d"]).await;
    die_with(&place, Duration::from_secs(2), Limit { elements: 3, bytes: usize::MAX });
    assert_eq!(queue.stat().await.unwrap().in_flight, 3);
    eventually("the leases end", async || queue.stat().await.unwrap().leases_ended == 3).await;
    let two = queue.get_acked_batch(Limit { elements: 2, ..ALL }, Wait::No).await.unwrap();
    assert_eq!(texts(&two), delivered(&[("a", 2), ("b", 2)]));
    let rest = queue.get_acked_batch(ALL, Wait::No).await.unwrap();
    assert_eq!(texts(&rest), delivered(&[("c", 2), ("d", 1)]));
    queue.ack_all(two.into_iter().chain(rest).collect()).await.unwrap();
    let seen = queue.stat().await.unwrap();
    assert_eq!((seen.in_flight, seen.consumed_messages, seen.drift()), (0, 4, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_waits_gets_the_elements_of_a_dead_client() {
    let place = TestQueue::new().await;
    let queue = filled(&place, &["a"]).await;
    die_with(&place, Duration::from_secs(2), ALL);
    // A plain get too, although nothing is put any more.
    let closer = ours(&place, "the producer");
    closer.close(Wait::No).await.unwrap();
    assert_eq!(queue.get().await.unwrap(), b"a");
    assert_eq!(queue.get().await, Err(QueueError::Closed));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_living_client_keeps_its_elements_for_many_leases() {
    let place = TestQueue::new().await;
    let queue = leasing(&place, Duration::from_secs(6));
    queue.create(0).await.unwrap();
    queue.put("a").await.unwrap();
    let kept = queue.get_acked(Wait::No).await.unwrap();
    let other = ours(&place, "another");
    let waited = other.get_acked(Wait::For(Duration::from_secs(14))).await.unwrap_err();
    assert!(matches!(waited, QueueError::TimedOut { .. }), "{waited:?}");
    assert!(!kept.has_ended());
    kept.ack().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_element_that_is_requeued_or_dropped_is_delivered_again_before_younger_ones() {
    let place = TestQueue::new().await;
    let queue = filled(&place, &["a", "b"]).await;
    let first = queue.get_acked(Wait::No).await.unwrap();
    first.requeue(Duration::ZERO).await.unwrap();
    let again = queue.get_acked(Wait::No).await.unwrap();
    assert_eq!((again.element(), again.delivery_count()), (&b"a"[..], 2));
    drop(again);
    eventually("it is back", async || queue.stat().await.unwrap().leases_ended == 1).await;
    let again = queue.get_acked(Wait::No).await.unwrap();
    assert_eq!((again.element(), again.delivery_count()), (&b"a"[..], 3));

    // Later: the younger one comes first.
    again.requeue(Duration::from_secs(3)).await.unwrap();
    let younger = queue.get_acked(Wait::No).await.unwrap();
    assert_eq!((younger.element(), younger.delivery_count()), (&b"b"[..], 1));
    younger.ack().await.unwrap();
    let again = queue.get_acked(Wait::Forever).await.unwrap();
    assert_eq!((again.element(), again.delivery_count()), (&b"a"[..], 4));
    again.ack().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_queue_is_not_finished_while_an_element_is_in_flight() {
    let place = TestQueue::new().await;
    let queue = filled(&place, &["a"]).await;
    let first = queue.get_acked(Wait::No).await.unwrap();
    queue.close(Wait::No).await.unwrap();
    assert_eq!(queue.get_acked(Wait::No).await.unwrap_err(), QueueError::Empty);
    assert_eq!(queue.try_get().await, Err(QueueError::Empty));
    let other = ours(&place, "another");
    let waiting = tokio::spawn(async move {
        let again = other.get_acked(Wait::Forever).await.unwrap();
        assert_eq!((again.element(), again.delivery_count()), (&b"a"[..], 2));
        let finished = tokio::spawn(async move { other.get_acked(Wait::Forever).await });
        again.ack().await.unwrap();
        finished.await.unwrap().unwrap_err()
    });
    drop(first);
    assert_eq!(waiting.await.unwrap(), QueueError::Closed);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_after_the_end_of_the_lease_removes_nothing_of_the_next_client() {
    let place = TestQueue::new().await;
    let queue = filled(&place, &["a"]).await;
    let late = queue.get_acked(Wait::No).await.unwrap();
    // As if this process had been suspended for longer than the lease.
    let id: Vec<String> = place.run(&["ZRANGE", &place.key(":leases"), "0", "-1"]).await;
    let () = place.run(&["ZADD", &place.key(":leases"), "1", &id[0]]).await;
    let next = ours(&place, "another").get_acked(Wait::No).await.unwrap();
    assert_eq!(next.delivery_count(), 2);
    assert_eq!(late.ack().await, Err(QueueError::LeaseEnded));
    assert_eq!(queue.stat().await.unwrap().in_flight, 1);
    next.ack().await.unwrap();
    assert_eq!(queue.stat().await.unwrap().in_flight, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_finds_that_another_client_has_the_element() {
    let place = TestQueue::new().await;
    filled(&place, &["a"]).await;
    let queue = leasing(&place, Duration::from_secs(6));
    let late = queue.get_acked(Wait::No).await.unwrap();
    let id: Vec<String> = place.run(&["ZRANGE", &place.key(":leases"), "0", "-1"]).await;
    let () = place.run(&["ZADD", &place.key(":leases"), "1", &id[0]]).await;
    let next = ours(&place, "another").get_acked(Wait::No).await.unwrap();
    eventually("the renewal finds it", async || late.has_ended()).await;
    drop(late);
    assert!(!next.has_ended());
    next.ack().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_get_that_is_dropped_at_any_moment_delivers_its_element_again() {
    let place = TestQueue::new().await;
    let count = 1000;
    let elements: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    let texts: Vec<&str> = elements.iter().map(String::as_str).collect();
    let queue = filled(&place, &texts).await;
    queue.close(Wait::No).await.unwrap();
    let (mut got, mut dropped, mut again) = (BTreeSet::new(), 0, 0);
    let mut limit = Duration::from_millis(1);
    for turn in 0_u32.. {
        // Every other get runs to its end. The limit of the others adapts to the machine: half of
        // them are dropped.
        let is_limited = turn % 2 == 0;
        let is_over = async {
            if !is_limited {
                std::future::pending::<()>().await;
            }
            precisely(rand::random_range(Duration::ZERO..limit)).await;
        };
        tokio::select! {
            biased;
            () = is_over => {
                dropped += 1;
                limit *= 2;
            }
            delivery = queue.get_acked(Wait::Forever) => match delivery {
                Ok(delivery) => {
                    if is_limited {
                        limit = (limit / 2).max(Duration::from_micros(1));
                    }
                    got.insert(String::from_utf8(delivery.element().to_vec()).unwrap());
                    again += usize::from(delivery.delivery_count() > 1);
                    delivery.ack().await.unwrap();
                }
                Err(error) => {
                    assert_eq!(error, QueueError::Closed);
                    break;
                }
            }
        }
    }
    assert_eq!(got, elements.into_iter().collect());
    assert!(dropped > 20, "only {dropped} were dropped, {again} came again");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_other_origin_are_not_disturbed_by_elements_in_flight() {
    let place = TestQueue::new().await;
    let queue = filled(&place, &["a", "b"]).await;
    let mut text = TextClient::connect(&text_queue(&place), "the text").await.unwrap();
    let first = queue.get_acked(Wait::No).await.unwrap();
    assert_eq!(text.get().await.unwrap(), "b");
    text.put("c").await.unwrap();
    first.requeue(Duration::ZERO).await.unwrap();
    assert_eq!(text.get().await.unwrap(), "c", "in its list there is nothing else");
    let again = queue.get_acked(Wait::No).await.unwrap();
    assert_eq!((again.element(), again.delivery_count()), (&b"a"[..], 2));
    again.ack().await.unwrap();
    assert_eq!(queue.stat().await.unwrap().drift(), 0);
    text.close().await.unwrap();
    text.delete().await.unwrap();
    assert!(place.present().await.is_empty(), "{:?}", place.dump().await);
}

#[tokio::test]
async fn a_queue_with_elements_in_flight_is_not_empty_and_is_deleted_with_them() {
    let place = TestQueue::new().await;
    let queue = filled(&place, &["a"]).await;
    let first = queue.get_acked(Wait::No).await.unwrap();
    let store = place.store();
    let kept = store.delete_if_empty(&place.queue).await.unwrap();
    assert_eq!(kept, Deletion::NotEmpty { length: 1 });
    queue.delete(Wait::No).await.unwrap();
    assert!(place.present().await.is_empty(), "{:?}", place.dump().await);
    assert_eq!(first.ack().await, Err(QueueError::LeaseEnded));
    assert!(place.present().await.is_empty(), "{:?}", place.dump().await);
}
