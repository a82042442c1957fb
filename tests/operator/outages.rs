//! Servers that are down or hang, and recover: the status in the meantime, and that
//! objects on other servers do not have to wait.

use std::time::{Duration, Instant};

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_testkit::own_server::OwnServer;
use lockkeeper_testkit::world::{Kind, PATIENCE, World, has, has_reason, in_a_world, is_ready};

/// A stopped server is reported after at most one observation interval, 10 s. This limit
/// and those below leave time for a busy machine.
const REPORTED: Duration = Duration::from_secs(40);

/// A hanging server is reported after one observation and its timeout.
const HANG_REPORTED: Duration = Duration::from_secs(45);

/// A recovered server is found after at most the longest pause, 15 s.
const FOUND_AGAIN: Duration = Duration::from_secs(45);

/// Time limit for other objects in the meantime. Far shorter than if they queued behind
/// objects whose server does not respond.
const PROMPT: Duration = Duration::from_secs(15);

#[tokio::test]
async fn a_broker_that_stops_or_hangs_is_reported_and_found_again_and_delays_no_other() {
    in_a_world("broker-outage", async |world| {
        let broker = OwnServer::rabbitmq().await;
        let amqp = broker.variable("AMQP_URL");
        let management = broker.variable("RABBITMQ_MANAGEMENT_URL");
        world.secret("own", &[("amqpUri", amqp.clone()), ("managementUri", management)]).await;
        // The default intervals of an installation.
        let _operator = world.operator_with(&[]).await;
        let there: Vec<String> = (1..=8).map(|n| format!("there-{n}")).collect();
        for name in &there {
            let spec = "{rabbitmqClusterReference: {connectionSecret: {name: own}}, slots: 3}";
            world.apply::<Semaphore>(name, spec).await.unwrap();
        }
        others_are(&world, 2, PATIENCE).await;
        for name in &there {
            world.semaphore_ready(name).await;
        }
        let holder = hold(&amqp, &format!("{}.there-1-1-B", world.namespace)).await;
        let held = |s: &Semaphore| s.status.as_ref().is_some_and(|s| s.held == Some(1));
        world.until("there-1", "held", PATIENCE, held).await;

        broker.stop().await;
        drop(holder);
        let down = world
            .until("there-1", "reported", REPORTED, |s: &Semaphore| {
                has_reason(s, "BackendReachable", "BrokerUnreachable")
                    && has(s, "BackendReachable", "False")
            })
            .await;
        let (_, _, message) = down.condition("BackendReachable").unwrap();
        assert!(message.contains("can't be reached"), "{message}");
        assert!(message.contains("check that it runs, its address and port"), "{message}");
        assert_eq!(down.condition("Ready").unwrap().2, message);
        assert!(has(&down, "Ready", "False") && has(&down, "Reconciling", "True"));
        // Ready, Reconciling, BackendReachable: nothing that cannot be observed.
        let status = down.status.unwrap();
        assert_eq!(status.conditions.len(), 3, "{:?}", status.conditions);
        assert_eq!(
            (status.slots, status.held, status.free, status.draining),
            (None, None, None, None),
            "unknown values are absent"
        );
        assert_eq!((status.holders.len(), status.holders_summary), (0, None));
        assert_eq!(status.highest_slot, Some(3), "what a later sweep needs is kept");
        others_are(&world, 5, PROMPT).await;

        broker.start().await;
        let back = world.until("there-1", "Ready", FOUND_AGAIN, is_ready::<Semaphore>).await;
        assert_eq!(back.status.unwrap().held, Some(0), "the holder's connection died");
        for name in &there {
            world.until(name, "Ready", FOUND_AGAIN, is_ready::<Semaphore>).await;
        }

        broker.hang();
        let hung = others_go_on_until::<Semaphore>(&world, "there-1", |s| {
            has(s, "BackendReachable", "False")
        });
        assert!(is_about_silence(&hung.await), "the reason is that nothing is answered");
        others_are(&world, 3, PROMPT).await;
        broker.go_on();
        for name in &there {
            world.until(name, "Ready", FOUND_AGAIN, is_ready::<Semaphore>).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_redis_that_stops_or_hangs_is_reported_and_found_again_and_delays_no_other() {
    in_a_world("redis-outage", async |world| {
        let redis = OwnServer::redis().await;
        world.secret("own", &[("uri", redis.variable("REDIS_URL"))]).await;
        let _operator = world.operator_with(&[]).await;
        let own = "redisReference: {connectionSecret: {name: own}}";
        let there: Vec<String> = (1..=8).map(|n| format!("there-{n}")).collect();
        for name in &there {
            world.apply::<PressureQueue>(name, &format!("{{{own}, bound: 3}}")).await.unwrap();
        }
        let ended = format!("{{{own}, state: Closed}}");
        world.apply::<PressureQueue>("ended", &ended).await.unwrap();
        others_are(&world, 2, PATIENCE).await;
        for name in there.iter().map(String::as_str).chain(["ended"]) {
            world.queue_ready(name).await;
        }

        redis.stop().await;
        let unreachable = |q: &PressureQueue| {
            has_reason(q, "BackendReachable", "StoreUnreachable")
                && has(q, "BackendReachable", "False")
        };
        for (name, closed) in [("there-1", false), ("ended", true)] {
            let down = world.until(name, "reported", REPORTED, unreachable).await;
            let (_, _, message) = down.condition("Ready").unwrap();
            assert!(message.contains("can't be reached"), "{message}");
            assert!(message.contains("check that the server runs, and its address"), "{message}");
            let status = down.status.unwrap();
            assert_eq!((status.length, status.bound, status.produced_bytes), (None, None, None));
            assert_eq!((status.producer, status.consumer), (None, None));
            assert_eq!(status.closed, Some(closed), "{name}: what can't change is kept");
        }
        others_are(&world, 5, PROMPT).await;

        redis.start().await;
        // The server kept no data: open queues are recreated, closed ones are completed.
        let back = world.until("there-1", "Ready", FOUND_AGAIN, is_ready::<PressureQueue>).await;
        assert_eq!(back.status.unwrap().bound, Some(3));
        let done = |q: &PressureQueue| has_reason(q, "Ready", "Completed");
        world.until("ended", "Completed", FOUND_AGAIN, done).await;

        redis.hang();
        let hung = others_go_on_until::<PressureQueue>(&world, "there-1", |q| {
            has(q, "BackendReachable", "False")
        });
        assert!(is_about_silence(&hung.await), "the reason is that nothing is answered");
        others_are(&world, 3, PROMPT).await;
        redis.go_on();
        for name in &there {
            world.until(name, "Ready", FOUND_AGAIN, is_ready::<PressureQueue>).await;
        }
    })
    .await;
}

/// Resizes a Semaphore and a `PressureQueue` on the shared servers, and waits until each
/// has the new size.
async fn others_are(world: &World, size: u32, patience: Duration) {
    world.semaphore("here", &format!("slots: {size}")).await;
    world.queue("frames", &format!("bound: {size}")).await;
    let here = world.until("here", "Ready", patience, is_ready::<Semaphore>).await;
    assert_eq!(here.status.unwrap().slots, i32::try_from(size).ok());
    assert_eq!(world.queues().await, world.lock_queues("here", size));
    let frames = world.until("frames", "Ready", patience, is_ready::<PressureQueue>).await;
    assert_eq!(frames.status.unwrap().bound, Some(i64::from(size)));
}

/// Resizes the others repeatedly until the hanging server is reported.
async fn others_go_on_until<K: Kind>(world: &World, name: &str, is: impl Fn(&K) -> bool) -> K {
    let start = Instant::now();
    let mut size = 10;
    loop {
        others_are(world, size, PROMPT).await;
        size += 1;
        let object = world.api::<K>().get(name).await.unwrap();
        if is(&object) {
            println!("reported after {:?} and {} resizes", start.elapsed(), size - 10);
            return object;
        }
        assert!(start.elapsed() < HANG_REPORTED, "{name} hangs and says {object:#?}");
    }
}

fn is_about_silence<K: Kind>(object: &K) -> bool {
    let (_, reason, message) = object.condition("BackendReachable").unwrap();
    println!("{reason}: {message}");
    message.contains("not answer") || message.contains("no answer")
}

/// Acquires a slot as any client does, with an exclusive queue.
async fn hold(url: &str, queue: &str) -> lapin::Connection {
    let connection = lapin::Connection::connect(url, lapin::ConnectionProperties::default());
    let connection = connection.await.unwrap();
    let options = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    let channel = connection.create_channel().await.unwrap();
    channel.queue_declare(queue.into(), options, FieldTable::default()).await.unwrap();
    connection
}
