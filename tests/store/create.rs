//! Creating and observing queues.

use lockkeeper_plan::naming::KEY_SUFFIXES;
use lockkeeper_plan::pressure_queue::{
    DATA_LABEL, DesiredQueue, DesiredState, PreviousStatus, QueueEffect, Remark, plan,
};
use lockkeeper_pressure::Applied;
use lockkeeper_testkit::pressure_text::TextClient;
use lockkeeper_testkit::redis::TestQueue;

use crate::store::{numbers, text_queue};

const OPEN_10: DesiredQueue = DesiredQueue { bound: 10, state: DesiredState::Open };

#[tokio::test]
async fn a_created_queue_is_what_the_text_says_and_a_foreign_client_can_use_it() {
    let place = TestQueue::new().await;
    let store = place.store();
    let applied = store.apply(&place.queue, &QueueEffect::Create { bound: 3 }).await.unwrap();
    assert_eq!(applied, Applied::Done);
    let one = |suffix: &str, text: &str| (suffix.to_owned(), vec![text.to_owned()]);
    let expected = [
        one(":bound", "3"),
        one(":producer_free", "1"),
        one(":consumer_free", "1"),
        one(":not_full", "1"),
    ];
    assert_eq!(place.dump().await, expected);

    let mut client = TextClient::connect(&text_queue(&place), "foreign").await.unwrap();
    client.put("first").await.unwrap();
    client.put("second").await.unwrap();
    assert_eq!(client.get().await.unwrap(), "first");
    let seen = store.observe(&place.queue).await.unwrap();
    assert_eq!((seen.bound, seen.length, seen.not_full), (Some(3), 1, 1));
    assert_eq!((seen.produced_messages, seen.produced_bytes), (2, 11));
    assert_eq!((seen.consumed_messages, seen.consumed_bytes), (1, 5));
    assert_eq!(seen.producer.id.as_deref(), Some("foreign"));
    assert!(!seen.producer.busy && !seen.consumer.busy && !seen.closed);
    assert!(seen.leftovers.is_empty() && seen.wrong_types.is_empty());
}

#[tokio::test]
async fn creating_again_changes_nothing() {
    let place = TestQueue::new().await;
    let store = place.store();
    store.apply(&place.queue, &QueueEffect::Create { bound: 3 }).await.unwrap();
    let before = place.dump().await;
    let again = store.apply(&place.queue, &QueueEffect::Create { bound: 9 }).await.unwrap();
    assert_eq!(again, Applied::AlreadySo);
    assert_eq!(place.dump().await, before);
}

#[tokio::test]
async fn an_existing_queue_is_adopted_with_its_data() {
    let place = TestQueue::new().await;
    let mut client = TextClient::connect(&text_queue(&place), "foreign").await.unwrap();
    client.create(10).await.unwrap();
    for element in numbers(3) {
        client.put(&element).await.unwrap();
    }
    let store = place.store();
    let before = place.dump().await;
    let seen = store.observe(&place.queue).await.unwrap();
    let plan = plan(&OPEN_10, &seen, &PreviousStatus::default());
    assert!(plan.effects.is_empty() && plan.remarks.is_empty(), "{plan:?}");
    // Even a creation that was decided a moment too early is harmless.
    let late = store.apply(&place.queue, &QueueEffect::Create { bound: 10 }).await.unwrap();
    assert_eq!(late, Applied::AlreadySo);
    assert_eq!(place.dump().await, before);
}

#[tokio::test]
async fn nothing_is_created_over_any_leftover_key() {
    let store_place = TestQueue::new().await;
    let store = store_place.store();
    for suffix in std::iter::once("").chain(KEY_SUFFIXES).filter(|suffix| *suffix != ":bound") {
        let place = TestQueue::new().await;
        let is_list = ["", ":producer_free", ":consumer_free", ":not_full", ":closed"];
        let key = place.key(suffix);
        let () = match suffix {
            ":in_flight" => place.run(&["HSET", &key, "1", "1"]).await,
            ":leases" => place.run(&["ZADD", &key, "1", "1"]).await,
            suffix if is_list.contains(&suffix) => place.run(&["LPUSH", &key, "1"]).await,
            _ => place.run(&["SET", &key, "1"]).await,
        };
        let label = if suffix.is_empty() { DATA_LABEL } else { suffix }.to_owned();

        let seen = store.observe(&place.queue).await.unwrap();
        let plan = plan(&OPEN_10, &seen, &PreviousStatus::default());
        assert!(plan.effects.is_empty());
        assert_eq!(plan.remarks, [Remark::Residue { keys: vec![label.clone()] }]);

        let effect = QueueEffect::Create { bound: 10 };
        let applied = store.apply(&place.queue, &effect).await.unwrap();
        assert_eq!(applied, Applied::Residue { keys: vec![label] });
        assert_eq!(place.present().await, [suffix]);
    }
}

