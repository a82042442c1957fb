//! Clients that follow the text and die after each of their commands, blocked or not: the
//! doctor reports the damage, and a repair removes it.

use futures::future::BoxFuture;
use lockkeeper_plan::pressure_queue::doctor::{Remedy, Repair};
use lockkeeper_testkit::pressure_text::{TextClient, TextError, Worker};
use lockkeeper_testkit::redis::wait_until_blocked;

use super::{IDLE, Ward, reasons, repairs, server};
use crate::store::{numbers, text_queue};

type Operation = for<'a> fn(&'a mut TextClient) -> BoxFuture<'a, Result<(), TextError>>;

fn put(client: &mut TextClient) -> BoxFuture<'_, Result<(), TextError>> {
    Box::pin(client.put("late"))
}

fn get(client: &mut TextClient) -> BoxFuture<'_, Result<(), TextError>> {
    Box::pin(async { client.get().await.map(drop) })
}

fn create(client: &mut TextClient) -> BoxFuture<'_, Result<(), TextError>> {
    Box::pin(client.create(2))
}

fn close(client: &mut TextClient) -> BoxFuture<'_, Result<(), TextError>> {
    Box::pin(client.close())
}

fn delete(client: &mut TextClient) -> BoxFuture<'_, Result<(), TextError>> {
    Box::pin(client.delete())
}

/// Prepares a queue of bound 3 with this number of elements, or none.
async fn prepared(ward: &Ward, elements: Option<usize>) {
    let Some(elements) = elements else { return };
    let mut client = ward.client("before").await;
    client.create(3).await.unwrap();
    for element in numbers(elements) {
        client.put(&element).await.unwrap();
    }
    let number = client.client;
    drop(client);
    ward.until_gone(number).await;
}

/// Lets a client die after each of the operation's commands in turn. Checks the reported
/// damage and its repair. `damage` returns the expected reasons for the number of
/// answered commands.
async fn die_after_each_command(
    elements: Option<usize>,
    operation: Operation,
    damage: impl Fn(usize) -> &'static [&'static str],
) {
    let server = server().await;
    for commands in 0.. {
        let mut ward = Ward::new(&server, 1 + i64::try_from(commands).unwrap()).await;
        prepared(&ward, elements).await;
        let mut client = ward.client("dying").await.die_after(commands);
        let number = client.client;
        let outcome = operation(&mut client).await;
        let is_whole = outcome.is_ok();
        assert!(is_whole || matches!(outcome, Err(TextError::Dead)), "{outcome:?}");
        drop(client);
        ward.until_gone(number).await;

        let diagnosis = ward.examine().await;
        let expected = damage(commands);
        assert_eq!(reasons(&diagnosis), expected, "after {commands}: {diagnosis:?}");
        let before = ward.place.dump().await;
        let elements = ward.place.length("").await;
        let is_early = |repair: &Repair| *repair != Repair::SettleTokens;
        assert!(!repairs(&diagnosis).iter().any(is_early), "before it was idle: {diagnosis:?}");
        let is_left = |remedy: &Remedy| matches!(remedy, Remedy::Leave(_));
        if diagnosis.damage.iter().all(|finding| is_left(&finding.remedy)) {
            assert!(ward.heal().await.is_empty());
            assert_eq!(ward.place.dump().await, before, "after {commands}");
        } else {
            assert!(!ward.heal().await.is_empty(), "after {commands}");
        }
        assert_eq!(ward.place.length("").await, elements, "no repair removes an element");
        let healed = ward.look(IDLE).await;
        assert!(healed.damage.iter().all(|finding| is_left(&finding.remedy)), "{healed:?}");
        if !reasons(&healed).contains(&"Residue") {
            ward.check_invariants().await;
            ward.check_use().await;
        }
        if is_whole {
            assert!(commands > 3, "the operation has commands");
            assert_eq!(expected, [""; 0]);
            return;
        }
    }
}

#[tokio::test]
async fn a_producer_that_died_after_any_of_its_commands_is_named_and_its_role_given_back() {
    die_after_each_command(Some(0), put, |commands| match commands {
        // The keys of a queue that was never used look the same.
        3 => &["HalfCreated"],
        4..12 => &["RoleStuck"],
        _ => &[],
    })
    .await;
    die_after_each_command(Some(1), put, |commands| match commands {
        3..12 => &["RoleStuck"],
        _ => &[],
    })
    .await;
    // The last put that fits pushes no token.
    die_after_each_command(Some(2), put, |commands| match commands {
        3..11 => &["RoleStuck"],
        _ => &[],
    })
    .await;
}

