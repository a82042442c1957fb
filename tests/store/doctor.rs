//! The doctor against a real Redis: what it names and what a repair does. Each
//! test has a server of its own, because every foreign connection to the database
//! of a queue may be that of a living holder. When time must pass, it is the
//! doctor's clock that is put forward.

mod deaths;
mod evidence;
mod life;
mod schedules;
mod tokens;

use std::time::Duration;

use jiff::Timestamp;
use lockkeeper::plan::pressure_queue::doctor::{Diagnosis, Doctor, Remedy, Repair};
use lockkeeper::plan::pressure_queue::{QueueEffect, QueueSeen};
use lockkeeper::pressure::{Deed, Repaired, Store, StoreOptions};

use crate::pressure_text::TextClient;
use crate::redis_support::{Place, PrivateRedis, eventually};
use crate::text_queue;

const IDLE: Duration = Duration::from_millis(200);

/// A server with room for a queue in each of many databases.
pub async fn server() -> PrivateRedis {
    PrivateRedis::start(&["--databases", "64"]).await
}

/// A queue under observation, in a database of its own.
pub struct Ward {
    pub place: Place,
    pub store: Store,
    pub doctor: Doctor,
    now: Duration,
}

impl Ward {
    /// In this database of the server; there is no queue yet.
    pub async fn new(server: &PrivateRedis, database: i64) -> Self {
        let url = format!("{}/{database}", server.url().trim_end_matches("/0"));
        let place = Place::at(&url).await;
        // The test's own look at the keys is no client.
        let () = place.run(&["CLIENT", "SETNAME", "lockkeeper/test"]).await;
        let store = Store::new(place.settings(), StoreOptions::new("doctor"));
        let doctor = Doctor::new(IDLE, database);
        Self { place, store, doctor, now: Duration::ZERO }
    }

    /// The same with a queue of this bound.
    pub async fn with_queue(server: &PrivateRedis, database: i64, bound: u64) -> Self {
        let ward = Self::new(server, database).await;
        ward.store.apply(&ward.place.queue, &QueueEffect::Create { bound }).await.unwrap();
        ward
    }

    /// A client that follows the text.
    pub async fn client(&self, id: &str) -> TextClient {
        TextClient::connect(&text_queue(&self.place), id).await.unwrap()
    }

    pub async fn seen(&self) -> QueueSeen {
        self.store.observe(&self.place.queue).await.unwrap()
    }

    /// A look, `after` the last one.
    pub async fn look(&mut self, after: Duration) -> Diagnosis {
        self.now += after;
        let seen = self.seen().await;
        let (queue, now) = (&self.place.queue, self.now);
        let look = self.store.look_around(queue, &self.doctor, seen, now, true).await.unwrap();
        assert!(look.time <= Timestamp::now());
        self.doctor.look(look)
    }

    /// What two looks tell, a moment apart.
    pub async fn examine(&mut self) -> Diagnosis {
        self.look(IDLE / 4).await;
        self.look(IDLE / 4).await
    }

    /// Makes all repairs that the diagnosis allows; returns what was done.
    pub async fn mend(&self, diagnosis: &Diagnosis) -> Vec<Deed> {
        let mut deeds = Vec::new();
        for repair in repairs(diagnosis) {
            match self.store.repair(&self.place.queue, &repair).await.unwrap() {
                Repaired::Done(done) => deeds.extend(done),
                Repaired::AlreadySo => {}
                Repaired::Stale => panic!("nothing has moved: {repair:?}"),
            }
        }
        deeds
    }

    /// Looks and mends until there is nothing to mend; returns what was done.
    pub async fn heal(&mut self) -> Vec<Deed> {
        let mut deeds = Vec::new();
        for _ in 0..4 {
            self.look(IDLE).await;
            let diagnosis = self.look(IDLE).await;
            deeds.extend(self.mend(&diagnosis).await);
        }
        deeds
    }

    /// What must hold of every queue that nobody works on.
    pub async fn check_invariants(&self) {
        let seen = self.seen().await;
        let Some(bound) = seen.bound else {
            assert!(self.place.dump().await.is_empty(), "{:?}", self.place.dump().await);
            return;
        };
        assert_eq!((seen.producer_free, seen.consumer_free), (1, 1), "{seen:?}");
        assert_eq!(seen.not_full, u64::from(seen.has_room(bound)), "{seen:?}");
    }

    /// Whether a client can do all that one does with a queue, beginning with its
    /// creation if there is none. Removes the queue.
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
        done.unwrap_or_else(|_| panic!("a client waits for ever"));
        assert!(self.place.dump().await.is_empty());
    }

    /// Waits until the server has noticed that a connection is gone.
    pub async fn until_gone(&self, client: i64) {
        eventually("the connection is gone", async || {
            let list: String = self.place.run(&["CLIENT", "LIST", "ID", &client.to_string()]).await;
            list.trim().is_empty()
        })
        .await;
    }
}

/// The reasons of all damage.
pub fn reasons(diagnosis: &Diagnosis) -> Vec<&'static str> {
    diagnosis.damage.iter().map(|finding| finding.remark.reason()).collect()
}

/// The repairs that may be made now.
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
