//! Living clients keep their roles, however long they are inactive, and whichever clients
//! connect and disconnect around them (hazard P2).

use std::time::Duration;

use lockkeeper_plan::pressure_queue::Remark;
use lockkeeper_plan::pressure_queue::doctor::{Against, Effort, Remedy, Repair};
use lockkeeper_testkit::pressure_text::Worker;
use lockkeeper_testkit::redis::{TestQueue, connect, eventually, wait_until_blocked};
use redis::aio::MultiplexedConnection;

use super::{Ward, reasons, repairs, server};
use crate::store::{numbers, text_queue};

const AN_HOUR: Duration = Duration::from_hours(1);

/// Observes for a day while other clients connect and disconnect: nothing is repaired,
/// nothing changes.
async fn survives_a_day(ward: &mut Ward) {
    let before = ward.place.dump().await;
    for _ in 0..24 {
        let passer_by = ward.client("passing by").await;
        let diagnosis = ward.look(AN_HOUR).await;
        // A surplus token does not belong to the client.
        let takes = |repair: &Repair| *repair != Repair::SettleTokens;
        assert!(!repairs(&diagnosis).iter().any(takes), "{diagnosis:?}");
        drop(passer_by);
    }
    assert_eq!(ward.place.dump().await, before);
}

#[tokio::test]
async fn a_living_producer_that_waits_for_room_keeps_its_role_and_is_no_damage() {
    let server = server().await;
    let mut ward = Ward::with_queue(&server, 1, 2).await;
    let producer = Worker::produce(&text_queue(&ward.place), "patient", numbers(3)).await;
    wait_until_blocked(&ward.place.raw, producer.client).await;
    survives_a_day(&mut ward).await;
    assert_eq!(reasons(&ward.look(AN_HOUR).await), [""; 0]);
    let mut consumer = ward.client("consumer").await;
    for expected in numbers(3) {
        assert_eq!(consumer.get().await.unwrap(), expected);
    }
    assert!(producer.join().await.error.is_none());
    ward.check_invariants().await;
}

#[tokio::test]
async fn a_living_consumer_that_waits_for_data_keeps_its_role_and_is_no_damage() {
    let server = server().await;
    let mut ward = Ward::with_queue(&server, 1, 2).await;
    let consumer = Worker::consume(&text_queue(&ward.place), "patient", 1).await;
    wait_until_blocked(&ward.place.raw, consumer.client).await;
    survives_a_day(&mut ward).await;
    assert_eq!(reasons(&ward.look(AN_HOUR).await), [""; 0]);
    ward.client("producer").await.put("x").await.unwrap();
    assert_eq!(consumer.join().await.elements, ["x"]);
    ward.check_invariants().await;
}

#[tokio::test]
async fn a_living_client_that_rests_after_any_of_its_commands_keeps_its_role() {
    let server = server().await;
    let mut database = 0;
    // Each command of a put and of a get after which the client holds its role.
    for (is_put, commands) in (3..12).map(|n| (true, n)).chain((2..11).map(|n| (false, n))) {
        database += 1;
        let mut ward = Ward::with_queue(&server, database, 9).await;
        ward.client("before").await.put("x").await.unwrap();
        let mut client = ward.client("slow").await.rest_after(commands);
        let number = client.client;
        let task = tokio::spawn(async move {
            if is_put { client.put("y").await } else { client.get().await.map(drop) }
        });
        eventually("the client rests", async || {
            let seen = ward.seen().await;
            seen.producer.busy || seen.consumer.busy
        })
        .await;
        // Until its last command is answered. More than that cannot be observed from
        // here.
        let mut last = ward.place.dump().await;
        eventually("nothing moves", async || {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let now = ward.place.dump().await;
            std::mem::replace(&mut last, now.clone()) == now
        })
        .await;
        survives_a_day(&mut ward).await;
        let is_between_two = !is_put && commands == 7;
        let named = ward.look(AN_HOUR).await;
        // If it could continue and does not, the doctor reports it and its connection.
        let all = [&named.damage, &named.at_work, &named.waiting];
        let all: Vec<_> = all.into_iter().flatten().collect();
        for finding in &all {
            let Remark::RoleStuck { .. } = finding.remark else { continue };
            let Remedy::Wait(against @ Against::Connected(_)) = &finding.remedy else {
                panic!("{finding:?}")
            };
            assert!(against.to_string().contains("127.0.0.1:"), "{against}");
        }
        assert_eq!(all.len(), 1 + usize::from(is_between_two));
        task.abort();
        let _ = task.await;
        ward.until_gone(number).await;
        assert!(!ward.heal().await.is_empty(), "its death is noticed nevertheless");
        ward.check_invariants().await;
    }
}

