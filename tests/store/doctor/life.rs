//! What lives keeps its role, however long it does nothing and whoever comes and
//! goes around it (hazard P2).

use std::time::Duration;

use lockkeeper::plan::pressure_queue::Remark;
use lockkeeper::plan::pressure_queue::doctor::{Against, Remedy, Repair};
use lockkeeper::pressure::Repaired;

use super::{Ward, reasons, repairs, server};
use crate::pressure_text::Worker;
use crate::redis_support::{Place, connect, eventually, wait_until_blocked};
use crate::{numbers, text_queue};

const AN_HOUR: Duration = Duration::from_hours(1);

/// Looks for a day while others come and go: nothing is mended, nothing changes.
async fn survives_a_day(ward: &mut Ward) {
    let before = ward.place.dump().await;
    for _ in 0..24 {
        let passer_by = ward.client("passing by").await;
        let diagnosis = ward.look(AN_HOUR).await;
        // A token too many is not the client's.
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
        // Until its last command is answered; more than that can't be seen from here.
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
        // Where it could go on and does not, it is named, and so is its connection.
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
        assert!(!ward.heal().await.is_empty(), "its death is noticed all the same");
        ward.check_invariants().await;
    }
}

#[tokio::test]
async fn a_living_producer_wakes_when_a_dead_consumer_s_role_and_token_are_given_back() {
    let server = server().await;
    let mut ward = Ward::with_queue(&server, 1, 1).await;
    ward.client("before").await.put("first").await.unwrap();
    // Takes the element, and dies before it says that there is room.
    let mut consumer = ward.client("dying").await.die_after(4);
    let number = consumer.client;
    consumer.get().await.unwrap_err();
    drop(consumer);
    ward.until_gone(number).await;
    ward.look(AN_HOUR).await;
    let producer = Worker::produce(&text_queue(&ward.place), "late", ["second".to_owned()]).await;
    wait_until_blocked(&ward.place.raw, producer.client).await;
    let diagnosis = ward.look(AN_HOUR).await;
    assert_eq!(ward.mend(&diagnosis).await.len(), 2, "the role and the token: {diagnosis:?}");
    assert!(producer.join().await.error.is_none());
    assert_eq!(ward.client("next").await.get().await.unwrap(), "second");
    ward.check_invariants().await;
}

/// One try of a client that puts without waiting, over a connection of its own: it
/// takes the role, finds no room and gives the role back.
async fn try_in_vain(place: &Place) {
    let mut connection = connect(&place.url).await;
    let mut run = async |command: &[&str], suffix: &str, rest: &[&str]| {
        let mut cmd = redis::cmd(command[0]);
        cmd.arg(place.key(suffix)).arg(rest);
        let answer: redis::Value = cmd.query_async(&mut connection).await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
        answer
    };
    if run(&["RPOP"], ":producer_free", &[]).await == redis::Value::Nil {
        return;
    }
    run(&["SET"], ":producer", &["stubborn"]).await;
    assert_eq!(run(&["RPOP"], ":not_full", &[]).await, redis::Value::Nil);
    run(&["LPUSH"], ":producer_free", &["0"]).await;
}

#[tokio::test]
async fn a_client_that_tries_again_and_again_over_new_connections_keeps_its_role() {
    let server = server().await;
    let mut ward = Ward::with_queue(&server, 1, 1).await;
    ward.client("before").await.put("x").await.unwrap();
    let url = ward.place.url.clone();
    let queue = ward.place.queue.clone();
    let trying = tokio::spawn(async move {
        let place = Place { url: url.clone(), queue, raw: connect(&url).await };
        let () = place.run(&["CLIENT", "SETNAME", "lockkeeper/test"]).await;
        loop {
            try_in_vain(&place).await;
        }
    });
    // A doctor who has the bad luck to look only while the role is taken.
    let mut decided = 0;
    for hour in 0..200_u32 {
        eventually("the role is taken", async || {
            let seen = ward.seen().await;
            seen.producer.busy && seen.producer.id.is_some()
        })
        .await;
        let seen = ward.seen().await;
        if !seen.producer.busy {
            continue;
        }
        let at = AN_HOUR * hour;
        let name = &ward.place.queue;
        let look = ward.store.look_around(name, &ward.doctor, seen, at, true).await.unwrap();
        for repair in repairs(&ward.doctor.look(look)) {
            decided += 1;
            let repaired = ward.store.repair(name, &repair).await.unwrap();
            assert_eq!(repaired, Repaired::Stale);
        }
    }
    println!("{decided} repairs were decided on and not made");
    assert!(decided > 0, "else this shows nothing");
    trying.abort();
}
