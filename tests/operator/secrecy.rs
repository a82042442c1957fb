//! Secrets that must not be shown, or need not be read: parts of passwords in malformed
//! addresses, and the Secret of a connection.

use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_testkit::built;
use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::world::{Kind, PATIENCE, World, has_reason, in_a_world};
use serde_json::json;
use tokio::process::Command;

use crate::operator::rights;
use crate::operator::settings::no_password_shows;

/// Passwords with a character that has a meaning in URLs. None may show from `canary-` on.
const PASSWORDS: [&str; 4] = ["s3cr@canary-2/word", "canary-1#2", "canary-1?2", "canary-@canary-2"];

/// Runs `lockkeeper` with these variables. Returns its exit code, and its output and
/// messages.
async fn run(arguments: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let output = Command::new(built::lockkeeper())
        .args(arguments)
        .env_remove("AMQP_URL")
        .env_remove("RABBITMQ_MANAGEMENT_URL")
        .env_remove("REDIS_URL")
        .envs(variables.iter().copied())
        .output()
        .await
        .unwrap();
    let [output_text, said] = [output.stdout, output.stderr].map(|b| String::from_utf8(b).unwrap());
    (output.status.code(), output_text + &said)
}

/// Creates an object with each of these Secrets, and waits until all are rejected.
async fn all_are_rejected<K: Kind>(world: &World, field: &str, secrets: &[Vec<(&str, String)>]) {
    for (number, data) in secrets.iter().enumerate() {
        let name = format!("{field}-{number}").to_lowercase();
        world.secret(&name, data).await;
        let spec = format!("{{{field}: {{connectionSecret: {{name: {name}}}}}}}");
        world.apply::<K>(&name, &spec).await.unwrap();
    }
    for (number, data) in secrets.iter().enumerate() {
        let name = format!("{field}-{number}").to_lowercase();
        let is_rejected = |object: &K| has_reason(object, "Ready", "SecretInvalid");
        let rejected = world.until(&name, "SecretInvalid", PATIENCE, is_rejected).await;
        let (.., message) = rejected.condition("Ready").unwrap();
        let is_host = data[0].0 == "host";
        let advice = if is_host { "the key port" } else { "percent-encode" };
        assert!(message.contains(advice), "{message}");
    }
}

#[tokio::test]
async fn no_part_of_a_password_in_a_malformed_address_shows_anywhere() {
    in_a_world("malformed", async |world| {
        let operator = world.operator().await;
        let host = |keys: &[&'static str]| {
            let login = keys.iter().map(|key| (*key, "u".to_owned()));
            [("host", "u:canary-1@127.0.0.1".to_owned())].into_iter().chain(login).collect()
        };
        let mut brokers: Vec<Vec<(&str, String)>> = vec![host(&["username", "password"])];
        let mut stores: Vec<Vec<(&str, String)>> = vec![host(&[])];
        for password in PASSWORDS {
            let url = |scheme: &str| format!("{scheme}://u:{password}@127.0.0.1:1/0");
            brokers.push(vec![("amqpUri", url("amqp"))]);
            brokers.push(vec![("uri", url("amqps"))]);
            brokers.push(vec![("managementUri", url("http")), ("amqpUri", world.amqp_url())]);
            brokers.push(vec![("adminUri", url("https")), ("amqpUri", world.amqp_url())]);
            stores.push(vec![("uri", url("redis"))]);
            stores.push(vec![("redisUri", url("rediss"))]);
            stores.push(vec![("uri", url("redis-sentinel") + "#master")]);
        }
        all_are_rejected::<Semaphore>(&world, "rabbitmqClusterReference", &brokers).await;
        all_are_rejected::<PressureQueue>(&world, "redisReference", &stores).await;
        no_password_shows(&world, &operator.logged()).await;
        assert!(!operator.metrics().await.contains("canary-"), "in the metrics");
    })
    .await;

    for password in PASSWORDS {
        let amqp = format!("amqp://u:{password}@127.0.0.1:1/");
        let redis = format!("redis://u:{password}@127.0.0.1:1/0");
        for (arguments, variables, named) in [
            (vec!["semaphore", "count", "l", "--url", &amqp], vec![], "--url"),
            (vec!["exec", "l", "--", "true"], vec![("AMQP_URL", amqp.as_str())], "AMQP_URL"),
            (vec!["queue", "length", "q"], vec![("REDIS_URL", redis.as_str())], "REDIS_URL"),
        ] {
            let (code, said) = run(&arguments, &variables).await;
            assert_eq!(code, Some(64), "{said}");
            assert!(said.contains(named) && said.contains("percent-encode"), "{said}");
            assert!(!said.contains("canary-"), "{said}");
        }
    }
}

#[tokio::test]
async fn a_client_that_may_not_read_the_secret_logs_in_with_its_own_url_to_the_same_server() {
    in_a_world("own-login", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 1").await;
        world.queue("frames", "bound: 2").await;
        let resources = json!(["semaphores", "pressurequeues"]);
        let rules = json!([
            {"apiGroups": ["lockkeeper.dev"], "resources": resources, "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["open"], "verbs": ["get"]},
        ]);
        rights::give(&world, "read", rules, vec![rights::user("carol")]).await;
        world.semaphore_ready("deploy").await;
        world.queue_ready("frames").await;

        let kubeconfig = rights::kubeconfig_of(&world, "carol");
        let exec = ["exec", "sem/deploy", "-n", &world.namespace, "--", "true"];
        let length = ["queue", "length", "pq/frames", "-n", &world.namespace];
        let with = async |arguments: &[&str], variable, url: &str| {
            run(arguments, &[("KUBECONFIG", &kubeconfig), (variable, url)]).await
        };
        for (arguments, variable, own) in
            [(&exec[..], "AMQP_URL", world.amqp_url()), (&length, "REDIS_URL", world.redis_url())]
        {
            let (code, said) = with(arguments, variable, &own).await;
            assert_eq!(code, Some(0), "{said}");
            let (code, said) = with(arguments, variable, "").await;
            assert_eq!(code, Some(77), "{said}");
            assert!(said.contains("forbidden") && said.contains("secrets"), "{said}");
            assert!(said.contains(&format!("or set {variable}")), "{said}");
            let elsewhere = own.replace("@127.0.0.1:", "@localhost:");
            let (code, said) = with(arguments, variable, &elsewhere).await;
            assert_eq!(code, Some(77), "another server may have a lock of that name: {said}");
            assert!(said.contains("it leads to localhost:"), "{said}");
        }

        // The Secret of the administrator is read by the operator only.
        let administrator = ("adminSecretName", "administrator".to_owned());
        world.secret("open", &[("amqpUri", world.amqp_url()), administrator]).await;
        let management = variable("RABBITMQ_MANAGEMENT_URL");
        world.secret("administrator", &[("adminUri", management)]).await;
        let spec = "{rabbitmqClusterReference: {connectionSecret: {name: open}}}";
        world.apply::<Semaphore>("open", spec).await.unwrap();
        world.semaphore_ready("open").await;
        let exec = ["exec", "sem/open", "-n", &world.namespace, "--", "true"];
        let (code, said) = with(&exec, "AMQP_URL", "").await;
        assert_eq!(code, Some(0), "{said}");
        std::fs::remove_file(&kubeconfig).unwrap();
    })
    .await;
}