#[tokio::test]
async fn a_creator_that_died_after_each_of_its_commands_is_noticed() {
    let steps = [":producer_free", ":consumer_free", ":not_full"];
    for done in 0..steps.len() {
        let place = TestQueue::new().await;
        let store = place.store();
        let () = place.run(&["SETNX", &place.key(":bound"), "5"]).await;
        for suffix in &steps[..done] {
            let () = place.run(&["LPUSH", &place.key(suffix), "1"]).await;
        }
        let seen = store.observe(&place.queue).await.unwrap();
        let plan = plan(&OPEN_10, &seen, &PreviousStatus::default());
        assert!(plan.effects.is_empty(), "{plan:?}");
        let missing = steps[done..].iter().map(|&suffix| suffix.to_owned()).collect();
        assert_eq!(plan.remarks, [Remark::HalfCreated { missing }]);
    }
}

#[tokio::test]
async fn a_bound_that_changes_in_the_middle_of_a_foreign_creation_pushes_no_second_token() {
    let place = TestQueue::new().await;
    let store = place.store();
    let () = place.run(&["SETNX", &place.key(":bound"), "5"]).await;
    let () = place.run(&["LPUSH", &place.key(":producer_free"), "1"]).await;
    store.apply(&place.queue, &QueueEffect::SetBound { bound: 7 }).await.unwrap();
    let () = place.run(&["LPUSH", &place.key(":consumer_free"), "1"]).await;
    store.apply(&place.queue, &QueueEffect::SetBound { bound: 8 }).await.unwrap();
    let () = place.run(&["LPUSH", &place.key(":not_full"), "1"]).await;
    assert_eq!(place.length(":not_full").await, 1);
}

#[tokio::test]
async fn a_key_of_a_wrong_type_is_named_and_left_alone() {
    let place = TestQueue::new().await;
    let store = place.store();
    let () = place.run(&["SET", &place.key(":closed"), "somebody's"]).await;
    let seen = store.observe(&place.queue).await.unwrap();
    assert_eq!(seen.wrong_types, [":closed"]);
    let plan = plan(&OPEN_10, &seen, &PreviousStatus::default());
    assert!(plan.effects.is_empty());
    assert_eq!(plan.remarks, [Remark::WrongType { key: ":closed".to_owned() }]);

    let () = place.run(&["SET", &place.key(":bound"), "many"]).await;
    let seen = store.observe(&place.queue).await.unwrap();
    assert_eq!(seen.wrong_types, [":closed", ":bound"]);
}

#[tokio::test]
async fn a_client_s_id_is_cleaned_and_cut() {
    let place = TestQueue::new().await;
    let store = place.store();
    store.apply(&place.queue, &QueueEffect::Create { bound: 0 }).await.unwrap();
    let hostile = format!("evil\n\u{1b}[31m{}", "x".repeat(1_000_000));
    let () = place.run(&["SET", &place.key(":producer"), &hostile]).await;
    let () = place.run(&["RPOP", &place.key(":producer_free")]).await;
    let seen = store.observe(&place.queue).await.unwrap();
    let id = seen.producer.id.unwrap();
    assert!(id.starts_with("evil  [31mxxx") && id.len() <= 256, "{id}");
    assert!(seen.producer.busy);
    let Applied::ProducerBusy { who } =
        store.apply(&place.queue, &QueueEffect::Close).await.unwrap()
    else {
        panic!("the producer is busy")
    };
    assert_eq!(who, Some(id));
}
