//! The server that sentinels report, before and after a failover. Real servers and a real
//! sentinel, all private.

use std::time::Duration;

use lockkeeper_plan::connection::RedisSettings;
use lockkeeper_plan::naming::QueueName;
use lockkeeper_plan::pressure_queue::QueueEffect;
use lockkeeper_pressure::{
    Applied, Deletion, Queue, QueueOptions, Store, StoreError, StoreOptions, TakenRoles, Wait,
};
use lockkeeper_testkit::redis::{PrivateRedis, free_port, in_time};
use lockkeeper_testkit::redis_sentinel::{Group, Sentinel, ask};

fn queue(name: &str) -> QueueName {
    QueueName::new("p", name).unwrap()
}

const CREATE: QueueEffect = QueueEffect::Create { bound: 3 };

#[tokio::test]
async fn the_master_is_found_past_a_sentinel_that_is_down_and_again_after_it_changed() {
    let group = Group::start().await;
    let store = group.store();
    assert_eq!(store.apply(&queue("before"), &CREATE).await.unwrap(), Applied::Done);
    group.is_replicated("p:before:bound").await;
    let id: String = ask(&group.master.url(), &["CLIENT", "LIST"]).await;
    assert!(id.contains("name=lockkeeper/the-operator"), "{id}");

    group.fail_over().await;
    // The connection to the old master was closed or answers READONLY. Each costs one
    // operation at most.
    let after = queue("after");
    let mut failures = 0;
    in_time("a queue is made on the new master", async || {
        match store.apply(&after, &CREATE).await {
            Ok(_) => true,
            Err(
                StoreError::ReadOnly { .. }
                | StoreError::Unreachable { .. }
                | StoreError::Unanswered { .. },
            ) => {
                failures += 1;
                false
            }
            Err(err) => panic!("{err:?}"),
        }
    })
    .await;
    let made: bool = ask(&group.replica.url(), &["EXISTS", "p:after:bound"]).await;
    assert!(made, "on the new master, after {failures} failures");
    assert_eq!(store.observe(&queue("before")).await.unwrap().bound, Some(3));
    assert_eq!(store.delete(&after, TakenRoles::Wait).await.unwrap(), Deletion::Gone);
}

#[tokio::test]
async fn a_sentinel_that_names_a_replica_is_passed_over() {
    let group = Group::start().await;
    let mistaken = Sentinel::start(&group.replica);
    in_time("it names the replica", async || {
        let mut command = redis::cmd("SENTINEL");
        command.arg(&["GET-MASTER-ADDR-BY-NAME", "mymaster"]);
        let Ok(client) = redis::Client::open(mistaken.url()) else { return false };
        let Ok(mut raw) = client.get_multiplexed_async_connection().await else { return false };
        let named: Result<(String, u16), _> = command.query_async(&mut raw).await;
        named.is_ok_and(|(_, port)| port == group.replica.port())
    })
    .await;
    let hosts = [mistaken.port, group.sentinel.port].map(|port| format!("127.0.0.1:{port}"));
    let url = format!("redis-sentinel://{}/0#mymaster", hosts.join(","));
    let settings = RedisSettings::from_url(&url).unwrap();
    let store = Store::new(settings, StoreOptions::new("the operator"));
    assert_eq!(store.apply(&queue("q"), &CREATE).await.unwrap(), Applied::Done);
    // If no sentinel reports another server, the error says so, and the server is not
    // used.
    let url = format!("redis-sentinel://{}/0#mymaster", hosts[0]);
    let settings = RedisSettings::from_url(&url).unwrap();
    let store = Store::new(settings, StoreOptions::new("the operator"));
    let err = store.observe(&queue("q")).await.unwrap_err();
    assert!(matches!(err, StoreError::ReadOnly { .. }), "{err:?}");
}

#[tokio::test]
async fn a_master_that_died_is_followed_by_its_replica() {
    let mut group = Group::start().await;
    let store = group.store();
    assert_eq!(store.apply(&queue("q"), &CREATE).await.unwrap(), Applied::Done);
    group.is_replicated("p:q:bound").await;
    group.master.kill();
    in_time("the queue is found on the new master", async || {
        match store.observe(&queue("q")).await {
            Ok(seen) => {
                assert_eq!(seen.bound, Some(3));
                true
            }
            Err(
                StoreError::ReadOnly { .. } | StoreError::Unreachable { .. } | StoreError::Timeout,
            ) => false,
            Err(err) => panic!("{err:?}"),
        }
    })
    .await;
    assert_eq!(store.apply(&queue("q"), &QueueEffect::Close).await.unwrap(), Applied::Done);
}

#[tokio::test]
async fn a_waiting_get_goes_on_with_the_new_master_after_a_failover() {
    let group = Group::start().await;
    let ours = || Queue::new(group.settings(), queue("frames"), QueueOptions::default());
    let (producer, consumer) = (ours(), ours());
    producer.create(2).await.unwrap();
    group.is_replicated("p:frames:bound").await;
    let got = tokio::spawn(async move { consumer.get().await.unwrap() });
    in_time("it waits", async || {
        let info: String = ask(&group.master.url(), &["INFO", "clients"]).await;
        info.contains("blocked_clients:2")
    })
    .await;
    group.fail_over().await;
    in_time("an element is put", async || producer.put("after").await.is_ok()).await;
    let got = tokio::time::timeout(Duration::from_secs(30), got).await.expect("it is woken");
    assert_eq!(got.unwrap(), b"after");
    let counted: String =
        ask(&group.replica.url(), &["GET", "p:frames:stats:consumed_messages"]).await;
    assert_eq!(counted, "1", "on the new master");
    producer.delete(Wait::Forever).await.unwrap();
}

#[tokio::test]
async fn a_master_that_no_sentinel_knows_and_sentinels_that_are_all_down_are_said() {
    let master = PrivateRedis::start(&[]).await;
    let sentinel = Sentinel::start(&master);
    let store = |hosts: &str, name: &str| {
        let url = format!("redis-sentinel://{hosts}/0#{name}");
        Store::new(RedisSettings::from_url(&url).unwrap(), StoreOptions::new("the operator"))
    };
    let up = format!("127.0.0.1:{}", sentinel.port);
    in_time("the sentinel answers", async || {
        store(&up, "mymaster").observe(&queue("q")).await.is_ok()
    })
    .await;
    let err = store(&up, "other").observe(&queue("q")).await.unwrap_err();
    assert!(err.to_string().contains("no master named other"), "{err}");
    let down = format!("127.0.0.1:{},127.0.0.1:{}", free_port(), free_port());
    let err = store(&down, "mymaster").observe(&queue("q")).await.unwrap_err();
    assert!(matches!(err, StoreError::Unreachable { .. }), "{err:?}");
    // A server in place of a sentinel.
    let wrong = format!("127.0.0.1:{}", master.port());
    let err = store(&wrong, "mymaster").observe(&queue("q")).await.unwrap_err();
    assert!(matches!(err, StoreError::Protocol { .. }), "{err:?}");
}
