//! The environment of a test: a namespace, a vhost, a Redis prefix, their Secrets, and an
//! operator process that watches this namespace only, with the chart's service account.
//! Removed at the end, also when the test fails.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs::File;
use std::future::Future;
use std::io::Write;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use lockkeeper_api::{PressureQueue, Semaphore};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::process::{Child, Command};

use super::built::lockkeeper;
use super::redis::connect;
pub use crate::environment::signal;
use crate::environment::{pause, random, variable};

/// Resources of a test.
#[derive(Clone)]
pub struct World {
    /// Client with an administrator's permissions.
    pub client: Client,
    /// The test's namespace.
    pub namespace: String,
    /// The test's vhost on the broker.
    pub vhost: String,
    /// The test's database in Redis.
    pub database: i64,
    /// Every operator that was started, so that none outlives the test.
    operators: Arc<tokio::sync::Mutex<Vec<u32>>>,
}

/// Time limit for a condition, unless a test is about time.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// Runs a test in its own world.
pub async fn in_a_world(name: &str, test: impl AsyncFnOnce(World)) {
    let world = World::new(name).await;
    let outcome = AssertUnwindSafe(test(world.clone())).catch_unwind().await;
    if let Err(failure) = outcome {
        // Only the processes are ended: the servers of a test run are discarded, and the
        // remaining state shows why the test failed.
        world.kill_operators().await;
        resume_unwind(failure);
    }
    world.end().await;
}

/// Returns a Redis database that no other test has had. One chosen at random was emptied
/// under a test by the end of another. The server has 4,096, of which 0 to 15 are
/// reserved for users.
pub fn next_database() -> i64 {
    static TAKEN: AtomicI64 = AtomicI64::new(0);
    16 + TAKEN.fetch_add(1, Ordering::Relaxed) % 4_080
}

