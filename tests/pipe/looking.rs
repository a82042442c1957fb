//! Observing a queue, without taking elements or roles.

use lockkeeper_testkit::redis::TestQueue;
use serde_json::{Value, json};

use crate::pipe::{content, fill, is_at_rest, put, run, seq, succeed};

#[tokio::test(flavor = "multi_thread")]
async fn exists_and_closed_print_the_answer_and_set_the_exit_code() {
    let place = TestQueue::new().await;
    let ask = async |verb| {
        let outcome = run(&place, verb, &[]).await;
        assert_eq!(outcome.stderr, "");
        (outcome.code, outcome.text().to_owned())
    };
    assert_eq!(ask("exists").await, (Some(1), "false\n".to_owned()));
    succeed(&place, "create", &[]).await;
    assert_eq!(ask("exists").await, (Some(0), "true\n".to_owned()));
    assert_eq!(ask("closed").await, (Some(1), "false\n".to_owned()));
    succeed(&place, "close", &[]).await;
    assert_eq!(ask("closed").await, (Some(0), "true\n".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_bound_applies_at_once_and_the_elements_beyond_it_stay() {
    let place = TestQueue::new().await;
    let absent = run(&place, "set-bound", &["5"]).await;
    assert_eq!(absent.code, Some(81), "{absent:?}");
    succeed(&place, "create", &["--bound", "2"]).await;
    let put = async |lines: &[u8]| put(&place, &["--keep-open", "--no-wait"], lines).await.code;
    assert_eq!(put(b"1\n2\n3\n").await, Some(75), "full");
    succeed(&place, "set-bound", &["3"]).await;
    assert_eq!(put(b"3\n").await, Some(0));
    // Repeated after a lost answer.
    succeed(&place, "set-bound", &["1"]).await;
    succeed(&place, "set-bound", &["1"]).await;
    assert_eq!(succeed(&place, "length", &[]).await, b"3\n");
    assert_eq!(put(b"4\n").await, Some(75), "full");
    succeed(&place, "set-bound", &["0"]).await;
    assert_eq!(put(b"4\n").await, Some(0));
    assert_eq!(succeed(&place, "get", &["-c", "4"]).await, b"1\n2\n3\n4\n");
    is_at_rest(&place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_elements_are_shown_and_stay() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    assert_eq!(succeed(&place, "peek", &[]).await, b"");
    fill(&place, seq(1, 12).as_bytes()).await;
    assert_eq!(succeed(&place, "peek", &[]).await, seq(1, 10).as_bytes());
    assert_eq!(succeed(&place, "peek", &["-c", "2", "-0"]).await, b"1\x002\0");
    assert_eq!(succeed(&place, "peek", &["-c", "3", "--raw"]).await, b"123");
    assert_eq!(succeed(&place, "length", &[]).await, b"12\n");
    assert_eq!(content(&place).await.len(), 12);
    is_at_rest(&place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stat_shows_the_clients_the_counters_and_their_drift() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &["--bound", "9"]).await;
    let feed = ["--client-id", "feeder", "--keep-open"];
    assert_eq!(put(&place, &feed, b"a\nbb\nccc\n").await.code, Some(0));
    succeed(&place, "get", &["-c", "1", "--client-id", "eater"]).await;
    let stat = succeed(&place, "stat", &["-o", "json"]).await;
    let mut expected = json!({
        "name": "jobs", "prefix": place.queue.prefix(), "length": 2, "inFlight": 0, "bound": 9,
        "closed": false,
        "producer": {"id": "feeder", "busy": false}, "consumer": {"id": "eater", "busy": false},
        "producedMessages": 3, "producedBytes": 6, "consumedMessages": 1, "consumedBytes": 1,
        "drift": 0,
    });
    assert_eq!(serde_json::from_slice::<Value>(&stat).unwrap(), expected);

    // A client that takes its role and an element, and dies.
    let () = place.run(&["DEL", &place.key(":consumer_free")]).await;
    let () = place.run(&["RPOP", &place.key("")]).await;
    expected["length"] = json!(1);
    expected["drift"] = json!(1);
    expected["consumer"]["busy"] = json!(true);
    let stat = succeed(&place, "stat", &["-o", "yaml"]).await;
    assert_eq!(serde_yaml::from_slice::<Value>(&stat).unwrap(), expected);
    let table = String::from_utf8(succeed(&place, "stat", &[]).await).unwrap();
    let expected = "\
        NAME   LENGTH   BOUND   CLOSED   PRODUCED   CONSUMED   PRODUCER   CONSUMER\n\
        jobs   1        9       false    3          1          feeder     eater (busy)\n";
    assert_eq!(table, expected);
    let wide = String::from_utf8(succeed(&place, "stat", &["-o", "wide"]).await).unwrap();
    assert!(
        wide.contains("PRODUCED-BYTES   CONSUMED-BYTES   DRIFT   IN-FLIGHT   PREFIX\n"),
        "{wide}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn leftovers_of_a_deletion_are_shown_and_deleted() {
    let place = TestQueue::new().await;
    let () = place.run(&["LPUSH", &place.key(":closed"), "0", "0"]).await;
    let outcome = run(&place, "stat", &[]).await;
    assert_eq!(outcome.code, Some(81), "{outcome:?}");
    assert!(outcome.stderr.contains(":closed left over from its deletion"), "{outcome:?}");
    assert_eq!(run(&place, "create", &[]).await.code, Some(82));
    succeed(&place, "delete", &[]).await;
    assert_eq!(place.present().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_with_elements_is_not_deleted_without_being_asked() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    fill(&place, b"a\n").await;
    let outcome = run(&place, "delete", &[]).await;
    assert_eq!(outcome.code, Some(64), "{outcome:?}");
    assert_eq!(content(&place).await, ["a"]);
    succeed(&place, "delete", &["-y"]).await;
    assert_eq!(run(&place, "exists", &[]).await.code, Some(1));
    succeed(&place, "create", &[]).await;
    succeed(&place, "delete", &[]).await;
}
