//! Names on a connection that all namespaces share, ownership among two resources for one
//! lock or queue, and the quotas of a namespace. See `ties` for objects of the same second.

use std::collections::BTreeSet;

use kube::api::DeleteParams;
use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_testkit::environment::{random, variable};
use lockkeeper_testkit::world::{
    Kind, PATIENCE, World, eventually, has_reason, in_a_world, is_ready,
};

use crate::operator::queues::keys;
use crate::operator::settings::{CORRECTED, no_password_shows};

#[tokio::test]
async fn on_the_default_connection_a_name_must_be_the_namespaces_unless_any_is_allowed() {
    in_a_world("default", async |world| {
        let mut operator = world.operator().await;
        world.apply::<Semaphore>("mine", "{slots: 2}").await.unwrap();
        world.apply::<PressureQueue>("mine", "{bound: 2}").await.unwrap();
        let none = |flag: &str| {
            format!("or give the operator one (the chart's defaultConnections, or {flag})")
        };
        let no_connection = async || {
            let semaphore = world
                .until("mine", "NoConnection", PATIENCE, |s: &Semaphore| {
                    has_reason(s, "Stalled", "NoConnection")
                })
                .await;
            let (_, _, message) = semaphore.condition("Ready").unwrap();
            assert!(message.contains(&none("--amqp-url")), "{message}");
            assert!(message.contains("spec.rabbitmqClusterReference"), "{message}");
            let queue = world
                .until("mine", "NoConnection", PATIENCE, |q: &PressureQueue| {
                    has_reason(q, "Stalled", "NoConnection")
                })
                .await;
            let (_, _, message) = queue.condition("Ready").unwrap();
            assert!(message.contains(&none("--redis-url")), "{message}");
            assert!(message.contains("spec.redisReference"), "{message}");
        };
        no_connection().await;
        assert!(operator.stop().await.success());

        let (amqp, redis) = (world.amqp_url(), world.redis_url());
        let management = variable("RABBITMQ_MANAGEMENT_URL");
        let mut arguments = vec!["--observe-interval", "1s", "--drift-interval", "3s"];
        arguments.extend(["--amqp-url", &amqp, "--management-url", &management]);
        arguments.extend(["--redis-url", &redis]);
        let mut operator = world.operator_with(&arguments).await;
        let mine = world.semaphore_ready("mine").await.status.unwrap();
        assert_eq!(mine.lock_name, Some(format!("{}.mine", world.namespace)));
        let mine = world.queue_ready("mine").await.status.unwrap();
        assert_eq!(mine.queue_name, Some(format!("{}.mine", world.namespace)));

        let name = format!("theirs.{}", random());
        let semaphore = format!("{{lockName: {name}, slots: 2}}");
        world.apply::<Semaphore>("theirs", &semaphore).await.unwrap();
        let queue = format!("{{queueName: {name}, bound: 2}}");
        world.apply::<PressureQueue>("theirs", &queue).await.unwrap();
        let refused = |message: &str, field: &str| {
            let must = format!("a name must start with \"{}.\"", world.namespace);
            assert!(message.contains(&must), "{message}");
            assert!(message.contains(&format!("leave {field} out")), "{message}");
        };
        let semaphore = world
            .until("theirs", "refused", PATIENCE, |s: &Semaphore| {
                has_reason(s, "Stalled", "NameNotAllowed")
            })
            .await;
        refused(&semaphore.condition("Ready").unwrap().2, "lockName");
        let queue = world
            .until("theirs", "refused", PATIENCE, |q: &PressureQueue| {
                has_reason(q, "Stalled", "NameNotAllowed")
            })
            .await;
        refused(&queue.condition("Ready").unwrap().2, "queueName");
        assert_eq!(world.queues().await, world.lock_queues("mine", 2));
        assert!(!keys(&world).await.iter().any(|key| key.contains(&name)));
        // A connection of the namespace's own requires no prefix.
        world.semaphore("own", &format!("lockName: own-{name}, slots: 1")).await;
        world.semaphore_ready("own").await;
        assert!(operator.stop().await.success());

        arguments.push("--allow-any-name");
        let operator = world.operator_with(&arguments).await;
        world.semaphore_ready("theirs").await;
        world.queue_ready("theirs").await;
        assert!(world.queues().await.contains(&format!("{name}-2-A")));
        assert!(keys(&world).await.contains(&format!("__pressure__:{name}:bound")));
        no_password_shows(&world, &operator.logged()).await;
    })
    .await;
}

