//! Tokens lost and doubled, queues above their bound, inconsistent counters.

use std::time::Duration;

use lockkeeper_plan::pressure_queue::Remark;
use lockkeeper_plan::pressure_queue::doctor::Repair;
use lockkeeper_pressure::Repaired;
use lockkeeper_testkit::pressure_text::Worker;
use lockkeeper_testkit::redis::wait_until_blocked;

use super::{Ward, reasons, repairs, server};
use crate::store::{numbers, text_queue};

#[tokio::test]
async fn a_lost_token_is_reported_and_pushed_while_no_client_works() {
    let server = server().await;
    for (database, bound) in [(1, 3), (2, 0)] {
        let mut ward = Ward::with_queue(&server, database, bound).await;
        ward.client("before").await.put("x").await.unwrap();
        let () = ward.place.run(&["DEL", &ward.place.key(":not_full")]).await;
        let diagnosis = ward.examine().await;
        assert_eq!(reasons(&diagnosis), ["LostToken"]);
        assert_eq!(ward.repair_all(&diagnosis).await.len(), 1);
        assert_eq!(reasons(&ward.examine().await), [""; 0]);
        ward.check_invariants().await;
        ward.check_use().await;
    }
}

#[tokio::test]
async fn surplus_tokens_are_reduced_to_one() {
    let server = server().await;
    for (database, suffix) in (1..).zip([":not_full", ":producer_free", ":consumer_free"]) {
        let mut ward = Ward::with_queue(&server, database, 3).await;
        let () = ward.place.run(&["LPUSH", &ward.place.key(suffix), "1", "1"]).await;
        let diagnosis = ward.examine().await;
        assert_eq!(reasons(&diagnosis), ["SurplusToken"]);
        assert_eq!(ward.repair_all(&diagnosis).await.len(), 1);
        assert_eq!(reasons(&ward.examine().await), [""; 0]);
        ward.check_invariants().await;
        ward.check_use().await;
    }
}

#[tokio::test]
async fn an_overfilled_queue_keeps_its_elements_and_loses_only_its_token() {
    let server = server().await;
    let mut ward = Ward::with_queue(&server, 1, 5).await;
    let mut client = ward.client("before").await;
    for element in numbers(4) {
        client.put(&element).await.unwrap();
    }
    // Lowered by hand: the bound but not the token.
    let () = ward.place.run(&["SET", &ward.place.key(":bound"), "3"]).await;
    let diagnosis = ward.examine().await;
    assert_eq!(reasons(&diagnosis), ["Overfilled"]);
    assert_eq!(ward.repair_all(&diagnosis).await.len(), 1);
    assert_eq!(ward.place.length("").await, 4);
    let diagnosis = ward.examine().await;
    assert_eq!(reasons(&diagnosis), ["Overfilled"]);
    assert!(repairs(&diagnosis).is_empty());
    ward.check_invariants().await;
    let producer = Worker::produce(&text_queue(&ward.place), "next", ["4".to_owned()]).await;
    wait_until_blocked(&ward.place.raw, producer.client).await;
    for element in numbers(5) {
        assert_eq!(client.get().await.unwrap(), element);
    }
    assert!(producer.join().await.error.is_none());
    ward.check_invariants().await;
}

#[tokio::test]
async fn a_full_queue_is_not_left_the_token_that_would_overfill_it() {
    let server = server().await;
    let mut ward = Ward::with_queue(&server, 1, 1).await;
    ward.client("before").await.put("x").await.unwrap();
    let () = ward.place.run(&["LPUSH", &ward.place.key(":not_full"), "1"]).await;
    let diagnosis = ward.examine().await;
    assert_eq!(reasons(&diagnosis), ["SurplusToken"]);
    assert!(diagnosis.damage[0].remark.to_string().contains("although the queue is full"));
    ward.repair_all(&diagnosis).await;
    ward.check_invariants().await;
}

#[tokio::test]
async fn tokens_are_not_touched_while_a_client_works_on_the_queue() {
    let server = server().await;
    let mut ward = Ward::with_queue(&server, 1, 3).await;
    let consumer = Worker::consume(&text_queue(&ward.place), "patient", 1).await;
    wait_until_blocked(&ward.place.raw, consumer.client).await;
    // As in the middle of a put: the producer holds the token.
    let () = ward.place.run(&["DEL", &ward.place.key(":not_full")]).await;
    let before = ward.place.dump().await;
    for _ in 0..10 {
        let diagnosis = ward.look(Duration::from_secs(60)).await;
        assert_eq!(ward.repair_all(&diagnosis).await, []);
    }
    let repaired = ward.repair(&Repair::SettleTokens).await;
    assert_eq!(repaired, Repaired::AlreadySo);
    assert_eq!(ward.place.dump().await, before);
}

#[tokio::test]
async fn counters_that_don_t_add_up_are_named_and_never_corrected() {
    let server = server().await;
    let mut ward = Ward::with_queue(&server, 1, 3).await;
    let mut client = ward.client("before").await;
    client.put("x").await.unwrap();
    client.put("y").await.unwrap();
    // As pressure-python's get on a closed queue does.
    let _: String = ward.place.run(&["RPOP", &ward.place.key("")]).await;
    let diagnosis = ward.examine().await;
    assert_eq!(reasons(&diagnosis), ["CounterDrift"]);
    assert_eq!(diagnosis.damage[0].remark, Remark::CounterDrift { by: 1 });
    let before = ward.place.dump().await;
    assert!(ward.heal().await.is_empty());
    assert_eq!(ward.place.dump().await, before);
}
