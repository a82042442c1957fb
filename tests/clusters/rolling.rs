//! The operator while the nodes of its broker restart one after the other, as in a rolling
//! update, and its semaphores are resized.

use std::collections::BTreeSet;
use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions};
use lapin::types::FieldTable;
use lockkeeper_api::{Semaphore, all_crds};
use lockkeeper_plan::naming::LockName;
use lockkeeper_testkit::built;
use lockkeeper_testkit::cluster::Cluster;
use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::own_server::OwnServer;
use lockkeeper_testkit::rabbitmq::within;
use lockkeeper_testkit::world::{OPERATOR_LOG, is_ready};
use serde_json::json;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

const SEMAPHORES: usize = 100;

/// The namespace of the semaphores. It exists in every cluster.
const NAMESPACE: &str = "default";

/// Time limit for the operator to converge all semaphores. It retries after at most 15 s.
const CONVERGED: Duration = Duration::from_mins(2);

/// Concurrent requests to the API server.
const AT_ONCE: usize = 10;

/// A durable exchange. A slot that was bound to it and is deleted loses its binding, also
/// if it is declared again.
const MARKER: &str = "marker";

/// A load balancer in front of the nodes, as a Kubernetes Service is. It passes each
/// connection to the next node that accepts it.
struct Balancer {
    port: u16,
    task: JoinHandle<()>,
}

impl Balancer {
    async fn start(ports: [u16; 3]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let task = tokio::spawn(async move {
            for connection in 0.. {
                let Ok((mut near, _)) = listener.accept().await else { return };
                tokio::spawn(async move {
                    for node in 0..3 {
                        let address = ("127.0.0.1", ports[(connection + node) % 3]);
                        if let Ok(mut far) = TcpStream::connect(address).await {
                            let _ = copy_bidirectional(&mut near, &mut far).await;
                            return;
                        }
                    }
                });
            }
        });
        Self { port, task }
    }

