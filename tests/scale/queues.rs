//! A thousand queues with waiting consumers, on one Redis, all of them with
//! `repairPolicy: Repair`: the doctor's cost for the server and the operator
//! (docs/scale.md).

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

use futures::StreamExt;
use lockkeeper_api::PressureQueue;
use lockkeeper_plan::naming::DEFAULT_PREFIX;
use lockkeeper_testkit::environment::{self, processor_time};
use lockkeeper_testkit::pressure_text::{TextQueue, Worker};
use lockkeeper_testkit::redis::{PrivateRedis, connect};
use lockkeeper_testkit::world::in_a_world;

use super::{APPLIED_AT_ONCE, all_ready, at_rest};

const QUEUES: usize = 1000;

/// Duration of the measurement: three observations of each queue, with the default
/// intervals.
const REST: Duration = Duration::from_secs(30);

/// Limits of the operator's cost.
mod limit {
    /// Its own pages (`RssAnon`) and those of its program together, in MiB.
    pub const MEMORY: u64 = 150;
    /// Connection lists of the server in [`super::REST`]. At least nine seconds are
    /// between two of them.
    pub const LISTS: u64 = 5;
    /// Commands per second for each queue, including those of scripts.
    pub const COMMANDS: f64 = 6.0;
    /// Connections that watch keys.
    pub const GUARDS: usize = 32;
}

/// Returns how often the server has run each command, except those of this function.
async fn commands(server: &PrivateRedis) -> BTreeMap<String, u64> {
    let mut redis = connect(&server.url()).await;
    let mut info = redis::cmd("INFO");
    let stats: String = info.arg("commandstats").query_async(&mut redis).await.unwrap();
    let command = |line: &str| {
        let (name, stats) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let calls = stats.strip_prefix("calls=")?.split(',').next()?;
        Some((name.to_owned(), calls.parse().unwrap()))
    };
    stats.lines().filter_map(command).filter(|(name, _)| name != "info").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_queues_with_waiting_consumers_cost_few_commands_and_one_list() {
    in_a_world("queues-scale", async |world| {
        let server = PrivateRedis::start(&[]).await;
        world.secret("redis", &[("uri", server.url())]).await;
        let mut operator = world.operator_with(&[]).await;
        let start = Instant::now();
        let applied = futures::stream::iter(0..QUEUES).map(|i| {
            let world = &world;
            async move { world.queue(&format!("q{i}"), "bound: 0, repairPolicy: Repair").await }
        });
        applied.buffer_unordered(APPLIED_AT_ONCE).for_each(async |_| {}).await;
        all_ready::<PressureQueue>(&world, QUEUES).await;
        let took = start.elapsed();
        let mut consumers = Vec::new();
        for i in 0..QUEUES {
            let name = format!("{}.q{i}", world.namespace);
            let queue = TextQueue { url: server.url(), prefix: DEFAULT_PREFIX.to_owned(), name };
            consumers.push(Worker::consume(&queue, "patient", 1).await);
        }
        // It would be busy with their events.
        operator.stop().await;
        let operator = world.operator_with(&[]).await;
        at_rest().await;

        let (before, busy) = (commands(&server).await, processor_time(operator.pid()));
        tokio::time::sleep(REST).await;
        let busy = processor_time(operator.pid()).saturating_sub(busy);
        let mut ran = commands(&server).await;
        for (name, calls) in &mut ran {
            *calls -= before.get(name).unwrap_or(&0);
        }
        let of = |name: &str| ran.get(name).copied().unwrap_or_default();
        let all: u64 = ran.values().sum();
        let a_second = |count: u64| f64::from(u32::try_from(count).unwrap()) / REST.as_secs_f64();
        let (own, program) = environment::memory(operator.pid());
        let mut redis = connect(&server.url()).await;
        let mut list = redis::cmd("CLIENT");
        let list: String = list.arg("LIST").query_async(&mut redis).await.unwrap();
        let guards = list.matches("name=lockkeeper/watch-").count();
        // Written past the test runner, which hides the output of successful tests.
        let _ = writeln!(
            std::io::stderr(),
            "{QUEUES} queues, Ready in {took:.1?}; at rest: {own} MiB and {program} MiB of program, {:.0} scripts/s, {:.0} commands/s with those of scripts, {} CLIENT LIST of {} KiB in {REST:?}, {guards} guards, {:.1} % of a core",
            a_second(of("evalsha")),
            a_second(all),
            of("client|list"),
            list.len() / 1024,
            100.0 * busy.as_secs_f64() / REST.as_secs_f64()
        );
        assert!(own + program <= limit::MEMORY, "{own} + {program} MiB");
        assert!((1..=limit::LISTS).contains(&of("client|list")), "{ran:?}");
        let queues = f64::from(u32::try_from(QUEUES).unwrap());
        assert!(a_second(all) <= limit::COMMANDS * queues, "{ran:?}");
        assert!(guards <= limit::GUARDS, "{guards}");
        // Not because nothing was observed.
        assert!(usize::try_from(of("evalsha")).unwrap() >= QUEUES, "{ran:?}");
        assert!(consumers.iter().all(|consumer| !consumer.is_finished()));
        world.kill_operators().await;
    })
    .await;
}
