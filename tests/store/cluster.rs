//! A Redis Cluster of three nodes: queues with a hash tag work on any node. Others are
//! rejected before anything is written.

use std::time::Duration;

use lockkeeper_plan::ErrorClass;
use lockkeeper_plan::connection::RedisSettings;
use lockkeeper_plan::naming::QueueName;
use lockkeeper_plan::pressure_queue::QueueEffect;
use lockkeeper_plan::pressure_queue::doctor::{Against, Effort, Remedy};
use lockkeeper_pressure::{
    Applied, Deletion, Queue, QueueError, QueueOptions, StoreError, TakenRoles, Wait,
};
use lockkeeper_testkit::redis::{SOON, connect, in_time};
use lockkeeper_testkit::redis_cluster::{Cluster, SLOTS, queue_on};

const CREATE: QueueEffect = QueueEffect::Create { bound: 3 };

#[tokio::test]
async fn queues_on_every_node_work_through_one_store_at_the_same_time() {
    let cluster = Cluster::start().await;
    let store = cluster.store(0);
    let queues: Vec<QueueName> = (0..SLOTS.len()).map(|node| queue_on(node, "jobs")).collect();
    let work = queues.iter().map(|queue| async {
        assert_eq!(store.apply(queue, &CREATE).await.unwrap(), Applied::Done);
        let bound = QueueEffect::SetBound { bound: 7 };
        assert_eq!(store.apply(queue, &bound).await.unwrap(), Applied::Done);
        assert_eq!(store.observe(queue).await.unwrap().bound, Some(7));
        assert_eq!(store.apply(queue, &QueueEffect::Close).await.unwrap(), Applied::Done);
    });
    futures::future::join_all(work).await;
    for (node, keys) in cluster.keys().await.iter().enumerate() {
        let own = queues[node].data();
        assert!(!keys.is_empty() && keys.iter().all(|key| key.starts_with(&own)), "{keys:?}");
        // The slot as computed by the cluster.
        let slot: u16 = cluster.ask(node, &["CLUSTER", "KEYSLOT", &own]).await;
        assert_eq!(queues[node].cluster_slot(), Some(slot));
    }
    for queue in &queues {
        assert_eq!(store.delete(queue, TakenRoles::Wait).await.unwrap(), Deletion::Gone);
    }
    assert!(cluster.keys().await.concat().is_empty());
    // One connection to each required node.
    for node in 0..SLOTS.len() {
        let list: String = cluster.ask(node, &["CLIENT", "LIST"]).await;
        let ours = list.matches("name=lockkeeper/the-operator").count();
        assert_eq!(ours, 1, "{list}");
    }
}

#[tokio::test]
async fn a_queue_without_a_hash_tag_is_refused_and_nothing_is_written() {
    let cluster = Cluster::start().await;
    let plain = QueueName::new("p", "jobs").unwrap();
    for has_seen_the_cluster in [false, true] {
        for node in 0..SLOTS.len() {
            let store = cluster.store(node);
            if has_seen_the_cluster {
                store.observe(&queue_on((node + 1) % 3, "jobs")).await.unwrap();
            }
            let err = store.apply(&plain, &CREATE).await.unwrap_err();
            assert!(matches!(err, StoreError::ClusterUnsafe { .. }), "{err:?}");
            assert_eq!(err.class(), ErrorClass::Invalid);
            assert!(err.to_string().contains("in braces, {name}"), "{err}");
        }
    }
    assert!(cluster.keys().await.concat().is_empty());
}

#[tokio::test]
async fn a_slot_that_moves_is_waited_for_and_found_on_its_new_node() {
    let cluster = Cluster::start().await;
    let store = cluster.store(0);
    let queue = queue_on(0, "moving");
    assert_eq!(store.apply(&queue, &CREATE).await.unwrap(), Applied::Done);
    let change = tokio::sync::OnceCell::new();
    cluster
        .move_slot(&queue, 0, 1, async || {
            let (store, queue) = (store.clone(), queue.clone());
            let bound = QueueEffect::SetBound { bound: 9 };
            let task = tokio::spawn(async move { store.apply(&queue, &bound).await });
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert!(!task.is_finished(), "it waits while the slot moves");
            change.set(task).unwrap();
        })
        .await;
    let change = change.into_inner().unwrap();
    assert_eq!(change.await.unwrap().unwrap(), Applied::Done);
    assert_eq!(store.observe(&queue).await.unwrap().bound, Some(9));
    assert!(cluster.ask::<bool>(1, &["EXISTS", &format!("{}:bound", queue.data())]).await);
    assert_eq!(store.delete(&queue, TakenRoles::Wait).await.unwrap(), Deletion::Gone);
}

