//! Compares the three protocols on both brokers: acquire and release, proof, hand-over
//! and resize, and the ratio of each to the bare operations that it requires. See `plot`
//! for the picture.

mod bare;
mod figures;
mod plot;

use std::time::{Duration, Instant};

use lockkeeper_plan::naming::{LockName, Protocol, QueueType};
use lockkeeper_plan::semaphore::{DesiredSlots, sweep_to};
use lockkeeper_semaphore::{AcquireOptions, Broker, BrokerOptions, Lock, Verdict};
use lockkeeper_testkit::rabbitmq::Vhost;
use tokio_util::sync::CancellationToken;

use self::bare::{AT_REST, Bare};
use self::figures::Figures;
use crate::client::{all, client, cycle, rounds};
use crate::table::{
    CONSUMER, OF_THE_PUSH, OF_THE_QUEUE, OF_THE_STEPS, TOKEN, Table, VERIFY, median, of_protocols,
    percentile, tail,
};
use crate::{Options, Result};

/// Acquisitions per round of a single client, and of each of many clients.
const TIMES: u32 = 200;
const TIMES_CONTENDED: u32 = 10;

/// Number of clients and slots with contention.
const CONTENDED: (u32, u32) = (16, 4);

/// Proofs per round.
const PROOFS: u32 = 1_000;

/// Hand-overs per round.
const HAND_OVERS: usize = 40;

/// Slots added and removed per round.
const RESIZE: u32 = 100;

/// The protocols of semaphores.
pub const PROTOCOLS: [(&str, Protocol); 3] = [
    ("ExclusiveQueue", Protocol::ExclusiveQueue(lockkeeper_plan::naming::Profile::Guideline)),
    ("ExclusiveConsumer", Protocol::ExclusiveConsumer),
    ("Token", Protocol::Token(QueueType::Classic)),
];

/// One broker, with a vhost for this run.
struct Site {
    /// For example `RabbitMQ 4.0.5`.
    broker: String,
    vhost: Vhost,
}

/// Measures each of the brokers. Prints one table, and draws it.
pub async fn run(options: &Options, table: &mut Table) -> Result<()> {
    let mut figures = Vec::new();
    for suffix in ["", "_4"] {
        let site = Site::new(suffix).await;
        for (name, protocol) in PROTOCOLS {
            figures.push(measure(&site, name, protocol, options, table).await?);
        }
    }
    for pair in figures.chunks(PROTOCOLS.len()) {
        let what = format!("acquire + release, of ExclusiveQueue's: {}", pair[0].broker);
        let ratio = pair[1].acquire / pair[0].acquire;
        table.figure(&what, format!("{ratio:.1} ×"), ratio, Some(OF_THE_QUEUE));
    }
    println!();
    of_protocols(&figures.iter().map(Figures::row).collect::<Vec<_>>());
    let file = options.plots.join("protocols.svg");
    plot::draw(&file, &figures)?;
    println!("\nthe picture: {}", file.display());
    Ok(())
}

impl Site {
    async fn new(suffix: &str) -> Self {
        let vhost = Vhost::create_on(suffix).await;
        let overview = vhost.management.get("overview").await.unwrap_or_default();
        let version = overview["rabbitmq_version"].as_str().unwrap_or("?");
        Self { broker: format!("RabbitMQ {version}"), vhost }
    }
}

/// Changes the number of slots, where `mark` was the highest. Returns the time.
async fn resize(broker: &Broker, lock: &LockName, slots: u32, mark: u32) -> Result<Duration> {
    let desired = DesiredSlots::new(slots);
    let start = Instant::now();
    let to = sweep_to(desired, mark);
    broker.converge(lock, desired, to, false, &CancellationToken::new()).await?;
    Ok(start.elapsed())
}