#[tokio::test]
async fn a_consumer_that_died_after_any_of_its_commands_is_named_and_its_role_given_back() {
    for elements in [1, 2] {
        die_after_each_command(Some(elements), get, |commands| match commands {
            // Between the token that it pushes and the trim.
            7 => &["RoleStuck", "SurplusToken"],
            2..11 => &["RoleStuck"],
            _ => &[],
        })
        .await;
    }
    // From a full queue: there was no token, so nothing has to be trimmed.
    die_after_each_command(Some(3), get, |commands| match commands {
        2..10 => &["RoleStuck"],
        _ => &[],
    })
    .await;
}

#[tokio::test]
async fn a_creator_that_died_after_any_of_its_commands_is_named_and_its_queue_finished() {
    die_after_each_command(None, create, |commands| match commands {
        1..4 => &["HalfCreated"],
        _ => &[],
    })
    .await;
}

#[tokio::test]
async fn a_closer_that_died_after_any_of_its_commands_is_named_and_its_role_given_back() {
    die_after_each_command(Some(1), close, |commands| match commands {
        2..6 => &["RoleStuck"],
        _ => &[],
    })
    .await;
}

#[tokio::test]
async fn a_deleter_that_died_after_any_of_its_commands_is_named_and_its_deletion_finished() {
    die_after_each_command(Some(0), delete, |commands| match commands {
        // A queue that was never used has neither counters nor data.
        2..10 => &["Residue"],
        _ => &[],
    })
    .await;
}

#[tokio::test]
async fn elements_of_an_open_queue_outlive_a_deleter_that_died() {
    die_after_each_command(Some(2), delete, |commands| match commands {
        2..15 => &["Residue"],
        _ => &[],
    })
    .await;
}

#[tokio::test]
async fn a_closed_queue_that_lost_its_bound_keeps_its_elements() {
    let server = server().await;
    // Only `:bound` is missing, or further keys too, as after an eviction.
    let lost: [&[&str]; 4] = [
        &[":bound"],
        &[":bound", ":producer", ":producer_free"],
        &[":bound", ":producer", ":producer_free", ":consumer", ":consumer_free"],
        &[":bound", ":closed"],
    ];
    for (database, lost) in (1..).zip(lost) {
        let mut ward = Ward::new(&server, database).await;
        prepared(&ward, Some(2)).await;
        close(&mut ward.client("before").await).await.unwrap();
        for suffix in lost {
            let () = ward.place.run(&["DEL", &ward.place.key(suffix)]).await;
        }
        let before = ward.place.dump().await;
        assert_eq!(reasons(&ward.examine().await), ["Residue"], "{lost:?}");
        assert!(ward.heal().await.is_empty(), "{lost:?}");
        assert_eq!(ward.place.dump().await, before, "{lost:?}");
    }
}

#[tokio::test]
async fn a_half_deletion_of_a_closed_queue_is_finished() {
    let server = server().await;
    // From the moment when it has marked the queue as closed, until it removes the mark.
    for commands in 4..10 {
        let mut ward = Ward::new(&server, i64::try_from(commands).unwrap()).await;
        prepared(&ward, Some(2)).await;
        close(&mut ward.client("before").await).await.unwrap();
        let mut client = ward.client("dying").await.die_after(commands);
        let number = client.client;
        client.delete().await.unwrap_err();
        drop(client);
        ward.until_gone(number).await;
        assert_eq!(reasons(&ward.examine().await), ["Residue"]);
        assert!(!ward.heal().await.is_empty(), "after {commands}");
        assert!(ward.place.dump().await.is_empty(), "after {commands}");
    }
}

#[tokio::test]
async fn data_that_lost_its_bound_is_named_and_left_alone() {
    let server = server().await;
    let mut ward = Ward::new(&server, 1).await;
    prepared(&ward, Some(2)).await;
    let () = ward.place.run(&["DEL", &ward.place.key(":bound")]).await;
    let before = ward.place.dump().await;
    let diagnosis = ward.examine().await;
    assert_eq!(reasons(&diagnosis), ["Residue"]);
    assert!(ward.heal().await.is_empty());
    assert_eq!(ward.place.dump().await, before);
    let () = ward.place.run(&["SET", &ward.place.key(":bound"), "3"]).await;
    assert_eq!(reasons(&ward.examine().await), [""; 0]);
    ward.check_use().await;
}

/// Kills a blocked worker.
async fn kill_waiting(ward: &Ward, worker: Worker) {
    wait_until_blocked(&ward.place.raw, worker.client).await;
    let number = worker.client;
    worker.kill().await;
    ward.until_gone(number).await;
}