/// Waits until a newly created object is younger than all others, because the API
/// server's timestamps are in seconds.
pub async fn next_second<K: Kind>(world: &World, after: &str) {
    let older = world.api::<K>().get(after).await.unwrap();
    let born = older.meta().creation_timestamp.clone().unwrap().0;
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    eventually("the next second", PATIENCE, async || {
        i64::try_from(now().as_secs()).unwrap() > born.as_second()
    })
    .await;
}

#[tokio::test]
async fn of_two_objects_for_one_lock_or_queue_the_older_owns_it_until_it_goes() {
    in_a_world("conflict", async |world| {
        let _operator = world.operator().await;
        let older = "lockName: shared, slots: 2";
        let younger = "lockName: shared, slots: 5";
        let older_queue = "queueName: shared, bound: 2, deletionPolicy: Delete";
        let younger_queue = "queueName: shared, bound: 5, deletionPolicy: Delete";
        let slots = |count: u32| {
            let slots = (1..=count).map(|slot| format!("shared-{slot}-A"));
            slots.chain(["shared-W".to_owned()]).collect()
        };
        world.semaphore("older", older).await;
        world.queue("older", older_queue).await;
        world.semaphore_ready("older").await;
        world.queue_ready("older").await;
        next_second::<Semaphore>(&world, "older").await;
        next_second::<PressureQueue>(&world, "older").await;

        for round in ["deleted", "taking over"] {
            world.semaphore("younger", younger).await;
            world.queue("younger", younger_queue).await;
            let owner = format!("{}/older is older", world.namespace);
            let loser = world
                .until("younger", "Conflict", PATIENCE, |s: &Semaphore| {
                    has_reason(s, "Stalled", "Conflict")
                })
                .await;
            let (_, _, message) = loser.condition("Ready").unwrap();
            assert!(message.contains(&format!("Semaphore {owner}")), "{message}");
            assert!(message.contains("delete one of the two"), "{message}");
            let loser = world
                .until("younger", "Conflict", PATIENCE, |q: &PressureQueue| {
                    has_reason(q, "Stalled", "Conflict")
                })
                .await;
            let (_, _, message) = loser.condition("Ready").unwrap();
            assert!(message.contains(&format!("PressureQueue {owner}")), "{message}");
            assert_eq!(world.queues().await, slots(2), "{round}: the younger touches nothing");
            assert!(is_ready(&world.api::<Semaphore>().get("older").await.unwrap()));
            assert!(is_ready(&world.api::<PressureQueue>().get("older").await.unwrap()));
            if round == "deleted" {
                gone::<Semaphore>(&world, "younger").await;
                gone::<PressureQueue>(&world, "younger").await;
                assert_eq!(world.queues().await, slots(2), "also not when it goes");
                let bound = "__pressure__:shared:bound".to_owned();
                assert!(keys(&world).await.contains(&bound), "also not when it goes");
            }
        }
        gone::<Semaphore>(&world, "older").await;
        gone::<PressureQueue>(&world, "older").await;
        let heir = world.until("younger", "the owner", CORRECTED, is_ready::<Semaphore>).await;
        assert_eq!(heir.status.unwrap().slots, Some(5));
        assert_eq!(world.queues().await, slots(5));
        let heir = world.until("younger", "the owner", CORRECTED, is_ready::<PressureQueue>).await;
        assert_eq!(heir.status.unwrap().bound, Some(5));
    })
    .await;
}

/// Returns the same URL with another name of this machine.
fn by_name(url: &str) -> String {
    assert!(url.contains("@127.0.0.1:"), "the servers listen there");
    url.replace("@127.0.0.1:", "@localhost:")
}

