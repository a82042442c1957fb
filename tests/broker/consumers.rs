//! Protocol `ExclusiveConsumer` for administrators: holder queues are created and removed
//! together with their slots, but never while they are held.

use futures::StreamExt;
use lapin::BasicProperties;
use lapin::options::{BasicConsumeOptions, BasicPublishOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lockkeeper_plan::naming::{LockName, Protocol};
use lockkeeper_plan::semaphore::{Counts, DesiredSlots, sweep_to};
use lockkeeper_semaphore::{
    AcquireOptions, Broker, BrokerError, Client, ClientOptions, Converged, Expected, Fault, Permit,
    Verdict,
};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::broker::broker;

fn lock() -> LockName {
    LockName::new("ci.deploy").unwrap().with_protocol(Protocol::ExclusiveConsumer)
}

async fn converge(
    broker: &Broker,
    slots: u32,
    mark: u32,
    thorough: bool,
) -> Result<Converged, BrokerError> {
    let desired = DesiredSlots::new(slots);
    let to = sweep_to(desired, mark);
    broker.converge(&lock(), desired, to, thorough, &CancellationToken::new()).await
}

async fn hold(vhost: &Vhost) -> Permit {
    let client = Client::new(vhost.settings(), ClientOptions::default().with_warm(0));
    let options = AcquireOptions::default().with_identity("ci");
    client.semaphore(lock()).try_acquire(&options).await.unwrap()
}

/// Returns the existing holder queues.
async fn holder_queues(vhost: &Vhost) -> Vec<u32> {
    let lock = lock();
    let queues = vhost.queues().await;
    let mut slots: Vec<u32> =
        queues.iter().filter_map(|queue| lock.slot_of_holder_queue(queue)).collect();
    slots.sort_unstable();
    slots
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slots_holder_queue_is_made_with_it_and_goes_with_it() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    converge(&broker, 3, 0, true).await.unwrap();
    assert_eq!(holder_queues(&vhost).await, [1, 2, 3]);
    let queue = vhost.queue("ci.deploy-2-C").await.unwrap();
    assert_eq!((&queue["type"], &queue["durable"]), (&json!("classic"), &json!(true)));
    assert_eq!(queue["arguments"]["x-max-length"], json!(0));
    let done = converge(&broker, 1, 3, false).await.unwrap();
    assert_eq!((done.deleted, done.left), (2, 0));
    assert_eq!(holder_queues(&vhost).await, [1]);
    broker.destroy(&lock(), DesiredSlots::new(0), None, &CancellationToken::new()).await.unwrap();
    assert_eq!(vhost.queues().await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_holders_queues_are_deleted_only_after_its_release() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    converge(&broker, 3, 0, true).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(hold(&vhost).await);
    }
    let done = converge(&broker, 1, 3, false).await.unwrap();
    assert_eq!((done.deleted, done.left), (2, 2));
    assert_eq!(done.seen.counts(1), Counts { held: 1, draining: 2, free: 0 });
    assert_eq!(holder_queues(&vhost).await, [1, 2, 3]);
    // Notified by the shrink itself: the client's next own check is 5 s away.
    let soon = std::time::Duration::from_secs(2);
    tokio::time::timeout(soon, held[2].draining()).await.expect("it is notified");
    held.pop().unwrap().release().await.unwrap();
    eventually("its holder queue is seen to be left over", async || {
        let seen = broker.observe(&lock(), 19, 19).await.unwrap();
        let seen = seen.numbered().unwrap();
        seen.left_over == [3].into() && seen.highest() == 3
    })
    .await;
    assert_eq!(converge(&broker, 1, 3, false).await.unwrap().left, 1);
    assert_eq!(holder_queues(&vhost).await, [1, 2]);
    assert_eq!(held[1].verify().await, Ok(Verdict::Draining));

    // Deleted while two are held: no slot is left immediately, and the queues of holders
    // stay.
    let destroy = async || {
        let cancel = CancellationToken::new();
        broker.destroy(&lock(), DesiredSlots::new(0), Some(3), &cancel).await.unwrap()
    };
    assert_eq!(destroy().await.left, 2);
    assert_eq!(vhost.queues().await.len(), 2);
    assert_eq!(held[0].verify().await, Ok(Verdict::Draining));
    for held in held {
        held.release().await.unwrap();
    }
    eventually("nothing is left", async || destroy().await.left == 0).await;
    assert_eq!(vhost.queues().await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shrink_below_a_holder_and_a_regrow_give_its_slot_to_no_other_client() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    converge(&broker, 1, 0, true).await.unwrap();
    let held = hold(&vhost).await;
    for _ in 0..10 {
        assert_eq!(converge(&broker, 0, 1, false).await.unwrap().left, 1);
        assert_eq!(held.verify().await, Ok(Verdict::Draining));
        converge(&broker, 1, 1, false).await.unwrap();
        let other = Client::new(vhost.settings(), ClientOptions::default()).semaphore(lock());
        assert!(other.try_acquire(&AcquireOptions::default()).await.is_err());
        assert_eq!(held.verify().await, Ok(Verdict::Held));
    }
    held.release().await.unwrap();
    hold(&vhost).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_holder_queue_is_a_fault_and_is_made_again() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    converge(&broker, 3, 0, true).await.unwrap();
    assert_eq!(broker.missing_auxiliary(&lock(), DesiredSlots::new(3)).await, Ok(vec![]));
    vhost.delete("ci.deploy-2-C").await;
    assert_eq!(
        broker.missing_auxiliary(&lock(), DesiredSlots::new(3)).await,
        Ok(vec!["holder queues"])
    );
    let cancel = CancellationToken::new();
    let three = Expected { slots: Some(3), ..Expected::default() };
    let faults = broker.check(&lock(), three, &cancel).await.unwrap();
    assert_eq!(faults, [Fault::WithoutHolderQueue { slot: 2 }]);
    assert_eq!(holder_queues(&vhost).await, [1, 3], "looking makes nothing");
    converge(&broker, 3, 3, false).await.unwrap();
    assert_eq!(holder_queues(&vhost).await, [1, 2, 3]);
    assert_eq!(broker.check(&lock(), three, &cancel).await, Ok(vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_queue_of_another_type_is_refused_and_its_slot_not_made() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    let quorum = json!({"durable": true, "arguments": {"x-queue-type": "quorum"}});
    vhost.declare("ci.deploy-2-C", quorum).await;
    let refused = converge(&broker, 3, 0, true).await.unwrap_err();
    let BrokerError::IncompatibleQueue { queue, why } = &refused else { panic!("{refused}") };
    assert_eq!(queue, "ci.deploy-2-C");
    assert!(why.contains("must be a durable classic queue") && why.contains("quorum"), "{why}");
    assert!(vhost.queue("ci.deploy-2-A").await.is_none());
    assert!(vhost.queue("ci.deploy-3-A").await.is_some(), "the others are made nevertheless");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_is_shown_with_its_facts_and_not_with_those_of_one_before() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    converge(&broker, 1, 0, true).await.unwrap();
    let look = async || {
        let seen = broker.observe(&lock(), 17, 17).await.unwrap();
        broker.holders(&lock(), &seen, 1, 50).await
    };
    let mut ids: Vec<String> = Vec::new();
    for _ in 0..2 {
        let held = hold(&vhost).await;
        eventually("it is shown", async || {
            let holder = look().await.list.remove(0);
            assert!(!ids.contains(&holder.id), "the former holder is shown");
            let given = holder.connection.is_some_and(|name| name.ends_with(" - lockkeeper hold"));
            holder.id == held.id() && given
        })
        .await;
        assert_eq!(look().await.list[0].identity.as_deref(), Some("ci"));
        ids.push(held.id().to_owned());
        held.release().await.unwrap();
        assert_eq!(look().await.list, []);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_exclusive_consumer_is_a_holder_too() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    converge(&broker, 2, 0, true).await.unwrap();
    let (connection, channel) = vhost.channel().await;
    let exclusive = BasicConsumeOptions { exclusive: true, no_ack: true, ..Default::default() };
    let _consumer = channel
        .basic_consume("ci.deploy-1-C".into(), "mine".into(), exclusive, FieldTable::default())
        .await
        .unwrap();
    let seen = broker.observe(&lock(), 18, 18).await.unwrap();
    assert_eq!(seen.counts(2), Counts { held: 1, draining: 0, free: 1 });
    let ours = hold(&vhost).await;
    assert_eq!(ours.slot(), Some(2));
    eventually("it is known by its connection", async || {
        let holder = broker.holders(&lock(), &seen, 2, 50).await.list.remove(0);
        holder.connection.is_some_and(|name| holder.id == format!("{name}#1"))
    })
    .await;
    connection.close(200, "done".into()).await.unwrap();
    eventually("its slot is free", async || {
        broker.observe(&lock(), 18, 18).await.unwrap().counts(2).held == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn looking_beyond_the_last_slot_sends_nothing_to_a_holder_that_does_not_drain() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    converge(&broker, 2, 0, true).await.unwrap();
    let (_connection, channel) = vhost.channel().await;
    let exclusive = BasicConsumeOptions { exclusive: true, no_ack: true, ..Default::default() };
    let mut holder = channel
        .basic_consume("ci.deploy-1-C".into(), "mine".into(), exclusive, FieldTable::default())
        .await
        .unwrap();
    let seen = broker.observe(&lock(), 18, 18).await.unwrap();
    assert_eq!(seen.counts(2), Counts { held: 1, draining: 0, free: 1 });
    converge(&broker, 1, 2, false).await.unwrap();
    let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
    let queue = "ci.deploy-1-C".into();
    channel.basic_publish("".into(), queue, options, b"first", properties).await.unwrap();
    assert_eq!(holder.next().await.unwrap().unwrap().data, b"first");
}

/// The default queue type of a virtual host must not turn classic queues into quorum
/// queues.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_declared_without_naming_its_type() {
    let vhost = Vhost::create().await;
    let definition = json!({"default_queue_type": "quorum"});
    vhost.management.put(&format!("vhosts/{}", vhost.name), definition).await;
    converge(&broker(&vhost), 1, 0, true).await.unwrap();
    for queue in vhost.queues().await {
        assert_eq!(vhost.queue(&queue).await.unwrap()["type"], json!("classic"), "{queue}");
    }
    let (_connection, channel) = vhost.channel().await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(0));
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
    let durable = QueueDeclareOptions::durable();
    channel.queue_declare("ci.deploy-1-C".into(), durable, arguments).await.unwrap();
}
