//! What a tenant or a client in the cluster can make the operator's process cost: its
//! memory by large objects and unfinished HTTP requests, its threads by silent servers.
//! See `tenancy` for what they can disclose or take away.

use std::time::Instant;

use futures::future::join_all;
use kube::api::{DeleteParams, PostParams};
use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_testkit::environment::{memory, peak};
use lockkeeper_testkit::world::{PATIENCE, eventually, has_reason, in_a_world};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use crate::operator::tenancy::{leave, neighbour, operator_of_both};

/// Connects to the operator's HTTP port and sends half a request of this size.
async fn half_sent(http: &str, size: usize) -> TcpStream {
    let mut client = TcpStream::connect(http.trim_start_matches("http://")).await.unwrap();
    let start = format!("GET /metrics HTTP/1.1\r\nX: {}", "y".repeat(size));
    // The operator may have closed it already.
    let _ = client.write_all(start.as_bytes()).await;
    client
}

#[tokio::test]
async fn unfinished_http_requests_cost_little_memory_and_do_not_delay_the_end() {
    in_a_world("unfinished", async |world| {
        let mut operator = world.operator().await;
        let before = memory(operator.pid()).0;
        let http = operator.http();
        let clients = join_all((0..800).map(|_| half_sent(&http, 60_000))).await;
        let ready = reqwest::get(format!("{}/readyz", operator.http())).await.unwrap();
        assert!(ready.status().is_success());
        let grown = memory(operator.pid()).0.saturating_sub(before);
        assert!(grown < 24, "it grew by {grown} MiB");
        drop(clients);
        let _client = half_sent(&operator.http(), 10).await;
        let start = Instant::now();
        assert!(operator.stop().await.success());
        assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
    })
    .await;
}

#[tokio::test]
async fn large_metadata_costs_little_memory_also_at_a_start() {
    const OBJECTS: usize = 16;
    in_a_world("large-objects", async |world| {
        let mut operator = world.operator().await;
        let before = peak(operator.pid());
        // The API server accepts a name of any length there.
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "x".repeat(1_300_000), "uid": "u"});
        for number in 0..OBJECTS {
            let object = serde_json::from_value(json!({
                "apiVersion": "lockkeeper.dev/v1alpha1", "kind": "Semaphore",
                "metadata": {"name": format!("large-{number}"), "ownerReferences": [owner]},
                "spec": {"slots": 0, "rabbitmqClusterReference": {"connectionSecret": {"name": "rabbit"}}},
            }))
            .unwrap();
            world.api::<Semaphore>().create(&PostParams::default(), &object).await.unwrap();
        }
        let all_ready = async || {
            for number in 0..OBJECTS {
                world.semaphore_ready(&format!("large-{number}")).await;
            }
        };
        all_ready().await;
        let grown = peak(operator.pid()).saturating_sub(before);
        assert!(grown < 32, "it grew by {grown} MiB");
        assert!(operator.stop().await.success());
        let operator = world.operator().await;
        all_ready().await;
        let grown = peak(operator.pid()).saturating_sub(before);
        assert!(grown < 32, "it starts with {grown} MiB more");
    })
    .await;
}

#[tokio::test]
async fn the_connections_of_deleted_objects_are_closed_without_a_new_one() {
    const OBJECTS: usize = 12;
    in_a_world("deleted", async |world| {
        let operator = world.operator().await;
        let threads =
            || std::fs::read_dir(format!("/proc/{}/task", operator.pid())).unwrap().count();
        world.semaphore("first", "slots: 1").await;
        world.semaphore_ready("first").await;
        // The other objects' connections differ in a management API, which does not exist.
        let before = threads();
        for number in 0..OBJECTS {
            let name = format!("own-{number}");
            let management = format!("http://a:b@127.0.0.1:{}", number + 1);
            let uris = [("amqpUri", world.amqp_url()), ("managementUri", management)];
            world.secret(&name, &uris).await;
            let reference =
                format!("rabbitmqClusterReference: {{connectionSecret: {{name: {name}}}}}");
            let spec = format!("{{slots: 0, {reference}}}");
            world.apply::<Semaphore>(&name, &spec).await.unwrap();
        }
        let more = before + OBJECTS;
        eventually("each has a connection", PATIENCE, async || threads() > more).await;
        for number in 0..OBJECTS {
            let name = format!("own-{number}");
            world.api::<Semaphore>().delete(&name, &DeleteParams::default()).await.unwrap();
        }
        eventually("they are closed", PATIENCE, async || threads() <= before + 3).await;
    })
    .await;
}

#[tokio::test]
async fn silent_servers_of_a_namespace_cost_few_threads_and_delay_no_other() {
    const SERVERS: usize = 30;
    in_a_world("silent", async |victim| {
        let evil = neighbour(&victim).await;
        // The system accepts the connections, and nothing answers.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = silent.local_addr().unwrap().port();
        let operator = operator_of_both(&victim, &evil, &[]).await;
        let threads =
            || std::fs::read_dir(format!("/proc/{}/task", operator.pid())).unwrap().count();
        victim.semaphore("x", "slots: 1").await;
        victim.semaphore_ready("x").await;
        let before = threads();
        join_all((0..SERVERS).map(async |number| {
            let name = format!("silent-{number}");
            let at = format!("a:b@127.0.0.1:{port}/{number}");
            evil.secret(&name, &[("uri", format!("amqp://{at}"))]).await;
            let secret = format!("connectionSecret: {{name: {name}}}");
            let semaphore = format!("{{rabbitmqClusterReference: {{{secret}}}}}");
            evil.apply::<Semaphore>(&name, &semaphore).await.unwrap();
            evil.secret(&format!("{name}-redis"), &[("uri", format!("redis://{at}"))]).await;
            let secret = format!("connectionSecret: {{name: {name}-redis}}");
            let queue = format!("{{redisReference: {{{secret}}}, bound: 1}}");
            evil.apply::<PressureQueue>(&name, &queue).await.unwrap();
        }))
        .await;
        let start = Instant::now();
        // Without an address of the management API, it has a connection of its own.
        victim.secret("other", &[("amqpUri", victim.amqp_url())]).await;
        let spec = "{slots: 1, rabbitmqClusterReference: {connectionSecret: {name: other}}}";
        victim.apply::<Semaphore>("y", spec).await.unwrap();
        victim.semaphore_ready("y").await;
        let mut most = 0;
        let (mut semaphore_waits, mut queue_waits) = (false, false);
        for number in (0..SERVERS).cycle() {
            most = most.max(threads());
            let name = format!("silent-{number}");
            let semaphore: Semaphore = evil.api().get(&name).await.unwrap();
            let queue: PressureQueue = evil.api().get(&name).await.unwrap();
            semaphore_waits |= has_reason(&semaphore, "Ready", "ConnectionDelayed");
            queue_waits |= has_reason(&queue, "Ready", "ConnectionDelayed");
            if semaphore_waits && queue_waits {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{semaphore:?} {queue:?}");
        }
        assert!(most <= before + 16, "{most} threads instead of {before}");
        leave(evil).await;
    })
    .await;
}
