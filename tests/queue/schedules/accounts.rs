//! Ten thousand random schedules of one queue, each step of which a model predicts: puts,
//! gets with and without leases, broken outputs, deaths, dead letters, lost keys and
//! deletions. Every element is accounted for, in its place and with its attempts.

mod model;

use std::time::{Duration, Instant};

use futures::StreamExt;
use lockkeeper_plan::pressure_queue::QueueEffect;
use lockkeeper_pressure::{
    Applied, Deletion, Delivery, Limit, Queue, QueueError, QueueOptions, Removed, TakenRoles, Wait,
};
use lockkeeper_testkit::environment::is_soak;
use lockkeeper_testkit::redis::{PrivateRedis, SOON, TestQueue};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use self::model::{Element, Held, Model};
use crate::queue::ours;

/// Number of queues at a time. Each runs its share of the schedules, one after the other.
const LANES: usize = 16;
/// An element is a dead letter after this number of attempts.
const ATTEMPTS: u64 = 2;

/// One queue with two clients, and the queue for its dead letters.
struct Worker {
    place: TestQueue,
    clients: [Queue; 2],
    letters: Queue,
}

impl Worker {
    async fn at(url: &str) -> Self {
        let place = TestQueue::at(url).await;
        let clients = [ours(&place, "one"), ours(&place, "two")];
        let letters = lockkeeper_plan::naming::QueueName::new(place.queue.prefix(), "letters");
        let letters = Queue::new(place.settings(), letters.unwrap(), QueueOptions::default());
        letters.create(0).await.unwrap();
        Self { place, clients, letters }
    }

    /// Returns the elements of a list, oldest first.
    async fn list(&self, key: &str) -> Vec<Element> {
        let mut list: Vec<Element> = self.place.run(&["LRANGE", key, "0", "-1"]).await;
        list.reverse();
        list
    }
}

/// A running schedule.
struct Schedule<'a> {
    lane: &'a Worker,
    random: SmallRng,
    model: Model,
    /// Deliveries, which their clients may not have any more: the lease may have ended.
    held: Vec<(Held, Delivery)>,
    /// Number of steps of each kind, to show that none is missing.
    counts: Counts,
}

/// What a worker does with an element.
#[derive(Clone, Copy)]
enum Work {
    Succeeds,
    IsNotTried,
    Fails,
    /// It becomes a dead letter.
    FailsForGood,
    IsDropped,
}

/// How often elements came again, were given back, died, were removed, were restored.
type Counts = [u64; 5];
const AGAIN: usize = 0;
const BACK: usize = 1;
const DEAD: usize = 2;
const REMOVED: usize = 3;
const RESTORED: usize = 4;

async fn run(lane: &Worker, seed: u64) -> Counts {
    let mut random = SmallRng::seed_from_u64(seed);
    let bound = [0, 0, 3, 8][random.random_range(0..4)];
    lane.clients[0].create(bound).await.unwrap();
    let model = Model::new(bound);
    let (held, counts) = (Vec::new(), Counts::default());
    let mut schedule = Schedule { lane, random, model, held, counts };
    for _ in 0..schedule.random.random_range(4..20) {
        schedule.step().await;
    }
    schedule.end().await
}

