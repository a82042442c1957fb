//! Waiting: what it costs (nothing while nothing happens), and how soon it ends on
//! an element, on room, on a role, on a close and on a deletion.

use std::time::{Duration, Instant};

use lockkeeper::plan::pressure_queue::QueueEffect;
use lockkeeper::pressure::{Queue, QueueError, QueueOptions, Wait};
use tokio::task::JoinHandle;

use crate::pressure_text::TextClient;
use crate::redis_support::{Place, PrivateRedis, eventually};
use crate::{ours, text_queue};

/// A wait on a loaded machine may end late for the machine's sake: so it is tried
/// this often, and the best counts.
const TRIES: usize = 7;
const AT_ONCE: Duration = Duration::from_millis(5);

/// Connections of the place's server that sleep in a blocking command.
async fn asleep(place: &Place) -> u64 {
    let info: String = place.run(&["INFO", "clients"]).await;
    let line = info.lines().find_map(|line| line.strip_prefix("blocked_clients:"));
    line.unwrap().trim().parse().unwrap()
}

/// Commands that the server has run.
async fn commands(place: &Place) -> u64 {
    let info: String = place.run(&["INFO", "stats"]).await;
    let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    line.unwrap().trim().parse().unwrap()
}

/// An operation that waits, in a task; yields its result and when it ended.
type Waiter = JoinHandle<(Result<(), QueueError>, Instant)>;

fn putting(queue: &Queue) -> Waiter {
    let queue = queue.clone();
    tokio::spawn(async move { (queue.put("x").await, Instant::now()) })
}

fn getting(queue: &Queue) -> Waiter {
    let queue = queue.clone();
    tokio::spawn(async move { (queue.get().await.map(|_| ()), Instant::now()) })
}

/// A server of its own, where every connection that sleeps is a waiter's.
async fn place() -> (PrivateRedis, Place) {
    let server = PrivateRedis::start(&[]).await;
    let place = Place::at(&server.url()).await;
    (server, place)
}

