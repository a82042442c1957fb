//! Objects with the longest names that Kubernetes takes.

use kube::api::ListParams;
use lockkeeper_api::Semaphore;
use lockkeeper_testkit::world::{PATIENCE, eventually, in_a_world};

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
