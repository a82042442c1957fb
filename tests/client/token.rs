//! Protocol Token: acquiring, proving, losing and releasing a token, on classic and on
//! quorum queues.

mod beside_the_blog;
mod complaints;
mod timeout;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper_plan::naming::{LockName, Protocol, QueueType};
use lockkeeper_plan::semaphore::DesiredSlots;
use lockkeeper_semaphore::{
    AcquireError, AcquireOptions, Client, Lock, LostReason, Moment, ResizeTo, Verdict,
};
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::rabbitmq::{Vhost, eventually, look};
use tokio_util::sync::CancellationToken;

use crate::client::{BRIEF, SOON, any, brief, broker, name, quick};

const QUEUE: &str = "ci.deploy.semaphore";

const TYPES: [QueueType; 2] = [QueueType::Classic, QueueType::Quorum];

fn tokens(queue_type: QueueType) -> LockName {
    name().with_protocol(Protocol::Token(queue_type))
}

fn classic() -> LockName {
    tokens(QueueType::Classic)
}

/// The lock, with a separate client.
fn lock_of(vhost: &Vhost, name: LockName) -> Lock {
    Client::new(vhost.settings(), quick()).semaphore(name)
}

fn lock(vhost: &Vhost) -> Lock {
    lock_of(vhost, classic())
}

async fn create(vhost: &Vhost, name: &LockName, count: u32) {
    let (to, desired) = (ResizeTo::Create(count), DesiredSlots::new(0));
    broker(vhost).resize(name, to, desired, &CancellationToken::new()).await.unwrap();
}

/// Returns the number of free tokens and of consumers, by passive declare.
async fn ready(vhost: &Vhost) -> (u32, u32) {
    let (_connection, channel) = vhost.channel().await;
    let queue = look(&channel, QUEUE).await;
    (queue.message_count(), queue.consumer_count())
}

async fn free(vhost: &Vhost) -> u32 {
    ready(vhost).await.0
}

async fn consumers(vhost: &Vhost) -> u32 {
    ready(vhost).await.1
}

fn with_priority(priority: u8) -> AcquireOptions {
    any().with_priority(priority)
}

