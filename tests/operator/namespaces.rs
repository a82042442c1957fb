//! Which objects are watched: of several namespaces by one operator, of none
//! beside them, and only those with the labels that were asked for.

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use lockkeeper::api::{PressureQueue, Semaphore};

use crate::owners::next_second;
use crate::world::{Kind, PATIENCE, World, eventually, has_reason, in_a_world, is_ready};

/// The same world in another namespace, which [`leave`] deletes.
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
async fn one_operator_serves_several_namespaces_and_none_beside_them() {
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
        // What comes later, too; and one object knows of another's in the other namespace.
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
async fn only_objects_with_the_wanted_labels_are_watched() {
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
