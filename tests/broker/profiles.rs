//! Profile `AmqpLocksPython`: its names and arguments on the broker, and the mutex that
//! it shares with a lock of the same name in the other profile.

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lockkeeper_plan::naming::{LockName, Profile};
use lockkeeper_plan::semaphore::{DeletionOrder, DesiredSlots, Observed, ObservedSlots};
use lockkeeper_semaphore::{Broker, BrokerOptions, Converged};
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::rabbitmq::Vhost;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::broker::{broker, deleted_one_by_one, desired, lock, resize, sweep_to};

fn python() -> LockName {
    lock().with_profile(Profile::AmqpLocksPython)
}

async fn converge(broker: &Broker, desired: DesiredSlots, mark: u32, thorough: bool) -> Converged {
    let cancel = CancellationToken::new();
    broker.converge(&python(), desired, sweep_to(desired, mark), thorough, &cancel).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_of_amqp_locks_python_is_named_and_declared_as_that_library_does() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    let done = converge(&broker, desired(3), 0, true).await;
    assert_eq!(done.declared, 3);
    assert_eq!(vhost.queues().await, ["ci.deploy-A-1", "ci.deploy-A-2", "ci.deploy-A-3"]);
    let queue = vhost.queue("ci.deploy-A-1").await.unwrap();
    assert_eq!((&queue["durable"], &queue["exclusive"]), (&json!(false), &json!(false)));
    // Not compared with the library's text: RabbitMQ 4 adds the type that it chose.
    let as_it_does = json!({"durable": false, "arguments": {"x-max-length": 0}});
    vhost.declare("theirs", as_it_does).await;
    assert_eq!(queue["arguments"], vhost.queue("theirs").await.unwrap()["arguments"]);
    vhost.delete("theirs").await;
    // Declared again with the same arguments, by us and by deleting our own queues.
    assert_eq!(converge(&broker, desired(3), 3, true).await.declared, 0);
    assert_eq!(converge(&broker, desired(1), 3, true).await.deleted, 2);
    assert_eq!(vhost.queues().await, ["ci.deploy-A-1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_profiles_of_one_name_have_slots_and_holders_of_their_own_and_one_mutex() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    let (_holder, channel) = vhost.channel().await;
    for queue in ["ci.deploy-B-5", "ci.deploy-7-B"] {
        let exclusive = QueueDeclareOptions::exclusive();
        channel.queue_declare(queue.into(), exclusive, FieldTable::default()).await.unwrap();
    }
    // Concurrently in one process: each waits for the other, and neither fails.
    for round in 0..6 {
        let slots = [3, 9][round % 2];
        let (ours, theirs) = tokio::join!(
            resize(&broker, slots, 9),
            converge(&broker, desired(slots + 1), 10, false)
        );
        let (ours, theirs) = (ours.unwrap().seen, theirs.seen);
        assert!(ours.has_exactly(slots) && theirs.has_exactly(slots + 1), "round {round}");
        let held = |seen: &Observed| seen.numbered().unwrap().held.clone();
        assert_eq!((held(&ours), held(&theirs)), ([7].into(), [5].into()));
    }
    let fresh = Broker::new(vhost.settings(), BrokerOptions::default());
    assert_eq!(fresh.find_highest_slot(&python(), 16).await, Ok(Some(10)));
    assert_eq!(fresh.find_highest_slot(&lock(), 16).await, Ok(Some(9)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_holder_of_a_slot_of_amqp_locks_python_is_reported() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    let (_holder, channel) = vhost.channel().await;
    let mut facts = FieldTable::default();
    facts.insert("x-lockkeeper-id".into(), lapin::types::AMQPValue::LongString("4fz".into()));
    let exclusive = QueueDeclareOptions::exclusive();
    channel.queue_declare("ci.deploy-B-2".into(), exclusive, facts).await.unwrap();
    let seen = Observed::Numbered(ObservedSlots { held: [2].into(), ..ObservedSlots::default() });
    let ids = async || {
        let holders = broker.holders(&python(), &seen, 3, 50).await;
        holders.list.into_iter().map(|holder| (holder.id, holder.slot)).collect::<Vec<_>>()
    };
    lockkeeper_testkit::rabbitmq::eventually("it is known by its id", async || {
        ids().await == [("4fz".to_owned(), Some(2))]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_order_ascending_the_lowest_removed_slot_goes_first() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    let upwards = |slots| DesiredSlots { order: DeletionOrder::Ascending, ..desired(slots) };
    converge(&broker, desired(200), 0, false).await;
    let proxy = Proxy::start().await;
    let through = Broker::new(proxy.settings(vhost.settings()), BrokerOptions::default());
    assert_eq!(converge(&through, upwards(5), 200, false).await.deleted, 195);
    let deleted = deleted_one_by_one(&proxy.seen(), &python(), 1..=200);
    assert_eq!(deleted, (6..=200).collect::<Vec<_>>());
}