impl Schedule<'_> {
    fn client(&mut self) -> Queue {
        self.lane.clients[self.random.random_range(0..2)].clone()
    }

    async fn step(&mut self) {
        match self.random.random_range(0..100) {
            0..22 => self.put().await,
            22..31 => self.get().await,
            31..57 => self.lease().await,
            57..80 => self.settle().await,
            80..87 => self.die().await,
            87..90 => self.suspend().await,
            90..92 => self.lose_the_bound().await,
            92..94 => self.change_the_bound().await,
            94..96 => self.delete_in_vain().await,
            96 => self.close().await,
            _ => self.check().await,
        }
    }

    async fn put(&mut self) {
        let elements: Vec<Element> =
            (0..self.random.random_range(1..6)).map(|_| self.model.name()).collect();
        let overfills = self.random.random_bool(0.1);
        let expected = self.model.put(&elements, overfills);
        let client = self.client();
        let put = if overfills {
            client.put_overfill(&elements, Wait::No).await
        } else {
            client.put_batch(&elements, Wait::No).await
        };
        let put = match put {
            Ok(()) => Ok(()),
            Err(failed) => Err((failed.put, failed.error)),
        };
        assert_eq!(put, expected);
    }

    /// Gets elements, of which a broken output returns some.
    async fn get(&mut self) {
        let most = self.random.random_range(1..5);
        let expected = self.model.get(most);
        let client = self.client();
        let limit = Limit { elements: most, bytes: usize::MAX >> 12 };
        let (mut taken, expected) = match (client.get_batch(limit, Wait::No).await, expected) {
            (Ok(taken), Ok(expected)) => (taken, expected),
            (got, expected) => {
                assert_eq!(got.map(|taken| taken.len()), expected.map(|all| all.len()));
                return;
            }
        };
        let got: Vec<Element> = taken.iter().map(text).collect();
        assert_eq!(got, expected);
        let written = self.random.random_range(0..=got.len());
        let written = if self.random.random_bool(0.3) { written } else { got.len() };
        (0..written).for_each(|_| drop(taken.pop()));
        client.give_back(taken, Wait::No).await.unwrap();
        self.model.wrote(&got, written);
    }

    async fn lease(&mut self) {
        let most = self.random.random_range(1..5);
        let expected = self.model.lease(most);
        let limit = Limit { elements: most, bytes: usize::MAX >> 12 };
        let got = match (self.client().get_acked_batch(limit, Wait::No).await, expected) {
            (Ok(got), Ok(expected)) => got.into_iter().zip(expected),
            (got, expected) => {
                assert_eq!(got.map(|got| got.len()), expected.map(|all| all.len()));
                return;
            }
        };
        for (delivery, held) in got {
            assert_eq!(text(delivery.element()), held.element);
            assert_eq!(delivery.delivery_count(), held.attempt, "{held:?}");
            self.counts[AGAIN] += u64::from(held.attempt > 1);
            self.held.push((held, delivery));
        }
    }

    /// Ends one delivery, as a worker does.
    async fn settle(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let which = self.random.random_range(0..self.held.len());
        let (held, delivery) = self.held.swap_remove(which);
        let is_held = self.model.is_held(&held);
        let work = match self.random.random_range(0..8) {
            0 | 1 => Work::Succeeds,
            2 | 3 => Work::IsNotTried,
            4..7 if held.attempt >= ATTEMPTS => Work::FailsForGood,
            4..7 => Work::Fails,
            _ => Work::IsDropped,
        };
        let settled = match work {
            Work::Succeeds => delivery.ack().await,
            Work::IsNotTried => {
                self.counts[BACK] += u64::from(is_held);
                delivery.give_back().await
            }
            Work::FailsForGood => {
                self.lane.letters.put_overfill(&[&held.element], Wait::No).await.unwrap();
                self.model.letters.push(held.element.clone());
                self.counts[DEAD] += 1;
                delivery.ack().await
            }
            Work::Fails => delivery.requeue(Duration::ZERO).await,
            Work::IsDropped => {
                drop(delivery);
                let ended = self.model.ended() + usize::from(self.model.is_running(&held));
                let begun = Instant::now();
                while self.lane.clients[0].stat().await.unwrap().leases_ended != ended as u64 {
                    assert!(begun.elapsed() < SOON, "it is not returned");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                self.model.fail(&held);
                return;
            }
        };
        assert_eq!(settled, if is_held { Ok(()) } else { Err(QueueError::LeaseEnded) }, "{held:?}");
        match work {
            Work::Succeeds => self.model.done(&held),
            Work::IsNotTried => self.model.give_back(&held),
            Work::FailsForGood => self.model.bury(&held),
            Work::Fails | Work::IsDropped => self.model.fail(&held),
        }
    }

    /// Ends the leases of some deliveries, whose clients die.
    async fn die(&mut self) {
        let dead = self.random.random_range(0..=self.held.len());
        let dead: Vec<_> = self.held.drain(..dead).collect();
        for (held, _) in &dead {
            self.end_the_lease(held.clone()).await;
        }
        // Without a runtime a dropped delivery is not returned.
        std::thread::scope(|scope| scope.spawn(move || drop(dead)).join()).unwrap();
    }

    /// Ends the lease of a delivery whose client continues.
    async fn suspend(&mut self) {
        if !self.held.is_empty() {
            let which = self.random.random_range(0..self.held.len());
            self.end_the_lease(self.held[which].0.clone()).await;
        }
    }

    async fn end_the_lease(&mut self, held: Held) {
        if !self.model.is_running(&held) {
            return;
        }
        let all: Vec<String> =
            self.lane.place.run(&["HGETALL", &self.lane.place.key(":in_flight")]).await;
        let id = all.chunks(2).find(|pair| pair[1] == held.element).unwrap()[0].clone();
        // At different times, in any order.
        let time = self.random.random_range(1..1000).to_string();
        let () = self.lane.place.run(&["ZADD", &self.lane.place.key(":leases"), &time, &id]).await;
        self.model.fail(&held);
    }

    async fn lose_the_bound(&mut self) {
        let place = &self.lane.place;
        let () = place.run(&["DEL", &place.key(":bound")]).await;
        let client = self.client();
        assert_eq!(client.put("x").await, Err(QueueError::DoesNotExist));
        assert_eq!(client.try_get().await, Err(QueueError::DoesNotExist));
        assert!(matches!(client.create(1).await, Err(QueueError::Residue { .. })));
        self.model.bound = self.random.random_range(0..5);
        client.adopt(self.model.bound).await.unwrap();
        self.counts[RESTORED] += 1;
        self.check().await;
    }

    async fn change_the_bound(&mut self) {
        self.model.bound = self.random.random_range(0..9);
        self.client().set_bound(self.model.bound).await.unwrap();
    }

    async fn close(&mut self) {
        let expected = if self.model.closed { Err(QueueError::Closed) } else { Ok(()) };
        assert_eq!(self.client().close(Wait::No).await, expected);
        self.model.closed = true;
    }

    /// Tries to delete a queue that has elements, or whose role a dead client holds.
    async fn delete_in_vain(&mut self) {
        let place = &self.lane.place;
        if self.random.random_bool(0.5) {
            let length = (self.model.queue.len() + self.model.flying.len()) as u64;
            if length > 0 {
                let store = self.lane.clients[0].store();
                let deletion = store.delete_if_empty(&place.queue).await.unwrap();
                assert_eq!(deletion, Deletion::NotEmpty { length });
            }
        } else {
            let role = [":producer_free", ":consumer_free"][self.random.random_range(0..2)];
            let _: String = place.run(&["RPOP", &place.key(role)]).await;
            let refused = self.client().remove(Wait::No, TakenRoles::Wait).await;
            assert!(matches!(refused, Err(QueueError::InUse { .. })), "{refused:?}");
            let () = place.run(&["LPUSH", &place.key(role), "1"]).await;
        }
        self.check().await;
    }

    async fn check(&mut self) {
        let Worker { place, letters, .. } = self.lane;
        let seen = self.lane.clients[0].stat().await.unwrap();
        let model = &self.model;
        assert_eq!(self.lane.list(&place.key("")).await, model.queue);
        assert_eq!(self.lane.list(&letters.name().data()).await, model.letters);
        assert_eq!(seen.bound, Some(model.bound));
        assert_eq!(seen.closed, model.closed);
        assert_eq!(seen.in_flight, model.flying.len() as u64);
        assert_eq!(seen.leases_ended, model.ended() as u64);
        assert_eq!(seen.drift(), 0, "{seen:?}");
        assert_eq!((seen.producer_free, seen.consumer_free), (1, 1));
        let room = u64::from(seen.has_room(model.bound));
        assert!(model.closed || seen.not_full == room, "{seen:?}");
    }

    /// Checks everything and deletes the queue.
    async fn end(mut self) -> Counts {
        self.check().await;
        let Worker { place, letters, clients } = self.lane;
        let expected = Removed {
            elements: self.model.queue.len() as u64,
            in_flight: self.model.flying.len() as u64,
        };
        let forces = self.random.random_bool(0.2);
        let taken = if forces { TakenRoles::Ignore } else { TakenRoles::Wait };
        assert_eq!(clients[1].remove(Wait::No, taken).await, Ok(expected));
        self.counts[REMOVED] += expected.elements + expected.in_flight;
        self.model.account();
        let held: Vec<_> = self.held.drain(..).collect();
        std::thread::scope(|scope| scope.spawn(move || drop(held)).join()).unwrap();
        let left = clients[0].stat().await.unwrap().leftovers;
        assert_eq!(left, [""; 0]);
        let () = place.run(&["DEL", &letters.name().data()]).await;
        let applied = clients[0].store().apply(&place.queue, &QueueEffect::Close).await;
        assert_eq!(applied, Ok(Applied::Absent));
        self.counts
    }
}

