//! Resizing while a node is down.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_plan::naming::{LockName, Protocol};
use lockkeeper_plan::semaphore::{DesiredSlots, sweep_to};
use lockkeeper_semaphore::{Broker, BrokerError, BrokerOptions, Expected};
use lockkeeper_testkit::cluster::Cluster;
use lockkeeper_testkit::protocols::{name, with_protocols};
use tokio_util::sync::CancellationToken;

use crate::clusters::{broker, resize};

with_protocols! {
    slots {
        a_lock_whose_records_are_all_on_a_node_that_is_down_is_not_approved,
    }
}

/// Returns the slots whose queues the cluster knows.
async fn existing(cluster: &Cluster, lock: &LockName) -> BTreeSet<u32> {
    let queues = cluster.vhost.queues().await;
    queues.iter().filter_map(|queue| lock.slot_of_slot_queue(queue)).collect()
}

/// Without the management API, the slots above the live ones look as if there were none.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_removed_while_it_is_unknown_which_slots_exist() {
    let cluster = Cluster::whole().await;
    resize(&cluster, 1, &name(), DesiredSlots::new(3)).await;
    resize(&cluster, 2, &name(), DesiredSlots::new(5)).await;
    cluster.lose(2).await;
    let settings = RabbitmqSettings { management: None, ..cluster.settings(1) };
    let alone = Broker::new(settings, BrokerOptions::default());
    let counted = alone.find_highest_slot(&name(), 16).await;
    assert!(matches!(counted, Err(BrokerError::NodeDown { .. })), "{counted:?}");
    let (desired, cancel) = (DesiredSlots::new(1), CancellationToken::new());
    let removed = alone.converge(&name(), desired, sweep_to(desired, 3), true, &cancel).await;
    assert!(matches!(removed, Err(BrokerError::NodeDown { .. })), "{removed:?}");
    cluster.regain(2).await;
    assert_eq!(existing(&cluster, &name()).await, (1..=5).collect());
    alone.converge(&name(), desired, sweep_to(desired, 5), true, &cancel).await.unwrap();
    assert_eq!(existing(&cluster, &name()).await, BTreeSet::from([1]));
}

/// They share the administrator's connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_succeeds_while_one_of_a_lock_whose_node_is_down_fails() {
    let cluster = Cluster::whole().await;
    let sick = LockName::new("ci.sick").unwrap();
    resize(&cluster, 2, &sick, DesiredSlots::new(3)).await;
    resize(&cluster, 1, &name(), DesiredSlots::new(1)).await;
    cluster.lose(2).await;
    let broker = broker(&cluster, 1);
    let cancel = CancellationToken::new();
    let change = |lock: LockName, slots| {
        let (broker, cancel) = (&broker, &cancel);
        async move {
            let desired = DesiredSlots::new(slots);
            broker.converge(&lock, desired, sweep_to(desired, 5), true, cancel).await
        }
    };
    let healthy = async {
        for slots in [5, 2, 4, 1, 3] {
            change(name(), slots).await.unwrap();
        }
    };
    let (failed, ()) = futures::join!(change(sick.clone(), 5), healthy);
    assert!(matches!(failed, Err(BrokerError::NodeDown { .. })), "{failed:?}");
    assert_eq!(existing(&cluster, &name()).await, (1..=3).collect());
    cluster.regain(2).await;
    change(sick.clone(), 5).await.unwrap();
    assert_eq!(existing(&cluster, &sick).await, (1..=5).collect());
}

/// No client can acquire it, although its slots are on a live node.
async fn a_lock_whose_records_are_all_on_a_node_that_is_down_is_not_approved(protocol: Protocol) {
    let cluster = Cluster::whole().await;
    let deploy = name().with_protocol(protocol);
    let one = DesiredSlots::new(1);
    resize(&cluster, 1, &deploy, one).await;
    resize(&cluster, 2, &deploy, DesiredSlots { records: Some(Duration::ZERO), ..one }).await;
    let cancel = CancellationToken::new();
    let check = async || broker(&cluster, 1).check(&deploy, Expected::default(), &cancel).await;
    assert_eq!(check().await, Ok(Vec::new()));
    cluster.lose(2).await;
    let checked = check().await;
    assert!(matches!(checked, Err(BrokerError::NodeDown { .. })), "{checked:?}");
    cluster.regain(2).await;
    assert_eq!(check().await, Ok(Vec::new()));
}
