//! An operator that is killed in the middle of its work.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lockkeeper_api::Semaphore;
use lockkeeper_testkit::environment::is_soak;
use lockkeeper_testkit::world::{Operator, PATIENCE, World, in_a_world, is_ready};

/// A resize, with the slots whose queues change first and last.
#[derive(Clone, Copy, Debug)]
struct Leg {
    from: u32,
    to: u32,
    first: u32,
    last: u32,
}

const LEGS: [Leg; 3] = [
    Leg { from: 0, to: 500, first: 1, last: 500 },
    Leg { from: 500, to: 5, first: 500, last: 6 },
    Leg { from: 5, to: 200, first: 6, last: 200 },
];

/// Duration of a leg on this machine, as last measured: from the apply to the first
/// effect, and from there to the last one.
#[derive(Clone, Copy, Debug)]
struct Pace {
    before: Duration,
    span: Duration,
}

/// When to kill the operator during a leg.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// After this fraction of the time between apply and first effect: the count may be
    /// announced, but nothing is created yet.
    Before(f64),
    /// After this fraction of the time between first and last effect.
    Within(f64),
}

impl Moment {
    /// The first round kills before anything is created. The times of the others are
    /// spread over the leg.
    fn of(round: u32) -> Self {
        const GOLDEN: f64 = 0.618;
        if round == 0 {
            return Self::Before(0.3);
        }
        Self::Within(0.03 + 0.87 * (f64::from(round) * GOLDEN).fract())
    }
}

/// Checks single queues frequently and cheaply.
struct Eye {
    connection: lapin::Connection,
    channel: lapin::Channel,
}

impl Eye {
    async fn open(world: &World) -> Self {
        let connection = world.amqp().await;
        let channel = connection.create_channel().await.unwrap();
        Self { connection, channel }
    }

    async fn sees(&mut self, queue: &str) -> bool {
        let look = QueueDeclareOptions::default().passive();
        let seen = self.channel.queue_declare(queue.into(), look, FieldTable::default()).await;
        if seen.is_err() {
            // The error has closed the channel.
            self.channel = self.connection.create_channel().await.unwrap();
        }
        seen.is_ok()
    }