/// How a queue is prepared so that an operation waits, and what wakes it.
struct Case {
    name: &'static str,
    /// Elements in the queue of bound 1, and whether a foreign client holds the
    /// role that the operation needs.
    full: bool,
    busy: Option<&'static str>,
    operation: fn(&Queue) -> Waiter,
    wake: &'static [&'static [&'static str]],
    expected: Result<(), QueueError>,
}

/// What a foreign client sends, word by word; `:` stands for the queue's keys.
async fn send(place: &Place, command: &[&str]) {
    let data = place.queue.data();
    let words: Vec<String> = command
        .iter()
        .map(|word| match word.strip_prefix(':') {
            Some("data") => data.clone(),
            Some(suffix) => format!("{data}:{suffix}"),
            None => (*word).to_owned(),
        })
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let _: redis::Value = place.run(&words).await;
}

const DELETE: &[&[&str]] =
    &[&["DEL", ":bound"], &["LPUSH", ":not_full", "0"], &["LPUSH", ":closed", "0", "0"]];

fn cases() -> Vec<Case> {
    let case = |name, full, busy, operation: fn(&Queue) -> Waiter, wake, expected| Case {
        name,
        full,
        busy,
        operation,
        wake,
        expected,
    };
    let closed = || Err(QueueError::Closed);
    let absent = || Err(QueueError::DoesNotExist);
    let close: &[&[&str]] = &[&["LPUSH", ":closed", "0", "0"]];
    vec![
        case("a get on an element", false, None, getting, &[&["LPUSH", ":data", "e"]], Ok(())),
        case("a get on a close", false, None, getting, close, closed()),
        case("a get on a deletion", false, None, getting, DELETE, absent()),
        case(
            "a get on the role",
            true,
            Some(":consumer_free"),
            getting,
            &[&["LPUSH", ":consumer_free", "0"]],
            Ok(()),
        ),
        case(
            "a get without role on a deletion",
            true,
            Some(":consumer_free"),
            getting,
            DELETE,
            absent(),
        ),
        case(
            "a put on room",
            true,
            None,
            putting,
            &[&["RPOP", ":data"], &["LPUSH", ":not_full", "0"]],
            Ok(()),
        ),
        case("a put on a close", true, None, putting, close, closed()),
        case("a put on a deletion", true, None, putting, DELETE, absent()),
        case(
            "a put on the role",
            false,
            Some(":producer_free"),
            putting,
            &[&["LPUSH", ":producer_free", "0"]],
            Ok(()),
        ),
        case(
            "a put without role on a close",
            false,
            Some(":producer_free"),
            putting,
            close,
            closed(),
        ),
        case(
            "a put without role on a deletion",
            false,
            Some(":producer_free"),
            putting,
            DELETE,
            absent(),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_makes_no_round_trips_and_ends_at_once_on_whatever_was_waited_for() {
    let (_server, place) = place().await;
    for case in cases() {
        let mut best = Duration::MAX;
        for attempt in 0..TRIES {
            let queue = ours(&place, "me");
            queue.create(1).await.unwrap();
            if case.full {
                queue.put("e").await.unwrap();
            }
            if let Some(role) = case.busy {
                let () = place.run(&["RPOP", &place.key(role)]).await;
            }
            let waiter = (case.operation)(&queue);
            eventually("it waits for two things", async || asleep(&place).await == 2).await;
            if attempt == 0 {
                // The one look after it began to wait.
                tokio::time::sleep(Duration::from_millis(150)).await;
                let before = commands(&place).await;
                tokio::time::sleep(Duration::from_millis(300)).await;
                // INFO counts itself.
                assert_eq!(commands(&place).await - before, 1, "{} made round trips", case.name);
            }
            for command in case.wake {
                send(&place, command).await;
            }
            let sent = Instant::now();
            let (result, ended) = waiter.await.unwrap();
            assert_eq!(result, case.expected, "{}", case.name);
            best = best.min(ended.saturating_duration_since(sent));
            drop(queue);
            eventually("its connections are gone", async || asleep(&place).await == 0).await;
            let () = place.run(&["FLUSHDB"]).await;
        }
        println!("{}: woken after {best:?}", case.name);
        assert!(best < AT_ONCE, "{}: {best:?}", case.name);
    }
}

#[tokio::test]
async fn a_raised_bound_wakes_a_put_that_waits_for_room() {
    let place = Place::new().await;
    let queue = ours(&place, "me");
    queue.create(1).await.unwrap();
    queue.put("e").await.unwrap();
    let waiter = putting(&queue);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiter.is_finished());
    place.store().apply(&place.queue, &QueueEffect::SetBound { bound: 2 }).await.unwrap();
    let (result, _) = tokio::time::timeout(Duration::from_secs(5), waiter).await.unwrap().unwrap();
    result.unwrap();
}

#[tokio::test]
async fn a_hundred_who_wait_share_two_connections_and_all_get_their_turn() {
    let (_server, place) = place().await;
    let queue = ours(&place, "me");
    queue.create(1).await.unwrap();
    let waiters: Vec<Waiter> = (0..100).map(|_| getting(&queue)).collect();
    eventually("they wait", async || asleep(&place).await == 2).await;
    let producer = ours(&place, "the producer");
    for number in 0..100 {
        producer.put(number.to_string()).await.unwrap();
    }
    for waiter in waiters {
        waiter.await.unwrap().0.unwrap();
    }
}

#[tokio::test]
async fn keys_that_vanish_without_a_word_are_noticed_at_the_next_look() {
    let place = Place::new().await;
    let options =
        QueueOptions { look_interval: Duration::from_millis(300), ..QueueOptions::default() };
    let queue = Queue::new(place.settings(), place.queue.clone(), options);
    queue.create(1).await.unwrap();
    let waiter = getting(&queue);
    tokio::time::sleep(Duration::from_millis(150)).await;
    for suffix in place.present().await {
        let () = place.run(&["DEL", &place.key(&suffix)]).await;
    }
    let (result, _) = tokio::time::timeout(Duration::from_secs(5), waiter).await.unwrap().unwrap();
    assert_eq!(result, Err(QueueError::DoesNotExist));
}

#[tokio::test]
async fn a_forced_deletion_wakes_who_waits_too() {
    let place = Place::new().await;
    let queue = ours(&place, "me");
    queue.create(1).await.unwrap();
    let waiter = getting(&queue);
    tokio::time::sleep(Duration::from_millis(100)).await;
    place.store().delete(&place.queue, true).await.unwrap();
    let (result, _) = tokio::time::timeout(Duration::from_secs(5), waiter).await.unwrap().unwrap();
    assert_eq!(result, Err(QueueError::DoesNotExist));
}

#[tokio::test]
async fn a_server_that_ends_fails_who_waits_instead_of_keeping_them() {
    let (mut server, place) = place().await;
    let queue = ours(&place, "me");
    queue.create(1).await.unwrap();
    let waiter = getting(&queue);
    eventually("it waits", async || asleep(&place).await == 2).await;
    server.kill();
    let (result, _) = tokio::time::timeout(Duration::from_secs(5), waiter).await.unwrap().unwrap();
    let error = result.unwrap_err();
    assert!(matches!(error, QueueError::Store(_)), "{error}");
    server.restart().await;
    assert_eq!(queue.try_get().await, Err(QueueError::DoesNotExist), "the next one connects anew");
}

#[tokio::test]
async fn a_broken_connection_for_waiting_is_replaced_while_the_server_is_there() {
    let (_server, place) = place().await;
    let queue = ours(&place, "me");
    queue.create(1).await.unwrap();
    let waiter = getting(&queue);
    eventually("it waits", async || asleep(&place).await == 2).await;
    for _ in 0..3 {
        let list: String = place.run(&["CLIENT", "LIST"]).await;
        let blocked = list.lines().filter(|line| line.contains("flags=b"));
        for id in blocked.filter_map(|line| line.strip_prefix("id=")?.split(' ').next()) {
            let _: i64 = place.run(&["CLIENT", "KILL", "ID", id]).await;
        }
        eventually("it waits again", async || asleep(&place).await == 2).await;
        // Faster than that, it would take the server for gone.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ours(&place, "the producer").put("e").await.unwrap();
    waiter.await.unwrap().0.unwrap();
}

#[tokio::test]
async fn a_close_waits_for_a_foreign_producer_and_a_deletion_for_both_roles() {
    let place = Place::new().await;
    let queue = ours(&place, "me");
    queue.create(1).await.unwrap();
    queue.put("e").await.unwrap();
    let text = text_queue(&place);
    let mut producer = TextClient::connect(&text, "the producer").await.unwrap();
    let blocked = tokio::spawn(async move { producer.put("f").await });
    eventually("it has the role", async || place.length(":producer_free").await == 0).await;
    let closer = tokio::spawn({
        let queue = queue.clone();
        async move { queue.close(Wait::Forever).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!closer.is_finished());
    assert_eq!(queue.get().await.unwrap(), b"e");
    blocked.await.unwrap().unwrap();
    closer.await.unwrap().unwrap();
    assert_eq!(queue.get().await.unwrap(), b"f");
    let mut consumer = TextClient::connect(&text, "the consumer").await.unwrap();
    assert!(consumer.get().await.is_err());
    queue.delete(Wait::Forever).await.unwrap();
    assert!(place.present().await.is_empty());
}
