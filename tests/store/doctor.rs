//! The doctor against a real Redis: the damage that it reports and the effect of repairs.
//! Each test has a private server, because every foreign connection to the database of a
//! queue may belong to a living holder. To simulate time, the test advances the doctor's
//! clock.

mod deaths;
mod evidence;
mod life;
mod schedules;
mod tokens;

use std::time::Duration;

use lockkeeper_plan::pressure_queue::doctor::{Diagnosis, Effort, Remedy, Repair};
use lockkeeper_plan::pressure_queue::{ObservedQueue, QueueEffect};
use lockkeeper_pressure::{QueueDoctor, RepairAction, Repaired, Store, StoreOptions};
use lockkeeper_testkit::pressure_text::TextClient;
use lockkeeper_testkit::redis::{PrivateRedis, TestQueue, eventually};

use crate::store::text_queue;

const IDLE: Duration = Duration::from_millis(200);

/// Starts a server that has space for a queue in each of many databases.
pub async fn server() -> PrivateRedis {
    PrivateRedis::start(&["--databases", "64"]).await
}

/// A queue under observation, in its own database.
pub struct Ward {
    pub place: TestQueue,
    pub store: Store,
    pub doctor: QueueDoctor,
    now: Duration,
}

impl Ward {
    /// Creates it in this database of the server, without a queue.
    pub async fn new(server: &PrivateRedis, database: i64) -> Self {
        let url = format!("{}/{database}", server.url().trim_end_matches("/0"));
        let place = TestQueue::at(&url).await;
        // The test's own observations of the keys must not count as a client.
        let () = place.run(&["CLIENT", "SETNAME", "lockkeeper/test"]).await;
        let store = Store::new(place.settings(), StoreOptions::new("doctor"));
        let doctor = store.doctor(place.queue.clone(), IDLE, Duration::ZERO);
        Self { place, store, doctor, now: Duration::ZERO }
    }

    /// Creates it with a queue of this bound.
    pub async fn with_queue(server: &PrivateRedis, database: i64, bound: u64) -> Self {
        let ward = Self::new(server, database).await;
        ward.store.apply(&ward.place.queue, &QueueEffect::Create { bound }).await.unwrap();
        ward
    }

    /// Connects a client that follows the text.
    pub async fn client(&self, id: &str) -> TextClient {
        TextClient::connect(&text_queue(&self.place), id).await.unwrap()
    }

    pub async fn seen(&self) -> ObservedQueue {
        self.store.observe(&self.place.queue).await.unwrap()
    }

    /// Observes the queue, `after` the last observation.
    pub async fn look(&mut self, after: Duration) -> Diagnosis {
        self.now += after;
        let seen = self.seen().await;
        self.doctor.look(&self.store, seen, self.now, Effort::Full).await.unwrap()
    }

    /// Returns the result of two observations, a moment apart.
    pub async fn examine(&mut self) -> Diagnosis {
        self.look(IDLE / 4).await;
        self.look(IDLE / 4).await
    }

    /// Performs all repairs that the diagnosis permits. Returns the changes.
    pub async fn repair_all(&mut self, diagnosis: &Diagnosis) -> Vec<RepairAction> {
        let mut actions = Vec::new();
        for repair in repairs(diagnosis) {
            match self.repair(&repair).await {
                Repaired::Done(done) => actions.extend(done),
                Repaired::AlreadySo => {}
                Repaired::Stale => panic!("nothing has moved: {repair:?}"),
            }
        }
        actions
    }

    /// Performs one repair.
    pub async fn repair(&mut self, repair: &Repair) -> Repaired {
        self.doctor.repair(&self.store, repair).await.unwrap()
    }

    /// Observes and repairs until nothing is left to repair. Returns the changes.
    pub async fn heal(&mut self) -> Vec<RepairAction> {
        let mut actions = Vec::new();
        for _ in 0..4 {
            self.look(IDLE).await;
            let diagnosis = self.look(IDLE).await;
            actions.extend(self.repair_all(&diagnosis).await);
        }
        actions
    }

    /// Checks the invariants of every queue without active clients.
    pub async fn check_invariants(&self) {
        let seen = self.seen().await;
        let Some(bound) = seen.bound else {
            assert!(self.place.dump().await.is_empty(), "{:?}", self.place.dump().await);
            return;
        };
        assert_eq!((seen.producer_free, seen.consumer_free), (1, 1), "{seen:?}");
        assert_eq!(seen.not_full, u64::from(seen.has_room(bound)), "{seen:?}");
    }

    /// Checks that a client can perform all operations on the queue, starting with its
    /// creation if it does not exist. Removes the queue.
    pub async fn check_use(&self) {
        let mut client = self.client("fresh").await;
        let work = async {
            let seen = self.seen().await;
            if seen.bound.is_none() {
                client.create(2).await.unwrap();
            }
            for _ in 0..seen.length {
                client.get().await.unwrap();
            }
            if !seen.closed {
                client.put("a").await.unwrap();
                assert_eq!(client.get().await.unwrap(), "a");
                client.close().await.unwrap();
            }
            client.delete().await.unwrap();
        };
        let done = tokio::time::timeout(Duration::from_secs(5), work).await;
        done.unwrap_or_else(|_| panic!("a client waits without end"));
        assert!(self.place.dump().await.is_empty());
    }

    /// Waits until the server has noticed that a connection is closed.
    pub async fn until_gone(&self, client: i64) {
        eventually("the connection is gone", async || {
            let list: String = self.place.run(&["CLIENT", "LIST", "ID", &client.to_string()]).await;
            list.trim().is_empty()
        })
        .await;
    }
}

/// Returns the reasons of all damage.
pub fn reasons(diagnosis: &Diagnosis) -> Vec<&'static str> {
    diagnosis.damage.iter().map(|finding| finding.remark.reason()).collect()
}

/// Returns the repairs that are permitted now.
pub fn repairs(diagnosis: &Diagnosis) -> Vec<Repair> {
    let all = [&diagnosis.damage, &diagnosis.at_work, &diagnosis.waiting];
    all.into_iter()
        .flatten()
        .filter_map(|finding| match &finding.remedy {
            Remedy::Mend(repair) => Some(repair.clone()),
            _ => None,
        })
        .collect()
}
