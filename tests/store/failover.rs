//! Sentinel failovers while clients put and get. The master is killed, or it hangs and
//! resumes as a master that was superseded. Which elements survive is exact: the sentinel
//! considers the master down only when a test lets it, so that the test can read before
//! what the replica has. See `sentinel` for failovers without load.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_plan::naming::QueueName;
use lockkeeper_pressure::{Limit, Queue, QueueError, QueueOptions, StoreError, Wait};
use lockkeeper_testkit::environment::signal;
use lockkeeper_testkit::redis::{SOON, connect, hang, in_time, until_no_script_runs};
use lockkeeper_testkit::redis_sentinel::{Group, ask};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Pause before an operation that has certainly failed is tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// The elements of a test: the numbers from 0.
#[derive(Default)]
struct Journal {
    /// The numbers that were put or got, in this order.
    done: Vec<u64>,
    /// Of the operations whose outcome is uncertain, the number that was put, or the count
    /// of elements got before. They are not repeated.
    uncertain: Vec<u64>,
    /// How many operations have certainly failed. They are repeated.
    failed: usize,
}

type Shared = Arc<Mutex<Journal>>;

impl Journal {
    /// Records an error, which must be one that a failover explains. Returns whether the
    /// outcome is certain.
    fn note(&mut self, error: &QueueError, at: u64) -> bool {
        if error.ends_unknown() {
            assert!(error.to_string().contains("is not known"), "{error}");
            self.uncertain.push(at);
            return false;
        }
        let is_outage = matches!(
            error,
            QueueError::Store(
                StoreError::Unreachable { .. } | StoreError::Timeout | StoreError::ReadOnly { .. }
            )
        );
        assert!(is_outage, "{error:?}");
        self.failed += 1;
        true
    }
}

fn count(journal: &Shared) -> usize {
    journal.lock().unwrap().done.len()
}

/// Returns a client with this id of a queue.
fn client(group: &Group, id: &str, queue: &str, options: &QueueOptions) -> Queue {
    let queue = QueueName::new("p", queue).unwrap();
    Queue::new(group.settings(), queue, options.clone().with_client_id(id))
}

/// Puts numbers from the next one on until it is stopped.
fn produce(queue: Queue, journal: &Shared, stop: CancellationToken) -> JoinHandle<()> {
    let journal = Arc::clone(journal);
    tokio::spawn(async move {
        let mut number = count(&journal) as u64;
        while !stop.is_cancelled() {
            let put = queue.put(number.to_string()).await;
            let is_certain = {
                let mut journal = journal.lock().unwrap();
                match put {
                    Ok(()) => {
                        journal.done.push(number);
                        number += 1;
                        continue;
                    }
                    Err(error) => journal.note(&error, number),
                }
            };
            number += u64::from(!is_certain);
            tokio::time::sleep(AGAIN).await;
        }
    })
}

