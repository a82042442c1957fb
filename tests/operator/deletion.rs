//! Deleting resources and namespaces: which objects are removed, which stay, and that
//! nothing hangs. Covers the table of docs/deletion.md row by row.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lockkeeper_api::{FORCE_FINALIZE, PressureQueue, Semaphore};
use lockkeeper_testkit::audit;
use lockkeeper_testkit::environment::is_soak;
use lockkeeper_testkit::own_server::OwnServer;
use lockkeeper_testkit::pressure_text::{TextClient, Worker};
use lockkeeper_testkit::world::{
    Kind, PATIENCE, World, eventually, has_reason, in_a_world, is_ready,
};

use crate::operator::queues::{data, keys, send, text, until_blocked};

/// The API server deletes a namespace in several rounds.
const NAMESPACE: Duration = Duration::from_secs(300);

async fn delete<K: Kind>(world: &World, name: &str) {
    world.api::<K>().delete(name, &DeleteParams::default()).await.unwrap();
}

async fn until_gone<K: Kind>(world: &World, name: &str) {
    eventually(&format!("the {} {name} is gone", K::kind(&())), PATIENCE, async || {
        world.api::<K>().get_opt(name).await.unwrap().is_none()
    })
    .await;
}

async fn delete_secret(world: &World, name: &str) {
    let api: Api<Secret> = Api::namespaced(world.client.clone(), &world.namespace);
    api.delete(name, &DeleteParams::default()).await.unwrap();
}

async fn delete_namespace_and_wait(world: &World) {
    let api: Api<Namespace> = Api::all(world.client.clone());
    api.delete(&world.namespace, &DeleteParams::default()).await.unwrap();
    eventually("the namespace is gone", NAMESPACE, async || {
        api.get_opt(&world.namespace).await.unwrap().is_none()
    })
    .await;
}

