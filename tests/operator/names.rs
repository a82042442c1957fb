//! Objects with the longest names that Kubernetes takes, and the name under which the
//! operator writes.

use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_testkit::world::{PATIENCE, eventually, in_a_world};
use serde_json::json;

#[tokio::test]
async fn an_object_with_the_longest_name_can_be_scaled_and_has_events() {
    in_a_world("long-names", async |world| {
        let _operator = world.operator().await;
        let name = format!("{}.a", "a".repeat(251));
        let target = format!("{}.long", world.namespace);
        world.semaphore(&name, &format!("slots: 2, lockName: {target}")).await;
        world.queue(&name, &format!("bound: 2, queueName: {target}")).await;
        let semaphore = world.semaphore_ready(&name).await;

        // The API server parses the selector in the way that an autoscaler does.
        let selector = semaphore.status.unwrap().selector.unwrap();
        assert!(selector.starts_with("lockkeeper.dev/semaphore=aaa"), "{selector}");
        let listed = world.api::<Semaphore>().list(&ListParams::default().labels(&selector)).await;
        assert_eq!(listed.map(|list| list.items.len()).unwrap(), 0);

        eventually("both objects have an event", PATIENCE, async || {
            world.events(&name).await.len() >= 2
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn every_write_of_the_operator_names_it_as_the_field_manager() {
    in_a_world("managers", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 2").await;
        world.semaphore_ready("deploy").await;
        // Keeps the object after the operator's last write.
        let api = world.api::<Semaphore>();
        let params =
            PatchParams { field_manager: Some("test".to_owned()), ..PatchParams::default() };
        let finalizers = |all: serde_json::Value| {
            Patch::Merge(json!({"metadata": {"finalizers": all, "annotations": {
                "lockkeeper.dev/revoke": "slot-1",
            }}}))
        };
        let both = json!(["lockkeeper.dev/cleanup", "test.example/last"]);
        api.patch("deploy", &params, &finalizers(both)).await.unwrap();
        eventually("the request to revoke is taken off", PATIENCE, async || {
            let object = api.get("deploy").await.unwrap();
            !object.annotations().contains_key("lockkeeper.dev/revoke")
        })
        .await;
        api.delete("deploy", &DeleteParams::default()).await.unwrap();
        eventually("the operator's finalizer is removed", PATIENCE, async || {
            api.get("deploy").await.unwrap().finalizers() == ["test.example/last"]
        })
        .await;
        let managers = |object: &Semaphore| -> Vec<String> {
            let entries = object.managed_fields().iter();
            entries.filter_map(|entry| entry.manager.clone()).collect()
        };
        let found = managers(&api.get("deploy").await.unwrap());
        assert!(found.contains(&"lockkeeper".to_owned()), "{found:?}");
        assert!(found.iter().all(|name| name == "lockkeeper" || name == "test"), "{found:?}");

        // The operator's own write of the finalizer, which is gone from the first object.
        world.queue("frames", "bound: 1").await;
        world.queue_ready("frames").await;
        let queue = world.api::<PressureQueue>().get("frames").await.unwrap();
        let of_finalizer: Vec<_> = queue
            .managed_fields()
            .iter()
            .filter(|entry| json!(entry.fields_v1).to_string().contains("f:finalizers"))
            .map(|entry| entry.manager.clone())
            .collect();
        assert_eq!(of_finalizer, [Some("lockkeeper".to_owned())]);
        let none = json!({"metadata": {"finalizers": null}});
        api.patch("deploy", &params, &Patch::Merge(none)).await.unwrap();
    })
    .await;
}