#[tokio::test]
async fn a_living_producer_wakes_when_a_dead_consumer_s_role_and_token_are_given_back() {
    let server = server().await;
    let mut ward = Ward::with_queue(&server, 1, 1).await;
    ward.client("before").await.put("first").await.unwrap();
    // Takes the element, and dies before it reports the capacity.
    let mut consumer = ward.client("dying").await.die_after(4);
    let number = consumer.client;
    consumer.get().await.unwrap_err();
    drop(consumer);
    ward.until_gone(number).await;
    ward.look(AN_HOUR).await;
    let producer = Worker::produce(&text_queue(&ward.place), "late", ["second".to_owned()]).await;
    wait_until_blocked(&ward.place.raw, producer.client).await;
    let diagnosis = ward.look(AN_HOUR).await;
    assert_eq!(ward.repair_all(&diagnosis).await.len(), 2, "the role and the token: {diagnosis:?}");
    assert!(producer.join().await.error.is_none());
    assert_eq!(ward.client("next").await.get().await.unwrap(), "second");
    ward.check_invariants().await;
}

/// Takes the producer role as a client with a connection for each operation does.
async fn take(place: &TestQueue) -> MultiplexedConnection {
    let mut connection = connect(&place.url).await;
    let free = place.key(":producer_free");
    let mut take = redis::cmd("BRPOP");
    let _: (String, String) = take.arg(free).arg(0).query_async(&mut connection).await.unwrap();
    let mut set = redis::cmd("SET");
    let () =
        set.arg(place.key(":producer")).arg("cron").query_async(&mut connection).await.unwrap();
    connection
}

/// Releases the role after a wait that failed, and closes the connection.
async fn give_back(ward: &Ward, mut connection: MultiplexedConnection) {
    let number: i64 = redis::cmd("CLIENT").arg("ID").query_async(&mut connection).await.unwrap();
    let free = ward.place.key(":producer_free");
    let () = redis::cmd("LPUSH").arg(free).arg("0").query_async(&mut connection).await.unwrap();
    drop(connection);
    ward.until_gone(number).await;
}

#[tokio::test]
async fn a_client_that_tries_again_and_again_over_new_connections_keeps_its_role() {
    let server = server().await;
    for (database, effort) in [(1, Effort::Full), (2, Effort::Repair)] {
        let mut ward = Ward::with_queue(&server, database, 1).await;
        let mut before = ward.client("before").await;
        before.put("x").await.unwrap();
        let number = before.client;
        drop(before);
        ward.until_gone(number).await;
        // A doctor that happens to observe only while the role is taken: twice in one
        // operation, or once in each.
        for try_number in 1..40 {
            let connection = take(&ward.place).await;
            for look in 0..try_number % 3 {
                let at = AN_HOUR * (3 * try_number + look);
                let seen = ward.seen().await;
                assert!(seen.producer.busy);
                let diagnosis = ward.doctor.look(&ward.store, seen, at, effort).await.unwrap();
                assert_eq!(repairs(&diagnosis), []);
                assert_eq!(reasons(&diagnosis), [""; 0], "its client waits for room");
            }
            give_back(&ward, connection).await;
        }
        ward.check_invariants().await;
    }
}
