//! References to a `RabbitmqCluster` of the RabbitMQ cluster operator, and to objects in
//! another namespace. The clusters are objects of the real kind, and the test writes
//! their status as that operator does. The broker behind them is real.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt};
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lockkeeper_api::Semaphore;
use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::world::{
    PATIENCE, World, eventually, has, has_reason, in_a_world, is_ready,
};
use serde_json::{Value, json};

use crate::operator::settings::CORRECTED;

const DEFINITION: &str = include_str!("rabbitmqcluster.yaml");
const ALLOWED: &str = "rabbitmq.com/topology-allowed-namespaces";

fn definitions(world: &World) -> Api<CustomResourceDefinition> {
    Api::all(world.client.clone())
}

/// Removes the kind, in case an earlier run has left it.
async fn remove_definition(world: &World) {
    let (api, name) = (definitions(world), "rabbitmqclusters.rabbitmq.com");
    let _ = api.delete(name, &DeleteParams::default()).await;
    eventually("the kind is gone", PATIENCE, async || api.get_opt(name).await.unwrap().is_none())
        .await;
}

async fn install_definition(world: &World) {
    let definition: CustomResourceDefinition = serde_yaml::from_str(DEFINITION).unwrap();
    let params = PatchParams::apply("test");
    definitions(world)
        .patch(&definition.name_any(), &params, &Patch::Apply(&definition))
        .await
        .unwrap();
    let clusters = clusters(world);
    eventually("the kind is served", PATIENCE, async || {
        clusters.list(&kube::api::ListParams::default()).await.is_ok()
    })
    .await;
}

fn clusters(world: &World) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("rabbitmq.com", "v1beta1", "RabbitmqCluster");
    let kind = ApiResource::from_gvk(&kind);
    Api::namespaced_with(world.client.clone(), &world.namespace, &kind)
}

/// Applies a cluster whose management API is the real broker's.
async fn cluster(world: &World, name: &str, annotations: &Value, spec: Value, status: Value) {
    let mut management = url::Url::parse(&variable("RABBITMQ_MANAGEMENT_URL")).unwrap();
    management.set_username("").unwrap();
    management.set_password(None).unwrap();
    let mut annotations = annotations.clone();
    annotations["rabbitmq.com/operator-connection-uri"] = management.as_str().into();
    let mut object = json!({
        "apiVersion": "rabbitmq.com/v1beta1", "kind": "RabbitmqCluster",
        "metadata": {"name": name, "annotations": annotations}, "spec": spec,
    });
    let (api, params) = (clusters(world), PatchParams::apply("test").force());
    api.patch(name, &params, &Patch::Apply(&object)).await.unwrap();
    object["metadata"] = json!({"name": name});
    object.as_object_mut().unwrap().remove("spec");
    object["status"] = status;
    api.patch_status(name, &params, &Patch::Apply(&object)).await.unwrap();
}

/// Returns the status that the cluster operator writes for a running cluster.
fn running(world: &World, name: &str) -> Value {
    let (secret, namespace) = (format!("{name}-default-user"), &world.namespace);
    json!({
        "binding": {"name": secret},
        "defaultUser": {
            "secretReference": {
                "keys": {"username": "username", "password": "password"},
                "name": secret, "namespace": namespace,
            },
            "serviceReference": {"name": name, "namespace": namespace},
        },
    })
}

/// Creates a default user's Secret as the cluster operator does, except for the host,
/// because names of Services do not resolve here.
async fn default_user(world: &World, name: &str) {
    let url = url::Url::parse(&world.amqp_url()).unwrap();
    let (user, password) = (url.username().to_owned(), url.password().unwrap().to_owned());
    let port = url.port().unwrap().to_string();
    let keys = [
        ("host", "127.0.0.1".to_owned()),
        ("port", port.clone()),
        ("provider", "rabbitmq".to_owned()),
        ("type", "rabbitmq".to_owned()),
        ("default_user.conf", format!("default_user = {user}\ndefault_pass = {password}\n")),
        ("connection_string", format!("amqp://{user}:{password}@127.0.0.1:{port}/")),
        ("username", user),
        ("password", password),
    ];
    world.secret(&format!("{name}-default-user"), &keys).await;
}

/// Applies a Semaphore with this broker.
async fn semaphore(world: &World, name: &str, reference: &str) {
    let spec = format!("{{rabbitmqClusterReference: {reference}, vhost: {}}}", world.vhost);
    world.apply::<Semaphore>(name, &spec).await.unwrap();
}

async fn until_said(world: &World, name: &str, reason: &str, says: &str) -> Semaphore {
    let is = |object: &Semaphore| has_reason(object, "Ready", reason);
    let said = world.until(name, reason, CORRECTED, is).await;
    let message = &said.status.as_ref().unwrap().conditions[0].message;
    assert!(has(&said, "Ready", "False") && message.contains(says), "{message}");
    // Whether the broker is reachable is unknown.
    assert!(has(&said, "BackendReachable", "Unknown"), "{said:?}");
    said
}

