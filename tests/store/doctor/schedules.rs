//! Producers and consumers that follow the text, killed at random times, and a doctor
//! that repairs everything permitted as fast as possible. Living clients keep their
//! roles, elements are got once and in order, and the queue always recovers.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockkeeper_plan::naming::QueueName;
use lockkeeper_plan::pressure_queue::doctor::{Effort, Repair};
use lockkeeper_pressure::{Repaired, Store};
use lockkeeper_testkit::pressure_text::Worker;
use lockkeeper_testkit::redis::PrivateRedis;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{Ward, repairs, server};
use crate::store::text_queue;

const KILLS: usize = 12;

/// The ids of the living clients.
type Living = Arc<Mutex<BTreeSet<String>>>;

/// Repairs continuously, without waiting for idle times, and counts the roles that it has
/// released. Fails if one of them belonged to a living client.
async fn repair_repeatedly(
    store: Store,
    queue: QueueName,
    living: Living,
    given_back: Arc<AtomicUsize>,
) {
    let mut doctor = store.doctor(queue.clone(), Duration::ZERO, Duration::ZERO);
    let started = Instant::now();
    loop {
        let seen = store.observe(&queue).await.unwrap();
        let at = started.elapsed();
        let diagnosis = doctor.look(&store, seen, at, Effort::Repair).await.unwrap();
        for repair in repairs(&diagnosis) {
            let repaired = doctor.repair(&store, &repair).await.unwrap();
            let (Repaired::Done(_), Repair::GiveBack { role, evidence }) = (repaired, &repair)
            else {
                continue;
            };
            given_back.fetch_add(1, Ordering::SeqCst);
            // A role without an id was taken by a client that died before it wrote one.
            let holder = evidence.unchanged.role(*role).id.clone().unwrap_or_default();
            assert!(!living.lock().unwrap().contains(&holder), "{holder} lives: {repair:?}");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn run_schedule(server: &PrivateRedis, database: i64, seed: u64) {
    println!("seed {seed}: set LOCKKEEPER_TEST_SEED={seed} to repeat it");
    let mut random = SmallRng::seed_from_u64(seed);
    let bound = random.random_range(0..4);
    let mut ward = Ward::with_queue(server, database, bound).await;
    let queue = text_queue(&ward.place);
    let (living, given_back) = (Living::default(), Arc::new(AtomicUsize::new(0)));
    let (store, name) = (ward.store.clone(), ward.place.queue.clone());
    let doctor =
        tokio::spawn(repair_repeatedly(store, name, Arc::clone(&living), Arc::clone(&given_back)));
    let dies = |id: &str| assert!(living.lock().unwrap().remove(id));
    let (mut put, mut got) = (Vec::new(), Vec::new());
    for generation in 0..KILLS {
        // Both clients of one generation are dead before the next one starts, because a
        // living client prevents the release of the other's role.
        let elements = (0..).map(move |n| format!("{generation:02}-{n:06}"));
        let [camera, encoder] = ["producer", "consumer"].map(|role| format!("{role} {generation}"));
        living.lock().unwrap().extend([camera.clone(), encoder.clone()]);
        let producer = Worker::produce(&queue, &camera, elements).await;
        let consumer = Worker::consume(&queue, &encoder, usize::MAX).await;
        let mut pause = || Duration::from_micros(random.random_range(0..20_000));
        let (first, second) = (pause(), pause());
        tokio::time::sleep(first).await;
        let numbers = [producer.client, consumer.client];
        if random.random_bool(0.5) {
            dies(&camera);
            put.extend(producer.kill().await);
            tokio::time::sleep(second).await;
            dies(&encoder);
            got.extend(consumer.kill().await);
        } else {
            dies(&encoder);
            got.extend(consumer.kill().await);
            tokio::time::sleep(second).await;
            dies(&camera);
            put.extend(producer.kill().await);
        }
        for number in numbers {
            ward.until_gone(number).await;
        }
    }
    lockkeeper_testkit::redis::eventually("both roles are free again", async || {
        let now = ward.seen().await;
        (now.producer_free, now.consumer_free) == (1, 1)
            && now.not_full == u64::from(now.has_room(bound))
    })
    .await;
    doctor.abort();
    assert!(doctor.await.is_err_and(|end| end.is_cancelled()), "it gave a living role back");
    let mut drain = ward.client("drain").await;
    for _ in 0..ward.seen().await.length {
        got.push(drain.get().await.unwrap());
    }
    drop(drain);
    // Each death may lose an element that its consumer had just taken, and may leave an
    // element whose put was not yet confirmed to its producer.
    assert!(got.is_sorted() && got.windows(2).all(|two| two[0] != two[1]), "in order and once");
    let lost = put.iter().filter(|element| got.binary_search(element).is_err()).count();
    let unheard = got.iter().filter(|element| put.binary_search(element).is_err()).count();
    assert!(lost <= KILLS, "{lost} of {} are lost", put.len());
    assert!(unheard <= KILLS, "{unheard} were never put");
    let given_back = given_back.load(Ordering::SeqCst);
    println!("bound {bound}: {} put, {} got, {given_back} roles given back", put.len(), got.len());
    assert!(given_back <= 2 * KILLS);
    assert!(given_back > 0, "a consumer that waits for data dies with its role");
    ward.heal().await;
    ward.check_invariants().await;
    ward.check_use().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deaths_at_any_moment_with_an_eager_doctor_lose_no_order_and_stop_no_queue() {
    let server = server().await;
    if let Ok(seed) = std::env::var("LOCKKEEPER_TEST_SEED") {
        return run_schedule(&server, 1, seed.parse().expect("a number")).await;
    }
    for database in 1..=10 {
        run_schedule(&server, database, rand::random()).await;
    }
}
