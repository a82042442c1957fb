//! Two namespaces on the same servers, one of them hostile. Whatever its owners write
//! into their own objects and Secrets, the other's objects stay Ready, and nothing about
//! them is disclosed.

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use kube::core::ObjectMeta;
use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_testkit::environment::{kib, random, variable};
use lockkeeper_testkit::own_server::OwnServer;
use lockkeeper_testkit::world::{
    Kind, Operator, PATIENCE, World, eventually, has_reason, in_a_world, is_ready,
};
use serde_json::json;

use crate::operator::owners::next_second;
use crate::operator::settings::CORRECTED;

/// Creates a second namespace that only has its own Secrets.
pub async fn neighbour(world: &World) -> World {
    let mut other = world.clone();
    other.namespace = format!("evil-{}", random());
    let metadata = ObjectMeta { name: Some(other.namespace.clone()), ..ObjectMeta::default() };
    let namespace = Namespace { metadata, ..Namespace::default() };
    Api::all(world.client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    other
}

/// Deletes the neighbor's objects, then its namespace.
pub async fn leave(evil: World) {
    evil.delete_all::<Semaphore>().await;
    evil.delete_all::<PressureQueue>().await;
    let namespaces: Api<Namespace> = Api::all(evil.client.clone());
    let _ = namespaces.delete(&evil.namespace, &DeleteParams::default()).await;
}

/// Starts an operator of both namespaces with the victim's servers as the default
/// connections.
pub async fn operator_of_both(victim: &World, evil: &World, more: &[&str]) -> Operator {
    operator_with_defaults(victim, &[&["--watch-namespace", &evil.namespace], more].concat()).await
}

/// Starts an operator of a namespace with the world's servers as the default connections, which
/// looks at its objects often.
pub async fn operator_with_defaults(world: &World, more: &[&str]) -> Operator {
    let often = ["--observe-interval", "1s", "--drift-interval", "3s"];
    operator_with_defaults_in(world, &[], &[&often, more].concat()).await
}

/// Starts an operator of a namespace with the world's servers as the default connections, and
/// with these variables in its environment.
async fn operator_with_defaults_in(
    world: &World,
    environment: &[(&str, &str)],
    more: &[&str],
) -> Operator {
    let (amqp, redis) = (world.amqp_url(), world.redis_url());
    let management = variable("RABBITMQ_MANAGEMENT_URL");
    let mut arguments = vec!["--amqp-url", &amqp, "--management-url", &management];
    arguments.extend(["--redis-url", &redis]);
    arguments.extend(more);
    let operator = world.operator_in(environment, &arguments).await;
    operator.until_ready().await;
    operator
}

/// Returns the same URL with another user and password.
fn as_nobody(url: &str) -> String {
    let mut url = url::Url::parse(url).unwrap();
    url.set_username("nobody").unwrap();
    url.set_password(Some("wrong")).unwrap();
    url.into()
}

pub fn lock_by(secret: &str, name: &str) -> String {
    let reference = format!("rabbitmqClusterReference: {{connectionSecret: {{name: {secret}}}}}");
    format!("{{{reference}, lockName: {name}, slots: 5}}")
}

pub fn queue_by(secret: &str, name: &str) -> String {
    let reference = format!("redisReference: {{connectionSecret: {{name: {secret}}}}}");
    format!("{{{reference}, queueName: {name}, bound: 5}}")
}

async fn until_reason<K: Kind>(world: &World, name: &str, reason: &str) -> K {
    world.until(name, reason, CORRECTED, |object: &K| has_reason(object, "Stalled", reason)).await
}

#[tokio::test]
async fn an_older_object_that_cannot_log_in_owns_nothing() {
    in_a_world("squatted", async |victim| {
        let evil = neighbour(&victim).await;
        let mut operator = operator_of_both(&victim, &evil, &[]).await;
        evil.secret("rabbit", &[("amqpUri", as_nobody(&victim.amqp_url()))]).await;
        evil.secret("redis", &[("uri", as_nobody(&victim.redis_url()))]).await;
        let own = format!("own.{}", random());
        for (object, name) in [("default", format!("{}.x", victim.namespace)), ("own", own.clone())]
        {
            evil.apply::<Semaphore>(object, &lock_by("rabbit", &name)).await.unwrap();
            evil.apply::<PressureQueue>(object, &queue_by("redis", &name)).await.unwrap();
            until_reason::<Semaphore>(&evil, object, "AuthenticationFailed").await;
            until_reason::<PressureQueue>(&evil, object, "StoreAuthenticationFailed").await;
            next_second::<Semaphore>(&evil, object).await;
            next_second::<PressureQueue>(&evil, object).await;
        }
        victim.apply::<Semaphore>("x", "{slots: 2}").await.unwrap();
        victim.apply::<PressureQueue>("x", "{bound: 2}").await.unwrap();
        victim.semaphore("own", &format!("lockName: {own}, slots: 2")).await;
        victim.queue("own", &format!("queueName: {own}, bound: 2")).await;
        for restarted in [false, true] {
            for name in ["x", "own"] {
                victim.semaphore_ready(name).await;
                victim.queue_ready(name).await;
            }
            if !restarted {
                assert!(operator.stop().await.success());
                operator = operator_of_both(&victim, &evil, &[]).await;
            }
        }
        // Only the victim may remove its slots.
        victim.api::<Semaphore>().delete("x", &DeleteParams::default()).await.unwrap();
        eventually("its slots are gone", PATIENCE, async || {
            let slot = format!("{}.x-1-A", victim.namespace);
            !victim.queues().await.contains(&slot)
        })
        .await;
        leave(evil).await;
    })
    .await;
}

#[tokio::test]
async fn on_the_default_connection_a_name_belongs_to_its_namespace() {
    in_a_world("preceded", async |victim| {
        let evil = neighbour(&victim).await;
        let _operator = operator_of_both(&victim, &evil, &[]).await;
        // With a real login to the shared servers and an older object: the name still
        // does not belong to it.
        evil.secret("rabbit", &[("amqpUri", victim.amqp_url())]).await;
        let by_name = victim.redis_url().replace("@127.0.0.1:", "@localhost:");
        evil.secret("redis", &[("uri", by_name)]).await;
        let name = format!("{}.x", victim.namespace);
        evil.apply::<Semaphore>("squat", &lock_by("rabbit", &name)).await.unwrap();
        evil.apply::<PressureQueue>("squat", &queue_by("redis", &name)).await.unwrap();
        evil.semaphore_ready("squat").await;
        evil.queue_ready("squat").await;
        next_second::<Semaphore>(&evil, "squat").await;
        next_second::<PressureQueue>(&evil, "squat").await;

        victim.apply::<Semaphore>("x", "{slots: 2}").await.unwrap();
        victim.apply::<PressureQueue>("x", "{bound: 2}").await.unwrap();
        victim.semaphore_ready("x").await;
        victim.queue_ready("x").await;
        let says = format!("{}/x is in the namespace that the name starts with", victim.namespace);
        let lock: Semaphore = until_reason(&evil, "squat", "Conflict").await;
        assert!(lock.condition("Ready").unwrap().2.contains(&says), "{lock:?}");
        let queue: PressureQueue = until_reason(&evil, "squat", "Conflict").await;
        assert!(queue.condition("Ready").unwrap().2.contains(&says), "{queue:?}");
        eventually("the lock is the victim's", PATIENCE, async || {
            victim.queues().await == victim.lock_queues("x", 2)
        })
        .await;
        assert!(is_ready(&victim.api::<Semaphore>().get("x").await.unwrap()));
        leave(evil).await;
    })
    .await;
}

#[tokio::test]
async fn two_brokers_with_the_same_cluster_name_are_two() {
    in_a_world("same-name", async |victim| {
        let evil = neighbour(&victim).await;
        let _operator = operator_of_both(&victim, &evil, &[]).await;
        let other = OwnServer::rabbitmq().await;
        let (shared, own) =
            (variable("RABBITMQ_MANAGEMENT_URL"), other.variable("RABBITMQ_MANAGEMENT_URL"));
        let http = reqwest::Client::new();
        let url = format!("{shared}/api/cluster-name");
        let name: serde_json::Value = http.get(url).send().await.unwrap().json().await.unwrap();
        let set = json!({"name": name["name"]});
        let answer = http.put(format!("{own}/api/cluster-name")).json(&set).send().await.unwrap();
        assert!(answer.status().is_success());
        let vhost = format!("{own}/api/vhosts/{}", victim.vhost);
        assert!(http.put(vhost).send().await.unwrap().status().is_success());

        // Both may log in to their brokers, and both name the same lock.
        evil.secret("rabbit", &[("amqpUri", victim.amqp_url())]).await;
        let amqp = other.variable("AMQP_URL");
        let amqp = format!("{}/{}", &amqp[..amqp.rfind('/').unwrap()], victim.vhost);
        victim.secret("other", &[("amqpUri", amqp)]).await;
        evil.apply::<Semaphore>("x", &lock_by("rabbit", "deploy")).await.unwrap();
        evil.semaphore_ready("x").await;
        next_second::<Semaphore>(&evil, "x").await;
        victim.apply::<Semaphore>("x", &lock_by("other", "deploy")).await.unwrap();
        victim.semaphore_ready("x").await;
        assert!(is_ready(&evil.api::<Semaphore>().get("x").await.unwrap()));
        // The test's own server is stopped when it is dropped, so its lock is deleted
        // first.
        victim.api::<Semaphore>().delete("x", &DeleteParams::default()).await.unwrap();
        eventually("it is gone", PATIENCE, async || {
            victim.api::<Semaphore>().get_opt("x").await.unwrap().is_none()
        })
        .await;
        leave(evil).await;
    })
    .await;
}

#[tokio::test]
async fn absent_and_forbidden_secrets_of_another_namespace_look_alike() {
    in_a_world("probed", async |victim| {
        let evil = neighbour(&victim).await;
        let _operator = operator_of_both(&victim, &evil, &[]).await;
        victim.semaphore("x", "slots: 1").await;
        let mut answers = Vec::new();
        for (object, secret) in [("a", "rabbit"), ("b", "rabbid")] {
            let reference = format!(
                "{{namespace: {}, connectionSecret: {{name: {secret}}}}}",
                victim.namespace
            );
            let spec = format!("{{rabbitmqClusterReference: {reference}}}");
            evil.apply::<Semaphore>(object, &spec).await.unwrap();
            let refused: Semaphore = until_reason(&evil, object, "NotAllowed").await;
            let conditions = refused.status.unwrap().conditions.into_iter();
            let quoted = format!("{secret:?}");
            let said: Vec<_> = conditions
                .map(|c| (c.type_, c.status, c.reason, c.message.replace(&quoted, "SECRET")))
                .collect();
            answers.push(said);
        }
        assert_eq!(answers[0], answers[1]);
        assert!(answers[0].iter().all(|(.., message)| message.contains("SECRET")), "{answers:?}");
        victim.semaphore_ready("x").await;
        leave(evil).await;
    })
    .await;
}

#[tokio::test]
async fn a_vhost_or_database_on_the_default_connection_is_refused_unless_allowed() {
    in_a_world("default-places", async |victim| {
        let evil = neighbour(&victim).await;
        let mut operator = operator_of_both(&victim, &evil, &[]).await;
        victim.apply::<Semaphore>("x", "{slots: 1}").await.unwrap();
        let vhost = format!("{{vhost: {}, slots: 50}}", victim.vhost);
        evil.apply::<Semaphore>("places", &vhost).await.unwrap();
        let database = format!("{{redisReference: {{database: {}}}}}", victim.database);
        evil.apply::<PressureQueue>("places", &database).await.unwrap();
        let lock: Semaphore = until_reason(&evil, "places", "VhostNotAllowed").await;
        let says = "vhost can't be set: leave it out";
        assert!(lock.condition("Ready").unwrap().2.contains(says), "{lock:?}");
        let queue: PressureQueue = until_reason(&evil, "places", "DatabaseNotAllowed").await;
        let says = "redisReference.database can't be set: leave it out";
        assert!(queue.condition("Ready").unwrap().2.contains(says), "{queue:?}");
        victim.semaphore_ready("x").await;
        assert_eq!(victim.queues().await, victim.lock_queues("x", 1), "nothing was made");
        assert!(operator.stop().await.success());

        let _operator = operator_of_both(&victim, &evil, &["--allow-any-vhost"]).await;
        evil.semaphore_ready("places").await;
        evil.queue_ready("places").await;
        leave(evil).await;
    })
    .await;
}

#[tokio::test]
async fn large_secrets_of_a_namespace_do_not_stay_in_memory() {
    /// Number of Secrets before the memory is measured first, and after that.
    const SECRETS: [usize; 2] = [10, 20];
    // glibc keeps freed blocks that are not larger than one that was freed before. musl, which
    // the released program uses, keeps no block of this size.
    const KEEP_NO_LARGE_BLOCKS: [(&str, &str); 1] = [("MALLOC_MMAP_THRESHOLD_", "131072")];
    in_a_world("large-secrets", async |victim| {
        let evil = neighbour(&victim).await;
        let watched = ["--watch-namespace", &evil.namespace];
        let operator = operator_with_defaults_in(&victim, &KEEP_NO_LARGE_BLOCKS, &watched).await;
        victim.apply::<Semaphore>("x", "{slots: 1}").await.unwrap();
        victim.semaphore_ready("x").await;
        let pid = operator.pid();
        let memory = || usize::try_from(kib(pid, "VmRSS")).unwrap() * 1024;
        let large = "x".repeat(900_000);
        let mut limit = usize::MAX;
        for (batch, secrets) in SECRETS.into_iter().enumerate() {
            let names: Vec<_> = (0..secrets).map(|n| format!("large-{batch}-{n}")).collect();
            for name in &names {
                let keys = [("uri", evil.redis_url()), ("notes", large.clone())];
                evil.secret(name, &keys).await;
                let spec = queue_by(name, &format!("{}.{name}", evil.namespace));
                evil.apply::<PressureQueue>(name, &spec).await.unwrap();
            }
            for name in &names {
                evil.queue_ready(name).await;
            }
            // Reconciles of other objects that run now have copies too, until they end.
            eventually("the memory is free again", PATIENCE, async || memory() < limit).await;
            limit = memory() + SECRETS[1] * large.len() / 2;
        }
        // A connection key must not be large either.
        evil.secret("bundle", &[("uri", evil.redis_url()), ("ca.crt", large)]).await;
        evil.apply::<PressureQueue>("bundle", &queue_by("bundle", "bundle")).await.unwrap();
        let refused = |queue: &PressureQueue| has_reason(queue, "Ready", "SecretInvalid");
        evil.until("bundle", "refused", PATIENCE, refused).await;
        victim.semaphore_ready("x").await;
        leave(evil).await;
    })
    .await;
}
