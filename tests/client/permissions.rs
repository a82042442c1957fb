//! A client whose user has only the permissions of docs/permissions.md.

use std::time::Duration;

use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_plan::naming::{Protocol, QueueType};
use lockkeeper_plan::semaphore::{DesiredSlots, sweep_to};
use lockkeeper_semaphore::{
    AcquireError, Broker, BrokerError, BrokerOptions, Client, Lock, ResizeTo, Verdict,
};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use tokio_util::sync::CancellationToken;

use crate::client::{any, broker, name, quick, resize};

async fn lock_of(vhost: &Vhost, read: &str) -> Lock {
    let (username, password) = vhost.user(Some([r"^ci\.", r"^amq\.default$", read])).await;
    let settings = RabbitmqSettings { username, password: password.into(), ..vhost.settings() };
    Client::new(settings, quick()).semaphore(name())
}

async fn waits(vhost: &Vhost) -> u64 {
    let queue = vhost.queue(&name().wait_queue().unwrap()).await.unwrap();
    queue["consumers"].as_u64().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_permissions_let_a_client_wait_and_have_tokens() {
    let vhost = Vhost::create().await;
    let desired = DesiredSlots { records: Some(Duration::ZERO), ..DesiredSlots::new(1) };
    let cancel = CancellationToken::new();
    let made =
        broker(&vhost).converge(&name(), desired, sweep_to(desired, 0), false, &cancel).await;
    made.unwrap();
    let lock = lock_of(&vhost, r"^ci\.").await;
    let permit = lock.acquire(&any()).await.unwrap();
    let first = permit.fence().unwrap();
    let other = lock_of(&vhost, r"^ci\.").await;
    let waiting = tokio::spawn(async move { other.acquire(&any()).await });
    eventually("it waits", async || waits(&vhost).await == 1).await;
    permit.release().await.unwrap();
    let permit = waiting.await.unwrap().unwrap();
    assert_eq!(permit.fence(), Some(first + 1));
    permit.release().await.unwrap();

    // A user without permission to read the record cannot acquire its slot, because there
    // would be no token.
    let error = lock_of(&vhost, "^$").await.acquire(&any()).await.unwrap_err();
    assert!(matches!(&error, AcquireError::Broker(BrokerError::AccessRefused { .. })), "{error:?}");
    lock.acquire(&any()).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_access_to_the_wait_queue_waits_by_polling() {
    let vhost = Vhost::create().await;
    resize(&vhost, 1).await;
    let permit = lock_of(&vhost, "^$").await.acquire(&any()).await.unwrap();
    let other = lock_of(&vhost, "^$").await;
    let waiting = tokio::spawn(async move { other.acquire(&any()).await });
    eventually("it is there", async || vhost.connections("hold").await.len() >= 2).await;
    permit.release().await.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(10), waiting).await;
    let permit = next.expect("it looks again").unwrap().unwrap();
    assert_eq!(permit.slot(), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_permissions_suffice_for_administrators_and_holders_of_each_protocol() {
    let (locks, publish, nothing) = (r"^ci\.", r"^amq\.default$", "^$");
    let token = Protocol::Token(QueueType::Classic);
    for (protocol, administers, holds) in [
        (Protocol::default(), [locks, publish, nothing], [locks, publish, locks]),
        (Protocol::ExclusiveConsumer, [locks, publish, nothing], [locks, publish, locks]),
        (token, [locks, publish, locks], [locks, nothing, locks]),
    ] {
        let vhost = Vhost::create().await;
        let name = name().with_protocol(protocol);
        let settings = async |permissions| {
            let (username, password) = vhost.user(Some(permissions)).await;
            RabbitmqSettings { username, password: password.into(), ..vhost.settings() }
        };
        let broker = Broker::new(settings(administers).await, BrokerOptions::default());
        let (desired, stop) = (DesiredSlots::new(0), CancellationToken::new());
        let resize = async |to| broker.resize(&name, to, desired, &stop).await.unwrap();
        resize(ResizeTo::Create(2)).await;
        let client = Client::new(settings(holds).await, quick());
        let held = client.semaphore(name.clone()).acquire(&any()).await.unwrap();
        assert_eq!(held.verify().await, Ok(Verdict::Held), "{protocol:?}");
        resize(ResizeTo::Shrink(1)).await;
        resize(ResizeTo::Grow(1)).await;
        held.release().await.unwrap();
        let done = broker.destroy(&name, desired, None, &stop).await.unwrap();
        assert_eq!(done.left, 0, "{protocol:?}");
        assert_eq!(vhost.queues().await, [""; 0], "{protocol:?}");
    }
}