fn text(element: &[u8]) -> Element {
    String::from_utf8(element.to_vec()).unwrap()
}

/// Runs a schedule, and names its seed if it fails.
async fn named(lane: Worker, seed: u64) -> (Worker, Counts) {
    let run = tokio::spawn(async move {
        let counts = run(&lane, seed).await;
        (lane, counts)
    });
    run.await.unwrap_or_else(|panic| panic!("LOCKKEEPER_TEST_SEED={seed} repeats it: {panic}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_schedules_account_for_every_element() {
    let server = PrivateRedis::start(&[]).await;
    if let Ok(seed) = std::env::var("LOCKKEEPER_TEST_SEED") {
        named(Worker::at(&server.url()).await, seed.parse().expect("a number")).await;
        return;
    }
    let schedules = if is_soak() { 200_000 } else { 10_000 };
    let first: u64 = rand::random::<u32>().into();
    println!("seeds from {first}; LOCKKEEPER_TEST_SEED=<seed> repeats one schedule");
    let url = server.url();
    let lanes = (first..).take(LANES).map(async |first_of_lane| {
        let mut running = Worker::at(&url).await;
        let mut sum = Counts::default();
        for seed in (first_of_lane..first + schedules).step_by(LANES) {
            let (lane, counts) = named(running, seed).await;
            running = lane;
            (0..sum.len()).for_each(|which| sum[which] += counts[which]);
        }
        sum
    });
    let sums: Vec<Counts> = futures::stream::iter(lanes).buffer_unordered(LANES).collect().await;
    let counts = [AGAIN, BACK, DEAD, REMOVED, RESTORED]
        .map(|which| sums.iter().map(|sum| sum[which]).sum::<u64>());
    println!("came again, were given back, died, were removed, queues restored: {counts:?}");
    assert!(counts.iter().all(|count| *count >= 100), "too tame: {counts:?}");
}
