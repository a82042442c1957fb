//! `lockkeeper hold`, for users and scripts that do their work elsewhere.

use std::process::Stdio;

use lockkeeper_testkit::environment::signal;
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use lockkeeper_testkit::redis::free_port;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::exec::{LOCK, create, lockkeeper, run};

#[tokio::test(flavor = "multi_thread")]
async fn hold_reports_when_it_holds_and_when_it_has_released() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let mut hold = lockkeeper(&vhost, &["hold", LOCK]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(hold.stdout.take().unwrap()).lines();
    let mut line = async || lines.next_line().await.unwrap();
    assert_eq!(line().await.as_deref(), Some("holding slot 1 of ci.deploy"));
    let full = run(&vhost, &["hold", LOCK, "--no-wait"]).await;
    assert_eq!(full.code, Some(75), "{full:?}");
    signal(hold.id().unwrap(), "TERM");
    assert_eq!(line().await.as_deref(), Some("released slot 1 of ci.deploy"));
    assert_eq!(hold.wait().await.unwrap().code(), Some(0));
}

/// Otherwise the loss of a log would be the loss of the lock.
#[tokio::test(flavor = "multi_thread")]
async fn hold_keeps_its_slot_if_a_message_cannot_be_written() {
    let vhost = Vhost::create().await;
    create(&vhost, 2).await;
    let (reader, nobody_reads) = std::io::pipe().unwrap();
    drop(reader);
    let start = |on_drain: &str, stderr: Stdio| {
        let arguments = ["hold", LOCK, "--heartbeat", "2s", "--on-drain", on_drain];
        lockkeeper(&vhost, &arguments).stderr(stderr).spawn().unwrap()
    };
    let mut kept = start("finish", Stdio::from(nobody_reads));
    let mut lines = BufReader::new(kept.stdout.take().unwrap()).lines();
    assert!(lines.next_line().await.unwrap().unwrap().starts_with("holding slot"));
    let mut other = start("stop", Stdio::null());
    let mut others = BufReader::new(other.stdout.take().unwrap()).lines();
    assert!(others.next_line().await.unwrap().unwrap().starts_with("holding slot"));
    let set = run(&vhost, &["semaphore", "set", LOCK, "0", "--no-wait"]).await;
    assert_eq!(set.code, Some(0), "{set:?}");
    // Both are notified at the same time. This one says so on its standard output.
    assert!(others.next_line().await.unwrap().unwrap().starts_with("released slot"));
    assert_eq!(other.wait().await.unwrap().code(), Some(0));
    assert!(kept.try_wait().unwrap().is_none(), "it still holds its slot");
    signal(kept.id().unwrap(), "TERM");
    assert!(lines.next_line().await.unwrap().unwrap().starts_with("released slot"));
    assert_eq!(kept.wait().await.unwrap().code(), Some(0));
}

