//! `lockkeeper queue doctor`: what it names, what it mends, and how it ends.

use std::time::Instant;

use serde_json::Value;

use crate::redis_support::{Place, PrivateRedis, connect, wait_until_blocked};
use crate::{fill, is_at_rest, run, succeed};

/// A server of the test's own, to which nobody is connected but the test.
async fn place() -> (PrivateRedis, Place) {
    let server = PrivateRedis::start(&[]).await;
    let place = Place::at(&server.url()).await;
    // The doctor leaves connections of this name aside.
    let () = place.run(&["CLIENT", "SETNAME", "lockkeeper/test"]).await;
    succeed(&place, "create", &["--bound", "2"]).await;
    (server, place)
}

/// Leaves the producer role as a dead client does.
async fn take_the_role(place: &Place) {
    let _: String = place.run(&["RPOP", &place.key(":producer_free")]).await;
    let () = place.run(&["SET", &place.key(":producer"), "evil\x1b[31m"]).await;
}

#[tokio::test]
async fn a_whole_queue_is_said_to_be_whole_and_a_missing_one_is_missing() {
    let (_server, place) = place().await;
    fill(&place, b"a\n").await;
    let outcome = run(&place, "doctor", &[]).await;
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stderr.contains("nothing is wrong with"), "{outcome:?}");
    succeed(&place, "delete", &["--yes"]).await;
    assert_eq!(run(&place, "doctor", &[]).await.code, Some(81));
}

#[tokio::test]
async fn a_dead_clients_role_is_named_with_84_and_mended_when_told_to() {
    let (_server, place) = place().await;
    take_the_role(&place).await;
    let outcome = run(&place, "doctor", &["--idle", "0s"]).await;
    assert_eq!(outcome.code, Some(84), "{outcome:?}");
    for part in ["RoleStuck", "damaged", "producer role is taken by evil", "--repair mends it"] {
        assert!(outcome.text().contains(part), "{part}: {outcome:?}");
    }
    assert!(!outcome.text().contains('\x1b'), "{outcome:?}");
    assert_eq!(place.length(":producer_free").await, 0, "not told to mend it");

    let began = Instant::now();
    let outcome = run(&place, "doctor", &["--repair", "--idle", "3s", "-o", "json"]).await;
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(began.elapsed().as_secs() >= 3, "mended after {:?}", began.elapsed());
    let shown: Value = serde_json::from_str(outcome.text()).unwrap();
    assert_eq!(shown["healthy"], true);
    assert_eq!(shown["findings"][0]["reason"], "RoleStuck");
    assert_eq!(shown["findings"][0]["state"], "mended");
    assert_eq!(shown["findings"][0]["did"][0], "pushed an element to :producer_free");
    is_at_rest(&place).await;
    fill(&place, b"a\n").await;
}

#[tokio::test]
async fn what_may_belong_to_somebody_who_lives_is_not_mended_and_their_connection_is_named() {
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
async fn tokens_are_put_right_at_once_and_counters_never() {
    let (_server, place) = place().await;
    fill(&place, b"a\n").await;
    let () = place.run(&["DEL", &place.key(":not_full")]).await;
    let _: u64 = place.run(&["INCR", &place.key(":stats:produced_messages")]).await;
    let outcome = run(&place, "doctor", &[]).await;
    assert!(outcome.text().contains("LostToken      damaged"), "{outcome:?}");
    assert_eq!(place.length(":not_full").await, 0, "not told to mend it");
    let outcome = run(&place, "doctor", &["--repair", "-o", "yaml"]).await;
    assert_eq!(outcome.code, Some(84), "the counters stay off: {outcome:?}");
    for part in ["LostToken", "mended", "CounterDrift", "never corrected"] {
        assert!(outcome.text().contains(part), "{part}: {outcome:?}");
    }
    is_at_rest(&place).await;
}