async fn measure(
    site: &Site,
    name: &'static str,
    protocol: Protocol,
    options: &Options,
    table: &mut Table,
) -> Result<Figures> {
    let what = |what: &str| format!("{what}: {name}, {}", site.broker);
    let broker = Broker::new(site.vhost.settings(), BrokerOptions::default());
    let lock = |part: &str| -> Result<LockName> {
        Ok(LockName::new(format!("{}.{part}", site.vhost.name))?.with_protocol(protocol))
    };

    let one = lock("one")?;
    resize(&broker, &one, 1, 0).await?;
    let bare = Bare::new(&site.vhost, &one).await?;
    let ours = [client(&site.vhost.settings(), &one)];
    let pairs = rounds(
        options.rounds,
        async || all(&[()], TIMES, async |()| bare.take_and_give_back().await).await,
        async || all(&ours, TIMES, cycle).await,
    )
    .await?;
    let goal = match protocol {
        Protocol::ExclusiveQueue(_) | Protocol::TrueMutex => None,
        Protocol::ExclusiveConsumer => Some(CONSUMER),
        Protocol::Token(_) => Some(TOKEN),
    };
    table.speed(&what("acquire + release"), &pairs, goal);
    let acquire = f64::from(TIMES) / median(pairs.iter().map(|pair| pair.ours.as_secs_f64()));

    let permit = ours[0].acquire(&AcquireOptions::default()).await?;
    let pairs = rounds(
        options.rounds,
        async || all(&[()], PROOFS, async |()| bare.look().await).await,
        async || {
            all(&[&permit], PROOFS, async |permit| match permit.verify().await? {
                Verdict::Held => Ok(()),
                verdict => Err(format!("a held slot is {verdict:?}").into()),
            })
            .await
        },
    )
    .await?;
    table.speed(&what("verify"), &pairs, Some(VERIFY));
    let verify = f64::from(PROOFS) / median(pairs.iter().map(|pair| pair.ours.as_secs_f64()));
    permit.release().await?;

    let hand_over = hand_over(site, &one, name, options, table).await?;

    let contended = lock("contended")?;
    let (clients, slots) = CONTENDED;
    resize(&broker, &contended, slots, 0).await?;
    let ours = (0..clients).map(|_| client(&site.vhost.settings(), &contended)).collect::<Vec<_>>();
    let mut took = Vec::new();
    for round in 0..=options.rounds {
        let time = all(&ours, TIMES_CONTENDED, cycle).await?;
        // The first round opens connections.
        if round > 0 {
            took.push(time.as_secs_f64());
        }
    }
    let cycles = f64::from(clients) * f64::from(TIMES_CONTENDED);
    let contended = cycles / median(took.into_iter());

    let resized = lock("resized")?;
    let (mut grow, mut shrink) = (Vec::new(), Vec::new());
    resize(&broker, &resized, 0, 0).await?;
    for _ in 0..options.rounds {
        grow.push(resize(&broker, &resized, RESIZE, 0).await?.as_secs_f64() * 1e3);
        shrink.push(resize(&broker, &resized, 0, RESIZE).await?.as_secs_f64() * 1e3);
    }
    Ok(Figures {
        protocol: name,
        broker: site.broker.clone(),
        acquire,
        contended,
        verify,
        hand_over,
        grow: median(grow.into_iter()),
        shrink: median(shrink.into_iter()),
    })
}

/// Measures hand-overs, and those of the bare steps and of a message, in turn. Returns the median
/// in milliseconds.
async fn hand_over(
    site: &Site,
    lock: &LockName,
    protocol: &str,
    options: &Options,
    table: &mut Table,
) -> Result<f64> {
    let clients = [client(&site.vhost.settings(), lock), client(&site.vhost.settings(), lock)];
    let (mut steps, mut push, mut took) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        steps.extend(bare::hand_over(&site.vhost, lock, HAND_OVERS).await?);
        push.extend(bare::push(&site.vhost, HAND_OVERS).await?);
        took.extend(between(&clients).await?);
    }
    let what = |what: &str| format!("{what}: {protocol}, {}", site.broker);
    let middle = median(took.iter().copied());
    // The broker itself delivers a token to the next client, so a message is the floor.
    let (floor, of_steps, of_push) = match lock.protocol() {
        Protocol::Token(_) => (&push, None, Some(OF_THE_PUSH)),
        _ => (&steps, Some(OF_THE_STEPS), None),
    };
    let floor_tail = percentile(floor, 99) / median(floor.iter().copied());
    for (name, times, goal) in [("its steps", &steps, of_steps), ("a message", &push, of_push)] {
        let floor_time = median(times.iter().copied());
        let text = format!("{middle:.2} ms of {floor_time:.2} ms");
        table.figure(&what(&format!("hand-over, of {name}")), text, middle / floor_time, goal);
    }
    let late = percentile(&took, 99);
    let text = format!("{late:.2} ms; of the bare ones {floor_tail:.2}");
    let goal = Some(tail(floor_tail));
    table.figure(&what("hand-over, p99 of the median"), text, late / middle, goal);
    Ok(middle)
}

/// Hands a lock over between two clients, and measures the time from the start of a release until
/// the waiting acquire returns, in milliseconds.
async fn between(clients: &[Lock; 2]) -> Result<Vec<f64>> {
    let any = AcquireOptions::default();
    let mut permit = clients[0].acquire(&any).await?;
    let mut took = Vec::new();
    for turn in 1..=HAND_OVERS {
        let (next, any) = (clients[turn % 2].clone(), any.clone());
        let acquiring =
            tokio::spawn(async move { next.acquire(&any).await.map(|p| (p, Instant::now())) });
        tokio::time::sleep(AT_REST).await;
        let start = Instant::now();
        let released = tokio::spawn(permit.release());
        let (next, at) = acquiring.await??;
        released.await??;
        took.push((at - start).as_secs_f64() * 1e3);
        permit = next;
    }
    permit.release().await?;
    Ok(took)
}
