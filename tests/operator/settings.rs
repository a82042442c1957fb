//! Connections: Secrets that are missing, incomplete, wrong, corrected or
//! rotated; the operator's default connections and who may use which name there.

use std::time::Duration;

use lockkeeper::api::{PressureQueue, Semaphore};

use crate::environment::{random, variable};
use crate::world::{Kind, PATIENCE, World, eventually, has, has_reason, in_a_world, is_ready};

/// A correction is found after the longest pause (nobody tells of a change on a
/// server or in a Secret) and the age that a Secret once read may reach.
const CORRECTED: Duration = Duration::from_secs(75);

/// What others may take meanwhile.
const PROMPT: Duration = Duration::from_secs(5);

/// One mistake in a connection: the Secret's data (none: no Secret), what the
/// condition's reason is and what its message must contain.
struct Mistake {
    name: &'static str,
    data: Vec<(&'static str, String)>,
    reason: &'static str,
    says: &'static str,
}

fn mistake(
    name: &'static str,
    data: &[(&'static str, &str)],
    reason: &'static str,
    says: &'static str,
) -> Mistake {
    let data = data.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
    Mistake { name, data, reason, says }
}

/// The same address with another user and password, host and port, path.
fn url(of: &str, change: impl FnOnce(&mut url::Url)) -> String {
    let mut url = url::Url::parse(of).unwrap();
    change(&mut url);
    url.into()
}

fn wrong_password(of: &str) -> String {
    url(of, |url| url.set_password(Some(&format!("canary-wrong-{}", random()))).unwrap())
}

/// Nothing listens on port 1.
fn closed_port(of: &str) -> String {
    url(of, |url| url.set_port(Some(1)).unwrap())
}

fn rabbitmq_mistakes(world: &World) -> Vec<Mistake> {
    let good = world.amqp_url();
    let no_vhost = format!("/nowhere-{}", random());
    let password = format!("canary-wrong-{}", random());
    vec![
        mistake("no-secret", &[], "SecretNotFound", "create it, or correct the reference"),
        mistake(
            "no-username",
            &[("host", "127.0.0.1"), ("password", &password)],
            "SecretKeyMissing",
            "add the key username",
        ),
        mistake(
            "tls",
            &[("amqpUri", &good.replacen("amqp:", "amqps:", 1))],
            "SecretInvalid",
            "TLS is not supported yet: use an amqp:// address",
        ),
        mistake(
            "bad-port",
            &[("host", "h"), ("port", &password), ("username", "u"), ("password", &password)],
            "SecretInvalid",
            "a port is a number from 1 to 65535",
        ),
        mistake(
            "wrong-password",
            &[("amqpUri", &wrong_password(&good))],
            "AuthenticationFailed",
            "check the user name and the password in the connection's Secret",
        ),
        mistake(
            "no-vhost",
            &[("amqpUri", &url(&good, |url| url.set_path(&no_vhost)))],
            "VhostNotFound",
            "create it, or name another one",
        ),
        mistake(
            "closed-port",
            &[("amqpUri", &closed_port(&good))],
            "BrokerUnreachable",
            "check that it runs, its address and port",
        ),
    ]
}

fn redis_mistakes(world: &World) -> Vec<Mistake> {
    let good = world.redis_url();
    let password = format!("canary-wrong-{}", random());
    vec![
        mistake("no-secret", &[], "SecretNotFound", "create it, or correct the reference"),
        mistake("no-host", &[("password", &password)], "SecretKeyMissing", "add the key host"),
        mistake(
            "tls",
            &[("uri", &good.replacen("redis:", "rediss:", 1))],
            "SecretInvalid",
            "TLS is not supported yet: use a redis:// address",
        ),
        mistake(
            "wrong-password",
            &[("uri", &wrong_password(&good))],
            "StoreAuthenticationFailed",
            "check username and password in the connection's Secret",
        ),
        mistake(
            "no-database",
            &[("uri", &url(&good, |url| url.set_path("/60000")))],
            "StoreDatabaseOutOfRange",
            "choose one below the server's `databases` setting",
        ),
        mistake(
            "closed-port",
            &[("uri", &closed_port(&good))],
            "StoreUnreachable",
            "check host and port, and that the server runs",
        ),
    ]
}

/// Waits for a mistake's own condition.
async fn is_said<K: Kind>(world: &World, mistake: &Mistake) {
    let Mistake { name, reason, says, .. } = mistake;
    let said = world
        .until(name, reason, PATIENCE, |object: &K| {
            has_reason(object, "Ready", reason) && has(object, "Ready", "False")
        })
        .await;
    let (_, _, message) = said.condition("Ready").unwrap();
    println!("{name}: {reason}: {message}");
    assert!(message.contains(says), "{name} does not say {says:?}: {message}");
    // Whether it is there can't be known without settings.
    let status = if reason.starts_with("Secret") { "Unknown" } else { "False" };
    let reachable = (status.to_owned(), (*reason).to_owned(), message);
    assert_eq!(said.condition("BackendReachable"), Some(reachable));
}

#[tokio::test]
async fn each_mistake_in_a_connection_has_its_own_reason_and_a_corrected_secret_mends_it() {
    in_a_world("settings", async |world| {
        let operator = world.operator().await;
        let (brokers, stores) = (rabbitmq_mistakes(&world), redis_mistakes(&world));
        for Mistake { name, data, .. } in &brokers {
            let secret = format!("rabbit-{name}");
            if !data.is_empty() {
                world.secret(&secret, data).await;
            }
            let spec =
                format!("{{rabbitmqClusterReference: {{connectionSecret: {{name: {secret}}}}}}}");
            world.apply::<Semaphore>(name, &spec).await.unwrap();
        }
        for Mistake { name, data, .. } in &stores {
            let secret = format!("redis-{name}");
            if !data.is_empty() {
                world.secret(&secret, data).await;
            }
            let spec = format!("{{redisReference: {{connectionSecret: {{name: {secret}}}}}}}");
            world.apply::<PressureQueue>(name, &spec).await.unwrap();
        }
        for mistake in &brokers {
            is_said::<Semaphore>(&world, mistake).await;
        }
        for mistake in &stores {
            is_said::<PressureQueue>(&world, mistake).await;
        }
        assert!(world.queues().await.is_empty(), "nothing was made anywhere");

        world.semaphore("good", "slots: 1").await;
        world.semaphore_ready("good").await;
        world.semaphore("good", "slots: 4").await;
        world.until("good", "Ready beside them", PROMPT, is_ready::<Semaphore>).await;

        for Mistake { name, .. } in &brokers {
            world.secret(&format!("rabbit-{name}"), &[("amqpUri", world.amqp_url())]).await;
        }
        for Mistake { name, .. } in &stores {
            world.secret(&format!("redis-{name}"), &[("uri", world.redis_url())]).await;
        }
        for Mistake { name, .. } in &brokers {
            let mended = world.until(name, "Ready", CORRECTED, is_ready::<Semaphore>).await;
            assert!(has(&mended, "BackendReachable", "True"));
        }
        for Mistake { name, .. } in &stores {
            let mended = world.until(name, "Ready", CORRECTED, is_ready::<PressureQueue>).await;
            assert!(has(&mended, "BackendReachable", "True"));
        }
        no_password_shows(&world, &operator.logged()).await;
    })
    .await;
}

/// Every password of a test begins with `canary-`.
async fn no_password_shows(world: &World, log: &str) {
    let mut shown = vec![log.to_owned()];
    for object in world.api::<Semaphore>().list(&Default::default()).await.unwrap() {
        shown.push(serde_json::to_string(&object).unwrap());
        shown.push(format!("{:?}", world.events(object.metadata.name.as_ref().unwrap()).await));
    }
    for object in world.api::<PressureQueue>().list(&Default::default()).await.unwrap() {
        shown.push(serde_json::to_string(&object).unwrap());
        shown.push(format!("{:?}", world.events(object.metadata.name.as_ref().unwrap()).await));
    }
    for text in shown {
        assert!(!text.is_empty() && !text.contains("canary-"), "{text}");
    }
}

#[tokio::test]
async fn on_the_default_connection_a_name_must_be_the_namespaces_unless_any_is_allowed() {
    in_a_world("default", async |world| {
        let mut operator = world.operator().await;
        world.apply::<Semaphore>("mine", "{slots: 2}").await.unwrap();
        world.apply::<PressureQueue>("mine", "{bound: 2}").await.unwrap();
        let none = |flag: &str| format!("or start the operator with {flag}");
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
        assert_eq!(world.queues().await, world.slot_queues("mine", 2));
        assert!(!keys(&world).await.iter().any(|key| key.contains(&name)));
        // A connection of the namespace's own is asked for no prefix.
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

async fn keys(world: &World) -> Vec<String> {
    let mut redis = world.redis().await;
    redis::cmd("KEYS").arg("*").query_async(&mut redis).await.unwrap()
}

/// Waits until an object that is created now is younger than all others: the API
/// server's clock counts in seconds.
async fn next_second<K: Kind>(world: &World, after: &str) {
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
        let slots = |count: u32| (1..=count).map(|slot| format!("shared-{slot}-A")).collect();
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

/// Deletes an object and waits until it is gone.
async fn gone<K: Kind>(world: &World, name: &str) {
    world.api::<K>().delete(name, &Default::default()).await.unwrap();
    eventually(&format!("{name} is gone"), PATIENCE, async || {
        world.api::<K>().get_opt(name).await.unwrap().is_none()
    })
    .await;
}

#[tokio::test]
async fn a_password_rotated_on_the_server_and_then_in_the_secret_is_taken_up() {
    in_a_world("rotation", async |world| {
        let operator = world.operator().await;
        let user = world.namespace.clone();
        let first = format!("canary-{}", random());
        set_passwords(&world, &user, &first).await;
        put_in_secrets(&world, &user, &first).await;
        world.semaphore("deploy", "slots: 2").await;
        world.queue("frames", "bound: 2").await;
        world.semaphore_ready("deploy").await;
        world.queue_ready("frames").await;

        let second = format!("canary-{}", random());
        set_passwords(&world, &user, &second).await;
        cut_connections(&world, &user).await;
        let refused = |s: &Semaphore| has_reason(s, "BackendReachable", "AuthenticationFailed");
        world.until("deploy", "refused", PATIENCE, refused).await;
        let refused =
            |q: &PressureQueue| has_reason(q, "BackendReachable", "StoreAuthenticationFailed");
        world.until("frames", "refused", PATIENCE, refused).await;

        put_in_secrets(&world, &user, &second).await;
        world.until("deploy", "Ready", CORRECTED, is_ready::<Semaphore>).await;
        world.until("frames", "Ready", CORRECTED, is_ready::<PressureQueue>).await;
        // Not only looked at: what is asked for is done as the user anew.
        world.semaphore("deploy", "slots: 3").await;
        world.queue("frames", "bound: 3").await;
        world.semaphore_ready("deploy").await;
        world.queue_ready("frames").await;
        no_password_shows(&world, &operator.logged()).await;

        management(reqwest::Method::DELETE, &format!("users/{user}"), None).await;
        let mut redis = world.redis().await;
        let () =
            redis::cmd("ACL").arg("DELUSER").arg(&user).query_async(&mut redis).await.unwrap();
    })
    .await;
}

/// Creates a user on both servers, or changes its password.
async fn set_passwords(world: &World, user: &str, password: &str) {
    let body = serde_json::json!({"password": password, "tags": "monitoring"});
    management(reqwest::Method::PUT, &format!("users/{user}"), Some(body)).await;
    let all = serde_json::json!({"configure": ".*", "write": ".*", "read": ".*"});
    let path = format!("permissions/{}/{user}", world.vhost);
    management(reqwest::Method::PUT, &path, Some(all)).await;
    let mut redis = world.redis().await;
    let password = format!(">{password}");
    let rules = ["SETUSER", user, "on", "resetpass", &password, "~*", "&*", "+@all"];
    let () = redis::cmd("ACL").arg(&rules).query_async(&mut redis).await.unwrap();
}

/// Writes the Secrets `rabbit` and `redis` with this user and password.
async fn put_in_secrets(world: &World, user: &str, password: &str) {
    let with = |of: &str| {
        url(of, |url| {
            url.set_username(user).unwrap();
            url.set_password(Some(password)).unwrap();
        })
    };
    let management = with(&variable("RABBITMQ_MANAGEMENT_URL"));
    let rabbit = [("amqpUri", with(&world.amqp_url())), ("managementUri", management)];
    world.secret("rabbit", &rabbit).await;
    world.secret("redis", &[("uri", with(&world.redis_url()))]).await;
}

/// Ends what the user is connected with: a server asks for the password at the
/// next login only.
async fn cut_connections(world: &World, user: &str) {
    let list = management(reqwest::Method::GET, "connections", None).await;
    let list: Vec<serde_json::Value> = list.json().await.unwrap();
    let names: Vec<&str> = list
        .iter()
        .filter(|connection| connection["user"] == user)
        .map(|connection| connection["name"].as_str().unwrap())
        .collect();
    assert!(!names.is_empty(), "the operator is connected as {user}");
    for name in names {
        let path = format!("connections/{}", name.replace(' ', "%20").replace('>', "%3E"));
        management(reqwest::Method::DELETE, &path, None).await;
    }
    let mut redis = world.redis().await;
    let killed: u32 = redis::cmd("CLIENT")
        .arg(&["KILL", "USER", user])
        .query_async(&mut redis)
        .await
        .unwrap();
    assert!(killed > 0, "the operator is connected as {user}");
}

async fn management(
    method: reqwest::Method,
    path: &str,
    body: Option<serde_json::Value>,
) -> reqwest::Response {
    let url = format!("{}/api/{path}", variable("RABBITMQ_MANAGEMENT_URL"));
    let mut request = reqwest::Client::new().request(method, url);
    if let Some(body) = body {
        request = request.json(&body);
    }
    let answer = request.send().await.unwrap();
    assert!(answer.status().is_success(), "{path}: {}", answer.status());
    answer
}
