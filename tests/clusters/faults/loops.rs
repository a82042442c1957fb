//! Loops that run one command after the other under `lockkeeper exec`, each a process with
//! its own connections. A loop prefers one node, and moves to the next one after a failure.

use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper_testkit::built;
use lockkeeper_testkit::cluster::Cluster;
use lockkeeper_testkit::protocols::name;
use lockkeeper_testkit::rabbitmq::within;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Enters the register on port `$1`, held at node `$2`, writes `$3` times and leaves. In
/// bash, because sh opens no sockets.
const COMMAND: &str = r#"
[ -n "$LOCK_TOKEN" ] || echo "without a token" >&2
exec 3<>"/dev/tcp/127.0.0.1/$1" || exit
ask() { echo "$*" >&3 && read -r answer <&3; }
ask enter "$2" "$LOCK_SLOT" "$LOCK_HOLDER_ID" $LOCK_TOKEN || exit
for ((i = 0; i < $3; i++)); do ask write && sleep 0.2 || exit; done
ask leave"#;

/// Exit codes of exec for a broker that is not reachable, a slot that did not become
/// available in time, and a lost lock.
const FAILURES: [i32; 3] = [69, 75, 80];

/// Maximum duration of one exec, whose waiting and command are far shorter.
const LIMIT: Duration = Duration::from_mins(2);

/// The running loops.
pub struct Loops {
    /// The number of commands that each loop has completed.
    completed: Arc<Vec<AtomicUsize>>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Loops {
    /// Starts this number of loops, which prefer different nodes.
    pub fn start(cluster: &Cluster, port: u16, count: usize, seed: u64) -> Self {
        let completed: Arc<Vec<_>> = Arc::new((0..count).map(|_| AtomicUsize::new(0)).collect());
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for number in 0..count {
            let random = StdRng::seed_from_u64(seed.wrapping_add(number as u64));
            let urls = [1, 2, 3].map(|node| cluster.url(node));
            let one = Loop { number, urls, port, random };
            tasks.spawn(one.run(Arc::clone(&completed), stop.clone()));
        }
        Self { completed, stop, tasks }
    }

    /// Waits until each loop has completed a further command.
    pub async fn all_complete_a_command(&self) {
        let completed =
            || self.completed.iter().map(|n| n.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let before = completed();
        within(LIMIT, "every loop completes a command", async || {
            completed().iter().zip(&before).all(|(now, before)| now > before)
        })
        .await;
    }

    /// Waits until each loop has ended its command. Panics if a loop has failed.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

struct Loop {
    number: usize,
    urls: [String; 3],
    port: u16,
    random: StdRng,
}

impl Loop {
    async fn run(mut self, completed: Arc<Vec<AtomicUsize>>, stop: CancellationToken) {
        let mut failures = 0;
        while !stop.is_cancelled() {
            let node = (self.number + failures) % 3 + 1;
            let output = self.exec(node).await;
            let said = String::from_utf8_lossy(&output.stderr);
            if said.contains("without a token") {
                println!("loop {} at node {node}: {said}", self.number);
            }
            match output.status.code() {
                Some(0) => {
                    completed[self.number].fetch_add(1, Ordering::Relaxed);
                    failures = 0;
                }
                Some(code) if FAILURES.contains(&code) => failures += 1,
                _ => panic!("loop {} at node {node}: {output:?}", self.number),
            }
        }
    }

    async fn exec(&mut self, node: usize) -> Output {
        // Some commands are longer than the lock delay, so that they would meet the next
        // holder of their slot.
        let writes = if self.random.random_bool(0.7) { 2 } else { 25 };
        let mut command = Command::new(built::lockkeeper());
        command
            .args(["exec", name().as_str(), "--quiet", "--timeout", "15s"])
            .args(["--heartbeat", "2s", "--kill-after", "500ms"])
            .args(["--", "bash", "-c", COMMAND, "command"])
            .args([self.port.to_string(), node.to_string(), writes.to_string()])
            .env("AMQP_URL", &self.urls[node - 1])
            // Shows why a command ran without a token.
            .env("LOCKKEEPER_LOG", "lockkeeper=debug")
            .env_remove("RABBITMQ_MANAGEMENT_URL")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let output = tokio::time::timeout(LIMIT, command.output()).await;
        output.unwrap_or_else(|_| panic!("loop {} hangs at node {node}", self.number)).unwrap()
    }
}
