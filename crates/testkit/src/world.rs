//! The environment of a test: a namespace, a vhost, a Redis prefix, their Secrets, and an
//! operator process that watches this namespace only, with the chart's service account.
//! Removed at the end, also when the test fails.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use lockkeeper_api::{PressureQueue, Semaphore};
use tokio::process::Command;

pub use self::kind::{Kind, has, has_reason, is_ready};
pub use self::operator::Operator;
use crate::built::lockkeeper;
pub use crate::environment::{PATIENCE, eventually, signal};
use crate::environment::{pause, random, variable};
use crate::rabbitmq::{Management, administrator};
use crate::redis::connect;

mod kind;
mod operator;

/// The operators' log: Lockkeeper's own in full, without what libraries report twice.
pub const OPERATOR_LOG: &str = "info,lockkeeper=debug,lapin=off,kube_client=off,kube_runtime=error";

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
    /// The broker's management API.
    pub management: Management,
    /// Every operator that was started, so that none outlives the test.
    operators: Arc<tokio::sync::Mutex<Vec<u32>>>,
}

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
    /// Creates the resources. See [`in_a_world`], which removes them too.
    pub async fn new(name: &str) -> Self {
        // Before the client, which needs the TLS provider.
        let management = Management::new(&administrator());
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
            management,
            operators: Arc::default(),
        };
        world.management.put(&format!("vhosts/{}", world.vhost), serde_json::json!({})).await;
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

    /// Deletes the objects and the other resources, and kills the operators.
    pub async fn end(&self) {
        self.delete_all::<Semaphore>().await;
        self.delete_all::<PressureQueue>().await;
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
        let options = "columns=name&disable_stats=true&enable_queue_totals=true";
        let list = self.management.get(&format!("queues/{}?{options}", self.vhost)).await.unwrap();
        list.as_array()
            .unwrap()
            .iter()
            .map(|queue| queue["name"].as_str().unwrap().to_owned())
            .collect()
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
        let mut command = self.operator_command(lockkeeper());
        command
            .args(arguments)
            .env("LOCKKEEPER_LOG", OPERATOR_LOG)
            .envs(environment.iter().copied());
        let operator = self.start_operator(&mut command);
        self.operators.lock().await.push(operator.pid());
        operator
    }

    /// Returns the command that starts this program as an operator for this namespace, without
    /// default connections.
    pub fn operator_command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .args(["operator", "--http-address", "127.0.0.1:0"])
            .args(["--watch-namespace", &self.namespace])
            .env("KUBECONFIG", variable("LOCKKEEPER_OPERATOR_KUBECONFIG"))
            .env_remove("AMQP_URL")
            .env_remove("RABBITMQ_MANAGEMENT_URL")
            .env_remove("REDIS_URL");
        command
    }

    /// Starts an operator with a log file of its own.
    pub fn start_operator(&self, command: &mut Command) -> Operator {
        let logs = format!("{}/operator-logs", variable("LOCKKEEPER_DEV_DIR"));
        std::fs::create_dir_all(&logs).unwrap();
        Operator::start(command, format!("{logs}/{}-{}.log", self.namespace, random()))
    }

    /// Kills all running operators. The remaining objects are deleted without them.
    pub async fn kill_operators(&self) {
        for pid in self.operators.lock().await.drain(..) {
            signal(pid, "KILL");
        }
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
