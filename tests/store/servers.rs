//! The effects of a server on a queue and on the store: a restart, a memory limit, being
//! a replica or part of a cluster. Each test has a private server.

use std::time::Duration;

use lockkeeper_plan::ErrorClass;
use lockkeeper_plan::connection::RedisSettings;
use lockkeeper_plan::naming::QueueName;
use lockkeeper_plan::pressure_queue::QueueEffect;
use lockkeeper_pressure::{Applied, Deletion, Store, StoreError, StoreOptions, TakenRoles};
use lockkeeper_testkit::environment::signal;
use lockkeeper_testkit::redis::{AclUser, PrivateRedis, TestQueue, connect, eventually, hang};

const CREATE: QueueEffect = QueueEffect::Create { bound: 3 };

fn store(server: &PrivateRedis) -> Store {
    let settings = RedisSettings::from_url(&server.url()).unwrap();
    Store::new(settings, StoreOptions::new("the operator"))
}

#[tokio::test]
async fn a_restarted_server_is_found_again_and_has_another_run_id() {
    let mut server = PrivateRedis::start(&[]).await;
    let queue = QueueName::new("p", "q").unwrap();
    let store = store(&server);
    let before = store.identity().await.unwrap();
    assert_eq!(before.cluster_enabled, Some(false));
    assert_eq!(before.role.as_deref(), Some("master"));
    assert_eq!(before.maxmemory_policy.as_deref(), Some("noeviction"));
    assert!(before.version.unwrap().contains('.'));
    store.apply(&queue, &CREATE).await.unwrap();

    server.kill();
    let err = store.observe(&queue).await.unwrap_err();
    assert!(matches!(err, StoreError::Unreachable { .. }), "{err:?}");
    server.restart().await;
    // The first observation after the restart succeeds, on a new connection.
    let seen = store.observe(&queue).await.unwrap();
    assert_eq!(seen.bound, None);
    assert_ne!(store.identity().await.unwrap().run_id, before.run_id);
}

#[tokio::test]
async fn a_connection_that_broke_unnoticed_costs_a_reader_nothing() {
    let mut server = PrivateRedis::start(&[]).await;
    let queue = QueueName::new("p", "q").unwrap();
    let store = store(&server);
    store.observe(&queue).await.unwrap();
    server.kill();
    server.restart().await;
    store.observe(&queue).await.unwrap();
    // A script that the new server does not know is sent again.
    assert_eq!(store.apply(&queue, &CREATE).await.unwrap(), Applied::Done);
}

#[tokio::test]
async fn a_server_that_stalls_is_given_up_and_found_again() {
    let server = PrivateRedis::start(&[]).await;
    let place = TestQueue::at(&server.url()).await;
    // The usual patience: whether a busy machine answers sooner is not the subject.
    store(&server).apply(&place.queue, &CREATE).await.unwrap();
    let mut options = StoreOptions::new("the operator");
    options.response_timeout = Duration::from_millis(200);
    options.connect_timeout = Duration::from_millis(200);
    let store = Store::new(place.settings(), options);
    eventually("it answers a hasty reader", async || store.observe(&place.queue).await.is_ok())
        .await;
    let pid = server.pid().await;
    hang(pid).await;
    let err = store.observe(&place.queue).await.unwrap_err();
    assert_eq!(err, StoreError::Timeout);
    assert_eq!(err.class(), ErrorClass::Transient);
    signal(pid, "CONT");
    eventually("the server answers again", async || {
        store.observe(&place.queue).await.is_ok_and(|seen| seen.bound == Some(3))
    })
    .await;
}

