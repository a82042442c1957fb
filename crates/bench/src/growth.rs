//! Measures how the cost grows with the number of slots of a lock, and with the number of objects
//! of an operator: each should be linear. Prints a table, and `growth/plot` draws it. See `resize`,
//! `observe` and `objects` for comparisons with bare operations.

mod figures;
mod plot;

use std::time::{Duration, Instant};

use kube::ResourceExt;
use kube::api::ListParams;
use lapin::Connection;
use lockkeeper_plan::naming::LockName;
use lockkeeper_testkit::world::{Operator, PATIENCE, is_ready};

use self::figures::{Figures, ROWS};
use crate::environment::{Environment, concurrently};
use crate::table::{GROW, OBSERVE_ONE, Pair, SHRINK, START, Table, aligned, median};
use crate::{Options, Result, client, objects, observe, ready, resize};

/// The smallest size whose growth is judged. With fewer, constant costs dominate.
const JUDGED_FROM: u32 = 1000;

/// Slots observed for each round: those of a small lock several times.
const OBSERVED: u32 = 10_000;

/// Objects in a page of the bare list: as many as an operator asks for.
const PAGE: u32 = 100;

/// Measures each size. Prints one table, and draws it.
pub async fn run(environment: &Environment, options: &Options, table: &mut Table) -> Result<()> {
    let mut figures = Vec::new();
    let mut existing = 0;
    for &size in &options.sizes {
        let judged = size >= JUDGED_FROM;
        let [from_none, to_none, observed] = slots(environment, size, options.rounds).await?;
        let goal = |goal| judged.then_some(goal);
        table.speed(&format!("slots: resize from 0 to {size}"), &from_none, goal(GROW));
        table.speed(&format!("slots: resize from {size} to 0"), &to_none, goal(SHRINK));
        table.time(&format!("slots: observe {size}"), &observed, goal(OBSERVE_ONE));
        let [grow, shrink, observe] = [from_none, to_none, observed]
            .map(|pairs| median(pairs.iter().map(|pair| pair.ours.as_secs_f64())));
        create(environment, existing, size).await?;
        existing = size;
        let (starts, memory) = operators(environment, options, size).await?;
        let what = format!("objects: start of an operator with {size}");
        table.time(&what, &starts, goal(START));
        let start = median(starts.iter().map(|pair| pair.ours.as_secs_f64()));
        figures.push(Figures { size, grow, shrink, observe, start, memory });
        println!("  {size}: {grow:.3} {shrink:.3} {observe:.3} {start:.3} s, {memory:.1} MiB");
    }
    let mut last = environment.operator().await;
    environment.clear(&environment.semaphores(), false).await?;
    last.stop().await;

    for pair in figures.windows(2) {
        let [small, large] = pair else { continue };
        let sizes = f64::from(large.size) / f64::from(small.size);
        for (name, unit, of, goal) in ROWS {
            let goal = goal.filter(|_| small.size >= JUDGED_FROM);
            let what = format!("{name}, {} of {}", large.size, small.size);
            let text = format!("{:.2} of {:.2} {unit}", of(large), of(small));
            table.figure(&what, text, of(large) / of(small) / sizes, goal);
        }
    }
    println!();
    let head = ["size", "resize from 0", "resize to 0", "observe", "start", "memory"];
    let row = |f: &Figures| {
        let time = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
        let size = f.size.to_string();
        let memory = format!("{:.1} MiB", f.memory);
        [size, time(f.grow), time(f.shrink), time(f.observe), time(f.start), memory]
    };
    aligned(head, &figures.iter().map(row).collect::<Vec<_>>());
    let file = options.plots.join("growth.svg");
    plot::draw(&file, &figures)?;
    println!("\nthe picture: {}", file.display());
    Ok(())
}