/// Deletes the mutex under its holder.
pub async fn end_the_mutex(vhost: &Vhost) {
    let definition = serde_json::json!({
        "pattern": "^ci.one$", "definition": {"expires": 1}, "apply-to": "queues"
    });
    vhost.management.put(&format!("policies/{}/gone", vhost.name), definition).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_reports_the_loss_of_its_mutex() {
    let vhost = Vhost::create().await;
    let arguments = ["hold", "--mutex", "ci.one", "--heartbeat", "2s"];
    let mut hold = lockkeeper(&vhost, &arguments).spawn().unwrap();
    let mut lines = BufReader::new(hold.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("holding ci.one"));
    end_the_mutex(&vhost).await;
    let output = hold.wait_with_output().await.unwrap();
    assert_eq!(output.status.code(), Some(80), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("ci.one was lost"), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_releases_a_draining_slot_if_it_is_to_and_else_keeps_it() {
    let vhost = Vhost::create().await;
    create(&vhost, 2).await;
    let mut holds = Vec::new();
    for on_drain in ["finish", "stop"] {
        let arguments = ["hold", LOCK, "--heartbeat", "2s", "--on-drain", on_drain];
        let mut hold = lockkeeper(&vhost, &arguments).spawn().unwrap();
        let mut lines = BufReader::new(hold.stdout.take().unwrap()).lines();
        assert!(lines.next_line().await.unwrap().unwrap().starts_with("holding slot"));
        holds.push((hold, lines));
    }
    let shrunk = run(&vhost, &["semaphore", "shrink", LOCK, "2", "--no-wait"]).await;
    assert_eq!(shrunk.code, Some(0), "{shrunk:?}");
    let (stopping, mut lines) = holds.pop().unwrap();
    assert!(lines.next_line().await.unwrap().unwrap().starts_with("released slot"));
    let output = stopping.wait_with_output().await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("is draining"), "{output:?}");
    let (mut keeping, mut lines) = holds.pop().unwrap();
    let mut said = BufReader::new(keeping.stderr.take().unwrap()).lines();
    assert!(said.next_line().await.unwrap().unwrap().contains("is draining"));
    assert!(keeping.try_wait().unwrap().is_none(), "it holds until a signal");
    signal(keeping.id().unwrap(), "TERM");
    assert!(lines.next_line().await.unwrap().unwrap().starts_with("released slot"));
    assert_eq!(keeping.wait().await.unwrap().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_reports_a_loss_and_stays_until_a_signal_if_it_is_only_to_warn() {
    let vhost = Vhost::create().await;
    let arguments = ["hold", "--mutex", "ci.one", "--heartbeat", "2s", "--on-lost", "warn"];
    let mut hold = lockkeeper(&vhost, &arguments).spawn().unwrap();
    let mut lines = BufReader::new(hold.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("holding ci.one"));
    end_the_mutex(&vhost).await;
    let mut said = BufReader::new(hold.stderr.take().unwrap()).lines();
    assert!(said.next_line().await.unwrap().unwrap().contains("ci.one was lost"));
    assert!(hold.try_wait().unwrap().is_none(), "only a warning");
    signal(hold.id().unwrap(), "TERM");
    assert_eq!(hold.wait().await.unwrap().code(), Some(80));
}

/// Returns the status of these two probes.
async fn probed(port: u16) -> [u16; 2] {
    let mut statuses = [0; 2];
    for (status, path) in statuses.iter_mut().zip(["held", "lost"]) {
        let answer = reqwest::get(format!("http://127.0.0.1:{port}/{path}")).await;
        *status = answer.map_or(0, |answer| answer.status().as_u16());
    }
    statuses
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_succeed_only_while_the_lock_is_held() {
    let vhost = Vhost::create().await;
    let port = free_port();
    let listen = format!("--listen=127.0.0.1:{port}");
    let first = ["hold", "--mutex", "ci.one", "--heartbeat", "2s"];
    let mut first = lockkeeper(&vhost, &first).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(first.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("holding ci.one"));
    let arguments =
        ["hold", "--mutex", "ci.one", "--heartbeat", "2s", "--on-lost", "warn", &listen];
    let mut hold = lockkeeper(&vhost, &arguments).spawn().unwrap();
    eventually("it waits", async || probed(port).await == [503, 200]).await;
    let taken = run(&vhost, &["hold", "--mutex", "ci.one", "--no-wait", &listen]).await;
    assert_eq!(taken.code, Some(69), "{taken:?}");
    assert!(taken.stderr.contains("Address already in use"), "{taken:?}");

    signal(first.id().unwrap(), "TERM");
    first.wait().await.unwrap();
    eventually("it holds", async || probed(port).await == [200, 200]).await;
    end_the_mutex(&vhost).await;
    eventually("it has lost the mutex", async || probed(port).await == [503, 503]).await;
    signal(hold.id().unwrap(), "TERM");
    assert_eq!(hold.wait().await.unwrap().code(), Some(80));
}
