//! A thousand random schedules of our clients together with foreign ones, in both roles,
//! blocking and not, while the bound changes and the queue is closed and deleted. Checks
//! the invariants: order, nothing lost, nothing doubled, the right result for every
//! client, no key left. See `accounts` for schedules whose steps a model predicts.

mod accounts;
mod checks;
mod clients;
mod workers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use lockkeeper_plan::pressure_queue::QueueEffect;
use lockkeeper_pressure::{Deletion, QueueRole, Store, TakenRoles};
use lockkeeper_testkit::redis::{PrivateRedis, TestQueue, is_blocked};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use self::clients::{Client, Kind, Mode, Refusal};
use self::workers::{Got, Shared, Worker, is, set};

const SCHEDULES: u64 = 1000;
const AT_A_TIME: usize = 24;
/// A schedule takes some 100 ms. No client may wait forever.
const PATIENCE: Duration = Duration::from_secs(40);

/// The parameters of a schedule, which all follow from its seed.
#[derive(Debug)]
struct Plan {
    bound: u64,
    creator: Kind,
    producers: Vec<(Kind, usize)>,
    consumers: Vec<Kind>,
    /// Closed once the producers are done, or at any time.
    closes_late: bool,
    closers: Vec<Kind>,
    /// Deleted at any time, not only at the end.
    deletes_early: bool,
    /// The client that deletes at the end.
    deleter: Kind,
    seed: u64,
}

impl Plan {
    fn new(seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let only_ours = random.random_bool(0.15);
        let kind = |random: &mut SmallRng| if only_ours { Kind::Ours } else { Kind::any(random) };
        let producers = (0..random.random_range(1..4))
            .map(|_| (kind(&mut random), random.random_range(1..12)))
            .collect();
        let consumers = (0..random.random_range(1..4)).map(|_| kind(&mut random)).collect();
        let closers = if random.random_bool(0.1) { 2 } else { 1 };
        Self {
            bound: random.random_range(0..6),
            creator: kind(&mut random),
            producers,
            consumers,
            closes_late: random.random_bool(0.5),
            closers: (0..closers).map(|_| kind(&mut random)).collect(),
            deletes_early: random.random_bool(0.3),
            deleter: kind(&mut random),
            seed: random.random(),
        }
    }

    fn kinds(&self) -> impl Iterator<Item = Kind> {
        let producers = self.producers.iter().map(|(kind, _)| *kind);
        producers.chain(self.consumers.iter().copied()).chain(self.closers.iter().copied())
    }
}

/// A running schedule.
struct Schedule {
    plan: Plan,
    place: TestQueue,
    store: Store,
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    /// The highest bound so far; `None` once there was none.
    highest: Option<u64>,
    begun: Instant,
}

/// Events that not every schedule has: a foreign client kept the producer's role, or the
/// consumer's; the queue was deleted in the middle.
type Happened = [bool; 3];

async fn run(seed: u64, url: String) -> Happened {
    let plan = Plan::new(seed);
    let what = format!("{plan:?}");
    let run = tokio::spawn(async move {
        let place = TestQueue::at(&url).await;
        let mut schedule = Schedule::begin(plan, place).await;
        schedule.go_on().await;
        let shared = Arc::clone(&schedule.shared);
        let is_kept = |role| shared.stuck(role).is_some();
        let deleted_early = is(&shared.delete_begun);
        schedule.check_the_end().await;
        [is_kept(QueueRole::Producer), is_kept(QueueRole::Consumer), deleted_early]
    });
    run.await
        .unwrap_or_else(|panic| panic!("LOCKKEEPER_TEST_SEED={seed} repeats it: {what}: {panic}"))
}

impl Schedule {
    async fn begin(plan: Plan, place: TestQueue) -> Self {
        let mut random = SmallRng::seed_from_u64(plan.seed);
        Client::connect(plan.creator, &place, "creator").await.create(plan.bound).await.unwrap();
        let shared = Arc::new(Shared {
            closes_twice: plan.closers.len() > 1,
            has_foreign: plan.kinds().any(|kind| kind != Kind::Ours),
            ..Shared::default()
        });
        let mut workers = Vec::new();
        for (number, (kind, count)) in plan.producers.iter().enumerate() {
            let id = format!("producer-{number}");
            let client = Client::connect(*kind, &place, &id).await;
            let seed = random.random();
            workers.push(workers::produce(client, id, *count, seed, Arc::clone(&shared)));
        }
        for (number, kind) in plan.consumers.iter().enumerate() {
            let id = format!("consumer-{number}");
            let client = Client::connect(*kind, &place, &id).await;
            workers.push(workers::consume(client, id, random.random(), Arc::clone(&shared)));
        }
        if !plan.closes_late {
            for (number, kind) in plan.closers.iter().enumerate() {
                let id = format!("closer-{number}");
                let client = Client::connect(*kind, &place, &id).await;
                let pause = Duration::from_millis(random.random_range(0..25));
                let when = tokio::time::sleep(pause);
                workers.push(workers::close(client, id, Arc::clone(&shared), when));
            }
        }
        let highest = (plan.bound > 0).then_some(plan.bound);
        let store = place.store();
        Self { plan, place, store, shared, workers, highest, begun: Instant::now() }
    }