/// Creates, deletes and observes the slots of one lock, in turn with as many bare declares, deletes
/// and probes. Returns the pairs of each of the three.
async fn slots(environment: &Environment, slots: u32, rounds: usize) -> Result<[Vec<Pair>; 3]> {
    let broker = environment.broker()?;
    let connection = environment.amqp().await;
    let (mut grown, mut shrunk, mut observed) = (Vec::new(), Vec::new(), Vec::new());
    let mut before = resize::bare_round(&connection, environment, slots).await?;
    for round in 0..=rounds {
        let ours = resize::by_library(&broker, environment, slots).await?;
        let after = resize::bare_round(&connection, environment, slots).await?;
        // The first round opens connections.
        if round > 0 {
            grown.push(Pair { bare: (before.0 + after.0) / 2, ours: ours.0 });
            shrunk.push(Pair { bare: (before.1 + after.1) / 2, ours: ours.1 });
        }
        before = after;
    }
    // Afterwards, because the broker walks the counts of recent probes at each deletion.
    let lock = [LockName::new(format!("{}.growth", environment.namespace))?];
    client::resize(&broker, &lock[0], slots).await?;
    for _ in 0..rounds * (OBSERVED / slots.max(1)).clamp(1, 10) as usize {
        observed.push(observe::with_bare(&connection, &broker, &lock, slots).await?);
    }
    client::destroy(&broker, &lock[0], slots).await?;
    Ok([grown, shrunk, observed])
}

/// Creates objects from this number up to another one, and waits until an operator reports them as
/// Ready.
async fn create(environment: &Environment, from: u32, to: u32) -> Result<()> {
    let mut operator = environment.operator().await;
    let api = environment.semaphores();
    let all_ready = ready::watch(&api, usize::try_from(to)?, is_ready).await?;
    concurrently(from..to, async |number| {
        objects::create(&api, &format!("object-{number:05}")).await
    })
    .await?;
    all_ready.await??;
    operator.stop().await;
    Ok(())
}

/// Starts operators for this many objects, each between two bare starts. Returns the pairs, and the
/// last operator's memory at rest in MiB.
async fn operators(
    environment: &Environment,
    options: &Options,
    objects: u32,
) -> Result<(Vec<Pair>, f64)> {
    let connection = environment.amqp().await;
    let (mut pairs, mut memory) = (Vec::new(), 0.0);
    for round in 1..=options.object_rounds {
        let first = bare_start(environment, &connection, objects).await?;
        let (mut operator, ours) = started(environment, objects).await?;
        if round == options.object_rounds {
            tokio::time::sleep(options.rest.unwrap_or(objects::REST)).await;
            memory = objects::mib(&operator, "VmRSS");
        }
        operator.stop().await;
        let last = bare_start(environment, &connection, objects).await?;
        println!("    bare {first:.2?}, ours {ours:.2?}, bare {last:.2?}");
        pairs.push(Pair { bare: (first + last) / 2, ours });
    }
    Ok((pairs, memory))
}

/// Starts an operator for this many objects. Returns the time until it has reconciled each of them.
async fn started(environment: &Environment, objects: u32) -> Result<(Operator, Duration)> {
    let start = Instant::now();
    let operator = environment.operator().await;
    while reconciles(&operator).await < f64::from(objects) {
        if start.elapsed() > 5 * PATIENCE {
            return Err("the operator did not reconcile every object".into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok((operator, start.elapsed()))
}

/// Lists this many objects in pages, and probes the slot of each: what an operator must do before
/// it knows the state of all.
async fn bare_start(
    environment: &Environment,
    connection: &Connection,
    objects: u32,
) -> Result<Duration> {
    let (api, start) = (environment.semaphores(), Instant::now());
    let mut page = ListParams::default().limit(PAGE);
    let mut locks = Vec::new();
    loop {
        let list = api.list(&page).await?;
        for object in &list.items {
            locks.push(LockName::new(format!("{}.{}", environment.namespace, object.name_any()))?);
        }
        match list.metadata.continue_ {
            Some(token) if !token.is_empty() => page = page.continue_token(&token),
            _ => break,
        }
    }
    let listed = start.elapsed();
    if locks.len() != usize::try_from(objects)? {
        return Err(format!("{} of {objects} objects are there", locks.len()).into());
    }
    Ok(listed + observe::bare_look(connection, &locks, 1).await?)
}

/// Returns the number of reconciles so far.
async fn reconciles(operator: &Operator) -> f64 {
    let metrics = operator.scrape().await;
    let counts = metrics
        .lines()
        .filter(|line| line.starts_with("controller_runtime_reconcile_total{"))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    counts.sum()
}