#[tokio::test]
async fn a_full_server_refuses_a_creation_whole_and_a_deletion_still_works() {
    let server = PrivateRedis::start(&[]).await;
    let place = TestQueue::at(&server.url()).await;
    let other = QueueName::new(place.queue.prefix(), "other").unwrap();
    let store = store(&server);
    store.apply(&place.queue, &CREATE).await.unwrap();
    let () = place.run(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let err = store.apply(&other, &CREATE).await.unwrap_err();
    assert_eq!(err, StoreError::OutOfMemory);
    assert_eq!(err.class(), ErrorClass::Transient);
    assert!(store.observe(&other).await.unwrap().leftovers.is_empty());
    assert_eq!(store.apply(&place.queue, &QueueEffect::Close).await.unwrap(), Applied::Done);
    assert_eq!(store.delete(&place.queue, TakenRoles::Wait).await.unwrap(), Deletion::Gone);
    assert!(place.dump().await.is_empty());
}

#[tokio::test]
async fn a_replica_takes_no_writes_and_says_so() {
    let primary = PrivateRedis::start(&[]).await;
    let server = PrivateRedis::start(&[]).await;
    let queue = QueueName::new("p", "q").unwrap();
    let store = store(&server);
    store.observe(&queue).await.unwrap();
    let port = RedisSettings::from_url(&primary.url()).unwrap().port.to_string();
    let place = TestQueue::at(&server.url()).await;
    let () = place.run(&["REPLICAOF", "127.0.0.1", &port]).await;
    let err = store.apply(&queue, &CREATE).await.unwrap_err();
    assert!(matches!(err, StoreError::ReadOnly { .. }), "{err:?}");
    assert_eq!(err.class(), ErrorClass::Transient);
    // Promoted again, it continues to work.
    let () = place.run(&["REPLICAOF", "NO", "ONE"]).await;
    assert_eq!(store.apply(&queue, &CREATE).await.unwrap(), Applied::Done);
}

#[tokio::test]
async fn a_crowded_server_is_not_mistaken_for_a_wrong_password() {
    let server = PrivateRedis::start(&["--requirepass", "hush"]).await;
    let mut settings = RedisSettings::from_url(&server.url()).unwrap();
    settings.password = Some("hush".into());
    let mut admin = connect(&server.url().replace("://", "://:hush@")).await;
    let () = redis::cmd("CONFIG")
        .arg(&["SET", "maxclients", "1"])
        .query_async(&mut admin)
        .await
        .unwrap();
    let store = Store::new(settings, StoreOptions::new("the operator"));
    let queue = QueueName::new("p", "q").unwrap();
    // Redis reports the reason and closes the connection. If that happens before the
    // login is sent, the kernel may drop the report.
    eventually("the server says why", async || {
        let err = store.observe(&queue).await.unwrap_err();
        assert_eq!(err.class(), ErrorClass::Transient, "{err:?}");
        matches!(err, StoreError::Unavailable { .. })
    })
    .await;
}

#[tokio::test]
async fn a_cluster_wants_braces_around_the_name() {
    let server = PrivateRedis::start(&["--cluster-enabled", "yes"]).await;
    let place = TestQueue::at(&server.url()).await;
    let () = place.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
    eventually("the cluster is up", async || {
        let info: String = place.run(&["CLUSTER", "INFO"]).await;
        info.contains("cluster_state:ok")
    })
    .await;
    let store = store(&server);
    assert_eq!(store.identity().await.unwrap().cluster_enabled, Some(true));
    let err = store.observe(&QueueName::new("p", "orders").unwrap()).await.unwrap_err();
    assert!(matches!(err, StoreError::ClusterUnsafe { .. }), "{err:?}");
    assert_eq!(err.class(), ErrorClass::Invalid);
    assert_eq!(err.reason(), "ClusterUnsafe");
    let queue = QueueName::new("p", "{orders}").unwrap();
    assert_eq!(store.apply(&queue, &CREATE).await.unwrap(), Applied::Done);
    assert_eq!(store.delete(&queue, TakenRoles::Wait).await.unwrap(), Deletion::Gone);

    let mut settings = RedisSettings::from_url(&server.url()).unwrap();
    settings.database = 1;
    let other = Store::new(settings, StoreOptions::new("the operator"));
    let err = other.observe(&queue).await.unwrap_err();
    assert!(matches!(err, StoreError::ClusterUnsafe { .. }), "{err:?}");
}

#[tokio::test]
async fn two_addresses_are_one_server_only_if_one_sees_the_other_s_key() {
    let (server, other) = (PrivateRedis::start(&[]).await, PrivateRedis::start(&[]).await);
    let place = TestQueue::at(&server.url()).await;
    let (ours, queue) = (store(&server), &place.queue);
    let by_name = RedisSettings::from_url(&server.url().replace("127.0.0.1", "localhost")).unwrap();
    let at = |settings| Store::new(settings, StoreOptions::new("the operator"));
    assert!(ours.is_same_as(&at(by_name.clone()), queue).await.unwrap());
    assert!(!ours.is_same_as(&store(&other), queue).await.unwrap());
    let elsewhere = RedisSettings { database: 1, ..by_name };
    assert!(!ours.is_same_as(&at(elsewhere), queue).await.unwrap());
    assert!(place.dump().await.is_empty(), "the key is deleted");
    // A login that must not write the queue's keys proves nothing.
    let user = AclUser::named_for(&place);
    user.set(&place, &["~other:*", "+@all"]).await;
    let refused = ours.is_same_as(&at(user.settings.clone()), queue).await.unwrap_err();
    assert!(matches!(refused, StoreError::PermissionDenied { .. }), "{refused:?}");
}
