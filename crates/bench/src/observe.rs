//! Benchmarks the observation of many locks: which of their slots exist and which are
//! held, compared with bare probes of the same queues.

use std::time::{Duration, Instant};

use futures::future::try_join_all;
use lapin::Connection;
use lapin::types::ShortString;
use lockkeeper_plan::naming::LockName;
use lockkeeper_semaphore::Broker;

use crate::environment::Environment;
use crate::table::{OBSERVE, Pair, Table};
use crate::{Options, Result, bare};

/// Number of slots of each lock.
const SLOTS: u32 = 10;

/// Number of locks that the goal applies to.
const GOAL_AT: usize = 1000;

/// Measures in several rounds.
pub async fn run(environment: &Environment, options: &Options, table: &mut Table) -> Result<()> {
    let locks = (0..options.locks)
        .map(|lock| LockName::new(format!("{}.observed-{lock}", environment.namespace)))
        .collect::<Result<Vec<_>, _>>()?;
    let slots: Vec<String> =
        locks.iter().flat_map(|lock| (1..=SLOTS).map(|slot| lock.slot_queue(slot))).collect();
    let connection = environment.amqp().await;
    let channels = bare::channels(&connection, 16).await?;
    bare::declare_all(&channels, &slots).await?;

    let broker = environment.broker()?;
    let mut pairs = Vec::new();
    for round in 0..=options.rounds * 3 {
        let pair = with_bare(&connection, &broker, &locks, SLOTS).await?;
        if round > 0 {
            pairs.push(pair);
        }
    }
    let goal = (options.locks == GOAL_AT).then_some(OBSERVE);
    table.time(&format!("observe {} locks × {SLOTS} slots", options.locks), &pairs, goal);
    Ok(())
}

/// Observes all locks, each with this many free slots, after and before bare probes of them.
pub async fn with_bare(
    connection: &Connection,
    broker: &Broker,
    locks: &[LockName],
    slots: u32,
) -> Result<Pair> {
    let first = bare_look(connection, locks, slots).await?;
    let ours = look(broker, locks, slots).await?;
    let last = bare_look(connection, locks, slots).await?;
    Ok(Pair { bare: (first + last) / 2, ours })
}

/// Probes all slots of the locks. Each has this many, all of them free.
pub async fn bare_look(
    connection: &Connection,
    locks: &[LockName],
    count: u32,
) -> Result<Duration> {
    let mut names = Vec::new();
    for lock in locks {
        let slots = (1..=count).map(|slot| lock.slot_queue(slot));
        let holders = (1..=count).map(|slot| lock.holder_queue(slot));
        for name in slots.chain(holders) {
            names.push(ShortString::try_new(name.as_str())?);
        }
    }
    let (took, missing) = bare::probe_all(connection, names).await?;
    // All slots exist, and none is held.
    if missing != locks.len() * count as usize {
        return Err(format!("{missing} queues missing").into());
    }
    Ok(took)
}

/// Observes all locks concurrently, as the operator's reconciles do.
async fn look(broker: &Broker, locks: &[LockName], slots: u32) -> Result<Duration> {
    let start = Instant::now();
    let seen = try_join_all(locks.iter().map(|lock| broker.observe(lock, slots, slots))).await?;
    let took = start.elapsed();
    if !seen.iter().all(|seen| seen.has_exactly(slots) && seen.held() == 0) {
        return Err("the observation does not match the broker".into());
    }
    Ok(took)
}
