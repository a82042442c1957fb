//! Pressure queues with live producers and consumers that follow the protocol's text:
//! raising and lowering the bound, and deletion. See `lifecycle` for a queue's states.

use std::time::Duration;

use kube::api::DeleteParams;
use lockkeeper_api::PressureQueue;
use lockkeeper_testkit::pressure_text::{TextClient, TextError, TextQueue, Worker};
use lockkeeper_testkit::world::{Kind, PATIENCE, World, eventually, has, in_a_world, is_ready};

/// Returns the queue of a `PressureQueue` with default name, for foreign clients.
pub fn text(world: &World, name: &str) -> TextQueue {
    TextQueue {
        url: world.redis_url(),
        prefix: "__pressure__".to_owned(),
        name: format!("{}.{name}", world.namespace),
    }
}

/// Sends a command to Redis.
pub async fn send<T: redis::FromRedisValue>(world: &World, command: &[&str]) -> T {
    let mut redis = world.redis().await;
    redis::cmd(command[0]).arg(&command[1..]).query_async(&mut redis).await.unwrap()
}

/// Returns all keys of the world's database, sorted.
pub async fn keys(world: &World) -> Vec<String> {
    let mut keys: Vec<String> = send(world, &["KEYS", "*"]).await;
    keys.sort();
    keys
}

/// Waits until a worker has completed this many operations and blocks in the next one.
pub async fn until_blocked(world: &World, worker: &Worker, done: usize) {
    let client = worker.client.to_string();
    eventually(&format!("the client waits after {done}"), PATIENCE, async || {
        let list: String = send(world, &["CLIENT", "LIST", "ID", &client]).await;
        let flags = list.split_whitespace().find_map(|field| field.strip_prefix("flags="));
        worker.so_far().len() == done && flags.is_some_and(|flags| flags.contains('b'))
    })
    .await;
}

#[tokio::test]
async fn a_blocked_producer_wakes_with_a_higher_bound_and_waits_with_a_lower_one() {
    in_a_world("bound", async |world| {
        let _operator = world.operator().await;
        world.queue("frames", "bound: 2").await;
        world.queue_ready("frames").await;
        let queue = text(&world, "frames");
        let frames = (0..).map(|n| format!("frame-{n}"));
        let producer = Worker::produce(&queue, "camera", frames.clone()).await;
        until_blocked(&world, &producer, 2).await;

        world.queue("frames", "bound: 4").await;
        eventually("the producer puts again", PATIENCE, async || producer.so_far().len() > 2).await;
        until_blocked(&world, &producer, 4).await;

        world.queue("frames", "bound: 1").await;
        world.queue_ready("frames").await;
        let mut consumer = TextClient::connect(&queue, "encoder").await.unwrap();
        let mut got = Vec::new();
        for _ in 0..3 {
            got.push(consumer.get().await.unwrap());
        }
        // An observation of the queue that is later than all effects of the gets.
        world
            .until("frames", "seen with the remaining elements", PATIENCE, |q: &PressureQueue| {
                q.status.as_ref().is_some_and(|s| s.length.is_some_and(|length| length < 3))
            })
            .await;
        let put = producer.so_far().len();
        assert!(put <= 5, "at most one more put before the length is below 1, not {put}");
        while got.len() < put {
            got.push(consumer.get().await.unwrap());
        }
        eventually("the producer puts again", PATIENCE, async || producer.so_far().len() > put)
            .await;

        // Changes under full load: nothing is lost or reordered.
        drop(consumer);
        let consumer = Worker::consume(&queue, "encoder", usize::MAX).await;
        for bound in [3, 7, 1, 0, 5, 2] {
            world.queue("frames", &format!("bound: {bound}")).await;
            let ready = world.queue_ready("frames").await;
            assert_eq!(ready.status.unwrap().bound, Some(bound));
            let before = producer.so_far().len();
            eventually("the producer goes on", PATIENCE, async || {
                producer.so_far().len() > before + 20
            })
            .await;
        }
        producer.stop();
        let record = producer.join().await;
        assert!(record.error.is_none(), "{record:?}");
        let all = record.elements.len();
        eventually("everything is got", PATIENCE, async || {
            got.len() + consumer.so_far().len() == all
        })
        .await;
        got.extend(consumer.kill().await);
        println!("{all} elements");
        assert_eq!(got, record.elements);
        assert!(got.into_iter().eq(frames.take(all)), "in the order in which they were put");
    })
    .await;
}

