//! Holders: facts from the management API, owners, and holders that provide no facts
//! about themselves.

use std::time::{Duration, Instant};

use futures::FutureExt;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use lockkeeper_plan::connection::{ManagementSettings, RabbitmqSettings};
use lockkeeper_plan::semaphore::Counts;
use lockkeeper_semaphore::{
    AcquireOptions, Broker, BrokerOptions, Client, ClientOptions, Holders, Permit, Verdict,
};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use tokio::net::TcpListener;

use crate::broker::{broker, lock, resize};

async fn look(broker: &Broker, slots: u32) -> Holders {
    let seen = broker.observe(&lock(), slots + 16, slots + 16).await.unwrap();
    broker.holders(&lock(), &seen, slots, 50).await
}

async fn hold(vhost: &Vhost) -> Permit {
    let client = Client::new(vhost.settings(), ClientOptions::default().with_warm(0));
    client.semaphore(lock()).try_acquire(&described()).await.unwrap()
}

fn described() -> AcquireOptions {
    AcquireOptions::default()
        .with_identity("ci/run 42")
        .with_reason("deploy\u{1b}[31m")
        .with_url("https://ci.example/42")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holders_facts_are_shown_at_once_and_its_connection_later() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    resize(&broker, 2, 0).await.unwrap();
    assert_eq!(look(&broker, 2).await, Holders::default());
    let held = hold(&vhost).await;

    let first = look(&broker, 2).await;
    assert_eq!(first.list.len(), 1);
    eventually("the facts are there", async || {
        let holders = look(&broker, 2).await;
        holders.list[0].id == held.id()
    })
    .await;
    eventually("the connection is there", async || {
        look(&broker, 2).await.list[0].connection.is_some()
    })
    .await;
    let holders = look(&broker, 2).await;
    assert_eq!((holders.incomplete, holders.management_error), (false, None));
    let holder = &holders.list[0];
    assert_eq!((holder.slot, holder.draining), (Some(1), false));
    assert_eq!(holder.identity.as_deref(), Some("ci/run 42"));
    assert_eq!(holder.reason.as_deref(), Some("deploy [31m"));
    assert_eq!(holder.url.as_deref(), Some("https://ci.example/42"));
    assert!(holder.since.as_deref().unwrap().ends_with('Z'));
    let connection = holder.connection.clone().unwrap();
    // The broker's name of the connection, and the name that the client gave it.
    let (name, given) = connection.rsplit_once(" - ").unwrap();
    assert_eq!(given, "lockkeeper hold");
    assert!(vhost.connections(given).await.iter().any(|known| known == name), "{connection}");
    held.release().await.unwrap();
    assert_eq!(look(&broker, 2).await, Holders::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_changed_hands_is_not_shown_with_its_former_holder() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    resize(&broker, 2, 0).await.unwrap();
    // Slot 1 stays held, so that the lock as a whole is never idle.
    let first = hold(&vhost).await;
    let (mut ids, mut connections) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let held = hold(&vhost).await;
        eventually("owner and id of this holder", async || {
            let holder = look(&broker, 2).await.list.remove(1);
            assert!(!ids.contains(&holder.id), "the former holder is shown");
            assert!(!connections.contains(&holder.connection), "the former owner is shown");
            holder.id == held.id() && holder.connection.is_some()
        })
        .await;
        ids.push(held.id().to_owned());
        connections.push(look(&broker, 2).await.list[1].connection.clone());
        held.release().await.unwrap();
        // Observed as free: earlier facts cannot belong to the next holder.
        assert_eq!(look(&broker, 2).await.list.len(), 1);
    }
    first.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_holder_is_known_by_its_connection_and_by_its_slot_before() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    resize(&broker, 2, 0).await.unwrap();
    let (_foreign, channel) = vhost.channel().await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(0));
    let exclusive = QueueDeclareOptions::exclusive();
    channel.queue_declare("ci.deploy-2-B".into(), exclusive, arguments).await.unwrap();

    let without = Broker::new(vhost.settings_without_management(), BrokerOptions::default());
    let holders = look(&without, 2).await;
    assert_eq!(holders.list[0].id, "slot-2");
    assert_eq!((holders.incomplete, holders.management_error), (false, None));

    eventually("its connection is known", async || {
        look(&broker, 2).await.list[0].connection.is_some()
    })
    .await;
    let holder = look(&broker, 2).await.list.remove(0);
    assert_eq!(holder.id, format!("{}#2", holder.connection.unwrap()));
    assert_eq!(holder.identity, Some(vhost.settings().username), "its user, for want of more");
    assert_eq!(holder.since, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_above_the_count_drains() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    resize(&broker, 3, 0).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(hold(&vhost).await);
    }
    let done = resize(&broker, 1, 3).await.unwrap();
    assert_eq!(done.seen.counts(1), Counts { held: 1, draining: 2, free: 0 });
    let draining: Vec<bool> = look(&broker, 1).await.list.iter().map(|h| h.draining).collect();
    assert_eq!(draining, [false, true, true]);
    assert_eq!(held[0].verify().await, Ok(Verdict::Held));
    assert_eq!(held[2].verify().await, Ok(Verdict::Draining));
    held.pop().unwrap().release().await.unwrap();
    let seen = broker.observe(&lock(), 19, 19).await.unwrap();
    assert_eq!(seen.counts(1), Counts { held: 1, draining: 1, free: 0 });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_management_api_that_fails_or_hangs_costs_no_holder_and_little_time() {
    let vhost = Vhost::create().await;
    resize(&broker(&vhost), 1, 0).await.unwrap();
    let held = hold(&vhost).await;
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hung = format!("http://{}", mute.local_addr().unwrap());
    let working = vhost.settings().management.unwrap();
    let cases = [
        ManagementSettings { url: hung, ..working.clone() },
        ManagementSettings { url: "http://127.0.0.1:1".into(), ..working.clone() },
        ManagementSettings { password: "hush-hush".into(), ..working },
    ];
    for management in cases {
        let settings = RabbitmqSettings { management: Some(management), ..vhost.settings() };
        let broker = Broker::new(settings, BrokerOptions::default());
        let seen = broker.observe(&lock(), 17, 17).await.unwrap();
        let mut shown = None;
        eventually("the error is shown", async || {
            let start = Instant::now();
            let holders = broker.holders(&lock(), &seen, 1, 50).await;
            assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
            assert_eq!(holders.list.len(), 1);
            assert_eq!(holders.list[0].id, "slot-1");
            shown = holders.management_error.map(|error| error.to_string());
            shown.is_some()
        })
        .await;
        let shown = shown.unwrap();
        assert!(shown.contains("management API at http://127.0.0.1"), "{shown}");
        assert!(!shown.contains("hush-hush"), "{shown}");
    }
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_holders_of_a_free_lock_are_not_requested_and_an_error_of_the_api_does_not_matter() {
    let vhost = Vhost::create().await;
    resize(&broker(&vhost), 1, 0).await.unwrap();
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", mute.local_addr().unwrap());
    let management = ManagementSettings { url, ..vhost.settings().management.unwrap() };
    let settings = RabbitmqSettings { management: Some(management), ..vhost.settings() };
    let broker = Broker::new(settings, BrokerOptions::default());
    let free = broker.observe(&lock(), 17, 17).await.unwrap();
    assert_eq!(broker.holders(&lock(), &free, 1, 50).await, Holders::default());
    // A request would arrive while the lock is acquired.
    let held = hold(&vhost).await;
    assert!(mute.accept().now_or_never().is_none(), "a request for a free lock");

    let seen = broker.observe(&lock(), 17, 17).await.unwrap();
    eventually("the error is shown", async || {
        broker.holders(&lock(), &seen, 1, 50).await.management_error.is_some()
    })
    .await;
    assert_eq!(broker.holders(&lock(), &free, 1, 50).await, Holders::default());
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_as_many_holders_as_asked_for_are_shown() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    resize(&broker, 5, 0).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(hold(&vhost).await);
    }
    let seen = broker.observe(&lock(), 21, 21).await.unwrap();
    let holders = broker.holders(&lock(), &seen, 5, 3).await;
    assert_eq!(
        holders.list.iter().map(|h| h.slot).collect::<Vec<_>>(),
        [Some(1), Some(2), Some(3)]
    );
}