    /// Changes the bound and deletes, until every client has ended or has a valid reason
    /// to wait.
    async fn go_on(&mut self) {
        let mut random = SmallRng::seed_from_u64(self.plan.seed ^ 1);
        let mut drainer = Client::connect(Kind::Ours, &self.place, "drainer").await;
        let changes = random.random_range(0..8);
        let delete_at = Duration::from_millis(random.random_range(0..30));
        let mut closes_late = self.plan.closes_late;
        let mut step = 0;
        loop {
            step += 1;
            if step <= changes {
                self.change_bound(&mut random).await;
            }
            let age = self.begun.elapsed();
            if self.plan.deletes_early && age >= delete_at && !self.shared.is_stuck() {
                self.delete_a_step().await;
            }
            self.reap().await;
            if closes_late && self.are_done(QueueRole::Producer) && !self.shared.is_stuck() {
                closes_late = false;
                self.close_late().await;
            }
            let closes = closes_late && !self.shared.is_stuck() && !is(&self.shared.gone);
            if !closes && self.is_over().await {
                return;
            }
            if self.are_done(QueueRole::Consumer) && !closes {
                self.drain(&mut drainer).await;
            }
            assert!(age < PATIENCE, "a client waits without end: {}", self.tell().await);
            tokio::time::sleep(Duration::from_millis(random.random_range(0..6))).await;
        }
    }

    async fn change_bound(&mut self, random: &mut SmallRng) {
        let bound = random.random_range(0..6);
        self.highest = self.highest.filter(|_| bound > 0).map(|highest| highest.max(bound));
        let effect = QueueEffect::SetBound { bound };
        self.store.apply(&self.place.queue, &effect).await.unwrap();
        let seen = self.store.observe(&self.place.queue).await.unwrap();
        self.check_moment(&seen);
    }

    async fn delete_a_step(&self) {
        set(&self.shared.delete_begun);
        if self.store.delete(&self.place.queue, TakenRoles::Wait).await.unwrap() == Deletion::Gone {
            set(&self.shared.gone);
        }
    }

    async fn close_late(&mut self) {
        for (number, kind) in self.plan.closers.iter().enumerate() {
            let id = format!("closer-{number}");
            let client = Client::connect(*kind, &self.place, &id).await;
            let shared = Arc::clone(&self.shared);
            self.workers.push(workers::close(client, id, shared, async {}));
        }
    }

    /// Fails the schedule if a worker has ended with a wrong result.
    async fn reap(&mut self) {
        let (ended, at_work) = std::mem::take(&mut self.workers)
            .into_iter()
            .partition(|worker| worker.task.is_finished());
        self.workers = at_work;
        for Worker { id, kind, task, .. } in ended {
            match task.await {
                Ok(Ok(())) => {}
                Ok(Err(wrong)) => panic!("{id}, {kind:?}: {wrong}; {}", self.tell().await),
                Err(ended) => assert!(ended.is_cancelled(), "{ended}"),
            }
        }
    }

    fn are_done(&self, role: QueueRole) -> bool {
        self.workers.iter().all(|worker| worker.role != role)
    }

    /// Returns whether nothing more will happen without intervention.
    async fn is_over(&self) -> bool {
        if self.workers.is_empty() {
            return !self.plan.deletes_early || is(&self.shared.gone) || self.shared.is_stuck();
        }
        if self.shared.is_stuck() {
            set(&self.shared.stop);
            return self.foreign_sleep().await && self.is_quiet().await;
        }
        // A foreign client that had checked :bound just before a deletion completed, and
        // has waited for a role since, blocks forever: no other client can wake it.
        let is_ours = |worker: &Worker| worker.kind == Kind::Ours;
        is(&self.shared.gone) && !self.workers.iter().any(is_ours) && self.foreign_sleep().await
    }

    async fn foreign_sleep(&self) -> bool {
        for worker in &self.workers {
            if let Some(connection) = worker.connection
                && !worker.task.is_finished()
                && !is_blocked(&self.place.raw, connection).await
            {
                return false;
            }
        }
        true
    }

    async fn is_quiet(&self) -> bool {
        let before = self.place.dump().await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        before == self.place.dump().await
    }

    /// Consumers that found the queue closed have ended. Producers that had checked
    /// `:closed` before may still put and wait for capacity.
    async fn drain(&self, drainer: &mut Client) {
        if self.shared.stuck(QueueRole::Consumer).is_some() || is(&self.shared.delete_begun) {
            return;
        }
        let begun = Instant::now();
        match drainer.get(3, Mode::Timed(Duration::from_millis(5))).await {
            Ok(elements) => {
                let ended = Instant::now();
                let by = "drainer".to_owned();
                let got = elements.into_iter().map(|element| Got {
                    by: by.clone(),
                    element,
                    begun,
                    ended,
                });
                self.shared.got.lock().unwrap().extend(got);
            }
            Err(Refusal::Closed | Refusal::TimedOut(_)) => {}
            Err(other) => panic!("{other:?} to the drainer; {}", self.tell().await),
        }
    }

    /// Returns the report of a failure.
    async fn tell(&self) -> String {
        let at_work: Vec<_> = self.workers.iter().map(|w| (&w.id, w.kind)).collect();
        let shared = &self.shared;
        format!("at work {at_work:?}, {shared:?}, keys {:?}", self.place.dump().await)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_schedules_with_foreign_clients_keep_order_and_lose_nothing() {
    let server = PrivateRedis::start(&[]).await;
    if let Ok(seed) = std::env::var("LOCKKEEPER_TEST_SEED") {
        run(seed.parse().expect("a number"), server.url()).await;
        return;
    }
    let first: u64 = rand::random::<u32>().into();
    println!("seeds from {first}; LOCKKEEPER_TEST_SEED=<seed> repeats one schedule");
    let happened: Vec<Happened> = futures::stream::iter(first..first + SCHEDULES)
        .map(|seed| run(seed, server.url()))
        .buffer_unordered(AT_A_TIME)
        .collect()
        .await;
    let counts = [0, 1, 2].map(|which| happened.iter().filter(|h| h[which]).count());
    println!("producer's role kept, consumer's role kept, deleted early: {counts:?}");
    assert!(counts.iter().all(|count| *count >= 20), "too tame: {counts:?}");
}
