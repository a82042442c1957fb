//! Benchmarks the lock client: acquire and release, also by many clients in turn, and verify,
//! compared with the bare operations that each requires. See `protocols` for the hand-over.

use std::time::{Duration, Instant};

use futures::future::try_join_all;
use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::{DesiredSlots, sweep_to};
use lockkeeper_semaphore::{
    AcquireOptions, Broker, Client, ClientOptions, Lock, Permit, Start, Verdict,
};
use tokio_util::sync::CancellationToken;

use crate::environment::Environment;
use crate::table::{ACQUIRE, CONTENDED, CROWD, Pair, Table, VERIFY, VERIFY_ALL};
use crate::{Options, Result, bare};

/// Number of concurrent clients, and of the operations of each in a round.
const CLIENTS: [(usize, u32); 2] = [(1, 50), (64, 8)];

/// Number of slots, and the percentage that other clients hold permanently.
const LOCKS: [(u32, u32); 6] = [(1, 0), (10, 0), (10, 50), (100, 0), (100, 50), (100, 99)];

/// Measures everything in several rounds.
pub async fn run(environment: &Environment, options: &Options, table: &mut Table) -> Result<()> {
    let broker = environment.broker()?;
    for (clients, times) in CLIENTS {
        for (slots, held) in LOCKS {
            let lock =
                LockName::new(format!("{}.c{clients}-s{slots}-h{held}", environment.namespace))?;
            resize(&broker, &lock, slots).await?;
            let taken = slots * held / 100;
            let others = hold_first(&settings(environment)?, &lock, taken).await?;
            let what = format!("acquire + release: {clients} × {slots} slots, {held} % held");
            let free = slots - taken;
            let bare = format!("{lock}.bare");
            if free as usize >= clients {
                let bare = bare::Holder::several(environment, &bare, clients).await?;
                let bare = async || all(&bare, times, async |h| h.take_and_give_back().await).await;
                let pairs = acquire(environment, options, &lock, clients, times, bare).await?;
                table.speed(&what, &pairs, Some(if clients == 1 { ACQUIRE } else { CROWD }));
            } else {
                // The clients wait for each other, and so do the bare ones.
                let bare = bare::Contender::several(environment, &bare, clients, free).await?;
                let bare = async || all(&bare, 1, async |c| c.take_turns(times).await).await;
                let pairs = acquire(environment, options, &lock, clients, times, bare).await?;
                // Where others hold the rest, each of the first searches passes all of it.
                let goal = (held == 0).then_some(CONTENDED);
                table.speed(&format!("{what}, in turn"), &pairs, goal);
            }
            try_join_all(others.into_iter().map(Permit::release)).await?;
            destroy(&broker, &lock, slots).await?;
        }
        let lock = LockName::new(format!("{}.verify-{clients}", environment.namespace))?;
        let slots = u32::try_from(clients)?;
        resize(&broker, &lock, slots).await?;
        let pairs = verify(environment, options, &lock, clients, 5 * times).await?;
        let goal = if clients == 1 { VERIFY } else { VERIFY_ALL };
        table.speed(&format!("verify: {clients} holders"), &pairs, Some(goal));
        destroy(&broker, &lock, slots).await?;
    }
    Ok(())
}

pub fn settings(environment: &Environment) -> Result<RabbitmqSettings> {
    Ok(RabbitmqSettings::from_urls(&environment.amqp_url(), None)?)
}

/// The lock, with a separate client.
pub fn client(settings: &RabbitmqSettings, lock: &LockName) -> Lock {
    let options = ClientOptions::default().with_warm(0);
    Client::new(settings.clone(), options).semaphore(lock.clone())
}

pub async fn resize(broker: &Broker, lock: &LockName, slots: u32) -> Result<()> {
    let desired = DesiredSlots::new(slots);
    broker.converge(lock, desired, sweep_to(desired, 0), false, &CancellationToken::new()).await?;
    Ok(())
}