#[tokio::test]
async fn a_broker_is_found_by_its_rabbitmq_cluster_in_whatever_state_that_is() {
    in_a_world("clusters", async |world| {
        let operator = world.operator().await;
        remove_definition(&world).await;
        semaphore(&world, "deploy", "{name: rabbit}").await;
        until_said(&world, "deploy", "ClusterKindMissing", "install the RabbitMQ cluster operator")
            .await;
        install_definition(&world).await;
        until_said(&world, "deploy", "ClusterNotFound", "create it, or correct the reference")
            .await;

        cluster(&world, "rabbit", &json!({}), json!({"replicas": 1}), json!({})).await;
        until_said(&world, "deploy", "ClusterNotReady", "status.binding").await;
        cluster(&world, "rabbit", &json!({}), json!({"replicas": 1}), running(&world, "rabbit"))
            .await;
        until_said(&world, "deploy", "SecretNotFound", "rabbit-default-user").await;
        default_user(&world, "rabbit").await;
        let ready = world.until("deploy", "Ready", CORRECTED, is_ready::<Semaphore>).await;
        assert_eq!(world.queues().await, world.lock_queues("deploy", 1));
        // Over the management API of the annotation.
        assert!(ready.status.unwrap().backend.unwrap().starts_with("127.0.0.1:"));

        // Without nodes: reported, and not retried continuously.
        let stopped = json!({"replicas": 0});
        cluster(&world, "rabbit", &json!({}), stopped, running(&world, "rabbit")).await;
        let said = until_said(&world, "deploy", "ClusterScaledToZero", "has replicas").await;
        assert!(has(&said, "Reconciling", "True") && !has(&said, "Stalled", "True"));
        // A Semaphore that is deleted in the meantime does not wait for the cluster.
        semaphore(&world, "gone", "{name: rabbit}").await;
        until_said(&world, "gone", "ClusterScaledToZero", "").await;
        let api = world.api::<Semaphore>();
        api.delete("gone", &DeleteParams::default()).await.unwrap();
        eventually("it goes", PATIENCE, async || api.get_opt("gone").await.unwrap().is_none())
            .await;

        cluster(&world, "rabbit", &json!({}), json!({"replicas": 3}), running(&world, "rabbit"))
            .await;
        world.until("deploy", "Ready", CORRECTED, is_ready::<Semaphore>).await;
        // Nor for a cluster that is permanently gone. Its slots are removed over the last
        // connection, even if that takes several attempts.
        let connection = world.amqp().await;
        let mutex = format!("{}.deploy", world.namespace);
        let exclusive = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
        eventually("the test has the lock's admin mutex", PATIENCE, async || {
            let (name, arguments) = (mutex.as_str().into(), FieldTable::default());
            let channel = connection.create_channel().await.unwrap();
            channel.queue_declare(name, exclusive, arguments).await.is_ok()
        })
        .await;
        clusters(&world).delete("rabbit", &DeleteParams::default()).await.unwrap();
        eventually("the operator has seen it", PATIENCE, async || {
            let object = api.get("deploy").await.unwrap();
            has_reason(&object, "Ready", "ClusterNotFound")
        })
        .await;
        api.delete("deploy", &DeleteParams::default()).await.unwrap();
        let busy = |object: &Semaphore| has_reason(object, "Ready", "AdminMutexBusy");
        world.until("deploy", "there after an attempt", PATIENCE, busy).await;
        connection.close(200, "done".into()).await.unwrap();
        eventually("it goes", PATIENCE, async || api.get_opt("deploy").await.unwrap().is_none())
            .await;
        assert!(world.queues().await.is_empty(), "its slots went over the open connection");
        crate::operator::settings::no_password_shows(&world, &operator.logged()).await;
        remove_definition(&world).await;
    })
    .await;
}

#[tokio::test]
async fn a_broker_is_named_in_one_way_and_never_in_two_or_none() {
    in_a_world("one-way", async |world| {
        for reference in ["{name: a, connectionSecret: {name: b}}", "{namespace: c}", "{}"] {
            let spec = format!("{{rabbitmqClusterReference: {reference}}}");
            let refused = world.apply::<Semaphore>("deploy", &spec).await.unwrap_err();
            let says = "set exactly one of `name` (a RabbitmqCluster) and `connectionSecret`";
            assert!(refused.to_string().contains(says), "{reference}: {refused}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_secret_of_another_namespace_is_used_only_as_long_as_it_lets_this_one_in() {
    // A world's operator only watches its own namespace, but reads Secrets anywhere.
    in_a_world("tenant", async |tenant| {
        let mut owner = tenant.clone();
        owner.namespace = "default".to_owned();
        let name = format!("shared-{}", tenant.namespace);
        let management = variable("RABBITMQ_MANAGEMENT_URL");
        owner.secret(&name, &[("amqpUri", tenant.amqp_url()), ("managementUri", management)]).await;
        let secrets: Api<k8s_openapi::api::core::v1::Secret> =
            Api::namespaced(owner.client.clone(), "default");
        let allow = async |namespaces: &str| {
            let metadata = json!({"metadata": {"annotations": {ALLOWED: namespaces}}});
            secrets.patch(&name, &PatchParams::default(), &Patch::Merge(metadata)).await.unwrap();
        };
        let _operator = tenant.operator().await;
        let reference = format!("{{namespace: default, connectionSecret: {{name: {name}}}}}");
        semaphore(&tenant, "deploy", &reference).await;
        let said = until_said(&tenant, "deploy", "NotAllowed", ALLOWED).await;
        assert!(has(&said, "Stalled", "True"), "{said:?}");
        assert!(tenant.queues().await.is_empty(), "nothing was made");

        allow(&format!("others, {}-not", tenant.namespace)).await;
        semaphore(&tenant, "second", &reference).await;
        until_said(&tenant, "second", "NotAllowed", ALLOWED).await;
        // Reconciled again without a change here.
        allow(&format!("others, {}", tenant.namespace)).await;
        tenant.until("deploy", "Ready", CORRECTED, is_ready::<Semaphore>).await;
        tenant.until("second", "Ready", CORRECTED, is_ready::<Semaphore>).await;
        // Revoked: even the open connection is not used any more.
        allow("others").await;
        until_said(&tenant, "deploy", "NotAllowed", ALLOWED).await;
        allow("*").await;
        tenant.until("deploy", "Ready", CORRECTED, is_ready::<Semaphore>).await;
        secrets.delete(&name, &DeleteParams::default()).await.unwrap();
    })
    .await;
}
