//! Operations that are dropped before they end, and the queue as a stream and a sink.

use std::time::Duration;

use futures::{SinkExt, StreamExt, TryStreamExt};
use lockkeeper_pressure::{Limit, QueueError, Wait};
use lockkeeper_testkit::redis::{TestQueue, eventually, precisely};

use crate::queue::ours;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_get_that_is_dropped_at_any_moment_loses_no_element_and_no_order() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "the consumer");
    queue.create(0).await.unwrap();
    let count = 3000;
    let elements: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    ours(&place, "the producer").put_batch(&elements, Wait::No).await.unwrap();
    let mut got = Vec::new();
    let mut dropped = 0;
    while got.len() < count {
        let pause = Duration::from_micros(rand::random_range(0..400));
        tokio::select! {
            biased;
            () = precisely(pause) => dropped += 1,
            element = queue.get() => got.push(String::from_utf8(element.unwrap()).unwrap()),
        }
    }
    assert_eq!(got, elements);
    assert!(dropped > 20, "only {dropped} were dropped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn elements_of_a_dropped_get_are_returned_when_its_queue_is_dropped() {
    let place = TestQueue::new().await;
    let looker = ours(&place, "another");
    looker.create(0).await.unwrap();
    let mut went_back = 0;
    while went_back < 3 {
        looker.put("e").await.unwrap();
        let queue = ours(&place, "the consumer");
        queue.try_put("f").await.unwrap();
        // Its connection is open, so the drop hits the get itself.
        let pause = Duration::from_micros(rand::random_range(50..600));
        let is_dropped = tokio::select! {
            biased;
            () = precisely(pause) => true,
            _ = queue.get() => false,
        };
        drop(queue);
        if is_dropped {
            let before = looker.stat().await.unwrap().consumed_messages;
            eventually("both elements are there", async || looker.len().await == Ok(2)).await;
            let after = looker.stat().await.unwrap().consumed_messages;
            went_back += usize::from(before == after + 1);
            assert_eq!(looker.peek(2).await.unwrap(), [b"e", b"f"]);
        }
        let all = Limit { elements: 9, bytes: usize::MAX };
        while looker.get_batch(all, Wait::No).await.is_ok() {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_with_the_queue_and_a_closed_sink_closes_it() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "the producer");
    queue.create(7).await.unwrap();
    let elements: Vec<Vec<u8>> = (0..2000).map(|n: u32| n.to_string().into_bytes()).collect();
    let source = futures::stream::iter(elements.clone()).map(Ok);
    let consumer = ours(&place, "the consumer");
    let (put, got) =
        tokio::join!(source.forward(queue.sink()), consumer.stream().try_collect::<Vec<_>>());
    put.unwrap();
    assert_eq!(got.unwrap(), elements);
    assert_eq!(queue.closed().await, Ok(true));
}

#[tokio::test]
async fn a_flushed_sink_leaves_the_queue_open_and_a_failed_one_returns_the_unsent() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    queue.create(0).await.unwrap();
    let mut sink = queue.sink();
    for element in ["a", "b"] {
        sink.feed(element.into()).await.unwrap();
    }
    assert_eq!(queue.len().await, Ok(0), "gathered, not put");
    sink.flush().await.unwrap();
    assert_eq!((queue.len().await, queue.closed().await), (Ok(2), Ok(false)));
    queue.close(Wait::No).await.unwrap();
    sink.feed("c".into()).await.unwrap();
    assert_eq!(sink.flush().await, Err(QueueError::Closed));
    assert_eq!(sink.into_unsent(), [b"c"]);
}

#[tokio::test]
async fn a_stream_of_a_deleted_queue_ends_with_the_error() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    let items: Vec<_> = queue.stream().collect().await;
    assert_eq!(items, [Err(QueueError::DoesNotExist)]);
}