pub async fn destroy(broker: &Broker, lock: &LockName, slots: u32) -> Result<()> {
    let desired = DesiredSlots::new(0);
    broker.destroy(lock, desired, Some(slots), &CancellationToken::new()).await?;
    Ok(())
}

/// Holds the first slots, so that a search from 1 has to pass them.
async fn hold_first(
    settings: &RabbitmqSettings,
    lock: &LockName,
    slots: u32,
) -> Result<Vec<Permit>> {
    let client = client(settings, lock);
    let mut permits = Vec::new();
    for slot in 1..=slots {
        let options = AcquireOptions::default().with_start(Start::At(slot));
        permits.push(client.try_acquire(&options).await?);
    }
    Ok(permits)
}

/// Runs `one` for all clients concurrently, `times` times each.
pub async fn all<T>(
    clients: &[T],
    times: u32,
    one: impl AsyncFn(&T) -> Result<()>,
) -> Result<Duration> {
    let start = Instant::now();
    try_join_all(clients.iter().map(async |client| {
        for _ in 0..times {
            one(client).await?;
        }
        Result::<()>::Ok(())
    }))
    .await?;
    Ok(start.elapsed())
}

/// Runs the bare operation before and after ours. The first round, which opens connections and
/// channels, is not counted. Short rounds are repeated for twice as many seconds, because a single
/// one depends on what else the machine does at that moment.
pub async fn rounds(
    rounds: usize,
    bare: impl AsyncFn() -> Result<Duration>,
    ours: impl AsyncFn() -> Result<Duration>,
) -> Result<Vec<Pair>> {
    let round = async || {
        let (before, ours, after) = (bare().await?, ours().await?, bare().await?);
        Result::<Pair>::Ok(Pair { bare: (before + after) / 2, ours })
    };
    round().await?;
    let (least, start) = (Duration::from_secs(2) * u32::try_from(rounds)?, Instant::now());
    let mut pairs = Vec::new();
    while pairs.len() < rounds || start.elapsed() < least {
        pairs.push(round().await?);
    }
    Ok(pairs)
}

/// Lets each client acquire and release this often, compared with a bare run.
async fn acquire(
    environment: &Environment,
    options: &Options,
    lock: &LockName,
    clients: usize,
    times: u32,
    bare: impl AsyncFn() -> Result<Duration>,
) -> Result<Vec<Pair>> {
    let settings = settings(environment)?;
    let ours: Vec<Lock> = (0..clients).map(|_| client(&settings, lock)).collect();
    // Rounds of many clients differ by a third, because chance decides the races.
    let count = if clients == 1 { options.rounds } else { 2 * options.rounds };
    rounds(count, bare, async || all(&ours, times, cycle).await).await
}

/// Acquires and releases the lock.
pub async fn cycle(lock: &Lock) -> Result<()> {
    Ok(lock.acquire(&AcquireOptions::default()).await?.release().await?)
}

async fn verify(
    environment: &Environment,
    options: &Options,
    lock: &LockName,
    clients: usize,
    times: u32,
) -> Result<Vec<Pair>> {
    let permits = hold_first(&settings(environment)?, lock, u32::try_from(clients)?).await?;
    let bare = bare::Holder::several(environment, &format!("{lock}.bare"), clients).await?;
    for holder in &bare {
        holder.take().await?;
    }
    let slot = lock.slot_queue(1);
    let pairs = rounds(
        options.rounds,
        async || all(&bare, times, async |holder| holder.look_twice(&slot).await).await,
        async || {
            all(&permits, times, async |permit| match permit.verify().await? {
                Verdict::Held => Ok(()),
                verdict => Err(format!("a held slot is {verdict:?}").into()),
            })
            .await
        },
    );
    let pairs = pairs.await?;
    try_join_all(permits.into_iter().map(Permit::release)).await?;
    Ok(pairs)
}
