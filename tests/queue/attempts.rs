//! Deliveries that do not count as attempts, and the cost and order of elements whose
//! leases have ended.

use lockkeeper_pressure::{Deletion, Delivery, Limit, QueueError, Wait};
use lockkeeper_testkit::redis::{PrivateRedis, TestQueue, eventually};

use crate::queue::ours;

/// Writes `count` elements in flight whose leases have ended, as the scripts do: the id of
/// each begins with this time. The n-th lease ends at `ends`, a term in Lua.
async fn fly(place: &TestQueue, time: &str, count: usize, ends: &str) {
    let script = format!(
        r#"for n = 1, {count} do
            local id = string.format("{time}%06d-000000", n)
            redis.call("HSET", KEYS[1], id, n, id .. "/by", "1 me")
            redis.call("ZADD", KEYS[2], {ends}, id)
        end"#
    );
    let (hash, set) = (place.key(":in_flight"), place.key(":leases"));
    let _: Option<u64> = place.run(&["EVAL", &script, "2", &hash, &set]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_that_is_given_back_does_not_count() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    queue.create(0).await.unwrap();
    queue.put_batch(&["a", "b"], Wait::No).await.unwrap();
    for attempt in [1, 2] {
        for _ in 0..3 {
            let back = queue.get_acked(Wait::No).await.unwrap();
            assert_eq!((back.element(), back.delivery_count()), (&b"a"[..], attempt));
            back.give_back().await.unwrap();
        }
        let failed = queue.get_acked(Wait::No).await.unwrap();
        assert_eq!((failed.element(), failed.delivery_count()), (&b"a"[..], attempt));
        failed.requeue(std::time::Duration::ZERO).await.unwrap();
    }
    // A client of an earlier version wrote the number of deliveries only.
    let fields: Vec<String> = place.run(&["HKEYS", &place.key(":in_flight")]).await;
    let by = fields.iter().find(|field| field.ends_with("/by")).unwrap();
    let _: u64 = place.run(&["HSET", &place.key(":in_flight"), by, "6 another"]).await;
    let last = queue.get_acked(Wait::No).await.unwrap();
    assert_eq!((last.element(), last.delivery_count()), (&b"a"[..], 7));
    last.ack().await.unwrap();
    let seen = queue.stat().await.unwrap();
    assert_eq!((seen.length, seen.in_flight, seen.drift()), (1, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_that_was_given_back_is_settled_by_its_next_client_only() {
    let place = TestQueue::new().await;
    let (one, other) = (ours(&place, "one"), ours(&place, "other"));
    one.create(0).await.unwrap();
    one.put("a").await.unwrap();
    let late = one.get_acked(Wait::No).await.unwrap();
    let id: Vec<String> = place.run(&["ZRANGE", &place.key(":leases"), "0", "-1"]).await;
    let () = place.run(&["ZADD", &place.key(":leases"), "1", &id[0]]).await;
    let next = other.get_acked(Wait::No).await.unwrap();
    assert_eq!(next.delivery_count(), 2);
    assert_eq!(late.give_back().await, Err(QueueError::LeaseEnded));
    assert_eq!(other.try_get().await, Err(QueueError::Empty), "it is still in flight");
    next.give_back().await.unwrap();
    let again = one.get_acked(Wait::No).await.unwrap();
    assert_eq!(again.delivery_count(), 2);
    again.ack().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_get_that_is_dropped_uses_up_no_attempt() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    queue.create(0).await.unwrap();
    let mut waiting = Box::pin(queue.get_acked(Wait::Forever));
    assert!(futures::poll!(&mut waiting).is_pending());
    ours(&place, "the producer").put("a").await.unwrap();
    drop(waiting);
    // Whether the get had taken it or not.
    let got = ours(&place, "another").get_acked(Wait::Forever).await.unwrap();
    assert_eq!((got.element(), got.delivery_count()), (&b"a"[..], 1));
    got.ack().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn elements_in_flight_whose_leases_redis_has_evicted_are_counted_and_come_again() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    queue.create(0).await.unwrap();
    queue.put_batch(&["a", "b", "c"], Wait::No).await.unwrap();
    let limit = Limit { elements: 3, bytes: usize::MAX >> 12 };
    let mut held = queue.get_acked_batch(limit, Wait::No).await.unwrap();
    queue.close(Wait::No).await.unwrap();
    let () = place.run(&["DEL", &place.key(":leases")]).await;
    let seen = queue.stat().await.unwrap();
    assert_eq!((seen.in_flight, seen.leases_ended), (3, 3));
    let deletion = queue.store().delete_if_empty(&place.queue).await.unwrap();
    assert_eq!(deletion, Deletion::NotEmpty { length: 3 });
    held.pop().unwrap().ack().await.unwrap();
    let again = ours(&place, "another").get_acked_batch(limit, Wait::No).await.unwrap();
    let texts: Vec<&[u8]> = again.iter().map(Delivery::element).collect();
    assert_eq!(texts, [b"a", b"b"]);
    assert_eq!(queue.ack_all(held).await, Err(QueueError::LeaseEnded));
    queue.ack_all(again).await.unwrap();
    assert_eq!(queue.try_get().await, Err(QueueError::Closed));
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_leases_come_in_the_order_of_the_queue_whenever_they_ended() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    queue.create(0).await.unwrap();
    queue.put("younger").await.unwrap();
    fly(&place, "1000000000", 900, "1000 - n").await;
    let mut got = Vec::new();
    for most in [1, 2, 300, 1000] {
        let limit = Limit { elements: most, bytes: usize::MAX >> 12 };
        got.extend(queue.get_batch(limit, Wait::No).await.unwrap().into_elements());
    }
    let mut expected: Vec<String> = (1..=900).map(|number| number.to_string()).collect();
    expected.push("younger".to_owned());
    assert_eq!(got, expected.iter().map(String::as_bytes).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_thousand_ended_leases_all_come_before_younger_elements() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    queue.create(0).await.unwrap();
    queue.put("0").await.unwrap();
    fly(&place, "1000000000", 5000, "1 + n % 7").await;
    let mut got = Vec::new();
    while got.len() < 5001 {
        let limit = Limit { elements: 700, bytes: usize::MAX >> 12 };
        let deliveries = queue.get_acked_batch(limit, Wait::No).await.unwrap();
        got.extend(deliveries.iter().map(|d| String::from_utf8(d.element().to_vec()).unwrap()));
        queue.ack_all(deliveries).await.unwrap();
    }
    assert_eq!(got.pop().as_deref(), Some("0"));
    let mut numbers: Vec<u64> = got.iter().map(|text| text.parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=5000).collect::<Vec<_>>());
    assert_eq!(queue.stat().await.unwrap().in_flight, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_get_costs_about_the_same_with_two_hundred_thousand_ended_leases() {
    let server = PrivateRedis::start(&[]).await;
    let place = TestQueue::at(&server.url()).await;
    let queue = ours(&place, "me");
    queue.create(0).await.unwrap();
    queue.put_batch(&vec!["x"; 400], Wait::No).await.unwrap();
    // Of several rounds the cheapest: others may use the processor's caches.
    let cost = async || {
        let mut least = f64::INFINITY;
        for _ in 0..8 {
            let () = place.run(&["CONFIG", "RESETSTAT"]).await;
            for _ in 0..50 {
                queue.get_acked(Wait::No).await.unwrap().ack().await.unwrap();
            }
            let info: String = place.run(&["INFO", "commandstats"]).await;
            let line = info.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
            let cost = line.split(',').find_map(|field| field.strip_prefix("usec_per_call="));
            least = least.min(cost.unwrap().parse().unwrap());
        }
        least
    };
    let without = cost().await;
    fly(&place, "1000000000", 200_000, "1 + n % 1000").await;
    let with = cost().await;
    println!("{without} us per call without ended leases, {with} us with 200,000");
    assert!(with < 8.0 * without, "{with} us instead of {without}");
    // All of them at once, as a whole batch.
    let limit = Limit { elements: 1000, bytes: usize::MAX >> 12 };
    assert_eq!(queue.get_batch(limit, Wait::No).await.unwrap().len(), 1000);
    eventually("the rest is there", async || queue.stat().await.unwrap().in_flight == 198_600)
        .await;
}
