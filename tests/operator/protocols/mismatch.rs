//! Semaphores whose name another protocol's lock uses: reported, and nothing is changed.

use std::collections::BTreeSet;

use kube::api::{DeleteParams, ListParams};
use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lockkeeper_api::Semaphore;
use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_plan::naming::{LockName, Protocol, QueueType};
use lockkeeper_plan::semaphore::DesiredSlots;
use lockkeeper_semaphore::{Broker, BrokerOptions, ResizeTo};
use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::world::{PATIENCE, World, eventually, has_reason, in_a_world, is_ready};
use tokio_util::sync::CancellationToken;

const PROTOCOLS: [(&str, Protocol); 3] = [
    ("ExclusiveQueue", Protocol::ExclusiveQueue(lockkeeper_plan::naming::Profile::Guideline)),
    ("ExclusiveConsumer", Protocol::ExclusiveConsumer),
    ("Token", Protocol::Token(QueueType::Classic)),
];

fn broker(world: &World) -> Broker {
    let management = variable("RABBITMQ_MANAGEMENT_URL");
    let settings = RabbitmqSettings::from_urls(&world.amqp_url(), Some(&management)).unwrap();
    Broker::new(settings, BrokerOptions::default())
}

/// The queues, without admin mutexes.
async fn lasting(world: &World) -> BTreeSet<String> {
    let is_part = |queue: &String| {
        queue.ends_with(".semaphore") || queue.contains("-1-") || queue.ends_with("-W")
    };
    world.queues().await.into_iter().filter(is_part).collect()
}

#[tokio::test]
async fn a_semaphore_of_one_protocol_leaves_a_lock_of_each_other_one_alone() {
    in_a_world("mismatch-new", async |world| {
        let _operator = world.operator().await;
        let (broker, stop) = (broker(&world), CancellationToken::new());
        let pairs = PROTOCOLS.into_iter().flat_map(|made| PROTOCOLS.map(|other| (made, other)));
        let pairs: Vec<_> = pairs.filter(|(made, other)| made.0 != other.0).collect();
        let name = |made: &str, other: &str| format!("{made}-{other}").to_lowercase();
        for (made, other) in &pairs {
            let lock = format!("{}.{}", world.namespace, name(made.0, other.0));
            let lock = LockName::new(lock).unwrap().with_protocol(made.1);
            let to = ResizeTo::Create(1);
            broker.resize(&lock, to, DesiredSlots::new(0), &stop).await.unwrap();
        }
        let before = lasting(&world).await;
        for (made, other) in &pairs {
            let spec = format!("slots: 2, protocol: {}", other.0);
            world.semaphore(&name(made.0, other.0), &spec).await;
        }
        for (made, other) in &pairs {
            let is = |s: &Semaphore| has_reason(s, "Ready", "ProtocolMismatch");
            let found = world.until(&name(made.0, other.0), "a mismatch", PATIENCE, is).await;
            let text = serde_json::to_string(&found.status).unwrap();
            assert!(text.contains(&format!("one of protocol {}", made.0)), "{text}");
        }
        assert_eq!(lasting(&world).await, before);
        let api = world.api::<Semaphore>();
        for (made, other) in &pairs {
            api.delete(&name(made.0, other.0), &DeleteParams::default()).await.unwrap();
        }
        eventually("the objects are gone", PATIENCE, async || {
            api.list(&ListParams::default()).await.unwrap().items.is_empty()
        })
        .await;
        assert_eq!(lasting(&world).await, before, "the locks were never theirs");
    })
    .await;
}

#[tokio::test]
async fn a_sweep_finds_queues_of_another_protocol_and_recovers_when_they_are_gone() {
    in_a_world("mismatch-later", async |world| {
        let _operator = world.operator().await;
        let amqp = world.amqp().await;
        let channel = amqp.create_channel().await.unwrap();
        for (name, protocol, foreign) in [
            ("queue", "ExclusiveQueue", "-1-C"),
            ("tokens", "ExclusiveQueue", ".semaphore"),
            ("consumer", "ExclusiveConsumer", ".semaphore"),
            ("slots", "Token", "-1-A"),
        ] {
            world.semaphore(name, &format!("slots: 1, protocol: {protocol}")).await;
            world.semaphore_ready(name).await;
            let queue = format!("{}.{name}{foreign}", world.namespace);
            let durable = QueueDeclareOptions::durable();
            channel
                .queue_declare(queue.as_str().into(), durable, FieldTable::default())
                .await
                .unwrap();
        }
        for name in ["queue", "tokens", "consumer", "slots"] {
            let is = |s: &Semaphore| has_reason(s, "Ready", "ProtocolMismatch");
            world.until(name, "a mismatch", PATIENCE, is).await;
            eventually("an event", PATIENCE, async || {
                world.events(name).await.iter().any(|(reason, ..)| reason == "ProtocolMismatch")
            })
            .await;
        }
        for foreign in ["queue-1-C", "tokens.semaphore", "consumer.semaphore", "slots-1-A"] {
            let queue = format!("{}.{foreign}", world.namespace);
            channel
                .queue_delete(queue.as_str().into(), QueueDeleteOptions::default())
                .await
                .unwrap();
        }
        for name in ["queue", "tokens", "consumer", "slots"] {
            world.until(name, "it is ready again", PATIENCE, is_ready::<Semaphore>).await;
        }
    })
    .await;
}
