//! Users with limited permissions, and servers without memory: rejected operations change
//! nothing.

use std::time::Duration;

use lockkeeper_pressure::{Limit, Queue, QueueError, QueueOptions, StoreError, Wait};
use lockkeeper_testkit::redis::{AclUser, PrivateRedis, TestQueue};

use crate::queue::ours;

/// Returns the rules for clients in docs/permissions.md.
fn documented() -> Vec<String> {
    let text = std::fs::read_to_string("docs/permissions.md").unwrap();
    let line = text.lines().find(|line| line.starts_with("ACL SETUSER app ")).unwrap();
    line.split_whitespace().filter(|word| word.starts_with('+')).map(ToOwned::to_owned).collect()
}

async fn limited(place: &TestQueue, without: &str) -> (AclUser, Queue) {
    let user = AclUser::named_for(place);
    let keys = format!("~{}:*", place.queue.prefix());
    let mut rules = vec![keys];
    rules.extend(documented().into_iter().filter(|rule| rule != without));
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    user.set(place, &rules).await;
    let options = QueueOptions::default().with_client_id("me");
    let queue = Queue::new(user.settings.clone(), place.queue.clone(), options);
    (user, queue)
}

/// Runs all operations of a client with the documented permissions.
async fn everything(place: &TestQueue) {
    let (_user, queue) = limited(place, "").await;
    queue.create(1).await.unwrap();
    queue.put("a").await.unwrap();
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.put("b").await }
    });
    assert_eq!(queue.peek(1).await.unwrap(), [b"a"]);
    let taken = queue.get_batch(Limit::ONE, Wait::No).await.unwrap();
    waiting.await.unwrap().unwrap();
    queue.give_back(taken, Wait::No).await.unwrap();
    queue.put_overfill(&["c".repeat(100_000)], Wait::No).await.unwrap();
    queue.get_acked(Wait::No).await.unwrap().requeue(Duration::ZERO).await.unwrap();
    assert_eq!(queue.stat().await.unwrap().leases_ended, 1);
    queue.get_acked(Wait::No).await.unwrap().ack().await.unwrap();
    assert_eq!(queue.len().await, Ok(2));
    queue.stat().await.unwrap();
    queue.close(Wait::No).await.unwrap();
    queue.delete(Wait::No).await.unwrap();
    assert!(place.present().await.is_empty());
}

#[tokio::test]
async fn the_documented_rights_are_enough_for_everything_that_a_client_does() {
    everything(&TestQueue::new().await).await;
}

#[tokio::test]
async fn a_client_does_everything_on_valkey_with_the_same_rights() {
    let server = PrivateRedis::valkey().await;
    everything(&TestQueue::at(&server.url()).await).await;
}

#[tokio::test]
async fn without_one_of_the_rights_a_refused_put_changes_nothing() {
    let place = TestQueue::new().await;
    ours(&place, "the creator").create(1).await.unwrap();
    ours(&place, "the creator").put("a").await.unwrap();
    let before = place.dump().await;
    let mut refused = 0;
    for right in documented() {
        let (_user, queue) = limited(&place, &right).await;
        let put = queue.put_overfill(&["b"], Wait::No).await.map_err(|failed| failed.error);
        if put.is_err() {
            assert_eq!(place.dump().await, before, "{right}");
        }
        let before_get = place.dump().await;
        let got = queue.try_get().await.map(|_| ());
        let acked = match queue.get_acked(Wait::No).await {
            Ok(delivery) => delivery.ack().await,
            Err(QueueError::Empty) => Ok(()),
            Err(error) => {
                assert!(got.is_ok() || place.dump().await == before_get, "{right}");
                Err(error)
            }
        };
        for error in [put, got, acked].into_iter().filter_map(Result::err) {
            let is_denied = matches!(error, QueueError::Store(StoreError::PermissionDenied { .. }));
            assert!(is_denied, "{right}: {error}");
            refused += 1;
        }
        // Changes that were possible nevertheless are undone.
        if place.dump().await != before {
            let creator = ours(&place, "the creator");
            creator.delete(Wait::No).await.unwrap();
            creator.create(1).await.unwrap();
            creator.put("a").await.unwrap();
        }
    }
    assert!(refused >= 10, "{refused}");
}

/// Returns the keys without the data, which is large.
async fn small(place: &TestQueue) -> Vec<(String, Vec<String>)> {
    place.dump().await.into_iter().filter(|(suffix, _)| !suffix.is_empty()).collect()
}

#[tokio::test]
async fn a_put_at_the_memory_limit_changes_nothing_and_a_get_frees_memory() {
    let server = PrivateRedis::start(&["--maxmemory-policy", "noeviction"]).await;
    let place = TestQueue::at(&server.url()).await;
    let queue = ours(&place, "me");
    queue.create(10).await.unwrap();
    let large = vec![1_u8; 1_000_000];
    let elements = vec![large.clone(); 10];
    queue.put_batch(&elements, Wait::No).await.unwrap();
    let () = place.run(&["CONFIG", "SET", "maxmemory", "5mb"]).await;
    queue.try_get().await.unwrap();
    let before = small(&place).await;
    for element in [b"b".to_vec(), large] {
        assert_eq!(queue.put(element).await, Err(QueueError::Store(StoreError::OutOfMemory)));
    }
    assert_eq!(small(&place).await, before);
    queue.get_acked(Wait::No).await.unwrap().requeue(Duration::ZERO).await.unwrap();
    queue.get_acked(Wait::No).await.unwrap().ack().await.unwrap();
    // A get may return elements into the memory that it has freed.
    let taken = queue.get_batch(Limit::ONE, Wait::No).await.unwrap();
    queue.give_back(taken, Wait::No).await.unwrap();
    for left in (0..8).rev() {
        queue.try_get().await.unwrap();
        assert_eq!((queue.len().await, place.length(":not_full").await), (Ok(left), 1));
    }
    queue.put("b").await.unwrap();
}
