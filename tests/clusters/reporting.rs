//! What a cluster in trouble is reported as: the node that is down, and a partition.

use std::time::Duration;

use lockkeeper_plan::semaphore::DesiredSlots;
use lockkeeper_semaphore::{Broker, BrokerOptions, Risk, Risks};
use lockkeeper_testkit::cluster::Cluster;
use lockkeeper_testkit::protocols::name;
use lockkeeper_testkit::rabbitmq::eventually;
use tokio_util::sync::CancellationToken;

use crate::clusters::{broker, first, lock, resize};

/// Mnesia's refusals name it, and Khepri's do not.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_about_a_node_that_is_down_names_the_node() {
    let cluster = Cluster::whole().await;
    resize(&cluster, 2, &name(), DesiredSlots::new(1)).await;
    cluster.lose(2).await;
    let node = cluster.down().await;
    let (desired, cancel) = (DesiredSlots::new(1), CancellationToken::new());
    let broker = broker(&cluster, 1);
    let changed = broker.converge(&name(), desired, 17, true, &cancel).await.unwrap_err();
    assert_eq!(changed.reason(), "BrokerNodeDown");
    assert!(changed.to_string().contains(&node), "{changed} without {node}");
    let acquired = lock(&cluster, &name()).try_acquire(&first()).await.unwrap_err();
    assert!(acquired.to_string().contains(&node), "{acquired} without {node}");
    cluster.regain(2).await;
}

/// Only Mnesia has this state: two sides that have both gone on and are connected again. A
/// node that hung and resumed can be in it too, whatever the strategy for partitions.
#[tokio::test(flavor = "multi_thread")]
async fn a_partitioned_cluster_is_reported_until_it_is_whole() {
    let cluster = Cluster::whole().await;
    resize(&cluster, 1, &name(), DesiredSlots::new(1)).await;
    let options = BrokerOptions::default().with_list_interval(Duration::ZERO);
    let broker = Broker::new(cluster.settings(1), options);
    let found = async || broker.risks(&name()).await.map(|Risks { found, .. }| found);
    assert_eq!(found().await, Some(Vec::new()));
    cluster.ignore_partitions(true).await;
    cluster.part(3).await;
    let node = cluster.down().await;
    if cluster.has_khepri() {
        cluster.join(3).await;
    } else {
        let reported = eventually("the partition is reported", async || {
            let is_of = |risk: &Risk| {
                let Risk::Partitioned { node: this, from } = risk else { return false };
                *this == node || from.contains(&node)
            };
            found().await.is_some_and(|found| found.iter().any(is_of))
        });
        tokio::join!(cluster.join(3), reported);
    }
    cluster.ignore_partitions(false).await;
    eventually("it is whole again", async || found().await == Some(Vec::new())).await;
}