    /// Waits until a slot's queue exists or does not.
    async fn until(&mut self, world: &World, slot: u32, there: bool) {
        let queue = format!("{}.deploy-{slot}-A", world.namespace);
        let start = Instant::now();
        while self.sees(&queue).await != there {
            assert!(start.elapsed() < PATIENCE, "{queue} is not {there} within {PATIENCE:?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn resize(world: &World, slots: u32) {
    world.semaphore("deploy", &format!("slots: {slots}")).await;
}

/// Returns all queues except the wait queue, which exists before the first slot.
async fn slots(world: &World) -> BTreeSet<String> {
    world.queues().await.into_iter().filter(|queue| !queue.ends_with(".deploy-W")).collect()
}

/// Waits until the newest spec is Ready. Then exactly its slots must exist.
async fn exactly(world: &World, slots: u32) {
    world.until("deploy", "Ready", PATIENCE * 2, is_ready::<Semaphore>).await;
    let (mut have, want) = (world.queues().await, world.lock_queues("deploy", slots));
    // The admin mutex, while the operator checks for drift.
    have.remove(&format!("{}.deploy", world.namespace));
    let extra: Vec<_> = have.difference(&want).take(5).collect();
    let missing: Vec<_> = want.difference(&have).take(5).collect();
    assert!(
        have == want,
        "{slots} slots: {} there; extra {extra:?}, missing {missing:?}",
        have.len()
    );
}

/// Runs a leg without interruption. Returns its duration.
async fn pace(world: &World, eye: &mut Eye, leg: Leg) -> Pace {
    let grows = leg.to > leg.from;
    let start = Instant::now();
    resize(world, leg.to).await;
    eye.until(world, leg.first, grows).await;
    let before = start.elapsed();
    eye.until(world, leg.last, grows).await;
    let span = start.elapsed().saturating_sub(before);
    exactly(world, leg.to).await;
    Pace { before, span }
}

/// The time of a kill relative to the leg.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fell {
    TooEarly,
    Inside,
    TooLate,
}

/// Starts a leg and kills the operator at this time.
async fn kill_at(
    world: &World,
    eye: &mut Eye,
    operator: &mut Operator,
    (leg, moment, pace): (Leg, Moment, Pace),
) -> Fell {
    let start = Instant::now();
    resize(world, leg.to).await;
    match moment {
        Moment::Before(part) => {
            let left = pace.before.mul_f64(part).saturating_sub(start.elapsed());
            tokio::time::sleep(left).await;
        }
        Moment::Within(part) => {
            eye.until(world, leg.first, leg.to > leg.from).await;
            tokio::time::sleep(pace.span.mul_f64(part)).await;
        }
    }
    operator.kill().await;
    let have = slots(world).await;
    if have == world.slot_queues("deploy", leg.from) {
        Fell::TooEarly
    } else if have == world.slot_queues("deploy", leg.to) {
        Fell::TooLate
    } else {
        Fell::Inside
    }
}

#[tokio::test]
async fn killed_at_any_moment_of_a_resize_the_next_operator_ends_with_exactly_the_slots() {
    let (least, least_inside) = if is_soak() { (20, 15) } else { (10, 8) };
    in_a_world("killed", async |world| {
        let mut operator = world.operator().await;
        let mut eye = Eye::open(&world).await;
        resize(&world, 0).await;
        exactly(&world, 0).await;
        let mut paces = Vec::new();
        for leg in LEGS {
            paces.push(pace(&world, &mut eye, leg).await);
        }
        println!("undisturbed: {paces:?}");

        let (mut kills, mut inside) = (0, 0);
        for round in 0..20 {
            if kills >= least && inside >= least_inside {
                break;
            }
            resize(&world, 0).await;
            exactly(&world, 0).await;
            let moment = Moment::of(round);
            let mut slots = 0;
            for (leg, pace) in LEGS.iter().zip(&mut paces) {
                if leg.from != slots {
                    continue;
                }
                let fell = kill_at(&world, &mut eye, &mut operator, (*leg, moment, *pace)).await;
                println!("{} -> {}, {moment:?}: {fell:?}", leg.from, leg.to);
                kills += 1;
                inside += u32::from(fell == Fell::Inside);
                // Other work on the machine changes the pace: adapt to it.
                match fell {
                    Fell::TooLate => pace.span = pace.span.mul_f64(0.7),
                    Fell::TooEarly if round > 0 => pace.span = pace.span.mul_f64(1.4),
                    _ => {}
                }
                // In every second round, the next change of the spec comes while no
                // operator runs.
                slots = match (round % 2, leg.to) {
                    (0, to) => to,
                    (_, to) if to == LEGS[0].to => LEGS[1].to,
                    _ => 0,
                };
                resize(&world, slots).await;
                operator = world.operator().await;
                exactly(&world, slots).await;
            }
        }
        println!("{kills} kills, {inside} of them inside a resize");
        let enough = kills >= least && inside >= least_inside;
        assert!(enough, "{inside} of {kills} kills fell inside a resize");
    })
    .await;
}

#[tokio::test]
async fn asked_to_stop_in_the_middle_of_a_resize_it_ends_soon_and_the_next_one_finishes() {
    in_a_world("stopped", async |world| {
        let mut eye = Eye::open(&world).await;
        for leg in &LEGS[..2] {
            let mut operator = world.operator().await;
            resize(&world, leg.to).await;
            eye.until(&world, leg.first, leg.to > leg.from).await;
            let start = Instant::now();
            let status = operator.stop().await;
            let after = start.elapsed();
            println!("{} -> {}: stopped after {after:?}", leg.from, leg.to);
            assert_eq!(status.code(), Some(0), "{}", operator.log);
            assert!(after < Duration::from_secs(5), "{after:?}");
            // Between two effects: some are done and some are not, and neither the mutex
            // nor anything else of the operator is left.
            let have = slots(&world).await;
            let more = world.slot_queues("deploy", leg.from.max(leg.to));
            assert!(have.is_subset(&more), "{:?}", have.difference(&more).collect::<Vec<_>>());
            let few = world.slot_queues("deploy", leg.from.min(leg.to));
            assert!(have != more && have != few, "it stopped in the middle: {}", have.len());

            let mut next = world.operator().await;
            exactly(&world, leg.to).await;
            assert_eq!(next.stop().await.code(), Some(0));
        }
        let _last = world.operator().await;
    })
    .await;
}
