//! Measures the same with RabbitMQ's messaging topology operator: `Queue` objects, from create
//! until all are Ready, on the same servers. `dev/bench` builds it from a checkout, and creates its
//! resource definitions. See `objects` for ours.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use lockkeeper_plan::connection::RabbitmqSettings;
use secrecy::ExposeSecret;
use serde_json::json;
use tokio::process::Command;

use crate::place::{Operator, Place, concurrently, free_address};
use crate::{Result, bare, objects};

/// Number of its controllers. Each logs a line when it starts.
const CONTROLLERS: usize = 13;

/// Creates a `Queue` for each name, with an operator that has started before. Returns the time
/// until all are Ready, and deletes them.
pub async fn run(place: &Place, names: &[String]) -> Result<Duration> {
    let kind = GroupVersionKind::gvk("rabbitmq.com", "v1beta1", "Queue");
    let resource = ApiResource::from_gvk(&kind);
    let api: Api<DynamicObject> =
        Api::namespaced_with(place.client.clone(), &place.name, &resource);
    connect(place).await?;
    let operator = operator(place).await?;

    let all_ready = objects::watch(&api, names.len(), is_ready).await?;
    let start = Instant::now();
    concurrently(names, async |name| {
        let spec = json!({
            "name": name, "vhost": place.name, "type": "classic", "durable": true,
            "rabbitmqClusterReference": {"connectionSecret": {"name": "topology"}},
        });
        let queue = DynamicObject::new(name, &resource).data(json!({"spec": spec}));
        api.create(&PostParams::default(), &queue).await?;
        Ok(())
    })
    .await?;
    all_ready.await??;
    let took = start.elapsed();

    operator.stop().await?;
    place.clear(&api, true).await?;
    bare::delete_all(&place.amqp().await?.create_channel().await?, names).await?;
    Ok(took)
}

/// Creates the Secret with its connection, unless it exists. It needs this label.
async fn connect(place: &Place) -> Result<()> {
    let settings = RabbitmqSettings::from_urls(&place.amqp_url, None)?;
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": "topology", "labels": {"rabbitmq.com/topology-operator": "true"}},
        "stringData": {
            "uri": place.management_url,
            "username": settings.username, "password": settings.password.expose_secret(),
        },
    }))?;
    let api: Api<Secret> = Api::namespaced(place.client.clone(), &place.name);
    if api.get_opt("topology").await?.is_none() {
        api.create(&PostParams::default(), &secret).await?;
    }
    Ok(())
}

/// Starts the operator for this namespace, and waits until its controllers have started.
async fn operator(place: &Place) -> Result<Operator> {
    let program = std::env::var("NEIGHBOUR").map_err(|_| "NEIGHBOUR is not set: run make bench")?;
    let (address, log) = (free_address()?, place.log("bench-neighbour.log"));
    let mut command = Command::new(program);
    command
        .args(["--health-probe-bind-address", &address])
        .env("ENABLE_WEBHOOKS", "false")
        .env("OPERATOR_NAMESPACE", &place.name)
        .env("OPERATOR_SCOPE_NAMESPACE", &place.name);
    Operator::start(&mut command, address, &log, ("Starting workers", CONTROLLERS)).await
}

fn is_ready(queue: &DynamicObject) -> bool {
    let conditions = queue.data["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}
