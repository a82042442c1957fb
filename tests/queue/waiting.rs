//! Waiting: its cost (none while nothing happens), and how soon it ends on an element, on
//! capacity, on a role, on a close and on a deletion.

use std::time::Duration;

use lockkeeper_plan::pressure_queue::QueueEffect;
use lockkeeper_pressure::{Queue, QueueError, QueueOptions, TakenRoles, Wait};
use lockkeeper_testkit::pressure_text::TextClient;
use lockkeeper_testkit::redis::{PrivateRedis, TestQueue, eventually};
use tokio::task::JoinHandle;

use crate::queue::{ours, text_queue};

/// Without a wake-up, a waiting client checks after a minute.
const WOKEN: Duration = Duration::from_secs(20);

/// Returns the number of the server's connections in a blocking command.
async fn asleep(place: &TestQueue) -> u64 {
    let info: String = place.run(&["INFO", "clients"]).await;
    let line = info.lines().find_map(|line| line.strip_prefix("blocked_clients:"));
    line.unwrap().trim().parse().unwrap()
}

/// Returns the number of commands that the server has run.
async fn commands(place: &TestQueue) -> u64 {
    let info: String = place.run(&["INFO", "stats"]).await;
    let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    line.unwrap().trim().parse().unwrap()
}

/// A waiting operation in a task.
type Waiter = JoinHandle<Result<(), QueueError>>;

fn putting(queue: &Queue) -> Waiter {
    let queue = queue.clone();
    tokio::spawn(async move { queue.put("x").await })
}

fn getting(queue: &Queue) -> Waiter {
    let queue = queue.clone();
    tokio::spawn(async move { queue.get().await.map(|_| ()) })
}

/// Starts a private server, where every blocked connection belongs to a waiter.
async fn place() -> (PrivateRedis, TestQueue) {
    let server = PrivateRedis::start(&[]).await;
    let place = TestQueue::at(&server.url()).await;
    (server, place)
}

/// Preparation of a queue so that an operation waits, and the event that wakes it.
struct Case {
    name: &'static str,
    /// Whether the queue of bound 1 has elements, and whether a foreign client holds the
    /// role that the operation requires.
    full: bool,
    busy: Option<&'static str>,
    operation: fn(&Queue) -> Waiter,
    wake: &'static [&'static [&'static str]],
    expected: Result<(), QueueError>,
}

/// Sends a foreign client's command, word by word. `:` stands for the queue's keys.
async fn send(place: &TestQueue, command: &[&str]) {
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
        // After the one check after it started to wait. INFO counts itself.
        eventually("it makes no round trips", async || {
            let before = commands(&place).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            commands(&place).await - before == 1
        })
        .await;
        for command in case.wake {
            send(&place, command).await;
        }
        let woken = tokio::time::timeout(WOKEN, waiter).await;
        let result = woken.unwrap_or_else(|_| panic!("{} is not woken", case.name)).unwrap();
        assert_eq!(result, case.expected, "{}", case.name);
        drop(queue);
        eventually("its connections are gone", async || asleep(&place).await == 0).await;
        let () = place.run(&["FLUSHDB"]).await;
    }
}

#[tokio::test]
async fn a_raised_bound_wakes_a_put_that_waits_for_room() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    queue.create(1).await.unwrap();
    queue.put("e").await.unwrap();
    let waiter = putting(&queue);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiter.is_finished());
    place.store().apply(&place.queue, &QueueEffect::SetBound { bound: 2 }).await.unwrap();
    let result = tokio::time::timeout(WOKEN, waiter).await.unwrap().unwrap();
    result.unwrap();
}

#[tokio::test]
async fn a_hundred_waiters_share_two_connections_and_all_are_served() {
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
        waiter.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn keys_that_vanish_without_a_word_are_noticed_at_the_next_look() {
    let place = TestQueue::new().await;
    let options = QueueOptions::default().with_look_interval(Duration::from_millis(300));
    let queue = Queue::new(place.settings(), place.queue.clone(), options);
    queue.create(1).await.unwrap();
    let waiter = getting(&queue);
    tokio::time::sleep(Duration::from_millis(150)).await;
    for suffix in place.present().await {
        let () = place.run(&["DEL", &place.key(&suffix)]).await;
    }
    let result = tokio::time::timeout(WOKEN, waiter).await.unwrap().unwrap();
    assert_eq!(result, Err(QueueError::DoesNotExist));
}

#[tokio::test]
async fn a_forced_deletion_also_wakes_waiters() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    queue.create(1).await.unwrap();
    let waiter = getting(&queue);
    tokio::time::sleep(Duration::from_millis(100)).await;
    place.store().delete(&place.queue, TakenRoles::Ignore).await.unwrap();
    let result = tokio::time::timeout(WOKEN, waiter).await.unwrap().unwrap();
    assert_eq!(result, Err(QueueError::DoesNotExist));
}

#[tokio::test]
async fn a_close_waits_for_a_foreign_producer_and_a_deletion_for_both_roles() {
    let place = TestQueue::new().await;
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