#[tokio::test]
async fn two_addresses_of_one_server_are_one() {
    in_a_world("addresses", async |world| {
        let _operator = world.operator().await;
        let management = variable("RABBITMQ_MANAGEMENT_URL");
        let rabbit = [("amqpUri", by_name(&world.amqp_url())), ("managementUri", management)];
        world.secret("rabbit-by-name", &rabbit).await;
        world.secret("redis-by-name", &[("uri", by_name(&world.redis_url()))]).await;
        world.semaphore("older", "lockName: shared, slots: 2").await;
        world.queue("older", "queueName: shared, bound: 2").await;
        world.semaphore_ready("older").await;
        world.queue_ready("older").await;
        next_second::<Semaphore>(&world, "older").await;
        next_second::<PressureQueue>(&world, "older").await;

        let reference = "rabbitmqClusterReference: {connectionSecret: {name: rabbit-by-name}}";
        let spec = |name: &str| format!("{{{reference}, lockName: {name}, slots: 5}}");
        world.apply::<Semaphore>("younger", &spec("shared")).await.unwrap();
        world.apply::<Semaphore>("other", &spec("other")).await.unwrap();
        let reference = "redisReference: {connectionSecret: {name: redis-by-name}}";
        let spec = |name: &str| format!("{{{reference}, queueName: {name}, bound: 5}}");
        world.apply::<PressureQueue>("younger", &spec("shared")).await.unwrap();
        world.apply::<PressureQueue>("other", &spec("other")).await.unwrap();
        world
            .until("younger", "Conflict", PATIENCE, |s: &Semaphore| {
                has_reason(s, "Stalled", "Conflict")
            })
            .await;
        world
            .until("younger", "Conflict", PATIENCE, |q: &PressureQueue| {
                has_reason(q, "Stalled", "Conflict")
            })
            .await;
        // The address itself is not invalid.
        world.semaphore_ready("other").await;
        world.queue_ready("other").await;
        let queues = world.queues().await;
        assert!(queues.contains("shared-2-A") && !queues.contains("shared-3-A"), "{queues:?}");
    })
    .await;
}

#[tokio::test]
async fn an_object_over_its_namespaces_quota_changes_nothing_until_it_fits() {
    in_a_world("limits", async |world| {
        let limits = ["--max-slots-per-namespace", "5", "--max-objects-per-namespace", "3"];
        let rhythm = ["--observe-interval", "1s", "--drift-interval", "3s"];
        let _operator = world.operator_with(&[limits, rhythm].concat()).await;
        let refused = async |name: &str, says: &str| {
            let object = world
                .until(name, "refused", PATIENCE, |s: &Semaphore| {
                    has_reason(s, "Stalled", "NamespaceQuotaExceeded")
                })
                .await;
            let (.., message) = object.condition("Ready").unwrap();
            assert!(message.contains(says), "{message}");
        };
        world.semaphore("oldest", "slots: 3").await;
        world.semaphore_ready("oldest").await;
        next_second::<Semaphore>(&world, "oldest").await;
        world.semaphore("second", "slots: 3").await;
        refused("second", "Lower spec.slots here to 2").await;
        // A rejected object does not block younger ones that fit.
        next_second::<Semaphore>(&world, "second").await;
        world.semaphore("third", "slots: 2").await;
        world.semaphore_ready("third").await;
        next_second::<Semaphore>(&world, "third").await;
        world.semaphore("fourth", "slots: 0").await;
        refused("fourth", "limit of 3 objects of this kind").await;
        for queue in ["frames", "faces", "files"] {
            world.queue(queue, "bound: 2").await;
            world.queue_ready(queue).await;
            next_second::<PressureQueue>(&world, queue).await;
        }
        world.queue("fourth", "bound: 2").await;
        world
            .until("fourth", "refused", PATIENCE, |q: &PressureQueue| {
                has_reason(q, "Stalled", "NamespaceQuotaExceeded")
            })
            .await;
        assert!(!keys(&world).await.iter().any(|key| key.contains("fourth")));

        world.semaphore("third", "slots: 4").await;
        refused("third", "Lower spec.slots here to 2").await;
        let made = |oldest: u32| -> BTreeSet<String> {
            let third = world.lock_queues("third", 2).into_iter();
            third.chain(world.lock_queues("oldest", oldest)).collect()
        };
        assert_eq!(world.queues().await, made(3), "it keeps its slots");
        gone::<Semaphore>(&world, "fourth").await;
        gone::<PressureQueue>(&world, "fourth").await;

        world.semaphore("oldest", "slots: 1").await;
        world.semaphore_ready("second").await;
        let expected = made(1).into_iter().chain(world.lock_queues("second", 3)).collect();
        assert_eq!(world.queues().await, expected);
        world.semaphore("third", "slots: 1").await;
        world.semaphore_ready("third").await;
    })
    .await;
}

/// Deletes an object and waits until it is gone.
pub async fn gone<K: Kind>(world: &World, name: &str) {
    world.api::<K>().delete(name, &DeleteParams::default()).await.unwrap();
    eventually(&format!("{name} is gone"), PATIENCE, async || {
        world.api::<K>().get_opt(name).await.unwrap().is_none()
    })
    .await;
}