#[tokio::test]
async fn clients_that_are_blocked_when_the_queue_is_deleted_end_and_nothing_is_left() {
    in_a_world("wake", async |world| {
        let _operator = world.operator().await;
        world.queue("full", "bound: 1, deletionPolicy: Delete").await;
        world.queue("empty", "deletionPolicy: Delete").await;
        world.queue_ready("full").await;
        world.queue_ready("empty").await;
        let frames = (0..).map(|n| format!("frame-{n}"));
        let producer = Worker::produce(&text(&world, "full"), "camera", frames).await;
        let consumer = Worker::consume(&text(&world, "empty"), "encoder", 1).await;
        until_blocked(&world, &producer, 1).await;
        until_blocked(&world, &consumer, 0).await;

        for name in ["full", "empty"] {
            world.api::<PressureQueue>().delete(name, &DeleteParams::default()).await.unwrap();
        }
        eventually("both clients end", PATIENCE, async || {
            producer.is_finished() && consumer.is_finished()
        })
        .await;
        // According to the text, the blocked put gets no error. The next one finds no
        // queue.
        let (producer, consumer) = (producer.join().await, consumer.join().await);
        assert!(matches!(producer.error, Some(TextError::DoesNotExist)), "{producer:?}");
        assert_eq!(producer.elements.len(), 2);
        assert!(matches!(consumer.error, Some(TextError::Closed)), "{consumer:?}");
        for name in ["full", "empty"] {
            eventually(&format!("{name} is gone"), PATIENCE, async || {
                world.api::<PressureQueue>().get_opt(name).await.unwrap().is_none()
            })
            .await;
        }
        assert_eq!(keys(&world).await, [""; 0]);
    })
    .await;
}

#[tokio::test]
async fn a_queue_over_its_lowered_bound_is_reported_and_accepts_no_put_until_it_is_drained() {
    in_a_world("overfilled", async |world| {
        let _operator = world.operator().await;
        world.queue("frames", "bound: 5").await;
        world.queue_ready("frames").await;
        let queue = text(&world, "frames");
        let mut client = TextClient::connect(&queue, "camera").await.unwrap();
        for n in 0..4 {
            client.put(&n.to_string()).await.unwrap();
        }
        world.queue("frames", "bound: 2").await;
        let over = world
            .until("frames", "Overfilled", PATIENCE, |q: &PressureQueue| {
                has(q, "Overfilled", "True")
            })
            .await;
        let (_, reason, message) = over.condition("Overfilled").unwrap();
        assert_eq!(reason, "OverBound");
        assert!(message.contains("holds 4 elements, its bound is 2"), "{message}");
        assert!(is_ready(&over), "the bound is the desired one nevertheless");
        assert_eq!(over.status.unwrap().length, Some(4));

        // A client's id is shown in the status as clean text of limited length.
        let nasty = format!("evil\u{1b}[31m\r\n{}", "x".repeat(10_000));
        let producer = Worker::produce(&queue, &nasty, ["late".to_owned()]).await;
        until_blocked(&world, &producer, 0).await;
        let busy = world
            .until("frames", "produced for", PATIENCE, |q: &PressureQueue| {
                let status = q.status.as_ref().unwrap();
                status.producer.as_ref().is_some_and(|producer| producer.busy)
            })
            .await;
        let id = busy.status.unwrap().producer.unwrap().id.unwrap();
        assert!(id.starts_with("evil") && id.len() <= 256, "{id:?}");
        assert!(!id.chars().any(char::is_control), "{id:?}");
        assert_eq!(producer.so_far().len(), 0, "no room yet");

        for n in 0..3 {
            assert_eq!(client.get().await.unwrap(), n.to_string());
        }
        assert!(producer.join().await.error.is_none());
        let within = world
            .until("frames", "within its bound", PATIENCE, |q: &PressureQueue| {
                has(q, "Overfilled", "False")
            })
            .await;
        assert_eq!(within.status.unwrap().length, Some(2));
        assert_eq!(client.get().await.unwrap(), "3");
        assert_eq!(client.get().await.unwrap(), "late");
    })
    .await;
}

#[tokio::test]
async fn counters_alone_are_written_at_most_once_a_minute_and_then_they_are() {
    in_a_world("counters", async |world| {
        let _operator = world.operator().await;
        world.queue("frames", "bound: 2").await;
        world.queue_ready("frames").await;
        let counter = |which| format!("{}:stats:{which}_messages", data(&world, "frames"));
        let (put, got) = (counter("produced"), counter("consumed"));
        let version = async || {
            let queue = world.api::<PressureQueue>().get("frames").await.unwrap();
            let produced = queue.status.unwrap().produced_messages.unwrap();
            (queue.metadata.resource_version.unwrap(), produced)
        };
        let (before, _) = version().await;
        let start = std::time::Instant::now();
        let mut quiet = Duration::ZERO;
        let mut count = 0;
        let written = loop {
            count += 1;
            let number = count.to_string();
            let () = send(&world, &["MSET", &put, &number, &got, &number]).await;
            let (now, produced) = version().await;
            if now != before {
                break produced;
            }
            quiet = start.elapsed();
            assert!(quiet < Duration::from_secs(75), "the counters are never written");
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        println!("written after {quiet:?}");
        assert!(quiet > Duration::from_secs(20), "written already after {quiet:?}");
        assert!(written > 100 && written * 2 > count, "{written} of {count}");
    })
    .await;
}

/// Returns the key of a queue's data, which is the prefix of all its other keys.
pub fn data(world: &World, name: &str) -> String {
    format!("__pressure__:{}.{name}", world.namespace)
}
