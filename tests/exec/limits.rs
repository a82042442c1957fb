//! Limits of an acquisition by `exec`: of its time, of the process's descriptors, and of the
//! broker's connections. Also a lock that is deleted while `exec` waits for it.

use std::time::{Duration, Instant};

use lockkeeper_plan::naming::Protocol;
use lockkeeper_testkit::protocols::{TestLock, with_protocols};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use serde_json::json;
use tokio::net::TcpListener;

use crate::exec::commands::{Running, Scratch};
use crate::exec::{LOCK, create, lockkeeper, outcome, prefixed, run, succeed};

with_protocols! {
    every {
        exec_reports_a_deleted_lock_and_waits_until_it_is_created_again,
    }
}

/// More than the documented limits, and less than the next longer ones.
const LATE: Duration = Duration::from_secs(9);

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_ends_exec_hold_and_wait_at_their_limit() {
    let vhost = Vhost::create().await;
    // The kernel accepts connections to it, and nothing answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let broker = format!("amqp://127.0.0.1:{port}");
    let scratch = Scratch::new();
    let kubeconfig = scratch.file("kubeconfig");
    let cluster = json!({"name": "c", "cluster": {"server": format!("http://127.0.0.1:{port}")}});
    let context = json!({"name": "c", "context": {"cluster": "c", "user": "u"}});
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [cluster],
        "contexts": [context], "users": [{"name": "u", "user": {}}],
    });
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let (on_broker, resource) = (["--url", &broker], ["--kubeconfig", &kubeconfig]);
    let command = ["--", "true"];
    let table: [&[&[&str]]; 7] = [
        &[&["exec", LOCK, "--timeout", "5s"], &on_broker, &command],
        &[&["exec", LOCK, "--no-wait"], &on_broker, &command],
        &[&["hold", LOCK, "--timeout", "1s"], &on_broker],
        &[&["exec", "sem/x", "--timeout", "5s"], &resource, &command],
        &[&["exec", "sem/x", "--no-wait"], &resource, &command],
        &[&["semaphore", "wait", LOCK, "--until", "taken", "--timeout", "1s"], &on_broker],
        &[&["semaphore", "wait", "sem/x", "--until", "taken", "--timeout", "1s"], &resource],
    ];
    let runs = table.iter().map(async |words| {
        let started = Instant::now();
        let outcome = run(&vhost, &words.concat()).await;
        (words, outcome, started.elapsed())
    });
    for (words, outcome, took) in futures::future::join_all(runs).await {
        assert_eq!(outcome.code, Some(69), "{words:?}: {outcome:?}");
        assert!(took < LATE, "{words:?}: {took:?}");
        assert!(outcome.stderr.contains("answer"), "{words:?}: {outcome:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_open_files_ends_exec_with_the_cause() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    // With more descriptors it connects, and with fewer it does not start.
    let limits: Vec<u32> = (8..=20).collect();
    let runs = limits.iter().map(|limit| {
        let shell = format!("ulimit -n {limit} && exec \"$@\"");
        let prefix = ["sh", "-c", &shell, "sh"];
        let command = prefixed(&prefix, &vhost, &["exec", LOCK, "--", "true"]);
        tokio::time::timeout(Duration::from_mins(1), outcome(command))
    });
    let mut named = 0;
    for (limit, outcome) in limits.iter().zip(futures::future::join_all(runs).await) {
        let outcome = outcome.unwrap_or_else(|_| panic!("it goes on with {limit} files"));
        if outcome.stderr.contains("raise the limit of this process") {
            named += 1;
            assert_eq!(outcome.code, Some(69), "{limit}: {outcome:?}");
        }
    }
    assert!(named > 0, "at no limit was a connection refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_reports_a_connection_limit_and_waits_until_it_passes() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let limit = format!("vhost-limits/{}/max-connections", vhost.name);
    vhost.management.put(&limit, json!({"value": 0})).await;
    let scratch = Scratch::new();
    let waiting = lockkeeper(&vhost, &["exec", LOCK, "--", "sh", "-c", "exit 7"]);
    let mut waiting = Running::start(&scratch, "waiting", waiting);
    waiting.until_it_says("a limit of the broker is reached").await;
    let refused = run(&vhost, &["exec", LOCK, "--no-wait", "--", "true"]).await;
    assert_eq!(refused.code, Some(69), "{refused:?}");
    vhost.management.put(&limit, json!({"value": -1})).await;
    assert_eq!(waiting.code().await, Some(7), "{}", waiting.said());
}

async fn exec_reports_a_deleted_lock_and_waits_until_it_is_created_again(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    create(&place, 0).await;
    let scratch = Scratch::new();
    let waiting = lockkeeper(&place, &["exec", LOCK, "--", "sh", "-c", "exit 7"]);
    let mut waiting = Running::start(&scratch, "waiting", waiting);
    waiting.until_it_says("waiting for a ").await;
    eventually("it is in the wait queue", async || {
        let queue = place.queue(&place.wait_queue()).await.unwrap();
        queue["consumer_details"].as_array().is_some_and(|consumers| !consumers.is_empty())
    })
    .await;
    succeed(&place, &["semaphore", "destroy", LOCK, "--yes"]).await;
    waiting.until_it_says("it was deleted, and must be created again").await;
    create(&place, 1).await;
    assert_eq!(waiting.code().await, Some(7), "{}", waiting.said());
}