/// Gets numbers until the queue is closed.
fn consume(queue: Queue, journal: &Shared) -> JoinHandle<()> {
    let journal = Arc::clone(journal);
    tokio::spawn(async move {
        loop {
            let got = queue.get().await;
            {
                let mut journal = journal.lock().unwrap();
                match got {
                    Ok(got) => {
                        journal.done.push(String::from_utf8(got).unwrap().parse().unwrap());
                        continue;
                    }
                    Err(QueueError::Closed) => return,
                    Err(error) => {
                        let before = journal.done.len() as u64;
                        journal.note(&error, before);
                    }
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    })
}

/// Waits until the replica has executed everything that the master has executed so far.
async fn replicate(group: &Group) {
    let mut master = connect(&group.master.url()).await;
    let mut both = redis::pipe();
    both.cmd("SET").arg("p:mark").arg("").ignore().cmd("WAIT").arg(1).arg(30_000);
    let (replicas,): (u32,) = both.query_async(&mut master).await.unwrap();
    assert_eq!(replicas, 1);
}

/// Waits until a client waits in both of its blocking commands.
async fn is_waiting(group: &Group, id: &str) {
    let (id, url) = (format!("name=lockkeeper/{id} "), group.master.url());
    in_time("a client waits", async || {
        let list: String = ask(&url, &["CLIENT", "LIST"]).await;
        let is_blocked = |line: &&str| line.contains(&id) && line.contains("flags=b");
        list.lines().filter(is_blocked).count() == 2
    })
    .await;
}

/// Waits until this many more elements were got.
async fn passes(got: &Shared, more: usize) {
    let enough = count(got) + more;
    in_time("elements pass", async || count(got) >= enough).await;
}

/// Returns options of a client that gives up a hung server within seconds.
fn impatient() -> QueueOptions {
    let two = Duration::from_secs(2);
    let options = QueueOptions::default().with_connect_timeout(two).with_response_timeout(two);
    options.with_look_interval(Duration::from_secs(3))
}

/// Returns a counter of the queue `frames` on this server.
async fn counter(url: &str, name: &str) -> u64 {
    ask(url, &["GET", &format!("p:frames:stats:{name}_messages")]).await
}

/// Holds the sentinel back, or lets it start the failover of a master that is down.
async fn allow_failover(group: &Group, is_allowed: bool) {
    let limit = if is_allowed { "2000" } else { "600000" };
    group.configure(&[("down-after-milliseconds", limit)]).await;
}

/// Starts a put that waits for space in the full queue `full`. Its only element is
/// `first`.
async fn start_waiting_put(group: &Group, options: &QueueOptions) -> JoinHandle<()> {
    let full = client(group, "waiting-put", "full", options);
    full.create(1).await.unwrap();
    full.put("first").await.unwrap();
    let put = tokio::spawn(async move { full.put("second").await.unwrap() });
    is_waiting(group, "waiting-put").await;
    put
}

/// Checks that the put goes on and nothing of the queue `full` is lost.
async fn finish_waiting_put(group: &Group, put: JoinHandle<()>) {
    let full = client(group, "reader", "full", &QueueOptions::default());
    assert_eq!(full.get().await.unwrap(), b"first");
    tokio::time::timeout(SOON, put).await.expect("it is woken").unwrap();
    assert_eq!(full.get().await.unwrap(), b"second");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_kill_replicated_elements_arrive_once_in_order_and_the_rest_is_accounted_for() {
    let mut group = Group::start().await;
    allow_failover(&group, false).await;
    let options = QueueOptions::default();
    let ours = |id, group: &Group| client(group, id, "frames", &options);
    ours("owner", &group).create(20).await.unwrap();
    let (put, got, stop) = (Shared::default(), Shared::default(), CancellationToken::new());
    let producer = produce(ours("producer", &group), &put, stop.clone());
    let consumer = consume(ours("consumer", &group), &got);
    let waiting_put = start_waiting_put(&group, &options).await;
    let idle = client(&group, "waiting-get", "idle", &options);
    idle.create(1).await.unwrap();
    let waiting_get = tokio::spawn(async move { idle.get().await.unwrap() });
    is_waiting(&group, "waiting-get").await;
    passes(&got, 300).await;
    let (safe_put, safe_got) = (count(&put) as u64, count(&got) as u64);
    replicate(&group).await;
    passes(&got, 300).await;
    group.master.kill();

    let replica = group.replica.url();
    in_time("the replica has received everything", async || {
        let info: String = ask(&replica, &["INFO", "replication"]).await;
        info.contains("role:slave") && info.contains("master_link_status:down")
    })
    .await;
    let puts = counter(&replica, "produced").await;
    let gets = counter(&replica, "consumed").await;
    let mut survivors: Vec<u64> = ask(&replica, &["LRANGE", "p:frames", "0", "-1"]).await;
    survivors.reverse();
    allow_failover(&group, true).await;
    group.is_failed_over().await;
    passes(&got, 300).await;
    finish_waiting_put(&group, waiting_put).await;
    client(&group, "putter", "idle", &options).put("late").await.unwrap();
    let late = tokio::time::timeout(SOON, waiting_get).await.expect("it is woken");
    assert_eq!(late.unwrap(), b"late");
    stop.cancel();
    producer.await.unwrap();
    ours("closer", &group).close(Wait::Forever).await.unwrap();
    consumer.await.unwrap();

    // The replica had executed a prefix of what the master had.
    assert_eq!(survivors, (gets..puts).collect::<Vec<_>>());
    assert!(puts >= safe_put && gets >= safe_got, "{puts} {gets}");
    let later_puts = counter(&replica, "produced").await - puts;
    let later_gets = counter(&replica, "consumed").await - gets;
    let (put, got) = (put.lock().unwrap(), got.lock().unwrap());
    let (before, after) = put.done.split_at(put.done.len() - usize::try_from(later_puts).unwrap());
    assert!(after[0] >= puts, "no put is repeated");
    assert!(puts <= (before.len() + put.uncertain.len()) as u64, "{:?}", put.uncertain);
    // Everything that the new master had and got arrives once and in order.
    let arrives = [&survivors[..], after].concat();
    assert_eq!(later_gets, arrives.len() as u64);
    let (first, then) = got.done.split_at(got.done.len() - arrives.len());
    assert_eq!(then, arrives);
    assert_eq!(first, (0..first.len() as u64).collect::<Vec<_>>());
    // A get of which only the answer was lost took its element along, and says so.
    let lost = gets.saturating_sub(first.len() as u64);
    assert!(lost <= got.uncertain.len() as u64, "{lost} elements: {:?}", got.uncertain);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_leave_a_master_that_hangs_and_do_not_return_when_it_resumes() {
    let group = Group::start().await;
    allow_failover(&group, false).await;
    let options = impatient();
    let producing = client(&group, "producer", "frames", &options);
    producing.create(20).await.unwrap();
    let (put, got, stop) = (Shared::default(), Shared::default(), CancellationToken::new());
    let consumer = consume(client(&group, "consumer", "frames", &options), &got);
    let pause = CancellationToken::new();
    let producer = produce(producing.clone(), &put, pause.clone());
    passes(&got, 300).await;
    pause.cancel();
    producer.await.unwrap();
    let waiting_put = start_waiting_put(&group, &options).await;
    in_time("all are got", async || count(&got) == count(&put)).await;
    is_waiting(&group, "consumer").await;
    until_no_script_runs(&group.master.url()).await;
    replicate(&group).await;
    let (next, pid) = (count(&put) as u64, group.master.pid().await);
    // A put over a connection that has just worked is sent at once.
    producing.len().await.unwrap();
    hang(pid).await;
    let producer = produce(producing, &put, stop.clone());
    in_time("a put is uncertain", async || put.lock().unwrap().uncertain == [next]).await;
    allow_failover(&group, true).await;
    group.is_failed_over().await;
    passes(&got, 300).await;
    finish_waiting_put(&group, waiting_put).await;

    // Otherwise the sentinel waits for 20 s before it makes the old master a replica.
    let hurry = ["SENTINEL", "DEBUG", "info-period", "1000", "publish-period", "1000"];
    let () = ask(&group.sentinel.url(), &hurry).await;
    let old = group.master.url();
    signal(pid, "CONT");
    assert_eq!(counter(&old, "produced").await, next + 1, "it executes the put too late");
    in_time("it follows the new master", async || {
        let info: String = ask(&old, &["INFO", "replication"]).await;
        info.contains("role:slave") && info.contains("master_link_status:up")
    })
    .await;
    passes(&got, 300).await;
    let list: String = ask(&old, &["CLIENT", "LIST"]).await;
    assert!(!list.contains("name=lockkeeper/"), "{list}");
    stop.cancel();
    producer.await.unwrap();
    client(&group, "closer", "frames", &options).close(Wait::Forever).await.unwrap();
    consumer.await.unwrap();
    let (put, got) = (put.lock().unwrap(), got.lock().unwrap());
    assert_eq!(put.uncertain, [next]);
    assert_eq!(got.done, put.done);
    assert_eq!((got.failed, got.uncertain.len()), (0, 0), "the consumer only waits");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_element_that_a_hung_master_hands_out_after_its_failover_is_delivered_again() {
    let group = Group::start().await;
    let options = QueueOptions::default();
    let queue = client(&group, "consumer", "frames", &options);
    queue.create(0).await.unwrap();
    queue.put_batch(&["a", "b"], Wait::No).await.unwrap();
    replicate(&group).await;
    let pid = group.master.pid().await;
    assert_eq!(queue.get().await.unwrap(), b"a");
    hang(pid).await;
    let getting = tokio::spawn(async move { queue.get().await });
    group.is_failed_over().await;
    assert!(!getting.is_finished(), "the answer to a get is awaited");
    signal(pid, "CONT");
    let got = tokio::time::timeout(SOON, getting).await.expect("it is answered").unwrap();
    assert_eq!(got.unwrap(), b"b");
    let others = client(&group, "another", "frames", &options);
    let again = others.get_batch(Limit { elements: 9, bytes: usize::MAX }, Wait::No).await.unwrap();
    assert_eq!(again.iter().last(), Some(&b"b"[..]));
}
