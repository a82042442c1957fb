//! Holders on a node that is separated from the other two: when their permits end, and
//! when a client of the majority acquires their slots.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_plan::naming::{LockName, Profile, Protocol, QueueType};
use lockkeeper_plan::semaphore::DesiredSlots;
use lockkeeper_semaphore::{Client, ClientOptions, Lock, Moment, Permit, Verdict};
use lockkeeper_testkit::cluster::Cluster;
use tokio::task::JoinHandle;

use crate::clusters::{first, lock_through, resize};

/// Limit for a client of the majority to acquire the slot of a separated holder. A quorum
/// queue of RabbitMQ 4.3 takes 60 s to return the token.
const LIMIT: Duration = Duration::from_mins(3);

/// Longer than a node with Mnesia needs to pause after it was separated.
const LOCK_DELAY: Duration = Duration::from_secs(5);

/// Returns the lock, with a client of its own at this node and a short heartbeat.
fn lock_at(cluster: &Cluster, node: usize, name: &LockName) -> Lock {
    let options = ClientOptions::default()
        .with_warm(0)
        .with_heartbeat(Duration::from_secs(2))
        .with_verify_interval(Duration::from_millis(500));
    Client::new(cluster.settings(node), options).semaphore(name.clone())
}

/// Acquires in the background, without waiting to be woken. Returns the permit, and when
/// it was acquired.
fn acquiring(lock: Lock) -> JoinHandle<(Permit, Moment)> {
    let acquire = async move {
        loop {
            match lock.try_acquire(&first()).await {
                Ok(permit) => return (permit, Moment::now()),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    tokio::spawn(async { tokio::time::timeout(LIMIT, acquire).await.expect("it is acquired") })
}

/// Watches a permit in the background. Returns when it was lost.
fn losing(permit: &Arc<Permit>) -> JoinHandle<Moment> {
    let watched = Arc::clone(permit);
    let lost = async move {
        watched.lost().await;
        Moment::now()
    };
    tokio::spawn(async { tokio::time::timeout(LIMIT, lost).await.expect("it is lost") })
}

/// The count of deliveries grows although the separated holder has returned nothing. On
/// RabbitMQ 4 the node does not pause, and the majority gives the token to another client after its
/// `consumer_disconnected_timeout` (5 s here). The holder must have noticed before, also on the
/// node of the queue's former leader.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_has_a_greater_fence_after_its_holders_node_was_partitioned() {
    let cluster = Cluster::whole().await;
    let quorum = Protocol::Token(QueueType::Quorum);
    let mut contests = Vec::new();
    for (name, leader) in [("ci.far", 1), ("ci.near", 3)] {
        contests.push(Contest::begin(&cluster, (name, quorum), leader).await);
    }
    for Contest { separated, .. } in &contests {
        assert_eq!(separated.verify().await, Ok(Verdict::Held));
    }
    cluster.part(3).await;
    let mut held = Vec::new();
    for Contest { lock, separated, lost, acquired } in contests {
        let ((next, acquired), lost) = (acquired.await.unwrap(), lost.await.unwrap());
        println!("lost {:?} ago, acquired {:?} ago", lost.elapsed(), acquired.elapsed());
        assert!(!cluster.has_khepri() || lost < acquired, "{separated:?}");
        assert_eq!(next.token_id(), separated.token_id());
        assert!(next.fence().unwrap() > separated.fence().unwrap(), "{next:?} after {separated:?}");
        held.push((lock, separated, next));
    }
    cluster.join(3).await;
    for (lock, separated, next) in held {
        assert_eq!(separated.verify().await, Ok(Verdict::Lost));
        assert_eq!(next.verify().await, Ok(Verdict::Held));
        let fence = next.fence();
        next.release().await.unwrap();
        let (last, _) = acquiring(lock_at(&cluster, 3, &lock)).await.unwrap();
        assert!(last.fence() > fence, "{last:?} after {fence:?}");
    }
}

/// A lock with one slot or token: its holder on the separated node, and a client of the
/// majority that acquires it.
struct Contest {
    lock: LockName,
    separated: Arc<Permit>,
    lost: JoinHandle<Moment>,
    acquired: JoinHandle<(Permit, Moment)>,
}

impl Contest {
    /// Creates the lock at this node.
    async fn begin(cluster: &Cluster, (name, protocol): (&str, Protocol), node: usize) -> Self {
        let lock = LockName::new(name).unwrap().with_protocol(protocol);
        let records = lock.has_slots().then_some(LOCK_DELAY);
        resize(cluster, node, &lock, DesiredSlots { records, ..DesiredSlots::new(1) }).await;
        let separated = Arc::new(lock_at(cluster, 3, &lock).try_acquire(&first()).await.unwrap());
        let lost = losing(&separated);
        let acquired = acquiring(lock_through(cluster, 1, &lock));
        Self { lock, separated, lost, acquired }
    }
}

/// The nodes of the majority free its slot as soon as they notice the separation. The
/// separated holder notices later: with Mnesia when its node pauses, and on RabbitMQ 4
/// when its consumer is cancelled, or its token is not verified in time. The lock delay
/// covers the time between. Tokens have no lock delay, and need fencing instead.
///
/// On RabbitMQ 4.0 the holder of an exclusive queue notices nothing until the nodes
/// reconnect (hazard A19), so that protocol is tested with Mnesia only.
#[tokio::test(flavor = "multi_thread")]
async fn a_separated_holder_is_lost_before_its_lock_delay_ends() {
    let cluster = Cluster::whole().await;
    let mut protocols = vec![
        ("ci.consumer", Protocol::ExclusiveConsumer),
        ("ci.classic", Protocol::Token(QueueType::Classic)),
    ];
    if !cluster.has_khepri() {
        protocols.push(("ci.queue", Protocol::ExclusiveQueue(Profile::Guideline)));
    }
    let mut contests = Vec::new();
    for protocol in protocols {
        contests.push(Contest::begin(&cluster, protocol, 1).await);
    }
    let begun = Moment::now();
    let since = |moment: Moment| begun.elapsed().saturating_sub(moment.elapsed());
    cluster.part(3).await;
    println!("separated after {:?}", begun.elapsed());
    let mut permits = Vec::new();
    for Contest { lock, separated, lost, acquired } in contests {
        let protocol = lock.protocol();
        let (lost, (permit, acquired)) = (lost.await.unwrap(), acquired.await.unwrap());
        println!(
            "{protocol:?}: lost after {:?}, acquired after {:?}",
            since(lost),
            since(acquired)
        );
        assert!(!separated.is_valid());
        if !matches!(protocol, Protocol::Token(_)) {
            assert!(lost < acquired, "{protocol:?}");
        }
        assert!(permit.fence() > separated.fence() || permit.fence().is_none(), "{protocol:?}");
        permits.push(permit);
    }
    cluster.join(3).await;
    for permit in permits {
        assert_eq!(permit.verify().await, Ok(Verdict::Held), "{permit:?}");
    }
}