#[tokio::test]
async fn programs_put_and_get_wait_and_are_woken_wherever_the_queue_lies_and_moves() {
    let cluster = Cluster::start().await;
    let name = queue_on(1, "frames");
    let ours = |node: usize, id: &str| {
        let settings = RedisSettings::from_url(&cluster.0[node].url()).unwrap();
        let options = QueueOptions::default().with_client_id(id);
        Queue::new(settings, name.clone(), options)
    };
    let (producer, consumer) = (ours(0, "producer"), ours(2, "consumer"));
    producer.create(2).await.unwrap();
    let putting = async {
        for number in 0..50_u32 {
            producer.put(number.to_string()).await.unwrap();
        }
    };
    let getting = async {
        for number in 0..50_u32 {
            assert_eq!(consumer.get().await.unwrap(), number.to_string().into_bytes());
        }
    };
    tokio::join!(putting, getting);

    let waiting = tokio::spawn({
        let consumer = consumer.clone();
        async move { consumer.get().await }
    });
    // On its element and on the end of the queue.
    in_time("it waits on the second node", async || {
        let list: String = cluster.ask(1, &["CLIENT", "LIST"]).await;
        let is_waiting =
            |line: &&str| line.contains("name=lockkeeper/consumer") && line.contains("flags=b");
        list.lines().filter(is_waiting).count() == 2
    })
    .await;
    cluster.move_slot(&name, 1, 2, async || {}).await;
    producer.put("moved").await.unwrap();
    let got = tokio::time::timeout(SOON, waiting).await.expect("it is woken").unwrap();
    assert_eq!(got.unwrap(), b"moved");
    assert!(cluster.ask::<bool>(2, &["EXISTS", &format!("{}:bound", name.data())]).await);
    producer.close(Wait::Forever).await.unwrap();
    assert_eq!(consumer.get().await, Err(QueueError::Closed));
    consumer.delete(Wait::Forever).await.unwrap();
    assert!(cluster.keys().await.concat().is_empty());
}

#[tokio::test]
async fn a_doctor_gets_the_connected_clients_from_the_node_that_has_the_queue() {
    let cluster = Cluster::start().await;
    let store = cluster.store(0);
    let mut clients = Vec::new();
    for node in 0..SLOTS.len() {
        let mut client = connect(&cluster.0[node].url()).await;
        let name = format!("client-of-{node}");
        let mut command = redis::cmd("CLIENT");
        let () = command.arg(&["SETNAME", &name]).query_async(&mut client).await.unwrap();
        clients.push(client);
    }
    for (node, mut client) in clients.into_iter().enumerate() {
        let queue = queue_on(node, "jobs");
        assert_eq!(store.apply(&queue, &CREATE).await.unwrap(), Applied::Done);
        let data = queue.data();
        let mut take = redis::cmd("RPOP");
        let _: String =
            take.arg(format!("{data}:producer_free")).query_async(&mut client).await.unwrap();
        let mut set = redis::cmd("SET");
        let () =
            set.arg(format!("{data}:producer")).arg("x").query_async(&mut client).await.unwrap();
        let mut doctor = store.doctor(queue.clone(), Duration::ZERO, Duration::ZERO);
        let mut look = async |at| {
            let seen = store.observe(&queue).await.unwrap();
            let at = Duration::from_secs(at);
            let diagnosis = doctor.look(&store, seen, at, Effort::Full).await.unwrap();
            let all = [diagnosis.damage, diagnosis.at_work, diagnosis.waiting].concat();
            all.into_iter().next().unwrap().remedy
        };
        look(0).await;
        let Remedy::Wait(Against::Connected(listed)) = look(1).await else {
            panic!("its client is connected")
        };
        let names: Vec<&str> = listed.iter().map(|connection| connection.name.as_str()).collect();
        for other in 0..SLOTS.len() {
            assert_eq!(names.contains(&format!("client-of-{other}").as_str()), other == node);
        }
    }
}

#[tokio::test]
async fn another_node_is_asked_where_the_one_of_the_settings_is_gone() {
    let mut cluster = Cluster::start().await;
    let store = cluster.store(0);
    let queue = queue_on(1, "jobs");
    assert_eq!(store.apply(&queue, &CREATE).await.unwrap(), Applied::Done);
    cluster.0[0].kill();
    assert_eq!(store.observe(&queue).await.unwrap().bound, Some(3));
    // No reachable node knows the third node's slots, except the second.
    let other = queue_on(2, "jobs");
    assert_eq!(store.observe(&other).await.unwrap().bound, None);
    assert_eq!(store.apply(&other, &CREATE).await.unwrap(), Applied::Done);
}
