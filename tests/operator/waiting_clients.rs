//! The operator's requests to Redis while the clients of many queues wait: one connection
//! list per interval, however many queues there are, and none if nothing is repaired.

use std::time::{Duration, Instant};

use futures::future::join_all;
use lockkeeper_plan::naming::DEFAULT_PREFIX;
use lockkeeper_testkit::pressure_text::{TextQueue, Worker};
use lockkeeper_testkit::redis::{PrivateRedis, connect};
use lockkeeper_testkit::world::{PATIENCE, eventually, in_a_world};

/// More than can be watched at the same time.
const QUEUES: usize = 40;

/// Maximum time between two observations of each of them.
const INTERVAL: Duration = Duration::from_secs(1);

/// Number of observations of each of them while requests are counted.
const LOOKS: usize = 8;

/// Returns how often the server ran `command` since the counters were reset.
async fn calls(server: &PrivateRedis, command: &str) -> usize {
    let mut redis = connect(&server.url()).await;
    let mut info = redis::cmd("INFO");
    let stats: String = info.arg("commandstats").query_async(&mut redis).await.unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
    let calls = line.and_then(|line| line.strip_prefix("calls=")?.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

/// Returns the number of connection lists while each queue was observed this often, and
/// the duration.
async fn lists_for_many_looks(server: &PrivateRedis) -> (usize, Duration) {
    let mut redis = connect(&server.url()).await;
    let mut reset = redis::cmd("CONFIG");
    let () = reset.arg("RESETSTAT").query_async(&mut redis).await.unwrap();
    let began = Instant::now();
    eventually("all are looked at again and again", PATIENCE * 2, async || {
        calls(server, "evalsha").await >= QUEUES * LOOKS
    })
    .await;
    (calls(server, "client|list").await, began.elapsed())
}

#[tokio::test]
async fn queues_with_waiting_clients_share_a_list_of_connections_or_need_none() {
    in_a_world("waiting", async |world| {
        let server = PrivateRedis::start(&[]).await;
        world.secret("redis", &[("uri", server.url())]).await;
        let _operator = world.operator_with(&["--observe-interval", "1s"]).await;
        let consumers = join_all((0..QUEUES).map(async |n| {
            let name = format!("q{n}");
            world.queue(&name, "bound: 0").await;
            world.queue_ready(&name).await;
            let (prefix, name) = (DEFAULT_PREFIX.to_owned(), format!("{}.{name}", world.namespace));
            let queue = TextQueue { url: server.url(), prefix, name };
            Worker::consume(&queue, "patient", 1).await
        }));
        let consumers = consumers.await;
        let (lists, _) = lists_for_many_looks(&server).await;
        assert_eq!(lists, 0, "nothing would be repaired");

        for n in 0..QUEUES {
            world.queue(&format!("q{n}"), "bound: 0, repairPolicy: Repair").await;
        }
        lists_for_many_looks(&server).await;
        let (lists, took) = lists_for_many_looks(&server).await;
        // A pause may be a tenth shorter than the interval.
        let most = took.div_duration_f64(INTERVAL) / 0.9 + 1.0;
        assert!(
            (1.0..=most).contains(&f64::from(u32::try_from(lists).unwrap())),
            "{lists} lists in {took:?}"
        );
        let mut redis = connect(&server.url()).await;
        let mut list = redis::cmd("CLIENT");
        let list: String = list.arg("LIST").query_async(&mut redis).await.unwrap();
        assert_eq!(list.matches("name=lockkeeper/watch-").count(), 32, "a limit for each server");
        assert!(consumers.iter().all(|consumer| !consumer.is_finished()));
        // Before their server ends.
        world.kill_operators().await;
    })
    .await;
}