#[tokio::test]
async fn a_deleted_semaphores_queues_go_all_or_with_retain_none_and_holders_keep_theirs() {
    in_a_world("removal", async |world| {
        let _operator = world.operator().await;
        world.semaphore("goes", "slots: 40").await;
        world.semaphore("stays", "slots: 3, deletionPolicy: Retain").await;
        world.semaphore("paused", "slots: 2").await;
        for name in ["goes", "stays", "paused"] {
            world.semaphore_ready(name).await;
        }
        world.semaphore("paused", "slots: 2, suspend: true").await;
        world.semaphore_ready("paused").await;
        let connection = world.amqp().await;
        let channel = connection.create_channel().await.unwrap();
        let exclusive = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
        let held = format!("{}.goes-7-B", world.namespace);
        channel
            .queue_declare(held.as_str().into(), exclusive, FieldTable::default())
            .await
            .unwrap();

        for name in ["goes", "stays", "paused"] {
            delete::<Semaphore>(&world, name).await;
        }
        for name in ["goes", "stays", "paused"] {
            until_gone::<Semaphore>(&world, name).await;
        }
        let mut left = world.lock_queues("stays", 3);
        left.extend(world.lock_queues("paused", 2));
        left.insert(held);
        assert_eq!(world.queues().await, left);
        connection.close(200, "done".into()).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_namespace_with_objects_and_their_secrets_goes_and_takes_their_queues_along() {
    in_a_world("terminating", async |world| {
        let _operator = world.operator().await;
        for name in ["one", "two", "three"] {
            world.semaphore(name, "slots: 3").await;
            world.queue(name, "bound: 3, deletionPolicy: Delete").await;
        }
        for name in ["one", "two", "three"] {
            world.semaphore_ready(name).await;
            world.queue_ready(name).await;
        }
        delete_namespace_and_wait(&world).await;
        assert_eq!(world.queues().await, BTreeSet::new());
        assert_eq!(keys(&world).await, [""; 0]);
    })
    .await;
}

/// Deletes a namespace with many semaphores, and checks that all are removed from the
/// broker too.
async fn many_go(name: &str, secret_first: bool) {
    let semaphores = if is_soak() { 1000 } else { 200 };
    in_a_world(name, async move |world| {
        let _operator = world.operator_with(&[]).await;
        futures::stream::iter(0..semaphores)
            .for_each_concurrent(16, async |n| {
                world.semaphore(&format!("lock-{n}"), "slots: 1").await;
            })
            .await;
        let api = world.api::<Semaphore>();
        eventually("all are Ready", PATIENCE * 4, async || {
            let all = api.list(&ListParams::default()).await.unwrap();
            all.items.iter().filter(|object| is_ready(*object)).count() == semaphores
        })
        .await;
        // Occasionally there is an admin mutex as well, if an observation had to be
        // repeated.
        eventually("there are a slot and a wait queue each", PATIENCE, async || {
            world.queues().await.len() == 2 * semaphores
        })
        .await;
        if secret_first {
            delete_secret(&world, "rabbit").await;
            let missing = |s: &Semaphore| has_reason(s, "Ready", "SecretNotFound");
            world.until("lock-0", "without Secret", PATIENCE, missing).await;
        }
        let (mut audit, start) = (audit::Reader::from_here(), Instant::now());
        delete_namespace_and_wait(&world).await;
        let after = start.elapsed();
        assert_eq!(world.queues().await, BTreeSet::new());

        let mut requests = audit.read();
        requests.retain(|request| request.namespace() == world.namespace);
        let deletes = |request: &&audit::Request| request.verb() == "deletecollection";
        let is_ours = |request: &&audit::Request| request.resource() == "semaphores";
        let begun = requests.iter().filter(is_ours).find(deletes).unwrap();
        let by_the_operator = || requests.iter().filter(|request| request.is_by_an_operator());
        let ended = by_the_operator().filter(is_ours).rfind(|r| r.verb() == "patch").unwrap();
        let took = ended.answered_after(begun);
        let mut kinds = BTreeMap::<_, usize>::new();
        for request in by_the_operator() {
            let what = (request.verb().to_owned(), request.resource(), request.code());
            *kinds.entry(what).or_default() += 1;
        }
        println!("{semaphores}: {took:?}, with their namespace {after:?}; requests: {kinds:?}");
        // On a machine that other tests keep busy, seconds prove nothing, but requests
        // do. Events have their own rate limit.
        let of = |wanted: fn(&str) -> bool| {
            kinds.iter().filter(|((_, what, _), _)| wanted(what)).map(|(_, n)| n).sum::<usize>()
        };
        assert!(of(|what| what != "events") <= 3 * semaphores, "{kinds:?}");
        let reads = u64::try_from(of(|what| what == "secrets")).unwrap();
        assert!(reads <= after.as_secs() + 10, "a missing Secret is read once a second: {kinds:?}");
    })
    .await;
}

#[tokio::test]
async fn a_namespace_with_many_semaphores_and_their_secret_goes() {
    many_go("many", false).await;
}

#[tokio::test]
async fn a_namespace_with_many_semaphores_whose_secret_went_first_does_too() {
    many_go("many-secret", true).await;
}

#[tokio::test]
async fn a_namespace_goes_also_when_its_broker_and_its_redis_are_down() {
    in_a_world("terminating-down", async |world| {
        let (rabbitmq, redis) = (OwnServer::rabbitmq().await, OwnServer::redis().await);
        world.secret("rabbit", &[("amqpUri", rabbitmq.variable("AMQP_URL"))]).await;
        world.secret("redis", &[("uri", redis.variable("REDIS_URL"))]).await;
        let operator = world.operator().await;
        world.semaphore("deploy", "slots: 3").await;
        world.queue("frames", "bound: 3, deletionPolicy: Delete").await;
        world.semaphore_ready("deploy").await;
        world.queue_ready("frames").await;
        rabbitmq.stop().await;
        redis.stop().await;
        delete_namespace_and_wait(&world).await;
        let log = operator.logged();
        assert!(!log.contains("orbidden"), "{log}");
        let left = log.matches("its Secret went with the namespace").count();
        assert!(left >= 2, "both are said to be left behind");
    })
    .await;
}

#[tokio::test]
async fn while_its_server_is_down_an_object_stays_and_says_why() {
    in_a_world("unreachable", async |world| {
        let redis = OwnServer::redis().await;
        world.secret("redis", &[("uri", redis.variable("REDIS_URL"))]).await;
        let _operator = world.operator().await;
        world.queue("frames", "bound: 3, deletionPolicy: Delete").await;
        world.queue_ready("frames").await;
        redis.stop().await;
        delete::<PressureQueue>(&world, "frames").await;
        let stays = world
            .until("frames", "unreachable", PATIENCE, |q: &PressureQueue| {
                q.metadata.deletion_timestamp.is_some()
                    && has_reason(q, "Ready", "StoreUnreachable")
                    && q.condition("Ready").unwrap().2.contains(FORCE_FINALIZE)
            })
            .await;
        assert!(stays.condition("Ready").unwrap().2.contains("check that the server runs"));
        redis.start().await;
        until_gone::<PressureQueue>(&world, "frames").await;
    })
    .await;
}

#[tokio::test]
async fn after_its_secret_an_object_is_cleaned_up_over_the_last_connection() {
    in_a_world("secret-first", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 3").await;
        world.queue("frames", "bound: 3, deletionPolicy: Delete").await;
        world.semaphore_ready("deploy").await;
        world.queue_ready("frames").await;
        secrets_go(&world).await;
        delete::<Semaphore>(&world, "deploy").await;
        delete::<PressureQueue>(&world, "frames").await;
        until_gone::<Semaphore>(&world, "deploy").await;
        until_gone::<PressureQueue>(&world, "frames").await;
        assert_eq!(world.queues().await, BTreeSet::new());
        assert_eq!(keys(&world).await, [""; 0]);
    })
    .await;
}

/// Deletes both Secrets and waits until the operator has observed it.
async fn secrets_go(world: &World) {
    delete_secret(world, "rabbit").await;
    delete_secret(world, "redis").await;
    let missing = |s: &Semaphore| has_reason(s, "Ready", "SecretNotFound");
    world.until("deploy", "without Secret", PATIENCE, missing).await;
    let missing = |q: &PressureQueue| has_reason(q, "Ready", "SecretNotFound");
    world.until("frames", "without Secret", PATIENCE, missing).await;
}

#[tokio::test]
async fn without_secret_and_memory_an_object_stays_until_it_is_forced_or_the_secret_is_back() {
    in_a_world("forced", async |world| {
        let mut operator = world.operator().await;
        world.semaphore("deploy", "slots: 3").await;
        world.queue("frames", "bound: 3, deletionPolicy: Delete").await;
        world.semaphore_ready("deploy").await;
        world.queue_ready("frames").await;
        secrets_go(&world).await;
        operator.kill().await;
        let _operator = world.operator().await;
        delete::<Semaphore>(&world, "deploy").await;
        delete::<PressureQueue>(&world, "frames").await;
        let why = |(_, reason, message): (String, String, String)| {
            reason == "SecretNotFound"
                && message.contains("create it")
                && message.contains(&format!("set the annotation {FORCE_FINALIZE}=true"))
        };
        world
            .until("deploy", "waiting with a reason", PATIENCE, |s: &Semaphore| {
                s.condition("Ready").is_some_and(why)
            })
            .await;
        world
            .until("frames", "waiting with a reason", PATIENCE, |q: &PressureQueue| {
                q.condition("Ready").is_some_and(why)
            })
            .await;

        let forced = serde_json::json!({"metadata": {"annotations": {FORCE_FINALIZE: "true"}}});
        let patch = Patch::Merge(forced);
        let api = world.api::<Semaphore>();
        api.patch("deploy", &PatchParams::default(), &patch).await.unwrap();
        until_gone::<Semaphore>(&world, "deploy").await;
        assert_eq!(world.queues().await, world.lock_queues("deploy", 3), "left as it was");
        let events = world.events("deploy").await;
        assert!(events.iter().any(|(reason, ..)| reason == "ForceFinalized"), "{events:?}");

        world.secret("redis", &[("uri", world.redis_url())]).await;
        until_gone::<PressureQueue>(&world, "frames").await;
        assert_eq!(keys(&world).await, [""; 0], "cleaned up as soon as that was possible");
    })
    .await;
}

#[tokio::test]
async fn an_object_that_never_had_a_connection_goes_at_once() {
    in_a_world("never-connected", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 3").await;
        world.queue("frames", "deletionPolicy: Delete").await;
        let nowhere = "{rabbitmqClusterReference: {connectionSecret: {name: nowhere}}}";
        world.apply::<Semaphore>("nowhere", nowhere).await.unwrap();
        world.apply::<Semaphore>("no-default", "{}").await.unwrap();
        let nowhere =
            "{redisReference: {connectionSecret: {name: nowhere}}, deletionPolicy: Delete}";
        world.apply::<PressureQueue>("nowhere", nowhere).await.unwrap();
        let missing = |s: &Semaphore| has_reason(s, "Ready", "SecretNotFound");
        world.until("nowhere", "without Secret", PATIENCE, missing).await;
        let missing = |s: &Semaphore| has_reason(s, "Ready", "NoConnection");
        world.until("no-default", "without connection", PATIENCE, missing).await;
        let missing = |q: &PressureQueue| has_reason(q, "Ready", "SecretNotFound");
        world.until("nowhere", "without Secret", PATIENCE, missing).await;
        delete::<Semaphore>(&world, "nowhere").await;
        delete::<Semaphore>(&world, "no-default").await;
        delete::<PressureQueue>(&world, "nowhere").await;
        until_gone::<Semaphore>(&world, "nowhere").await;
        until_gone::<Semaphore>(&world, "no-default").await;
        until_gone::<PressureQueue>(&world, "nowhere").await;
    })
    .await;
}

#[tokio::test]
async fn a_deleted_queue_waits_for_a_dead_producer_and_names_it_until_its_role_is_free() {
    in_a_world("dead-producer", async |world| {
        let _operator = world.operator().await;
        world.queue("frames", "bound: 1, deletionPolicy: Delete").await;
        world.queue_ready("frames").await;
        let queue = text(&world, "frames");
        let elements = (0..2).map(|n| n.to_string());
        let producer = Worker::produce(&queue, "media-7", elements).await;
        until_blocked(&world, &producer, 1).await;
        producer.kill().await;

        delete::<PressureQueue>(&world, "frames").await;
        let waits = world
            .until("frames", "waiting", PATIENCE, |q: &PressureQueue| {
                has_reason(q, "Ready", "CleaningUp")
            })
            .await;
        let (_, _, message) = waits.condition("Ready").unwrap();
        assert!(
            message.contains("Waiting for the producer media-7 to release its role"),
            "{message}"
        );
        assert!(message.contains(FORCE_FINALIZE), "{message}");
        // The queue does not exist for clients any more, but the dead client still has
        // its role.
        let mut client = TextClient::connect(&queue, "late").await.unwrap();
        client.put("x").await.unwrap_err();
        let free = format!("{}:producer_free", data(&world, "frames"));
        let _: i64 = send(&world, &["LPUSH", &free, "0"]).await;
        until_gone::<PressureQueue>(&world, "frames").await;
        assert_eq!(keys(&world).await, [""; 0]);
    })
    .await;
}
