//! Commands of `lockkeeper exec` at all nodes of a cluster, while one node after the other
//! is killed, suspended, restarted or separated. Each command writes to a register with its
//! fencing token. `LOCKKEEPER_SEED` repeats a run, and `LOCKKEEPER_SOAK` makes it long, with
//! 100 faults or `LOCKKEEPER_FAULTS`.

mod loops;
mod register;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lockkeeper_plan::semaphore::DesiredSlots;
use lockkeeper_testkit::cluster::Cluster;
use lockkeeper_testkit::environment::is_soak;
use lockkeeper_testkit::protocols::name;
use lockkeeper_testkit::rabbitmq::eventually;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use self::loops::Loops;
use self::register::Register;
use crate::clusters::resize;

const SLOTS: u32 = 3;

/// Longer than exec needs to end a command after its lock was lost.
const LOCK_DELAY: Duration = Duration::from_secs(3);

/// Acquisitions during each fault, before it is healed.
const DURING: usize = 4;

/// A fault of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// SIGKILL.
    Kill,
    /// A clean stop.
    Restart,
    /// SIGSTOP, until the other nodes regard it as down.
    Hang,
    /// No connection to the other nodes, but to its clients.
    Partition,
}

impl Fault {
    const ALL: [Self; 4] = [Self::Kill, Self::Restart, Self::Hang, Self::Partition];

    /// Returns when the other nodes have noticed.
    async fn begin(self, cluster: &Cluster, node: usize) {
        match self {
            Self::Kill => cluster.lose(node).await,
            Self::Restart => cluster.stop(node).await,
            Self::Hang => cluster.hang(node).await,
            Self::Partition => cluster.part(node).await,
        }
    }

    /// Returns when the cluster is whole again, and whether that took a restart which is
    /// not part of the fault.
    async fn end(self, cluster: &Cluster, node: usize) -> bool {
        match self {
            Self::Kill | Self::Restart => {
                cluster.regain(node).await;
                false
            }
            Self::Hang => cluster.resume(node).await,
            Self::Partition => cluster.join(node).await,
        }
    }
}

/// Returns the faults and their nodes: one of each kind, or many in a soak.
fn faults(random: &mut StdRng) -> Vec<(Fault, usize)> {
    let mut kinds = Fault::ALL.to_vec();
    if is_soak() {
        let count = std::env::var("LOCKKEEPER_FAULTS").map_or(100, |count| count.parse().unwrap());
        kinds = (0..count).map(|_| Fault::ALL[random.random_range(0..4)]).collect();
    }
    kinds.shuffle(random);
    kinds.into_iter().map(|kind| (kind, random.random_range(2..=3))).collect()
}

/// Waits until commands have entered during a fault. Returns false if none can: Khepri keeps
/// the holder queue of every slot on the node that is down, so no slot is free until that
/// node is back.
async fn until_entered_again(register: &Register, cluster: &Cluster) -> bool {
    let before = register.entries();
    let down = cluster.down().await;
    let mut entered = false;
    eventually("further commands enter", async || {
        entered = register.entries() >= before + DURING;
        entered || cluster.has_khepri() && holds_every_slot(cluster, &down).await
    })
    .await;
    entered
}

async fn holds_every_slot(cluster: &Cluster, node: &str) -> bool {
    let nodes = cluster.vhost.nodes_of_queues().await;
    (1..=SLOTS).all(|slot| nodes.get(&name().holder_queue(slot)).is_some_and(|on| on == node))
}

#[tokio::test(flavor = "multi_thread")]
async fn loops_survive_random_faults() {
    let seed = std::env::var("LOCKKEEPER_SEED")
        .map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("LOCKKEEPER_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let cluster = Cluster::whole().await;
    let desired = DesiredSlots { records: Some(LOCK_DELAY), ..DesiredSlots::new(SLOTS) };
    resize(&cluster, 1, &name(), desired).await;
    let register = Register::open().await;
    let count = if is_soak() { 30 } else { 6 };
    let loops = Loops::start(&cluster, register.port(), count, seed);
    loops.all_complete_a_command().await;

    let mut faults_by_kind = BTreeMap::<Fault, usize>::new();
    let mut without_a_slot = 0;
    for (fault, node) in faults(&mut random) {
        register.until_held_at(node).await;
        register.suffers(Some(fault));
        let begun = Instant::now();
        fault.begin(&cluster, node).await;
        let noticed = begun.elapsed();
        let entered = until_entered_again(&register, &cluster).await;
        let healing = Instant::now();
        let restarted = fault.end(&cluster, node).await;
        println!(
            "{fault:?} of node {node}: noticed after {noticed:?}, healed in {:?}{}{}",
            healing.elapsed(),
            if restarted { " by a restart" } else { "" },
            if entered { "" } else { ", all slots were held through this node" }
        );
        without_a_slot += usize::from(!entered);
        *faults_by_kind.entry(fault).or_default() += 1;
    }
    loops.all_complete_a_command().await;
    loops.stop().await;

    let end = register.close();
    println!(
        "seed {seed}: {} acquisitions by {count} loops, faults {faults_by_kind:?}, \
         {without_a_slot} without a slot on a live node, overlaps {:?}, {} late writes rejected",
        end.entries, end.overlaps, end.late_writes
    );
    assert_eq!(end.violations, [""; 0]);
    for (fault, overlaps) in &end.overlaps {
        let tolerated = matches!(fault, Some(Fault::Hang | Fault::Partition));
        assert!(tolerated, "{fault:?}: {overlaps:?}");
    }
    let name = name();
    let mut expected: Vec<String> = (1..=SLOTS)
        .flat_map(|slot| [name.slot_queue(slot), format!("{name}-{slot}-F")])
        .chain([format!("{name}-W")])
        .collect();
    expected.sort();
    eventually("only the desired slots exist, and none is held", async || {
        let mut queues = cluster.vhost.queues().await;
        queues.sort();
        queues == expected
    })
    .await;
}
