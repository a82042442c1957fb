//! True mutexes: what differs from a semaphore with one slot. The tests of other files that
//! apply to both run with both.

use std::time::Duration;

use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lockkeeper_plan::naming::Protocol;
use lockkeeper_plan::semaphore::DesiredSlots;
use lockkeeper_semaphore::{
    AcquireError, BrokerError, Client, Expected, ResizeError, ResizeTo, Verdict,
};
use lockkeeper_testkit::protocols::{At, TestLock};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use tokio_util::sync::CancellationToken;

use crate::client::{SOON, any, broker, held, lock, name, quick, resize};

#[tokio::test(flavor = "multi_thread")]
async fn a_true_mutex_needs_no_administrator_and_has_one_holder() {
    let vhost = Vhost::create().await;
    let mutex = || Client::new(vhost.settings(), quick()).mutex(name());
    let one = mutex().try_acquire(&any()).await.unwrap();
    assert_eq!((one.slot(), one.token_id()), (None, None));
    assert_eq!(one.verify().await, Ok(Verdict::Held));
    let error = mutex().try_acquire(&any()).await.unwrap_err();
    assert_eq!(error, AcquireError::Full { lock: "ci.deploy".to_owned(), slots: 1 });
    let waiting = tokio::spawn({
        let mutex = mutex();
        async move { mutex.acquire_timeout(&any(), SOON).await }
    });
    one.release().await.unwrap();
    let two = waiting.await.unwrap().unwrap();
    two.release().await.unwrap();
    eventually("nothing is left", async || vhost.queues().await.is_empty()).await;
}

/// A client that follows only the guideline's text declares the queue without arguments,
/// and wakes no waiter.
#[tokio::test(flavor = "multi_thread")]
async fn a_third_party_holder_is_excluded_and_followed_without_a_wake_up() {
    let place = TestLock::create(Protocol::TrueMutex).await;
    let (connection, channel) = place.channel().await;
    let exclusive = QueueDeclareOptions::exclusive();
    let declare = || channel.queue_declare("ci.deploy".into(), exclusive, FieldTable::default());
    declare().await.unwrap();
    let ours = lock(&place);
    let error = ours.try_acquire(&any()).await.unwrap_err();
    assert!(matches!(error, AcquireError::Full { .. }), "{error}");
    assert_eq!(held(&place).await, [1]);

    let waiter = ours.clone();
    let waiter = tokio::spawn(async move { waiter.acquire(&any()).await.unwrap() });
    let administrator = broker(&place);
    let waits = async || administrator.waiting(&place.lock_name()).await.unwrap() == Some(1);
    eventually("ours waits", waits).await;
    let delete = QueueDeleteOptions::default();
    channel.queue_delete("ci.deploy".into(), delete).await.unwrap();
    let permit = tokio::time::timeout(SOON, waiter).await.expect("ours looks itself").unwrap();
    let error = declare().await.unwrap_err();
    assert!(error.to_string().contains("RESOURCE_LOCKED"), "{error}");
    permit.release().await.unwrap();
    drop(connection);
}

/// The wait queue of a semaphore with that name has other arguments. Wake-ups in it are
/// meant for that semaphore's clients.
#[tokio::test(flavor = "multi_thread")]
async fn a_mutex_named_like_a_semaphore_is_waited_for_without_its_wait_queue() {
    let vhost = Vhost::create().await;
    resize(&vhost, 1).await;
    let mutex = || Client::new(vhost.settings(), quick()).mutex(name());
    let permit = mutex().try_acquire(&any()).await.unwrap();
    let waiter = mutex();
    let waiter = tokio::spawn(async move { waiter.acquire(&any()).await });
    eventually("it waits", async || !vhost.connections("probe").await.is_empty()).await;
    assert_eq!(broker(&vhost).waiting(&name()).await, Ok(Some(0)));
    permit.release().await.unwrap();
    let next = tokio::time::timeout(SOON, waiter).await.expect("it polls").unwrap();
    next.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mutex_is_observed_but_not_administered() {
    let place = TestLock::create(Protocol::TrueMutex).await;
    let (broker, name, stop) = (broker(&place), place.lock_name(), CancellationToken::new());
    let permit = lock(&place).acquire(&any().with_identity("bob")).await.unwrap();
    let seen = broker.observe(&name, 0, 0).await.unwrap();
    assert_eq!((seen.total(), seen.held(), seen.counts(1).free), (1, 1, 0));
    let holders = async || broker.holders(&name, &seen, 1, 50).await.list;
    eventually("its holder is shown with its connection", async || {
        let [holder] = &holders().await[..] else { return false };
        assert_eq!((holder.slot, holder.draining), (None, false));
        let is_shown = holder.identity.as_deref() == Some("bob") && holder.connection.is_some();
        assert!(!is_shown || holder.id == permit.id(), "{holder:?}");
        is_shown
    })
    .await;

    let nothing = BrokerError::NothingToAdminister { lock: "ci.deploy".to_owned() };
    let (to, desired) = (ResizeTo::Exactly(3), DesiredSlots::new(3));
    let resized = broker.resize(&name, to, desired, &stop).await.unwrap_err();
    assert_eq!(resized, ResizeError::Broker(nothing.clone()));
    let errors = [
        broker.converge(&name, desired, 3, true, &stop).await.unwrap_err(),
        broker.destroy(&name, desired, None, &stop).await.unwrap_err(),
        broker.check(&name, Expected::default(), &stop).await.unwrap_err(),
    ];
    assert_eq!(errors, [nothing.clone(), nothing.clone(), nothing]);
    assert_eq!(permit.verify().await, Ok(Verdict::Held));
    assert_eq!(place.queues().await, ["ci.deploy"]);
    permit.release().await.unwrap();
    assert_eq!(held(&place).await, Vec::<u32>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordinary_queue_with_the_name_of_a_mutex_is_reported() {
    let place = TestLock::create(Protocol::TrueMutex).await;
    let (_connection, channel) = place.channel().await;
    let durable = QueueDeclareOptions::durable();
    channel.queue_declare("ci.deploy".into(), durable, FieldTable::default()).await.unwrap();
    let error = broker(&place).observe(&place.lock_name(), 0, 0).await.unwrap_err();
    assert!(matches!(error, BrokerError::IncompatibleQueue { .. }), "{error}");
    let error = lock(&place).acquire_timeout(&any(), Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, AcquireError::Full { .. }), "{error}");
}
