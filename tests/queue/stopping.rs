//! A program that is requested to end: its operations stop waiting, and report their
//! completed work.

use std::time::Duration;

use lockkeeper_pressure::{Limit, QueueError, Wait};
use lockkeeper_testkit::redis::{TestQueue, eventually};

use crate::queue::ours;

#[tokio::test(flavor = "multi_thread")]
async fn stop_waiting_ends_a_put_with_its_count_and_later_waits_immediately() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    queue.create(2).await.unwrap();
    let waiting = queue.clone();
    let put = tokio::spawn(async move {
        waiting.put_batch(&["a", "b", "c"], Wait::For(Duration::from_mins(1))).await
    });
    eventually("there is no room", async || place.length("").await == 2).await;
    queue.stop_waiting();
    let failed = put.await.unwrap().unwrap_err();
    assert_eq!((failed.put, failed.error), (2, QueueError::Full));

    // Operations that need not wait still work, and no operation waits any more.
    let all = Limit { elements: 9, bytes: 99 };
    assert_eq!(queue.get_batch(all, Wait::Forever).await.unwrap().into_elements(), [b"a", b"b"]);
    assert_eq!(queue.get().await, Err(QueueError::Empty));
    queue.put("c").await.unwrap();
    queue.put("d").await.unwrap();
    assert_eq!(queue.put("e").await, Err(QueueError::Full));
    let () = place.run(&["DEL", &place.key(":producer_free")]).await;
    for ended in [queue.close(Wait::Forever).await, queue.delete(Wait::Forever).await] {
        assert!(matches!(ended, Err(QueueError::InUse { .. })), "{ended:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_waiting_ends_a_get_that_waits() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    queue.create(0).await.unwrap();
    let waiting = queue.clone();
    let get = tokio::spawn(async move { waiting.get().await });
    let asked = async || place.present().await.contains(&":consumer".to_owned());
    eventually("it has asked", asked).await;
    queue.stop_waiting();
    assert_eq!(get.await.unwrap(), Err(QueueError::Empty));
}