/// Starts to acquire, and waits until the broker reports one more waiter.
async fn waiting(
    vhost: &Vhost,
    name: &LockName,
    options: AcquireOptions,
) -> tokio::task::JoinHandle<Result<lockkeeper_semaphore::Permit, AcquireError>> {
    let before = consumers(vhost).await;
    let lock = lock_of(vhost, name.clone());
    let task = tokio::spawn(async move { lock.acquire(&options).await });
    eventually("it waits", async || consumers(vhost).await > before).await;
    task
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_acquired_verified_and_released() {
    for queue_type in TYPES {
        let vhost = Vhost::create().await;
        let name = tokens(queue_type);
        create(&vhost, &name, 2).await;
        let one = lock_of(&vhost, name.clone()).try_acquire(&any()).await.unwrap();
        let two = lock_of(&vhost, name.clone()).try_acquire(&any()).await.unwrap();
        assert_eq!((one.slot(), two.slot()), (None, None));
        assert!(one.token_id().unwrap() < two.token_id().unwrap(), "oldest first");
        assert_eq!(one.verify().await, Ok(Verdict::Held));
        let error = lock_of(&vhost, name.clone()).try_acquire(&any()).await.unwrap_err();
        assert_eq!(error, AcquireError::Full { lock: "ci.deploy".to_owned(), slots: 0 });
        assert!(error.to_string().starts_with("no token of the lock \"ci.deploy\" is free"));
        let id = one.token_id();
        one.release().await.unwrap();
        eventually("it is free", async || free(&vhost).await == 1).await;
        let again = lock_of(&vhost, name.clone()).try_acquire(&any()).await.unwrap();
        assert_eq!(again.token_id(), id);
        drop((again, two));
        eventually("dropping frees tokens", async || free(&vhost).await == 2).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_token_is_there_for_the_next_client() {
    for queue_type in TYPES {
        let vhost = Vhost::create().await;
        let name = tokens(queue_type);
        create(&vhost, &name, 1).await;
        let [one, other] = [lock_of(&vhost, name.clone()), lock_of(&vhost, name)];
        for round in 0..100 {
            one.try_acquire(&any())
                .await
                .unwrap_or_else(|e| panic!("{round}: {e}"))
                .release()
                .await
                .unwrap();
            other
                .try_acquire(&any())
                .await
                .unwrap_or_else(|e| panic!("{round}: {e}"))
                .release()
                .await
                .unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_changes_hands_without_limit_and_only_a_quorum_queue_fences() {
    for queue_type in TYPES {
        let vhost = Vhost::create().await;
        let name = tokens(queue_type);
        create(&vhost, &name, 1).await;
        let proxy = Proxy::start().await;
        let client = Client::new(proxy.settings(vhost.settings()), quick());
        let lock = client.semaphore(name);
        let mut fences = Vec::new();
        // RabbitMQ 4 drops a token after 20 hand-overs unless configured otherwise.
        for round in 0..50 {
            let permit = lock.acquire(&any()).await.unwrap();
            assert!(permit.token_id().is_some());
            fences.push(permit.fence());
            if round % 5 == 0 {
                // Uncleanly.
                proxy.cut();
                permit.lost().await;
            } else {
                permit.release().await.unwrap();
            }
        }
        match queue_type {
            QueueType::Classic => assert_eq!(fences, [None; 50]),
            QueueType::Quorum => {
                let fences: Vec<u64> = fences.into_iter().flatten().collect();
                assert_eq!(fences.len(), 50);
                assert!(fences.windows(2).all(|two| two[0] < two[1]), "{fences:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_served_by_the_broker_in_the_order_of_priorities() {
    for queue_type in TYPES {
        let vhost = Vhost::create().await;
        let name = tokens(queue_type);
        create(&vhost, &name, 1).await;
        let mut held = lock_of(&vhost, name.clone()).acquire(&any()).await.unwrap();
        let mut tasks = Vec::new();
        for priority in [0, 255, 7, 0] {
            tasks.push((priority, waiting(&vhost, &name, with_priority(priority)).await));
        }
        for expected in [255, 7, 0, 0] {
            held.release().await.unwrap();
            let running = tasks.iter_mut().map(|(_, task)| task);
            let next = tokio::time::timeout(SOON, futures::future::select_all(running)).await;
            held = next.expect("the broker serves the next waiter").0.unwrap().unwrap();
            let at = tasks.iter().position(|(_, task)| task.is_finished()).unwrap();
            assert_eq!(tasks.remove(at).0, expected, "{queue_type:?}");
            assert_eq!(held.verify().await, Ok(Verdict::Held));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_semaphore_without_tokens_is_waited_for_and_one_that_is_not_there_is_not() {
    let vhost = Vhost::create().await;
    let missing = AcquireError::Missing { lock: "ci.deploy".to_owned() };
    assert_eq!(lock(&vhost).try_acquire(&any()).await.unwrap_err(), missing);
    assert_eq!(lock(&vhost).acquire(&any()).await.unwrap_err(), missing);
    create(&vhost, &classic(), 0).await;
    let full = AcquireError::Full { lock: "ci.deploy".to_owned(), slots: 0 };
    assert_eq!(lock(&vhost).try_acquire(&any()).await.unwrap_err(), full);
    let task = waiting(&vhost, &classic(), any()).await;
    let (to, desired) = (ResizeTo::Grow(1), DesiredSlots::new(0));
    broker(&vhost).resize(&classic(), to, desired, &CancellationToken::new()).await.unwrap();
    let permit = task.await.unwrap().unwrap();
    assert_eq!(permit.verify().await, Ok(Verdict::Held));
    // Clients that wait when it is deleted wait until it is created again.
    let task = waiting(&vhost, &classic(), any()).await;
    vhost.delete(QUEUE).await;
    create(&vhost, &classic(), 1).await;
    let permit = task.await.unwrap().unwrap();
    assert_eq!(permit.verify().await, Ok(Verdict::Held));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_queue_notifies_holders_that_waited_and_others_at_their_next_verify() {
    let vhost = Vhost::create().await;
    create(&vhost, &classic(), 2).await;
    let slow = quick()
        .with_heartbeat(Duration::from_secs(60))
        .with_verify_interval(Duration::from_secs(1));
    let client = Client::new(vhost.settings(), slow.clone());
    let got = client.semaphore(classic()).try_acquire(&any()).await.unwrap();
    let other = client.semaphore(classic()).try_acquire(&any()).await.unwrap();
    let patient = slow.with_verify_interval(Duration::from_secs(60));
    let lock = Client::new(vhost.settings(), patient).semaphore(classic());
    let task = tokio::spawn(async move { lock.acquire(&any()).await });
    eventually("it waits", async || consumers(&vhost).await > 0).await;
    other.release().await.unwrap();
    let waited = task.await.unwrap().unwrap();
    vhost.delete(QUEUE).await;
    // Its own proof would detect it after 29 s.
    let lost = tokio::time::timeout(SOON, waited.lost()).await;
    assert_eq!(lost, Ok(LostReason::VerifyFailed));
    let lost = tokio::time::timeout(SOON, got.lost()).await;
    assert_eq!(lost, Ok(LostReason::VerifyFailed));
    assert!(!got.is_valid() && got.token().is_cancelled());
    assert_eq!(got.release().await, Err(LostReason::VerifyFailed));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_connection_loses_its_token_immediately_with_the_close_reason() {
    let vhost = Vhost::create().await;
    create(&vhost, &classic(), 1).await;
    let slow = quick().with_heartbeat(Duration::from_secs(60));
    let held = Client::new(vhost.settings(), slow).semaphore(classic()).acquire(&any()).await;
    let held = held.unwrap();
    eventually("the connection is shown", async || !vhost.connections("hold").await.is_empty())
        .await;
    let connections = vhost.connections("hold").await;
    let task = waiting(&vhost, &classic(), any()).await;
    for connection in connections {
        vhost.management.close_connection(&connection, "maintenance").await;
    }
    let lost = tokio::time::timeout(SOON, held.lost()).await.unwrap();
    assert_eq!(
        lost,
        LostReason::ConnectionClosed { text: "CONNECTION_FORCED - maintenance".to_owned() }
    );
    let next = tokio::time::timeout(SOON, task).await.unwrap().unwrap().unwrap();
    assert_eq!(next.token_id(), held.token_id());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_off_holder_knows_before_the_broker_gives_its_token_away() {
    let vhost = Vhost::create().await;
    create(&vhost, &classic(), 1).await;
    let proxy = Proxy::start().await;
    let settings = proxy.settings(vhost.settings());
    let permit = Client::new(settings, brief()).semaphore(classic()).try_acquire(&any()).await;
    let permit = permit.unwrap();
    proxy.freeze(true);
    let frozen = Moment::now();
    let until = permit.valid_until();
    assert_eq!(permit.lost().await, LostReason::HeartbeatMissed);
    eventually("the broker frees it", async || free(&vhost).await == 1).await;
    // As with slots: the compared values do not depend on when they were observed.
    assert!(until < frozen + BRIEF * 2, "valid for longer than the broker waits");
    assert!(frozen.elapsed() > BRIEF * 2, "the broker freed it after {:?}", frozen.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_stays_held_for_longer_than_its_heartbeats_would_last() {
    let vhost = Vhost::create().await;
    create(&vhost, &classic(), 1).await;
    let lock = Client::new(vhost.settings(), brief()).semaphore(classic());
    let held = lock.try_acquire(&any()).await.unwrap();
    let lost = tokio::time::timeout(BRIEF * 7 / 2, held.lost()).await;
    assert!(lost.is_err(), "lost without a cause");
    assert_eq!(held.verify().await, Ok(Verdict::Held));
    held.release().await.unwrap();
    eventually("the announcement went with it", async || vhost.queues().await == [QUEUE]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_token_is_ever_lost_or_doubled_by_many_clients_that_come_and_go() {
    for queue_type in TYPES {
        let vhost = Vhost::create().await;
        let name = tokens(queue_type);
        create(&vhost, &name, 3).await;
        // Some share a client and its connections, some do not.
        let clients: Vec<_> = (0..3).map(|_| Client::new(vhost.settings(), quick())).collect();
        let held = Arc::new(AtomicU32::new(0));
        let most = Arc::new(AtomicU32::new(0));
        let each = (0..12_u32).map(|who| {
            let lock = clients[who as usize % clients.len()].semaphore(name.clone());
            let (held, most) = (Arc::clone(&held), Arc::clone(&most));
            // Separate tasks, so that holders overlap in time.
            tokio::spawn(async move {
                for round in 0..15_u64 {
                    let limit = Duration::from_millis(3 + (u64::from(who) * 7 + round * 11) % 60);
                    // Some are dropped, some time out, some acquire a token.
                    let got = if (round + u64::from(who)) % 3 == 0 {
                        let acquired = tokio::time::timeout(limit, lock.acquire(&any())).await;
                        acquired.ok().and_then(Result::ok)
                    } else {
                        lock.acquire_timeout(&any(), limit).await.ok()
                    };
                    let Some(permit) = got else { continue };
                    let now = held.fetch_add(1, Ordering::SeqCst) + 1;
                    assert!(now <= 3, "more hold than there are tokens");
                    most.fetch_max(now, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(round % 5)).await;
                    held.fetch_sub(1, Ordering::SeqCst);
                    permit.release().await.unwrap();
                }
            })
        });
        for ended in futures::future::join_all(each).await {
            ended.unwrap();
        }
        assert!(most.load(Ordering::SeqCst) > 1, "no two ever held one at the same time");
        eventually("all tokens are free", async || free(&vhost).await == 3).await;
    }
}
