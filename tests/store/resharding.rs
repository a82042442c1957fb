//! A slot of a Redis Cluster that moves from node to node while `lockkeeper queue put` and
//! `get` transfer elements. In each move the nodes refuse commands in another way. See
//! `cluster` for single operations during a move.

use std::process::Stdio;
use std::time::Duration;

use lockkeeper_plan::naming::QueueName;
use lockkeeper_plan::pressure_queue::QueueEffect;
use lockkeeper_pressure::{Applied, Deletion, TakenRoles};
use lockkeeper_testkit::built;
use lockkeeper_testkit::redis::in_time;
use lockkeeper_testkit::redis_cluster::{Cluster, SLOTS, queue_on};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Time limit for the processes to end.
const PATIENCE: Duration = Duration::from_mins(1);
/// Size of an element that is put by a transaction, which the nodes refuse differently.
const LARGE: usize = 9000;

/// Returns a subcommand of `lockkeeper queue` that only knows this node.
fn queue(cluster: &Cluster, node: usize, arguments: &[&str]) -> Command {
    let mut command = Command::new(built::lockkeeper());
    command
        .env("REDIS_URL", cluster.0[node].url())
        .env("PRESSURE_PREFIX", "p")
        .arg("queue")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Writes numbered lines until it is stopped, some of them large. Returns the lines.
async fn feed(mut stdin: ChildStdin, stop: CancellationToken) -> String {
    let mut fed = String::new();
    for number in 0_u32.. {
        let end = if number % 50 == 0 { "x".repeat(LARGE) } else { String::new() };
        let line = format!("{number} {end}\n");
        // Fails if `put` has ended, which its outcome explains.
        if stop.is_cancelled() || stdin.write_all(line.as_bytes()).await.is_err() {
            break;
        }
        fed.push_str(&line);
    }
    fed
}

/// A queue with a process that puts lines and another one that gets them.
struct Pipe {
    name: QueueName,
    fed: JoinHandle<String>,
    putting: Child,
    got: JoinHandle<String>,
    getting: Child,
}

impl Pipe {
    async fn start(
        cluster: &Cluster,
        name: QueueName,
        get: &[&str],
        stop: &CancellationToken,
    ) -> Self {
        let create = QueueEffect::Create { bound: 20 };
        assert_eq!(cluster.store(0).apply(&name, &create).await.unwrap(), Applied::Done);
        let mut putting = queue(cluster, 1, &["put", name.as_str()]).spawn().unwrap();
        let fed = tokio::spawn(feed(putting.stdin.take().unwrap(), stop.clone()));
        let get = [&["get", name.as_str()], get].concat();
        let mut getting = queue(cluster, 2, &get).spawn().unwrap();
        let mut stdout = getting.stdout.take().unwrap();
        let got = tokio::spawn(async move {
            let mut got = String::new();
            stdout.read_to_string(&mut got).await.unwrap();
            got
        });
        Self { name, fed, putting, got, getting }
    }

    /// Waits until elements pass over this node.
    async fn is_busy(&self, cluster: &Cluster, node: usize) {
        let key = format!("{}:stats:consumed_messages", self.name.data());
        let count = async || cluster.ask::<Option<u64>>(node, &["GET", &key]).await;
        let before = count().await.unwrap_or_default();
        in_time("elements pass", async || count().await.unwrap_or_default() >= before + 200).await;
    }

    /// Checks that both processes succeed and every line comes out once and in order.
    async fn finish(self, cluster: &Cluster) {
        for (name, child) in [("put", self.putting), ("get", self.getting)] {
            let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await;
            let output = output.unwrap_or_else(|_| panic!("{name} does not end")).unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!((output.status.code(), &*stderr), (Some(0), ""), "{name}");
        }
        let (fed, got) = (self.fed.await.unwrap(), self.got.await.unwrap());
        let number = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
        let (put, taken): (Vec<_>, Vec<_>) =
            (fed.lines().map(number).collect(), got.lines().map(number).collect());
        let first = put.iter().zip(&taken).position(|(put, got)| put != got);
        assert_eq!((taken.len(), first), (put.len(), None), "lines, and the first that differs");
        assert!(fed == got, "the lines are as they were");
        let store = cluster.store(0);
        let seen = store.observe(&self.name).await.unwrap();
        assert_eq!((seen.consumed_messages, seen.drift()), (put.len() as u64, 0));
        assert_eq!(store.delete(&self.name, TakenRoles::Wait).await.unwrap(), Deletion::Gone);
    }
}

/// Waits until a node refuses a command with this code.
async fn is_refused(cluster: &Cluster, node: usize, code: &str) {
    let before = cluster.refusals(node, code).await;
    let what = format!("node {node} refuses with {code}");
    in_time(&what, async || cluster.refusals(node, code).await > before).await;
}

/// Moves the slot of two queues through all nodes while they are in use.
async fn move_under_load(cluster: Cluster) {
    let tag = queue_on(0, "frames");
    let name = |end: &str| QueueName::new("p", format!("{}{end}", tag.as_str())).unwrap();
    let stop = CancellationToken::new();
    let pipes = [
        Pipe::start(&cluster, name("-plain"), &[], &stop).await,
        Pipe::start(&cluster, name("-ack"), &["--ack"], &stop).await,
    ];
    let is_busy = async |node| {
        for pipe in &pipes {
            pipe.is_busy(&cluster, node).await;
        }
    };

    // A part of the keys has moved: TRYAGAIN.
    is_busy(0).await;
    cluster.begin_move(&tag, 0, 1).await;
    cluster.move_keys(&tag, 0, 1, 3).await;
    is_refused(&cluster, 0, "TRYAGAIN").await;
    cluster.move_keys(&tag, 0, 1, 100).await;
    for node in [1, 0, 2] {
        cluster.assign(&tag, 1, node).await;
    }

    // All keys have moved, and the slot has not: ASK.
    is_busy(1).await;
    cluster.begin_move(&tag, 1, 2).await;
    cluster.move_keys(&tag, 1, 2, 100).await;
    is_refused(&cluster, 1, "ASK").await;
    for node in [2, 1, 0] {
        cluster.assign(&tag, 2, node).await;
    }

    // The old node gets the command first, so that both nodes redirect to each other: MOVED. The
    // new one must not take the slot over before it gets the command.
    is_busy(2).await;
    cluster.begin_move(&tag, 2, 0).await;
    cluster.move_keys(&tag, 2, 0, 100).await;
    cluster.end_import(&tag, 0).await;
    let moved = async || [cluster.refusals(0, "MOVED").await, cluster.refusals(2, "MOVED").await];
    let before = moved().await;
    cluster.assign(&tag, 0, 2).await;
    let look = tokio::spawn({
        let (store, name) = (cluster.store(1), name("-plain"));
        async move { store.observe(&name).await }
    });
    in_time("both refuse with MOVED twice", async || {
        let now = moved().await;
        now[0] >= before[0] + 2 && now[1] >= before[1] + 2
    })
    .await;
    // Only an import ends with a new epoch for the slot's owner.
    cluster.begin_import(&tag, 2, 0).await;
    for node in [0, 1] {
        cluster.assign(&tag, 0, node).await;
    }
    assert_eq!(look.await.unwrap().unwrap().bound, Some(20));

    is_busy(0).await;
    stop.cancel();
    for pipe in pipes {
        pipe.finish(&cluster).await;
    }
    assert_eq!(cluster.keys().await, vec![Vec::<String>::new(); SLOTS.len()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_lose_and_double_nothing_while_their_slot_moves_from_node_to_node() {
    move_under_load(Cluster::start().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_lose_and_double_nothing_while_their_slot_moves_in_a_valkey_cluster() {
    move_under_load(Cluster::valkey().await).await;
}
