//! Watched objects: one operator for several namespaces and no others, and only objects
//! with the requested labels.

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::world::{
    Kind, PATIENCE, World, eventually, has_reason, in_a_world, is_ready,
};
use serde_json::{Value, json};

use crate::operator::owners::next_second;
use crate::operator::rights;

/// Returns the same world in another namespace, which [`leave`] deletes.
async fn beside(world: &World, suffix: &str) -> World {
    let namespace = format!("{}-{suffix}", world.namespace);
    let mut object = Namespace::default();
    object.metadata.name = Some(namespace.clone());
    Api::all(world.client.clone()).create(&PostParams::default(), &object).await.unwrap();
    let mut beside = world.clone();
    beside.namespace = namespace;
    beside
}

async fn leave(world: &World) {
    world.delete_all::<Semaphore>().await;
    world.delete_all::<PressureQueue>().await;
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    namespaces.delete(&world.namespace, &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn one_operator_serves_several_namespaces_and_no_others() {
    in_a_world("several", async |world| {
        let second = beside(&world, "second").await;
        let third = beside(&world, "third").await;
        let spec = "{slots: 2, lockName: NAME}";
        let shared = format!("{}.shared", world.namespace);
        for place in [&world, &second, &third] {
            place.apply::<Semaphore>("mine", "{slots: 2}").await.unwrap();
            place.apply::<PressureQueue>("mine", "{bound: 2}").await.unwrap();
        }
        world.apply::<Semaphore>("shared", &spec.replace("NAME", &shared)).await.unwrap();

        let (amqp, redis) = (world.amqp_url(), world.redis_url());
        let also = format!("{},{}", second.namespace, world.namespace);
        let arguments = ["--watch-namespace", &also, "--amqp-url", &amqp, "--redis-url", &redis];
        let rhythm = ["--allow-any-name", "--observe-interval", "1s", "--drift-interval", "3s"];
        let arguments: Vec<&str> = arguments.into_iter().chain(rhythm).collect();
        let _operator = world.operator_with(&arguments).await;
        for place in [&world, &second] {
            place.semaphore_ready("mine").await;
            place.queue_ready("mine").await;
        }
        // Later objects too. Objects conflict across namespaces.
        world.semaphore_ready("shared").await;
        next_second::<Semaphore>(&world, "shared").await;
        second.apply::<Semaphore>("shared", &spec.replace("NAME", &shared)).await.unwrap();
        let younger = second
            .until("shared", "refused", PATIENCE, |s: &Semaphore| {
                has_reason(s, "Stalled", "Conflict")
            })
            .await;
        let (_, _, message) = younger.condition("Stalled").unwrap();
        assert!(message.contains(&format!("{}/shared", world.namespace)), "{message}");

        let unseen = third.api::<Semaphore>().get("mine").await.unwrap();
        assert!(unseen.status.is_none() && unseen.finalizers().is_empty(), "{unseen:?}");
        for place in [&second, &third] {
            leave(place).await;
        }
    })
    .await;
}

#[tokio::test]
async fn only_objects_with_matching_labels_are_watched() {
    in_a_world("labels", async |world| {
        let label = async |name: &str, value: &str| {
            let patch = serde_json::json!({"metadata": {"labels": {"stage": value}}});
            let api = world.api::<Semaphore>();
            api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        };
        for (name, stage) in [("prod", "prod"), ("test", "test")] {
            world.semaphore(name, "slots: 1").await;
            label(name, stage).await;
        }
        let _operator = world
            .operator_with(&["--watch-label-selector", "stage!=test", "--drift-interval", "3s"])
            .await;
        world.semaphore_ready("prod").await;
        let unseen = world.api::<Semaphore>().get("test").await.unwrap();
        assert!(unseen.status.is_none() && unseen.finalizers().is_empty(), "{unseen:?}");
        label("test", "prod").await;
        let seen = async || world.api::<Semaphore>().get("test").await.is_ok_and(|s| is_ready(&s));
        eventually("it is watched once its label fits", PATIENCE, seen).await;
    })
    .await;
}

/// Returns a kubeconfig that acts as this user.
fn kubeconfig_as(user: &str) -> String {
    let text = std::fs::read_to_string(variable("KUBECONFIG")).unwrap();
    let mut config: Value = serde_yaml::from_str(&text).unwrap();
    config["users"][0]["user"]["as"] = user.into();
    let file = format!("{}/kubeconfig-{user}", env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(&file, config.to_string()).unwrap();
    file
}

/// Returns the rules of the chart's Role in a watched namespace.
fn rules() -> Value {
    json!([
        {"apiGroups": ["lockkeeper.dev"], "resources": ["*"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]},
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
    ])
}

#[tokio::test]
async fn a_namespace_without_rights_affects_no_other_and_is_served_once_it_has_them() {
    in_a_world("forbidden", async |world| {
        let second = beside(&world, "second").await;
        let user = format!("operator-of-{}", world.namespace);
        rights::give(&world, "operator", rules(), vec![rights::user(&user)]).await;
        second.secret("rabbit", &[("amqpUri", world.amqp_url())]).await;
        for place in [&world, &second] {
            place.semaphore("deploy", "slots: 1").await;
        }
        let kubeconfig = kubeconfig_as(&user);
        let operator =
            world.operator_by(&kubeconfig, &["--watch-namespace", &second.namespace]).await;
        operator.until_ready().await;
        let ready = reqwest::get(format!("{}/readyz", operator.http())).await.unwrap();
        assert!(ready.status().is_success(), "{}", ready.text().await.unwrap());
        world.semaphore_ready("deploy").await;
        let failures = format!(
            "lockkeeper_watch_failures_total{{kind=\"Semaphore\",namespace=\"{}\"}}",
            second.namespace
        );
        let metrics = operator.metrics().await;
        assert!(metrics.contains(&failures), "{metrics}");
        assert!(operator.logged().contains(&second.namespace));

        rights::give(&second, "operator", rules(), vec![rights::user(&user)]).await;
        second.semaphore_ready("deploy").await;
        leave(&second).await;
        std::fs::remove_file(&kubeconfig).unwrap();
    })
    .await;
}

#[tokio::test]
async fn an_object_whose_labels_no_longer_match_keeps_its_slots_and_loses_its_finalizer() {
    in_a_world("leaving", async |world| {
        let api = world.api::<Semaphore>();
        let label = async |stage: &str| {
            let patch = json!({"metadata": {"labels": {"stage": stage}}});
            api.patch("deploy", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        };
        let has_finalizer = async |expected: bool| {
            eventually(&format!("the finalizer is there: {expected}"), PATIENCE, async || {
                api.get("deploy").await.unwrap().finalizers().is_empty() != expected
            })
            .await;
        };
        let _operator = world
            .operator_with(&["--watch-label-selector", "stage!=test", "--drift-interval", "3s"])
            .await;
        world.semaphore("deploy", "slots: 2").await;
        world.semaphore_ready("deploy").await;
        has_finalizer(true).await;
        let queues = world.queues().await;

        label("test").await;
        has_finalizer(false).await;
        assert_eq!(world.queues().await, queues);
        eventually("an event says so", PATIENCE, async || {
            world.events("deploy").await.iter().any(|(reason, ..)| reason == "NoLongerWatched")
        })
        .await;
        label("prod").await;
        has_finalizer(true).await;
        label("test").await;
        has_finalizer(false).await;
        api.delete("deploy", &DeleteParams::default()).await.unwrap();
        assert!(api.get_opt("deploy").await.unwrap().is_none(), "nothing holds it");
        assert_eq!(world.queues().await, queues, "its server is left as it is");
    })
    .await;
}

#[tokio::test]
async fn an_unreadable_object_affects_no_other_object_and_is_reported() {
    in_a_world("unreadable", async |world| {
        let mut operator = world.operator().await;
        for name in ["odd", "fine"] {
            world.semaphore(name, "slots: 1").await;
            world.semaphore_ready(name).await;
        }
        // The API server accepts this time, which no program can parse.
        let conditions = async |conditions: Value| {
            let patch = Patch::Merge(json!({"status": {"conditions": conditions}}));
            let kind = ApiResource::erase::<Semaphore>(&());
            let api: Api<DynamicObject> =
                Api::namespaced_with(world.client.clone(), &world.namespace, &kind);
            api.patch_status("odd", &PatchParams::default(), &patch).await.unwrap();
        };
        conditions(json!([{
            "type": "Odd", "status": "True", "reason": "Odd", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00+99:99",
        }]))
        .await;
        let is_reported = async || {
            let events = world.events("odd").await;
            events
                .iter()
                .any(|(reason, note, _)| reason == "Unreadable" && note.contains("leaves it"))
        };
        eventually("an event says so", PATIENCE, is_reported).await;
        let counted = format!(
            "lockkeeper_unreadable_objects{{kind=\"Semaphore\",namespace=\"{}\"}} 1",
            world.namespace
        );
        assert!(operator.metrics().await.contains(&counted));
        world.semaphore("fine", "slots: 2").await;
        world.semaphore_ready("fine").await;

        operator.kill().await;
        let operator = world.operator().await;
        world.semaphore("fine", "slots: 3").await;
        world.semaphore_ready("fine").await;
        assert!(operator.metrics().await.contains(&counted));
        conditions(json!([])).await;
        world.semaphore_ready("odd").await;
        assert!(!operator.metrics().await.contains(&counted));
    })
    .await;
}
