//! Compares our locks with what a user would choose instead: etcd's lock, a Redis key,
//! amqp-locks-python and flock. Prints a table, and `plot` draws it. Each client is a process
//! (`locker`), which reads requests from standard input, a line each, and answers with a number:
//!
//! - `create`: creates the lock with one slot. Once, before all other requests.
//! - `acquire`: answers when the lock is held, with the time, in nanoseconds since 1970.
//! - `release`: answers when the lock is released, with the time at which it began.
//! - `run MILLISECONDS`: acquires and releases for that time, answers how often.
//!
//! Its environment contains the URL of the server (`LOCKER_URL`) and the name of the lock
//! (`LOCKER_LOCK`).

mod counter;
mod etcd;
mod figures;
mod locker;
mod plot;
mod serve;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use futures::future::try_join_all;
use lockkeeper_testkit::built;
use lockkeeper_testkit::environment::variable;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

pub use self::serve::serve;

use self::counter::Counter;
use self::etcd::Etcd;
use self::figures::Figures;
use self::locker::{Locker, Site};
use crate::environment::Environment;
use crate::protocols::PROTOCOLS;
use crate::table::{aligned, median, percentile};
use crate::{Options, Result};

/// Duration of a round of acquire and release.
const ROUND: Duration = Duration::from_secs(2);

/// Number of clients of the contended lock.
const CLIENTS: u32 = 16;

/// Hand-overs and kills per peer.
const HAND_OVERS: usize = 40;
const KILLS: usize = 3;

/// Processes started per peer.
const STARTS: usize = 10;

/// The time for which a client waits before the lock is released, at least; at most, twice. It
/// varies, so that attempts at regular intervals have no advantage.
const AT_REST: Duration = Duration::from_millis(100);

/// Time until a waiting client has sent all requests that begin a wait.
const SETTLED: Duration = Duration::from_secs(5);

/// An implementation of a lock.
struct Peer {
    name: &'static str,
    site: Site,
    /// Runs a command under the lock. `None`: it has no such program.
    exec: Option<Vec<String>>,
}

/// Measures each peer. Prints one table, and draws it.
pub async fn run(environment: &Environment, options: &Options) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let etcd = Etcd::start(directory.path()).await?;
    let peers = peers(environment, options, &etcd, directory.path())?;
    let minute = try_join_all(peers.iter().map(wait)).await?;
    let mut figures = Vec::new();
    for (peer, [messages, bytes]) in peers.iter().zip(minute) {
        figures.push(Figures { messages, bytes, ..measure(peer, options).await? });
        println!("  {}", figures.last().map(Figures::row).unwrap_or_default().join(" | "));
    }
    println!();
    let head = [
        "one slot",
        "acquire + release",
        "16 clients",
        "smallest share",
        "hand-over: median; p99",
        "kill -9 to the next holder",
        "start to held",
        "a waiter per minute",
    ];
    aligned(head, &figures.iter().map(Figures::row).collect::<Vec<_>>());
    let file = options.plots.join("peers.svg");
    plot::draw(&file, &figures)?;
    println!("\nthe picture: {}", file.display());
    Ok(())
}

fn peers(
    environment: &Environment,
    options: &Options,
    etcd: &Etcd,
    directory: &Path,
) -> Result<Vec<Peer>> {
    let redis = variable("REDIS_URL");
    let own = std::env::current_exe()?.display().to_string();
    let own = |kind: &str| vec![own.clone(), "--locker".to_owned(), kind.to_owned()];
    let log = format!("{}/bench-peers.log", variable("LOCKKEEPER_DEV_DIR"));
    let peer = |name, command, url: &str, lock: &str| {
        let (url, lock, log) = (url.to_owned(), lock.to_owned(), log.clone());
        Peer { name, site: Site { command, url, lock, log }, exec: None }
    };
    let amqp = &environment.amqp_url();
    let mut peers = Vec::new();
    for (name, _) in PROTOCOLS {
        let lock = format!("peers.{name}");
        let program = environment.program.clone();
        let exec = [&program, "exec", "--protocol", name, "--semaphore", &lock];
        let exec = Some(exec.map(str::to_owned).into());
        peers.push(Peer { exec, ..peer(name, own(name), amqp, &lock) });
    }
    if let Some(checkout) = &options.amqp_locks_python {
        let script = built::checkout().join("crates/bench/src/peers/amqp_locks_python.py");
        let script = script.display().to_string();
        let source = format!("SRC={}", checkout.canonicalize()?.display());
        let command = ["env".to_owned(), source, variable("FOREIGN_PYTHON"), script];
        peers.push(peer("amqp-locks-python", command.into(), amqp, "peers.python"));
    }
    peers.push(peer("etcd", vec![variable("ETCD_LOCK")], &etcd.url, "peers"));
    peers.push(peer("Redis", own("redis"), &redis, &format!("{}:peers", environment.namespace)));
    peers.push(peer("flock", own("flock"), "", &directory.join("flock").display().to_string()));
    Ok(peers)
}