impl World {
    async fn new(name: &str) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        variable("KUBECONFIG");
        let client = Client::try_default().await.unwrap();
        let namespace = format!("{name}-{}", random());
        let object = Namespace {
            metadata: kube::core::ObjectMeta {
                name: Some(namespace.clone()),
                ..Default::default()
            },
            ..Default::default()
        };
        Api::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
        let world = Self {
            client,
            vhost: namespace.clone(),
            database: next_database(),
            namespace,
            operators: Arc::default(),
        };
        let management = reqwest::Client::new();
        for (method, path) in [(reqwest::Method::PUT, format!("vhosts/{}", world.vhost))] {
            let url = format!("{}/api/{path}", variable("RABBITMQ_MANAGEMENT_URL"));
            let answer = management.request(method, url).send().await.unwrap();
            assert!(answer.status().is_success(), "{path}: {}", answer.status());
        }
        world
            .secret(
                "rabbit",
                &[
                    ("amqpUri", world.amqp_url()),
                    ("managementUri", variable("RABBITMQ_MANAGEMENT_URL")),
                ],
            )
            .await;
        world.secret("redis", &[("uri", world.redis_url())]).await;
        world
    }

    async fn end(&self) {
        let gone = async {
            self.delete_all::<Semaphore>().await;
            self.delete_all::<PressureQueue>().await;
        };
        gone.await;
        self.kill_operators().await;
        let url = format!("{}/api/vhosts/{}", variable("RABBITMQ_MANAGEMENT_URL"), self.vhost);
        // With thousands of queues it takes longer than the API's request timeout.
        eventually("the vhost is gone", PATIENCE * 2, async || {
            let answer = reqwest::Client::new().delete(&url).send().await;
            answer.is_ok_and(|answer| answer.status().is_success() || answer.status() == 404)
        })
        .await;
        let mut redis = self.redis().await;
        let _: () = redis::cmd("FLUSHDB").query_async(&mut redis).await.unwrap();
        // Not awaited: even an empty namespace takes the API server five seconds.
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let _ = namespaces.delete(&self.namespace, &DeleteParams::default()).await;
    }

    /// Deletes all objects of a kind and waits until they are gone. An operator must be
    /// running if there are any.
    pub async fn delete_all<K: Kind>(&self) {
        let api = self.api::<K>();
        for object in api.list(&ListParams::default()).await.unwrap() {
            // Objects that a test left must not wait for servers that it stopped.
            let force = serde_json::json!({
                "metadata": {"annotations": {lockkeeper_api::FORCE_FINALIZE: "true"}}
            });
            if self.operators.lock().await.is_empty() {
                let bare = serde_json::json!({"metadata": {"finalizers": null}});
                let _ = api
                    .patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(bare))
                    .await;
            } else {
                let _ = api
                    .patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(force))
                    .await;
            }
            let _ = api.delete(&object.name_any(), &DeleteParams::default()).await;
        }
        eventually(&format!("all {} are gone", K::plural(&())), PATIENCE, async || {
            api.list(&ListParams::default()).await.is_ok_and(|list| list.items.is_empty())
        })
        .await;
    }

    /// Returns the broker's URL with this world's vhost.
    pub fn amqp_url(&self) -> String {
        let base = variable("AMQP_URL");
        let at = base.rfind('/').unwrap();
        format!("{}/{}", &base[..at], self.vhost)
    }

    /// Returns the store's URL with this world's database.
    pub fn redis_url(&self) -> String {
        let base = variable("REDIS_URL");
        let at = base.rfind('/').unwrap();
        format!("{}/{}", &base[..at], self.database)
    }

    /// Opens a connection to this world's database.
    pub async fn redis(&self) -> redis::aio::MultiplexedConnection {
        connect(&self.redis_url()).await
    }

    /// Opens a connection to this world's vhost.
    pub async fn amqp(&self) -> lapin::Connection {
        lapin::Connection::connect(&self.amqp_url(), lapin::ConnectionProperties::default())
            .await
            .unwrap()
    }

    /// Returns the API for a kind in this world's namespace.
    pub fn api<K: Kind>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates or replaces a Secret.
    pub async fn secret(&self, name: &str, data: &[(&str, String)]) {
        let data: std::collections::BTreeMap<_, _> = data.iter().cloned().collect();
        let body = serde_json::json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": name}, "stringData": data,
        });
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let _ = api.delete(name, &DeleteParams::default()).await;
        let secret: Secret = serde_json::from_value(body).unwrap();
        api.create(&PostParams::default(), &secret).await.unwrap();
    }

    /// Applies an object of this kind. `spec` is JSON or YAML.
    pub async fn apply<K: Kind>(&self, name: &str, spec: &str) -> kube::Result<K> {
        let spec: serde_json::Value = serde_yaml::from_str(spec).unwrap();
        let body = serde_json::json!({
            "apiVersion": K::api_version(&()), "kind": K::kind(&()),
            "metadata": {"name": name}, "spec": spec,
        });
        let params = PatchParams::apply("test").force();
        self.api::<K>().patch(name, &params, &Patch::Apply(body)).await
    }

    /// Applies a Semaphore on this world's broker. `more` is additional spec in YAML flow
    /// style: `slots: 3, suspend: true`.
    pub async fn semaphore(&self, name: &str, more: &str) -> Semaphore {
        let spec =
            format!("{{rabbitmqClusterReference: {{connectionSecret: {{name: rabbit}}}}, {more}}}");
        self.apply(name, &spec).await.unwrap()
    }

    /// Applies a `PressureQueue` on this world's store.
    pub async fn queue(&self, name: &str, more: &str) -> PressureQueue {
        let spec = format!("{{redisReference: {{connectionSecret: {{name: redis}}}}, {more}}}");
        self.apply(name, &spec).await.unwrap()
    }

    /// Waits until `is` holds for an object. A failure shows the object's state.
    pub async fn until<K: Kind>(
        &self,
        name: &str,
        what: &str,
        patience: Duration,
        is: impl Fn(&K) -> bool,
    ) -> K {
        let api = self.api::<K>();
        let start = Instant::now();
        loop {
            let object = api.get_opt(name).await.unwrap();
            if let Some(object) = &object
                && is(object)
            {
                return object.clone();
            }
            if start.elapsed() >= patience {
                let events = self.events(name).await;
                panic!("{name}: not {what} within {patience:?}: {object:#?} {events:#?}");
            }
            tokio::time::sleep(pause(start, Duration::from_millis(50), Duration::from_millis(150)))
                .await;
        }
    }

    /// Waits until a Semaphore's Ready is true for its newest generation.
    pub async fn semaphore_ready(&self, name: &str) -> Semaphore {
        self.until(name, "Ready", PATIENCE, is_ready::<Semaphore>).await
    }

    /// Waits until a `PressureQueue`'s Ready is true for its newest generation.
    pub async fn queue_ready(&self, name: &str) -> PressureQueue {
        self.until(name, "Ready", PATIENCE, is_ready::<PressureQueue>).await
    }

    /// Returns the names of all queues in this world's vhost, as reported by the broker.
    pub async fn queues(&self) -> BTreeSet<String> {
        let url = format!(
            "{}/api/queues/{}?columns=name&disable_stats=true&enable_queue_totals=true",
            variable("RABBITMQ_MANAGEMENT_URL"),
            self.vhost
        );
        let list: Vec<serde_json::Value> =
            reqwest::Client::new().get(url).send().await.unwrap().json().await.unwrap();
        list.iter().map(|queue| queue["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Returns the slot queues of a semaphore with default name and this number of slots.
    pub fn slot_queues(&self, name: &str, slots: u32) -> BTreeSet<String> {
        (1..=slots).map(|slot| format!("{}.{name}-{slot}-A", self.namespace)).collect()
    }

    /// Returns all queues of a semaphore with default name and no holders: its slots, and
    /// the wait queue.
    pub fn lock_queues(&self, name: &str, slots: u32) -> BTreeSet<String> {
        let mut queues = self.slot_queues(name, slots);
        queues.insert(format!("{}.{name}-W", self.namespace));
        queues
    }

    /// Returns the events about an object, as (reason, note, count).
    pub async fn events(&self, name: &str) -> Vec<(String, String, i32)> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let all = api.list(&ListParams::default()).await.unwrap();
        all.into_iter()
            .filter(|event| {
                event.regarding.as_ref().is_some_and(|r| r.name.as_deref() == Some(name))
            })
            .map(|event| {
                let times = event.series.as_ref().map_or(1, |series| series.count);
                (event.reason.unwrap_or_default(), event.note.unwrap_or_default(), times)
            })
            .collect()
    }

    /// Starts an operator with quick intervals: holders every second, drift every three.
    pub async fn operator(&self) -> Operator {
        self.operator_with(&["--observe-interval", "1s", "--drift-interval", "3s"]).await
    }

    /// Starts an operator with these arguments. Waits until it is ready.
    pub async fn operator_with(&self, arguments: &[&str]) -> Operator {
        let operator = self.operator_unready(arguments).await;
        operator.until_ready().await;
        operator
    }

    /// Starts an operator without waiting.
    pub async fn operator_unready(&self, arguments: &[&str]) -> Operator {
        self.operator_in(&[], arguments).await
    }

    /// Starts an operator with another kubeconfig.
    pub async fn operator_by(&self, kubeconfig: &str, arguments: &[&str]) -> Operator {
        self.operator_in(&[("KUBECONFIG", kubeconfig)], arguments).await
    }

    /// Starts an operator with these variables in its environment.
    pub async fn operator_in(&self, environment: &[(&str, &str)], arguments: &[&str]) -> Operator {
        let logs = format!("{}/operator-logs", variable("LOCKKEEPER_DEV_DIR"));
        std::fs::create_dir_all(&logs).unwrap();
        let log = format!("{logs}/{}-{}.log", self.namespace, random());
        let child = Command::new(lockkeeper())
            .args(["operator", "--http-address", "127.0.0.1:0"])
            .args(["--watch-namespace", &self.namespace])
            .args(arguments)
            .env("KUBECONFIG", variable("LOCKKEEPER_OPERATOR_KUBECONFIG"))
            .env("LOCKKEEPER_LOG", "info,lockkeeper=debug,lapin=off,kube_client=warn")
            // The test chooses the default connections.
            .env_remove("AMQP_URL")
            .env_remove("RABBITMQ_MANAGEMENT_URL")
            .env_remove("REDIS_URL")
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        self.operators.lock().await.push(child.id().unwrap());
        Operator { child, log }
    }

    /// Kills all running operators. The remaining objects are deleted without them.
    pub async fn kill_operators(&self) {
        for pid in self.operators.lock().await.drain(..) {
            signal(pid, "KILL");
        }
    }
}

/// An operator process. It keeps running when this is dropped, so that the test's objects
/// can be cleaned up. The world ends it.
pub struct Operator {
    child: Child,
    /// Its log file.
    pub log: String,
}

impl Operator {
    /// Waits until it watches both kinds.
    pub async fn until_ready(&self) {
        let ready = || async {
            std::fs::read_to_string(&self.log).unwrap().matches(" watching ").count() == 2
        };
        let what = format!("the operator watches (its log is {})", self.log);
        eventually(&what, PATIENCE, ready).await;
    }

    /// Returns its HTTP address.
    pub fn http(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap();
        let at = log.split("address=").nth(1).unwrap();
        format!("http://{}", at.split_whitespace().next().unwrap())
    }

    /// Returns its metrics. They are also kept with its log, for the checks of the whole
    /// run.
    pub async fn metrics(&self) -> String {
        let answer = reqwest::get(format!("{}/metrics", self.http())).await.unwrap();
        assert!(answer.status().is_success());
        let text = answer.text().await.unwrap();
        let log = self.log.trim_end_matches(".log");
        let kept = File::options().create(true).append(true).open(format!("{log}.metrics"));
        kept.unwrap().write_all(text.as_bytes()).unwrap();
        text
    }

    /// Returns its log.
    pub fn logged(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Kills it with SIGKILL.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Waits until it has ended by itself.
    pub async fn ended(&mut self) -> std::process::ExitStatus {
        self.child.wait().await.unwrap()
    }

    /// Requests it to stop, and waits until it has.
    pub async fn stop(&mut self) -> std::process::ExitStatus {
        signal(self.child.id().unwrap(), "TERM");
        tokio::time::timeout(PATIENCE, self.child.wait()).await.unwrap().unwrap()
    }
}

/// A kind of this project.
pub trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Serialize
    + Send
    + Sync
    + 'static
{
    /// Returns status, reason and message of a condition, if it is about the newest spec.
    fn condition(&self, type_: &str) -> Option<(String, String, String)>;
}

macro_rules! kind {
    ($kind:ty) => {
        impl Kind for $kind {
            fn condition(&self, type_: &str) -> Option<(String, String, String)> {
                let conditions = &self.status.as_ref()?.conditions;
                let c = conditions.iter().find(|c| c.type_ == type_)?;
                (c.observed_generation == self.metadata.generation)
                    .then(|| (c.status.clone(), c.reason.clone(), c.message.clone()))
            }
        }
    };
}
kind!(Semaphore);
kind!(PressureQueue);

/// Returns whether a condition about the newest spec has this status.
pub fn has<K: Kind>(object: &K, type_: &str, status: &str) -> bool {
    object.condition(type_).is_some_and(|(is, ..)| is == status)
}

/// Returns whether a condition about the newest spec has this reason.
pub fn has_reason<K: Kind>(object: &K, type_: &str, reason: &str) -> bool {
    object.condition(type_).is_some_and(|(_, is, _)| is == reason)
}

/// Returns whether Ready is true for the newest spec.
pub fn is_ready<K: Kind>(object: &K) -> bool {
    has(object, "Ready", "True")
}

/// Waits until a condition holds.
pub async fn eventually<F: Future<Output = bool>>(
    what: &str,
    patience: Duration,
    mut so: impl FnMut() -> F,
) {
    let start = Instant::now();
    while !so().await {
        assert!(start.elapsed() < patience, "not within {patience:?}: {what}");
        tokio::time::sleep(pause(start, Duration::from_millis(50), Duration::from_millis(150)))
            .await;
    }
}

/// Runs kubectl in the world's namespace. Returns its output.
pub async fn kubectl(world: &World, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("kubectl")
        .args(["--namespace", &world.namespace])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

impl Operator {
    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// Sends it a signal: `STOP` suspends it, `CONT` resumes it.
    pub fn signal(&self, name: &str) {
        signal(self.child.id().unwrap(), name);
    }
}