    /// Starts one for a port of each node, and returns it with its URL. The URL is that of
    /// node 1 otherwise.
    async fn of(cluster: &Cluster, name: &str) -> (Self, url::Url) {
        let ports = [1, 2, 3].map(|node| cluster.variable(node, name).port().unwrap());
        let balancer = Self::start(ports).await;
        let mut url = cluster.variable(1, name);
        url.set_port(Some(balancer.port)).unwrap();
        (balancer, url)
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Semaphores in a Kubernetes of their own, and an operator that reaches the broker by
/// load balancers.
struct Semaphores {
    api: Api<Semaphore>,
    _operator: Child,
    _balancers: [Balancer; 2],
    _kubernetes: OwnServer,
}

impl Semaphores {
    async fn operated(cluster: &Cluster) -> Self {
        let kubernetes = OwnServer::kubernetes().await;
        let kubeconfig = kubernetes.variable("KUBECONFIG");
        let options = KubeConfigOptions::default();
        let read = Kubeconfig::read_from(&kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(read, &options).await.unwrap();
        let client = Client::try_from(config).unwrap();
        install(&client).await;

        let (amqp_balancer, mut amqp) = Balancer::of(cluster, "AMQP_URL").await;
        amqp.set_path(&cluster.vhost.name);
        let (balancer, management) = Balancer::of(cluster, "RABBITMQ_MANAGEMENT_URL").await;
        let secret = json!({
            "metadata": {"name": "rabbit"},
            "stringData": {"amqpUri": amqp.as_str(), "managementUri": management.as_str()},
        });
        let secret = serde_json::from_value::<Secret>(secret).unwrap();
        let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        secrets.create(&PostParams::default(), &secret).await.unwrap();

        let log = format!("{}/operator-{}.log", variable("LOCKKEEPER_DEV_DIR"), cluster.vhost.name);
        let operator = Command::new(built::lockkeeper())
            .args(["operator", "--http-address", "127.0.0.1:0", "--drift-interval", "3s"])
            .args(["--watch-namespace", NAMESPACE])
            .env("KUBECONFIG", &kubeconfig)
            .env("LOCKKEEPER_LOG", OPERATOR_LOG)
            .env_remove("AMQP_URL")
            .env_remove("RABBITMQ_MANAGEMENT_URL")
            .stdin(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self {
            api: Api::namespaced(client, NAMESPACE),
            _operator: operator,
            _balancers: [amqp_balancer, balancer],
            _kubernetes: kubernetes,
        }
    }

    /// Sets the number of slots of all semaphores, and creates those that do not exist.
    async fn resize(&self, slots: u32) {
        let parameters = PatchParams::apply("test").force();
        stream::iter(0..SEMAPHORES)
            .map(|number| {
                let name = format!("lock-{number}");
                let semaphore = json!({
                    "apiVersion": "lockkeeper.dev/v1alpha1",
                    "kind": "Semaphore",
                    "metadata": {"name": name},
                    "spec": {
                        "slots": slots,
                        "rabbitmqClusterReference": {"connectionSecret": {"name": "rabbit"}},
                    },
                });
                let (api, parameters) = (&self.api, &parameters);
                async move {
                    let patch = Patch::Apply(semaphore);
                    // The API server may just be closing an idle connection.
                    within(CONVERGED, "the semaphore is applied", async || {
                        api.patch(&name, parameters, &patch).await.is_ok()
                    })
                    .await;
                }
            })
            .buffer_unordered(AT_ONCE)
            .collect::<Vec<()>>()
            .await;
    }

    /// Waits until every semaphore is Ready with its newest spec.
    async fn all_are_ready(&self) {
        within(CONVERGED, "every semaphore is Ready", async || {
            let semaphores = self.api.list(&ListParams::default()).await.unwrap().items;
            semaphores.len() == SEMAPHORES && semaphores.iter().all(is_ready::<Semaphore>)
        })
        .await;
    }
}

/// Installs the resource definitions.
async fn install(client: &Client) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in all_crds() {
        definitions.create(&PostParams::default(), &definition).await.unwrap();
        let name = definition.name_any();
        within(CONVERGED, "the API serves the kind", async || {
            let status = definitions.get(&name).await.unwrap().status.unwrap_or_default();
            let conditions = status.conditions.unwrap_or_default();
            conditions.iter().any(|c| c.type_ == "Established" && c.status == "True")
        })
        .await;
    }
}

/// Returns the slots 1 to `slots` of each lock.
fn slots(slots: u32) -> BTreeSet<String> {
    (0..SEMAPHORES)
        .map(|number| LockName::new(format!("{NAMESPACE}.lock-{number}")).unwrap())
        .flat_map(|lock| (1..=slots).map(move |slot| lock.slot_queue(slot)))
        .collect()
}

/// Distributes slots and wait queues over the nodes. They would otherwise be on the node to which
/// the operator is connected.
async fn distribute(cluster: &Cluster) {
    let definition = if cluster.has_khepri() {
        json!({"queue-leader-locator": "balanced"})
    } else {
        json!({"queue-master-locator": "min-masters"})
    };
    let policy = json!({"pattern": "-[AW]$", "apply-to": "queues", "definition": definition});
    cluster
        .vhost
        .management
        .put(&format!("policies/{}/distribute", cluster.vhost.name), policy)
        .await;
}

/// Marks these slots.
async fn mark(cluster: &Cluster, slots: &BTreeSet<String>) {
    let (_connection, channel) = cluster.vhost.channel().await;
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let nothing = FieldTable::default;
    let kind = lapin::ExchangeKind::Direct;
    channel.exchange_declare(MARKER.into(), kind, durable, nothing()).await.unwrap();
    for slot in slots {
        let (queue, options) = (slot.as_str().into(), QueueBindOptions::default());
        channel.queue_bind(queue, MARKER.into(), "".into(), options, nothing()).await.unwrap();
    }
}

/// Returns the slots that still have their mark.
async fn marked(cluster: &Cluster) -> BTreeSet<String> {
    let path = format!("exchanges/{}/{MARKER}/bindings/source", cluster.vhost.name);
    let bindings = cluster.vhost.management.get(&path).await.unwrap();
    let destination =
        |binding: &serde_json::Value| binding["destination"].as_str().unwrap().to_owned();
    bindings.as_array().unwrap().iter().map(destination).collect()
}

/// Returns how many nodes have slots.
async fn nodes_with_slots(cluster: &Cluster) -> usize {
    let nodes = cluster.vhost.nodes_of_queues().await;
    let slots = nodes.into_iter().filter(|(queue, _)| queue.ends_with("-A"));
    slots.map(|(_, node)| node).collect::<BTreeSet<_>>().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_are_exact_after_a_resize_during_a_rolling_restart() {
    let cluster = Cluster::whole().await;
    distribute(&cluster).await;
    let semaphores = Semaphores::operated(&cluster).await;
    semaphores.resize(2).await;
    semaphores.all_are_ready().await;
    assert_eq!(nodes_with_slots(&cluster).await, 3);
    let always = slots(2);
    mark(&cluster, &always).await;
    assert_eq!(marked(&cluster).await, always);

    for (node, slots) in [(2, 4), (3, 3), (1, 4)] {
        futures::join!(cluster.restart(node), semaphores.resize(slots));
    }
    semaphores.resize(3).await;
    semaphores.all_are_ready().await;

    let lock_queues = async || -> BTreeSet<String> {
        let queues = cluster.vhost.queues().await;
        queues.into_iter().filter(|queue| queue.ends_with("-A")).collect()
    };
    assert_eq!(lock_queues().await, slots(3));
    assert_eq!(marked(&cluster).await, always, "no slot was deleted that was desired throughout");
}