/// Creates the lock of a peer, and counts what a waiting client and the server send in a minute.
async fn wait(peer: &Peer) -> Result<[f64; 2]> {
    let mut holder = Locker::start(&peer.site)?;
    holder.ask("create").await?;
    holder.ask("acquire").await?;
    let mut site = peer.site.clone();
    let counter = if site.url.is_empty() { None } else { Some(counted(&mut site.url).await?) };
    let mut waiter = Locker::start(&site)?;
    waiter.send("acquire").await?;
    sleep(SETTLED).await;
    let counts = || counter.as_ref().map_or([0, 0], Counter::counts);
    let before = counts();
    sleep(Duration::from_secs(60)).await;
    let after = counts();
    holder.ask("release").await?;
    waiter.answer().await?;
    waiter.ask("release").await?;
    Ok([0, 1].map(|index| float(after[index] - before[index])))
}

/// Starts a counter for the server at this URL, which becomes that of the counter.
async fn counted(url: &mut String) -> Result<Counter> {
    let mut parsed = url::Url::parse(url)?;
    let server = parsed.socket_addrs(|| None)?;
    let counter = Counter::start(*server.first().ok_or("a URL without an address")?).await?;
    parsed.set_port(Some(counter.address.port())).map_err(|()| "a URL without a port")?;
    *url = parsed.to_string();
    Ok(counter)
}

async fn measure(peer: &Peer, options: &Options) -> Result<Figures> {
    let site = &peer.site;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Locker::warm(site).await?);
    }
    let per_second = |cycles: u64, time: Duration| float(cycles) / time.as_secs_f64();
    let (mut alone, mut contended, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let start = Instant::now();
        let cycles = clients[0].run(ROUND).await?;
        alone.push(per_second(cycles, start.elapsed()));
        let start = Instant::now();
        let cycles = try_join_all(clients.iter_mut().map(|client| client.run(ROUND))).await?;
        let all = cycles.iter().sum();
        contended.push(per_second(all, start.elapsed()));
        let least = cycles.into_iter().min().unwrap_or_default();
        shares.push(float(least) / (float(all) / f64::from(CLIENTS)));
    }
    clients.truncate(2);
    let hand_overs = hand_overs(&mut clients).await?;
    let mut kills = Vec::new();
    for _ in 0..KILLS {
        kills.push(kill(site).await?);
    }
    let mut starts = Vec::new();
    for _ in 0..STARTS {
        starts.push(start(peer).await?);
    }
    Ok(Figures {
        name: peer.name,
        alone: median(alone.into_iter()),
        contended: median(contended.into_iter()),
        share: median(shares.into_iter()),
        hand_over: median(hand_overs.iter().copied()),
        hand_over_p99: percentile(&hand_overs, 99),
        kill: median(kills.into_iter()),
        start: median(starts.into_iter()),
        messages: 0.0,
        bytes: 0.0,
    })
}

/// Hands the lock over from one client to the other and back. Returns the times in milliseconds.
async fn hand_overs(clients: &mut [Locker]) -> Result<Vec<f64>> {
    let mut took = Vec::new();
    let [holder, waiter] = clients else { return Err("two clients are needed".into()) };
    let (mut holder, mut waiter) = (holder, waiter);
    holder.ask("acquire").await?;
    for _ in 0..HAND_OVERS {
        waiter.send("acquire").await?;
        sleep(AT_REST.mul_f64(rand::random_range(1.0..2.0))).await;
        let (begun, held) = (holder.ask("release").await?, waiter.answer().await?);
        took.push(millis(begun, held));
        (holder, waiter) = (waiter, holder);
    }
    holder.ask("release").await?;
    Ok(took)
}

/// Kills a holder while another client waits. Returns the time until that one holds, in
/// milliseconds.
async fn kill(site: &Site) -> Result<f64> {
    let (mut holder, mut waiter) = (Locker::warm(site).await?, Locker::warm(site).await?);
    holder.ask("acquire").await?;
    waiter.send("acquire").await?;
    sleep(AT_REST.mul_f64(rand::random_range(1.0..2.0))).await;
    let killed = serve::now()?;
    holder.kill()?;
    let held = waiter.answer().await?;
    waiter.ask("release").await?;
    Ok(millis(killed, held))
}

/// Starts a process that acquires the lock, which is free. Returns the time until it holds, in
/// milliseconds.
async fn start(peer: &Peer) -> Result<f64> {
    let begun = serve::now()?;
    let Some((program, arguments)) = peer.exec.as_deref().and_then(<[String]>::split_first) else {
        let mut holder = Locker::start(&peer.site)?;
        let held = holder.ask("acquire").await?;
        holder.ask("release").await?;
        return Ok(millis(begun, held));
    };
    let mut command = Command::new(program);
    command.args(arguments).args(["--", "date", "+%s%N"]).env("AMQP_URL", &peer.site.url);
    let output = command.stdin(Stdio::null()).output().await?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(millis(begun, String::from_utf8(output.stdout)?.trim().parse()?))
}

/// Returns the milliseconds between two times in nanoseconds.
fn millis(from: u64, to: u64) -> f64 {
    Duration::from_nanos(to.saturating_sub(from)).as_secs_f64() * 1e3
}

#[expect(clippy::cast_precision_loss, reason = "no count of a benchmark is that large")]
fn float(count: u64) -> f64 {
    count as f64
}
