//! Connections: Secrets that are missing, incomplete, wrong, corrected or rotated.

use std::time::Duration;

use kube::api::ListParams;
use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_testkit::environment::{random, variable};
use lockkeeper_testkit::world::{
    Kind, PATIENCE, World, eventually, has, has_reason, in_a_world, is_ready,
};

/// A correction is found after the longest pause (changes of servers and Secrets cause no
/// event) plus the time for which a read Secret is cached.
pub const CORRECTED: Duration = Duration::from_secs(75);

/// Time limit for other objects in the meantime.
const PROMPT: Duration = Duration::from_secs(5);

/// One mistake in a connection: the Secret's data (`None`: no Secret), the condition's
/// reason, and a part of its message.
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

/// Returns the same address after a change, for example of user, host or path.
fn url(of: &str, change: impl FnOnce(&mut url::Url)) -> String {
    let mut url = url::Url::parse(of).unwrap();
    change(&mut url);
    url.into()
}

fn wrong_password(of: &str) -> String {
    url(of, |url| url.set_password(Some(&format!("canary-wrong-{}", random()))).unwrap())
}

/// Uses port 1, which has no listener.
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
            "CertificateRefused",
            "that the port speaks TLS",
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
            &[("uri", good.as_str()), ("tls", "maybe")],
            "SecretInvalid",
            "the connection's tls is not valid: expected true or false",
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
            "check that the server runs, and its address",
        ),
    ]
}

/// Waits for the condition of a mistake.
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
    // Without settings, the reachability is unknown.
    let status = if reason.starts_with("Secret") { "Unknown" } else { "False" };
    let reachable = (status.to_owned(), (*reason).to_owned(), message);
    assert_eq!(said.condition("BackendReachable"), Some(reachable));
}

#[tokio::test]
async fn each_mistake_in_a_connection_has_its_own_reason_and_a_corrected_secret_clears_it() {
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
        world.until("good", "Ready despite them", PROMPT, is_ready::<Semaphore>).await;

        for Mistake { name, .. } in &brokers {
            world.secret(&format!("rabbit-{name}"), &[("amqpUri", world.amqp_url())]).await;
        }
        for Mistake { name, .. } in &stores {
            world.secret(&format!("redis-{name}"), &[("uri", world.redis_url())]).await;
        }
        for Mistake { name, .. } in &brokers {
            let corrected = world.until(name, "Ready", CORRECTED, is_ready::<Semaphore>).await;
            assert!(has(&corrected, "BackendReachable", "True"));
        }
        for Mistake { name, .. } in &stores {
            let corrected = world.until(name, "Ready", CORRECTED, is_ready::<PressureQueue>).await;
            assert!(has(&corrected, "BackendReachable", "True"));
        }
        no_password_shows(&world, &operator.logged()).await;
    })
    .await;
}

