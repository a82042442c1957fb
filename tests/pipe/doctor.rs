//! `lockkeeper queue doctor`: the damage that it reports and repairs, and its exit codes.

use std::time::{Duration, Instant};

use lockkeeper_testkit::pressure_text::{Returning, TextQueue};
use lockkeeper_testkit::redis::{PrivateRedis, TestQueue, connect, eventually, wait_until_blocked};
use serde_json::Value;

use crate::pipe::{fill, is_at_rest, run, succeed};

/// Starts a private server, to which only the test is connected.
async fn place() -> (PrivateRedis, TestQueue) {
    let server = PrivateRedis::start(&[]).await;
    let place = TestQueue::at(&server.url()).await;
    // The doctor ignores connections with this name.
    let () = place.run(&["CLIENT", "SETNAME", "lockkeeper/test"]).await;
    succeed(&place, "create", &["--bound", "2"]).await;
    (server, place)
}

/// Leaves the producer role as a dead client does.
async fn take_the_role(place: &TestQueue) {
    let _: String = place.run(&["RPOP", &place.key(":producer_free")]).await;
    let () = place.run(&["SET", &place.key(":producer"), "evil\x1b[31m"]).await;
}

#[tokio::test]
async fn an_undamaged_queue_and_a_missing_one_are_reported_as_such() {
    let (_server, place) = place().await;
    fill(&place, b"a\n").await;
    let outcome = run(&place, "doctor", &[]).await;
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stderr.contains("nothing is wrong with"), "{outcome:?}");
    succeed(&place, "delete", &["--yes"]).await;
    assert_eq!(run(&place, "doctor", &[]).await.code, Some(81));
}

#[tokio::test]
async fn a_dead_clients_role_is_reported_with_84_and_repaired_on_request() {
    let (_server, place) = place().await;
    take_the_role(&place).await;
    let outcome = run(&place, "doctor", &["--idle", "0s"]).await;
    assert_eq!(outcome.code, Some(84), "{outcome:?}");
    for part in ["RoleStuck", "damaged", "producer role is taken by evil", "--repair fixes it"] {
        assert!(outcome.text().contains(part), "{part}: {outcome:?}");
    }
    assert!(!outcome.text().contains('\x1b'), "{outcome:?}");
    assert_eq!(place.length(":producer_free").await, 0, "no repair was requested");

    let began = Instant::now();
    let outcome = run(&place, "doctor", &["--repair", "--idle", "3s", "-o", "json"]).await;
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(began.elapsed().as_secs() >= 3, "repaired after {:?}", began.elapsed());
    let shown: Value = serde_json::from_str(outcome.text()).unwrap();
    assert_eq!(shown["healthy"], true);
    assert_eq!(shown["findings"][0]["reason"], "RoleStuck");
    assert_eq!(shown["findings"][0]["state"], "mended");
    assert_eq!(shown["findings"][0]["did"][0], "pushed an element to :producer_free");
    is_at_rest(&place).await;
    fill(&place, b"a\n").await;
}

#[tokio::test]
async fn a_role_that_may_be_in_use_is_not_repaired_and_the_connection_is_shown() {
    let (_server, place) = place().await;
    let mut living = connect(&place.url).await;
    let address: String = redis::cmd("CLIENT").arg("INFO").query_async(&mut living).await.unwrap();
    let address = address.split_whitespace().find_map(|field| field.strip_prefix("addr="));
    take_the_role(&place).await;
    let arguments = ["--repair", "--idle", "1s", "--timeout", "4s", "-o", "wide"];
    let outcome = run(&place, "doctor", &arguments).await;
    assert_eq!(outcome.code, Some(84), "{outcome:?}");
    let (text, address) = (outcome.text(), address.unwrap());
    assert!(text.contains("RoleStuck") && text.contains("CONNECTIONS"), "{text}");
    assert!(text.contains(&format!("{address} since ")), "{address}: {text}");
    assert_eq!(place.length(":producer_free").await, 0);
    drop(living);
    succeed(&place, "doctor", &["--repair", "--idle", "1s"]).await;
    is_at_rest(&place).await;
}

#[tokio::test]
async fn a_consumer_that_waits_for_data_is_shown_and_is_no_damage() {
    let (_server, place) = place().await;
    let _: String = place.run(&["RPOP", &place.key(":consumer_free")]).await;
    let () = place.run(&["SET", &place.key(":consumer"), "patient"]).await;
    let mut consumer = connect(&place.url).await;
    let number: i64 = redis::cmd("CLIENT").arg("ID").query_async(&mut consumer).await.unwrap();
    let data = place.key("");
    let waiting = tokio::spawn(async move {
        let mut command = redis::cmd("BRPOP");
        let _: redis::RedisResult<redis::Value> =
            command.arg(data).arg(0).query_async(&mut consumer).await;
    });
    wait_until_blocked(&place.raw, number).await;
    let outcome = run(&place, "doctor", &["--repair", "--idle", "0s"]).await;
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.text().contains("waiting"), "{outcome:?}");
    assert_eq!(place.length(":consumer_free").await, 0);
    waiting.abort();
}

#[tokio::test]
async fn tokens_are_repaired_immediately_and_counters_never() {
    let (_server, place) = place().await;
    fill(&place, b"a\n").await;
    let () = place.run(&["DEL", &place.key(":not_full")]).await;
    let _: u64 = place.run(&["INCR", &place.key(":stats:produced_messages")]).await;
    let outcome = run(&place, "doctor", &[]).await;
    assert!(outcome.text().contains("LostToken      damaged"), "{outcome:?}");
    assert_eq!(place.length(":not_full").await, 0, "no repair was requested");
    let outcome = run(&place, "doctor", &["--repair", "-o", "yaml"]).await;
    assert_eq!(outcome.code, Some(84), "the counters stay off: {outcome:?}");
    for part in ["LostToken", "mended", "CounterDrift", "never corrected"] {
        assert!(outcome.text().contains(part), "{part}: {outcome:?}");
    }
    is_at_rest(&place).await;
}

#[tokio::test]
async fn a_client_with_a_connection_for_each_operation_keeps_its_role() {
    let (_server, place) = place().await;
    let queue = TextQueue {
        url: place.url.clone(),
        prefix: place.queue.prefix().to_owned(),
        name: place.queue.as_str().to_owned(),
    };
    let consumer = Returning::consume(&queue, "cron", Duration::from_millis(1300));
    eventually("it waits", async || place.length(":consumer_free").await == 0).await;
    // Each examines a few of its operations.
    while consumer.tries() < 10 {
        let outcome = run(&place, "doctor", &["--repair", "--idle", "1s"]).await;
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        assert!(!outcome.text().contains("mended"), "{outcome:?}");
    }
    drop(consumer);
}