#[tokio::test]
async fn a_producer_killed_while_it_waited_for_room_gives_way_to_the_next() {
    let server = server().await;
    let mut ward = Ward::new(&server, 1).await;
    prepared(&ward, Some(3)).await;
    let producer = Worker::produce(&text_queue(&ward.place), "dying", numbers(1)).await;
    kill_waiting(&ward, producer).await;
    let diagnosis = ward.examine().await;
    assert_eq!(reasons(&diagnosis), ["RoleStuck"]);
    assert!(diagnosis.damage[0].remark.to_string().contains("taken by dying"));
    assert_eq!(ward.heal().await.len(), 1, "the role and no token: it is full");
    ward.check_invariants().await;
    ward.check_use().await;
}

#[tokio::test]
async fn a_consumer_killed_while_it_waited_for_data_gives_way_to_the_next() {
    let server = server().await;
    let mut ward = Ward::new(&server, 1).await;
    prepared(&ward, Some(0)).await;
    let consumer = Worker::consume(&text_queue(&ward.place), "dying", 1).await;
    kill_waiting(&ward, consumer).await;
    assert_eq!(reasons(&ward.examine().await), ["RoleStuck"]);
    assert_eq!(ward.heal().await.len(), 1);
    ward.check_invariants().await;
    ward.check_use().await;
}

#[tokio::test]
async fn a_client_killed_while_it_waits_for_a_role_leaves_no_damage() {
    let server = server().await;
    for (database, operation) in (1..).zip([put as Operation, get, close]) {
        let mut ward = Ward::new(&server, database).await;
        prepared(&ward, Some(1)).await;
        // Takes both roles before any other client, and stays alive.
        for role in [":producer_free", ":consumer_free"] {
            let _: String = ward.place.run(&["RPOP", &ward.place.key(role)]).await;
        }
        let mut client = ward.client("dying").await;
        let number = client.client;
        let task = tokio::spawn(async move { operation(&mut client).await });
        wait_until_blocked(&ward.place.raw, number).await;
        task.abort();
        let _ = task.await;
        ward.until_gone(number).await;
        for role in [":producer_free", ":consumer_free"] {
            let () = ward.place.run(&["LPUSH", &ward.place.key(role), "1"]).await;
        }
        assert_eq!(reasons(&ward.examine().await), [""; 0]);
        ward.check_invariants().await;
        ward.check_use().await;
    }
}

#[tokio::test]
async fn a_deletion_killed_while_it_waits_for_a_role_is_finished_once_all_clients_are_gone() {
    let server = server().await;
    for (database, commands) in [(1, 3), (2, 2)] {
        let mut ward = Ward::new(&server, database).await;
        prepared(&ward, Some(1)).await;
        ward.client("before").await.get().await.unwrap();
        // Holds a role, stays alive, and does nothing.
        let mut slow = ward.client("slow").await.rest_after(commands);
        let number = slow.client;
        let operation = if commands == 3 { put as Operation } else { get };
        let slow = tokio::spawn(async move { operation(&mut slow).await });
        lockkeeper_testkit::redis::eventually("a role is taken", async || {
            let seen = ward.seen().await;
            seen.producer.busy || seen.consumer.busy
        })
        .await;
        let mut deleter = ward.client("deleter").await;
        let deleters = deleter.client;
        let task = tokio::spawn(async move { deleter.delete().await });
        wait_until_blocked(&ward.place.raw, deleters).await;
        // P7: while the deleter waits, it may still continue by itself.
        assert!(ward.heal().await.is_empty());
        task.abort();
        let _ = task.await;
        ward.until_gone(deleters).await;
        assert!(ward.heal().await.is_empty(), "the slow one lives");
        assert_eq!(reasons(&ward.examine().await), ["Residue"]);
        slow.abort();
        let _ = slow.await;
        ward.until_gone(number).await;
        assert!(!ward.heal().await.is_empty());
        ward.check_invariants().await;
        ward.check_use().await;
    }
}

#[tokio::test]
async fn both_roles_stuck_are_both_given_back() {
    let server = server().await;
    let mut ward = Ward::new(&server, 1).await;
    prepared(&ward, Some(3)).await;
    let producer = Worker::produce(&text_queue(&ward.place), "dying", numbers(1)).await;
    kill_waiting(&ward, producer).await;
    // The consumer dies with the element that freed capacity, before it reports that.
    let mut consumer = ward.client("dying too").await.die_after(4);
    let number = consumer.client;
    assert!(matches!(consumer.get().await, Err(TextError::Dead)));
    drop(consumer);
    ward.until_gone(number).await;
    assert_eq!(reasons(&ward.examine().await), ["RoleStuck", "RoleStuck"]);
    let actions = ward.heal().await;
    assert_eq!(actions.len(), 3, "two roles and the token: {actions:?}");
    ward.check_invariants().await;
    ward.check_use().await;
}
