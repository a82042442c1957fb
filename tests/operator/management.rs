//! A management API in a tenant's Secret that gives wrong or endless answers.

use std::collections::BTreeSet;

use kube::api::DeleteParams;
use lockkeeper_api::Semaphore;
use lockkeeper_testkit::environment::peak;
use lockkeeper_testkit::management_proxy::{Fault, ManagementProxy};
use lockkeeper_testkit::rabbitmq::Vhost;
use lockkeeper_testkit::world::{PATIENCE, World, eventually, in_a_world};

use crate::operator::holders::client::Client;

/// Maximum memory in MiB that an answer may cost.
const MOST: u64 = 16;

/// Adopts a lock with far more slots than desired, and deletes it.
async fn adopt_and_delete(world: &World, client: &Client, name: &str) {
    let prefix = format!("{}.{name}-", world.namespace);
    for slot in 1..=60 {
        client.declare_slot(&format!("{prefix}{slot}-A")).await;
    }
    world.semaphore(name, "slots: 5").await;
    world.semaphore_ready(name).await;
    let of_the_lock = async || {
        let queues = world.queues().await;
        queues.into_iter().filter(|queue| queue.starts_with(&prefix)).collect::<BTreeSet<_>>()
    };
    assert_eq!(of_the_lock().await, world.lock_queues(name, 5), "{name}");
    world.api::<Semaphore>().delete(name, &DeleteParams::default()).await.unwrap();
    eventually("the lock is gone", PATIENCE, async || of_the_lock().await.is_empty()).await;
}

#[tokio::test]
async fn an_operator_behind_a_faulty_management_api_stays_small_and_exact() {
    in_a_world("faulty-api", async |world| {
        let (api, other) = (ManagementProxy::start().await, Vhost::create().await);
        let uris = [("amqpUri", world.amqp_url()), ("managementUri", api.url.clone())];
        world.secret("rabbit", &uris).await;
        let client = Client::connect(&world).await;
        let operator = world.operator().await;
        world.semaphore("steady", "slots: 2").await;
        adopt_and_delete(&world, &client, "first").await;
        let before = peak(operator.pid());
        let wrong =
            [Fault::Answer(404), Fault::Answer(500), Fault::OtherBroker(other.name.clone())];
        for (n, fault) in wrong.into_iter().chain([Fault::Endless]).enumerate() {
            api.suffer(fault);
            adopt_and_delete(&world, &client, &format!("lock-{n}")).await;
            api.until_met(3).await;
        }
        let after = peak(operator.pid());
        assert!(after - before <= MOST, "from {before} to {after} MiB");
        world.semaphore_ready("steady").await;
    })
    .await;
}