/// Checks for passwords: every password of a test starts with `canary-`.
pub async fn no_password_shows(world: &World, log: &str) {
    let mut shown = vec![log.to_owned()];
    for object in world.api::<Semaphore>().list(&ListParams::default()).await.unwrap() {
        shown.push(serde_json::to_string(&object).unwrap());
        shown.push(format!("{:?}", world.events(object.metadata.name.as_ref().unwrap()).await));
    }
    for object in world.api::<PressureQueue>().list(&ListParams::default()).await.unwrap() {
        shown.push(serde_json::to_string(&object).unwrap());
        shown.push(format!("{:?}", world.events(object.metadata.name.as_ref().unwrap()).await));
    }
    for text in shown {
        assert!(!text.is_empty() && !text.contains("canary-"), "{text}");
    }
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
        // A server only checks the password at the next login.
        eventually("both are refused", PATIENCE, async || {
            cut_connections(&world, &user).await;
            let semaphore = world.api::<Semaphore>().get("deploy").await.unwrap();
            let queue = world.api::<PressureQueue>().get("frames").await.unwrap();
            has_reason(&semaphore, "BackendReachable", "AuthenticationFailed")
                && has_reason(&queue, "BackendReachable", "StoreAuthenticationFailed")
        })
        .await;

        put_in_secrets(&world, &user, &second).await;
        world.until("deploy", "Ready", CORRECTED, is_ready::<Semaphore>).await;
        world.until("frames", "Ready", CORRECTED, is_ready::<PressureQueue>).await;
        // Not only observed: requested changes are made as the new user.
        world.semaphore("deploy", "slots: 3").await;
        world.queue("frames", "bound: 3").await;
        world.semaphore_ready("deploy").await;
        world.queue_ready("frames").await;
        no_password_shows(&world, &operator.logged()).await;

        management(reqwest::Method::DELETE, &format!("users/{user}"), None).await;
        let mut redis = world.redis().await;
        let () = redis::cmd("ACL").arg("DELUSER").arg(&user).query_async(&mut redis).await.unwrap();
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

/// Closes the user's connections, as far as the servers already list them.
async fn cut_connections(world: &World, user: &str) {
    let list = management(reqwest::Method::GET, "connections", None).await;
    let list: Vec<serde_json::Value> = list.json().await.unwrap();
    for connection in list.iter().filter(|connection| connection["user"] == user) {
        let name = connection["name"].as_str().unwrap();
        let path = format!("connections/{}", name.replace(' ', "%20").replace('>', "%3E"));
        management(reqwest::Method::DELETE, &path, None).await;
    }
    let mut redis = world.redis().await;
    let kill = ["KILL", "USER", user];
    let _: u32 = redis::cmd("CLIENT").arg(&kill).query_async(&mut redis).await.unwrap();
}

/// Sends a request to the broker's management API.
pub async fn management(
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
    // A connection may end just before it is closed.
    let is_gone = answer.status() == reqwest::StatusCode::NOT_FOUND;
    assert!(answer.status().is_success() || is_gone, "{path}: {}", answer.status());
    answer
}

#[tokio::test]
async fn default_connections_that_appear_or_change_later_are_used_without_a_restart() {
    in_a_world("defaults", async |world| {
        let directory = format!("{}/{}", env!("CARGO_TARGET_TMPDIR"), world.namespace);
        std::fs::create_dir_all(&directory).unwrap();
        let write = |file: &str, text: &str| {
            std::fs::write(format!("{directory}/{file}"), format!("{text}\n")).unwrap();
        };
        let environment = [("LOCKKEEPER_CONNECTIONS_DIR", directory.as_str())];
        let operator = world.operator_in(&environment, &["--observe-interval", "1s"]).await;
        operator.until_ready().await;
        world.apply::<Semaphore>("deploy", "{slots: 2}").await.unwrap();
        world.apply::<PressureQueue>("frames", "{bound: 2}").await.unwrap();
        let stalled = async |reason: &'static str| {
            world
                .until("deploy", reason, CORRECTED, |s: &Semaphore| {
                    has_reason(s, "Stalled", reason) || has_reason(s, "Reconciling", reason)
                })
                .await
        };
        stalled("NoConnection").await;

        // As the kubelet adds the files of a Secret that was created after the pod.
        write("amqpUrl", &world.amqp_url());
        // In the spelling of a connection's Secret.
        write("redisUri", &world.redis_url());
        world.semaphore_ready("deploy").await;
        world.queue_ready("frames").await;
        write("amqpUrl", &wrong_password(&world.amqp_url()));
        stalled("AuthenticationFailed").await;
        write("amqpUrl", "no URL");
        let said = stalled("SecretInvalid").await;
        let (_, _, message) = said.condition("Ready").unwrap();
        assert!(message.contains("the operator's default connection"), "{message}");
        write("amqpUrl", &world.amqp_url());
        world.semaphore_ready("deploy").await;
        std::fs::remove_dir_all(&directory).unwrap();
    })
    .await;
}
