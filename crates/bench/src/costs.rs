//! Measures what locks cost the broker: Erlang processes and memory for each free slot,
//! holder and waiter, and the time of a refused attempt as the slots grow. Without goals,
//! because RabbitMQ determines them. See `client` for the time of the other operations.

use std::time::{Duration, Instant};

use futures::future::try_join_all;
use lapin::options::{BasicConsumeOptions, BasicGetOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, Consumer};
use lockkeeper_plan::naming::{LockName, Protocol};
use lockkeeper_semaphore::{AcquireError, AcquireOptions, Lock, Permit};

use crate::Result;
use crate::client::{self, destroy, resize};
use crate::environment::Environment;
use crate::protocols::PROTOCOLS;

/// Number of free slots that are counted together.
const SLOTS: u32 = 1000;

/// Number of holders and of waiters.
const CLIENTS: usize = 64;

/// Sizes of the locks that refuse an attempt, and the number of attempts.
const FULL: [u32; 4] = [1, 10, 100, 1000];
const ATTEMPTS: u32 = 20;

/// The broker updates its figures every 5 s, and frees memory later.
const SETTLE: Duration = Duration::from_secs(20);

/// Measures everything once, and prints a table.
pub async fn run(environment: &Environment) -> Result<()> {
    let broker = environment.broker()?;
    println!("cost for the broker                       processes   memory");
    for (name, protocol) in PROTOCOLS {
        let lock =
            LockName::new(format!("{}.free", environment.namespace))?.with_protocol(protocol);
        let before = settled(environment).await?;
        resize(&broker, &lock, SLOTS).await?;
        show(name, "a free slot or token", before, settled(environment).await?, SLOTS);
        destroy(&broker, &lock, SLOTS).await?;
        clients(environment, name, protocol).await?;
    }
    clients(environment, "true mutex", Protocol::TrueMutex).await?;
    println!("\na refused attempt, in milliseconds    slots: {FULL:?}");
    for (name, protocol) in PROTOCOLS {
        let mut took = Vec::new();
        for slots in FULL {
            let took_one = refused(environment, protocol, slots).await?;
            took.push(format!("{:.1}", took_one.as_secs_f64() * 1000.0));
        }
        println!("{name:<36}  {}", took.join("  "));
    }
    Ok(())
}

/// Returns the broker's processes and memory once they change no longer.
async fn settled(environment: &Environment) -> Result<(i64, i64)> {
    tokio::time::sleep(SETTLE).await;
    environment.processes_and_memory().await
}

fn show(name: &str, what: &str, before: (i64, i64), after: (i64, i64), number: u32) {
    let (processes, bytes) = (after.0 - before.0, after.1 - before.1);
    // In tenths, because there are fewer than ten of some.
    let tenths = processes * 10 / i64::from(number);
    let kilobytes = bytes / i64::from(number) / 1000;
    println!("{name:<18} {what:<22} {:>7}.{}   {kilobytes:>4} kB", tenths / 10, tenths.abs() % 10);
}

/// The lock, with a client of its own, as in a process of its own.
fn lock_of(environment: &Environment, lock: &LockName) -> Result<Lock> {
    Ok(client::client(&client::settings(environment)?, lock))
}

/// Measures holders of one slot each, and waiters for one slot.
async fn clients(environment: &Environment, name: &str, protocol: Protocol) -> Result<()> {
    let (broker, number) = (environment.broker()?, u32::try_from(CLIENTS)?);
    let named = |name: &str| -> Result<LockName> {
        Ok(LockName::new(format!("{}.{name}", environment.namespace))?.with_protocol(protocol))
    };
    let options = AcquireOptions::default();
    let is_mutex = protocol == Protocol::TrueMutex;
    let shared = named("held")?;
    if !is_mutex {
        resize(&broker, &shared, number).await?;
    }
    let before = settled(environment).await?;
    let mut permits = Vec::new();
    for n in 0..CLIENTS {
        // A mutex has one holder, so each holds another one.
        let lock = if is_mutex { named(&format!("held-{n}"))? } else { shared.clone() };
        permits.push(lock_of(environment, &lock)?.acquire(&options).await?);
    }
    show(name, "a holder", before, settled(environment).await?, number);
    try_join_all(permits.into_iter().map(Permit::release)).await?;
    let awaited = named("awaited")?;
    if !is_mutex {
        destroy(&broker, &shared, number).await?;
        resize(&broker, &awaited, 1).await?;
    }
    let permit = lock_of(environment, &awaited)?.acquire(&options).await?;
    let before = settled(environment).await?;
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let lock = lock_of(environment, &awaited)?;
        waiters.spawn(async move { lock.acquire(&AcquireOptions::default()).await });
    }
    show(name, "a waiter", before, settled(environment).await?, number);
    waiters.shutdown().await;
    permit.release().await?;
    if is_mutex { Ok(()) } else { destroy(&broker, &awaited, 1).await }
}

/// Returns the mean time of an attempt on a lock whose slots are all held.
async fn refused(environment: &Environment, protocol: Protocol, slots: u32) -> Result<Duration> {
    let lock =
        LockName::new(format!("{}.full-{slots}", environment.namespace))?.with_protocol(protocol);
    let broker = environment.broker()?;
    resize(&broker, &lock, slots).await?;
    let connection = environment.amqp().await;
    let _held = hold_all(&connection, &lock, slots).await?;
    let lock_ = lock_of(environment, &lock)?;
    let attempt = async || match lock_.try_acquire(&AcquireOptions::default()).await {
        Err(AcquireError::Full { .. }) => Ok(()),
        other => Err(format!("not refused: {other:?}")),
    };
    // The first one connects.
    attempt().await?;
    let start = Instant::now();
    for _ in 0..ATTEMPTS {
        attempt().await?;
    }
    let took = start.elapsed() / ATTEMPTS;
    connection.close(200, "done".into()).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    destroy(&broker, &lock, slots).await?;
    Ok(took)
}

/// Holds all slots on one connection, as other clients would, until the result is dropped.
async fn hold_all(
    connection: &Connection,
    lock: &LockName,
    slots: u32,
) -> Result<(Channel, Vec<Consumer>)> {
    let channel = connection.create_channel().await?;
    let none = FieldTable::default;
    let mut consumers = Vec::new();
    for slot in 1..=slots {
        match lock.protocol() {
            Protocol::ExclusiveConsumer => {
                let exclusive = BasicConsumeOptions { exclusive: true, ..Default::default() };
                let queue = lock.holder_queue(slot).into();
                let consumer = channel.basic_consume(queue, "".into(), exclusive, none());
                consumers.push(consumer.await?);
            }
            Protocol::Token(_) => {
                let tokens = lock.token_queue().into();
                channel.basic_get(tokens, BasicGetOptions::default()).await?;
            }
            Protocol::ExclusiveQueue(_) | Protocol::TrueMutex => {
                let exclusive = QueueDeclareOptions::exclusive();
                channel.queue_declare(lock.holder_queue(slot).into(), exclusive, none()).await?;
            }
        }
    }
    Ok((channel, consumers))
}
