//! Measures the same with RabbitMQ's messaging topology operator: `Queue` objects, from create
//! until all are Ready, on the same servers. `dev/bench` builds it from a checkout, and creates its
//! resource definitions. See `objects` for ours.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::redis::free_port;
use lockkeeper_testkit::world::Operator;
use secrecy::ExposeSecret;
use serde_json::json;
use tokio::process::Command;

use crate::environment::{Environment, concurrently};
use crate::{Result, bare, ready};

/// Number of its controllers. Each logs a line when it starts.
const CONTROLLERS: usize = 13;

/// Creates a `Queue` for each name, with an operator that has started before. Returns the time
/// until all are Ready, and deletes them.
pub async fn run(environment: &Environment, names: &[String]) -> Result<Duration> {
    let kind = GroupVersionKind::gvk("rabbitmq.com", "v1beta1", "Queue");
    let resource = ApiResource::from_gvk(&kind);
    let api: Api<DynamicObject> =
        Api::namespaced_with(environment.client.clone(), &environment.namespace, &resource);
    connect(environment).await?;
    let mut operator = operator(environment).await;

    let all_ready = ready::watch(&api, names.len(), is_ready).await?;
    let start = Instant::now();
    concurrently(names, async |name| {
        let spec = json!({
            "name": name, "vhost": environment.namespace, "type": "classic", "durable": true,
            "rabbitmqClusterReference": {"connectionSecret": {"name": "topology"}},
        });
        let queue = DynamicObject::new(name, &resource).data(json!({"spec": spec}));
        api.create(&PostParams::default(), &queue).await?;
        Ok(())
    })
    .await?;
    all_ready.await??;
    let took = start.elapsed();

    operator.stop().await;
    environment.clear(&api, true).await?;
    bare::delete_all(&environment.amqp().await.create_channel().await?, names).await?;
    Ok(took)
}

/// Creates the Secret with its connection, unless it exists. It needs this label.
async fn connect(environment: &Environment) -> Result<()> {
    let settings = environment.settings()?;
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": "topology", "labels": {"rabbitmq.com/topology-operator": "true"}},
        "stringData": {
            "uri": variable("RABBITMQ_MANAGEMENT_URL"),
            "username": settings.username, "password": settings.password.expose_secret(),
        },
    }))?;
    let api: Api<Secret> = Api::namespaced(environment.client.clone(), &environment.namespace);
    if api.get_opt("topology").await?.is_none() {
        api.create(&PostParams::default(), &secret).await?;
    }
    Ok(())
}

/// Starts the operator for this namespace, and waits until its controllers have started.
async fn operator(environment: &Environment) -> Operator {
    let address = format!("127.0.0.1:{}", free_port());
    let mut command = Command::new(variable("NEIGHBOUR"));
    command
        .args(["--health-probe-bind-address", &address])
        .env("ENABLE_WEBHOOKS", "false")
        .env("OPERATOR_NAMESPACE", &environment.namespace)
        .env("OPERATOR_SCOPE_NAMESPACE", &environment.namespace)
        .kill_on_drop(true);
    let operator = environment.start_operator(&mut command);
    operator.until_logged("Starting workers", CONTROLLERS).await;
    operator
}

fn is_ready(queue: &DynamicObject) -> bool {
    let conditions = queue.data["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}
